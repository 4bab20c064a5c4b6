"""A flood of refusals becomes few rows whose counts add up exactly."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ksi_daemon.audit import Entry
from ksi_daemon.audit.flood import BUDGET, KINDS_LIMIT, MANY_EVENTS, Flood
from ksi_daemon.audit.reading import Filter
from ksi_daemon.errors import AuditUnavailable
from tests.audit.conftest import FakeClock, Open, intent, until


def refusal(**fields: Any) -> Entry:
    return intent(None, **({"type": "authorization", "phase": "event", "status": "forbidden"} | fields))


async def test_refusals_within_the_budget_have_a_row_each_and_those_above_share_one(opened: Open) -> None:
    """L05: one exact-count row per agent, tool and second."""
    monotonic = FakeClock(1_000.2)
    async with opened(monotonic=monotonic) as audit:
        for _ in range(1_000):
            await audit.append_refusal(refusal())
        for _ in range(10):
            await audit.append_refusal(refusal(agent_id="quiet"))
        rows = (await audit.query(Filter(type="authorization"), limit=10_000)).rows
        assert len(rows) == BUDGET + 10
        monotonic.now_s += 1
        await audit.write_summaries()
        rows = (await audit.query(Filter(agent="a1"), limit=10_000)).rows
        assert (len(rows), rows[0]["count"], rows[0]["event"], rows[0]["status"]) == (51, 950, "state:set", "forbidden")
        assert (await audit.stats()).by_status["forbidden"] == 1_010


async def test_the_last_counts_are_written_at_the_end(opened: Open) -> None:
    async with opened(monotonic=FakeClock(5.5)) as audit:
        for _ in range(70):
            await audit.append_refusal(refusal())
    async with opened() as audit:
        assert (await audit.stats()).by_status["forbidden"] == 70


async def test_counts_are_written_by_themselves_when_their_second_is_over(opened: Open) -> None:
    async with opened() as audit:
        for _ in range(300):
            await audit.append_refusal(refusal())
        await until(lambda: not audit._flood.has_counts)
        await audit.append(refusal(status="after"))  # its turn comes after theirs
        assert (await audit.stats()).by_status["forbidden"] == 300


async def test_counts_that_cannot_be_written_are_kept(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monotonic = FakeClock(5.5)
    async with opened(monotonic=monotonic) as audit:
        for _ in range(BUDGET + 20):
            await audit.append_refusal(refusal())
        monotonic.now_s += 1
        with monkeypatch.context() as broken:
            broken.setattr(audit._writer, "problem", "broken")
            with pytest.raises(AuditUnavailable):
                await audit.write_summaries()
        await audit.write_summaries()
        assert (await audit.stats()).by_status["forbidden"] == BUDGET + 20


def test_invented_event_names_do_not_become_a_row_each() -> None:
    """L05."""
    flood = Flood()
    taken = sum(flood.count_over_budget(refusal(event=f"x:y{number}"), now=1.0, time_s=1.0) for number in range(5_000))
    summaries = flood.take_due(2.0)
    assert taken == 5_000 - BUDGET == sum(summary.count for summary in summaries)
    assert len(summaries) == KINDS_LIMIT + 1
    assert summaries[-1].event == MANY_EVENTS


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), st.integers(0, 1), st.floats(0, 0.4)), max_size=300
    )
)
def test_counts_always_add_up(refusals: list[tuple[str, str, int, float]]) -> None:
    flood, now, rows, counted = Flood(budget=5), 0.0, 0, 0
    for agent, event, status, pause in refusals:
        now += pause
        entry = refusal(agent_id=agent, event=event, status=("forbidden", "too_many")[status])
        rows += not flood.count_over_budget(entry, now=now, time_s=now)
        if event == "x":
            counted += sum(summary.count for summary in flood.take_due(now))
    counted += sum(summary.count for summary in flood.take_due(now + 1))
    assert rows + counted == len(refusals)
    assert not flood.has_counts
