"""Questions to the record: filters, order, paging, figures."""

import pytest

from ksi_daemon.audit import Audit
from ksi_daemon.audit.reading import Filter
from ksi_daemon.errors import Invalid
from tests.audit.conftest import FakeClock, Open, happening, intent, outcome


async def fill(audit: Audit, clock: FakeClock) -> None:
    for number in range(10):
        clock.now_s += 60
        await audit.append(
            intent(f"c{number}", agent_id=f"a{number % 2}", session_id=f"s{number % 3}", tool="ksi_state_set")
        )
        await audit.append(
            outcome(
                f"c{number}",
                agent_id=f"a{number % 2}",
                session_id=f"s{number % 3}",
                duration_ms=float(number),
                tool="ksi_state_set",
            )
        )
    await audit.append(intent(None, type="authorization", phase="event", status="forbidden", count=5, agent_id="a9"))
    await audit.append(happening(type="error", status="internal"))


async def test_rows_are_found_by_who_what_how_and_when_newest_first(opened: Open) -> None:
    """L058."""
    clock = FakeClock()
    async with opened(clock=clock) as audit:
        await fill(audit, clock)

        async def found(**wanted: object) -> list[int]:
            return [row["seq"] for row in (await audit.query(Filter(**wanted), limit=1000)).rows]  # type: ignore[arg-type]

        assert await found() == list(range(23, 0, -1))
        assert await found(agent="a9") == [22]
        assert len(await found(agent="a0")) == 10
        assert len(await found(session_id="s2")) == 6
        assert await found(type="error") == [23]
        assert await found(status="forbidden") == [22]
        assert len(await found(event="state:set")) == 21
        assert len(await found(event="ksi_state_set")) == 20
        assert await found(call_id="c3") == [9, 8]
        assert await found(since=clock.now_s - 60, until=clock.now_s) == [19, 18]
        assert await found(agent="a0", phase="outcome", since=clock.now_s - 120) == [19]
        assert await found(after=20) == [23, 22, 21]
        assert await found(before=3) == [2, 1]
        assert await found(agent="\ud800' OR 1=1 --") == []
        assert await found(after=2**80) == []


async def test_a_page_says_whether_there_is_more_and_goes_on_from_a_row(opened: Open) -> None:
    clock = FakeClock()
    async with opened(clock=clock) as audit:
        await fill(audit, clock)
        page = await audit.query(Filter(), limit=20)
        assert (len(page.rows), page.more) == (20, True)
        rest = await audit.query(Filter(before=page.rows[-1]["seq"]), limit=20)
        assert ([row["seq"] for row in rest.rows], rest.more) == ([3, 2, 1], False)
        following = await audit.query(Filter(after=21), order="oldest")
        assert [row["seq"] for row in following.rows] == [22, 23]
        with pytest.raises(Invalid):
            await audit.query(Filter(), limit=0)
        with pytest.raises(Invalid):
            await audit.query(Filter(since=1e300))


async def test_figures_count_a_call_once_and_a_summary_as_often_as_it_says(opened: Open) -> None:
    """L059."""
    clock = FakeClock()
    async with opened(clock=clock) as audit:
        await fill(audit, clock)
        stats = await audit.stats()
        assert stats.total_events == 1 + 10 + 5 + 1
        assert stats.by_type == {"system": 1, "tool_call": 10, "authorization": 5, "error": 1}
        assert stats.by_status == {"ok": 11, "forbidden": 5, "internal": 1}
        assert (stats.unique_sessions, stats.avg_tool_duration_ms, stats.rows) == (3, 4.5, 23)
        assert stats.error_rate == round(100 * 6 / 17, 3)
        assert (await audit.stats(Filter(agent="nobody"))).error_rate == 0.0


async def test_the_order_is_that_of_the_chain_whatever_the_clock_does(opened: Open) -> None:
    """F05."""
    clock = FakeClock()
    async with opened(clock=clock) as audit:
        for step in (3_600, -3_600, -10 * 365 * 86_400, 60 * 365 * 86_400):
            clock.now_s += step
            await audit.append(happening())
        assert [row["seq"] for row in (await audit.query(Filter())).rows] == [5, 4, 3, 2, 1]
        assert (await audit.verify()).ok


async def test_a_time_before_the_calendar_fails_only_its_own_entry(opened: Open) -> None:
    async with opened() as audit:
        with pytest.raises((ValueError, OverflowError, OSError)):
            await audit.append(happening(time_s=1e300))
        await audit.append(happening())
