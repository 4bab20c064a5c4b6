"""monitor:get_events, get_stats and get_correlation_chain: a bounded memory that says what it has let go."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ksi_daemon.errors import Invalid, NotFound
from ksi_daemon.logs.journal import DURATIONS_KEPT, NOTICE_DATA_LIMIT_BYTES, EventCounts
from ksi_daemon.notice import iso_time
from ksi_daemon.plugin import Context, Field, JsonValue, Nothing, Params, Plugin
from ksi_daemon.testing import TestHub, running
from tests.in_process import Said, call


class Told(Params):
    """What to tell."""

    data: dict[str, JsonValue] = Field({}, description="The notice's data.")


def telling() -> Plugin:
    plugin = Plugin("tell")
    plugin.announces("tell:told", "A thing was told.")

    @plugin.handles("tell:tell")
    async def tell(ctx: Context, params: Told) -> Said:
        """Tell."""
        ctx.notify("tell:told", params.data)
        return Said()

    @plugin.handles("tell:twice")
    async def twice(ctx: Context, params: Nothing) -> Said:
        """Tell twice."""
        await ctx.call("tell:tell")
        await ctx.call("tell:tell")
        return Said()

    return plugin


async def events(hub: TestHub, **data: Any) -> list[dict[str, Any]]:
    return list((await hub.call("monitor:get_events", **data))["events"])


async def test_a_call_is_remembered_with_who_when_how_long_and_how_it_ended() -> None:
    """K043."""
    async with running() as hub:
        before = time.time()
        await hub.call("system:echo", text="hi")
        (seen,) = await events(hub, event_patterns=["system:echo"])
        assert seen["kind"] == "call"
        assert (seen["event"], seen["principal"], seen["outcome"], seen["depth"]) == (
            "system:echo",
            "operator",
            "ok",
            0,
        )
        assert seen["result_bytes"] == len('{"text":"hi"}')
        assert 0 <= seen["duration_ms"] < 5_000
        assert before - 1 <= datetime.fromisoformat(seen["at"]).timestamp() <= time.time() + 1
        assert "data" not in seen, "what was sent may be secret"


async def test_a_notice_is_remembered_with_its_data_and_its_cause() -> None:
    async with running(telling()) as hub:
        await hub.call("tell:tell", data={"a": [1, {"b": None}]})
        call_seen, notice = await events(hub, event_patterns=["tell:*"])
        assert (notice["kind"], notice["event"], notice["data"]) == ("notice", "tell:told", {"a": [1, {"b": None}]})
        assert notice["parent_id"] == call_seen["id"]
        assert notice["correlation_id"] == call_seen["correlation_id"]
        assert notice["principal"] == "operator"


@pytest.mark.parametrize(("extra", "shown"), [(0, True), (1, False)])
async def test_data_too_large_to_show_is_named_by_its_size(extra: int, shown: bool) -> None:
    """Promise 6: nothing is silently cut."""
    text = "x" * (NOTICE_DATA_LIMIT_BYTES - len('{"x":""}') + extra)
    async with running(telling()) as hub:
        await hub.call("tell:tell", data={"x": text})
        (notice,) = await events(hub, event_patterns=["tell:told"])
        assert ("data" in notice) == shown
        assert notice.get("data_left_out_bytes") == (None if shown else NOTICE_DATA_LIMIT_BYTES + extra)


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["*"], ["tell:tell", "tell:told", "state:set", "state:changed", "no:where"]),
        (["tell:*"], ["tell:tell", "tell:told"]),
        (["state:set", "no:where"], ["state:set", "no:where"]),
        (["tell:*", "tell:told"], ["tell:tell", "tell:told"]),
        (["nothing:*"], []),
    ],
)
async def test_patterns_choose_events(patterns: list[str], expected: list[str]) -> None:
    async with running(telling()) as hub:
        await hub.call("tell:tell")
        await hub.call("state:set", key="k", value=1)
        with pytest.raises(Exception, match="no plugin owns"):
            await hub.call("no:where")
        seen = {
            event["event"]
            for event in await events(hub, event_patterns=patterns)
            if not event["event"].startswith("plugin:")
        }
        assert seen == set(expected)


async def test_the_newest_come_first_or_last_and_the_limit_keeps_the_newest() -> None:
    async with running() as hub:
        for number in range(5):
            await hub.call("system:echo", text="x" * number)
        sizes = [event["result_bytes"] for event in await events(hub, event_patterns=["system:echo"])]
        assert sizes == sorted(sizes, reverse=True)
        some = await hub.call("monitor:get_events", event_patterns=["system:echo"], limit=2, reverse=False)
        assert [event["result_bytes"] for event in some["events"]] == sizes[:2][::-1]
        assert some["matched"] == 5


async def test_the_ring_is_bounded_and_says_how_many_it_has_forgotten() -> None:
    """K043: a bounded ring."""
    async with running(monitor_events=100) as hub:
        journal = hub.hub.router.journal
        already = journal.size
        for _ in range(250):
            await hub.call("system:echo", text="x")
        found = await hub.call("monitor:get_events", limit=1000)
        assert len(found["events"]) == found["matched"] == 100
        assert found["forgotten"] == already + 250 - 100
        stats = await hub.call("monitor:get_stats")
        assert stats["ring"] == {"size": 100, "limit": 100, "forgotten": already + 250 + 1 - 100}
        assert stats["calls"]["system:echo"]["calls"] == 250


async def test_since_and_until_cut_out_a_span_in_iso_time_or_seconds_ago() -> None:
    async with running() as hub:
        for _ in range(3):
            await hub.call("system:echo", text="x")
        third, second, first = (event["at"] for event in await events(hub, event_patterns=["system:echo"]))
        only: dict[str, Any] = {"event_patterns": ["system:echo"]}
        assert [event["at"] for event in await events(hub, **only, since=second)] == [third, second]
        assert [event["at"] for event in await events(hub, **only, until=second)] == [second, first]
        assert [event["at"] for event in await events(hub, **only, since=second, until=second)] == [second]
        assert await events(hub, **only, since=third, until=first) == []
        assert len(await events(hub, **only, since=60)) == 3
        assert await events(hub, **only, until=60) == []
        with_zone = datetime.fromisoformat(second).astimezone(UTC) + timedelta(hours=2)
        shifted = with_zone.replace(tzinfo=None).isoformat() + "+02:00"
        assert len(await events(hub, **only, since=shifted)) == 2


async def test_a_long_call_that_began_before_the_span_hides_nothing_that_is_in_it() -> None:
    """Records are kept in the order calls end, but a span is about when they began."""
    plugin = Plugin("outer")

    @plugin.handles("outer:run")
    async def run(ctx: Context, params: Nothing) -> Said:
        """Call others."""
        await ctx.call("system:echo", {"text": "inner"})
        return Said()

    async with running(plugin) as hub:
        await hub.call("outer:run")
        (inner,) = await events(hub, event_patterns=["system:echo"])
        (outer,) = await events(hub, event_patterns=["outer:run"])
        assert outer["at"] <= inner["at"]
        if outer["at"] == inner["at"]:
            pytest.fail("the clock is too coarse for this test")
        since = await events(hub, event_patterns=["outer:run", "system:echo"], since=inner["at"])
        assert [event["event"] for event in since] == ["system:echo"]


@pytest.mark.parametrize(
    "data",
    [
        {"event_patterns": []},
        {"event_patterns": ["nonsense"]},
        {"event_patterns": ["a:*"] * 101},
        {"since": "yesterday"},
        {"until": "2026-13-01"},
        {"since": "9" * 500},
        {"since": [1]},
        {"limit": 0},
        {"limit": 1001},
        {"more": 1},
    ],
    ids=str,
)
async def test_a_question_that_makes_no_sense_is_invalid(data: dict[str, Any]) -> None:
    async with running() as hub:
        with pytest.raises(Invalid):
            await hub.call("monitor:get_events", **data)


@pytest.mark.parametrize(
    "moment", [1e300, -1e300, float("inf"), float("nan"), "0001-01-01T00:00:00+23:59", "9999-12-31"]
)
async def test_a_moment_at_the_end_of_time_is_answered_or_invalid_but_never_a_crash(moment: float | str) -> None:
    async with running() as hub:
        for name in ("since", "until"):
            try:
                await hub.call("monitor:get_events", **{name: moment})
            except Invalid:
                continue


async def test_stats_count_calls_errors_outcomes_and_notices() -> None:
    async with running(telling()) as hub:
        for _ in range(3):
            await hub.call("tell:tell")
        with pytest.raises(Invalid):
            await hub.call("tell:tell", wrong=1)
        with pytest.raises(NotFound):
            await hub.call("state:get", key="nothing")
        stats = await hub.call("monitor:get_stats")
        assert (stats["calls"]["tell:tell"]["calls"], stats["calls"]["tell:tell"]["errors"]) == (4, 1)
        assert 0 <= stats["calls"]["tell:tell"]["p50_ms"] <= stats["calls"]["tell:tell"]["p95_ms"]
        assert (stats["outcomes"]["ok"], stats["outcomes"]["invalid"], stats["outcomes"]["not_found"]) == (3, 1, 1)
        assert stats["notices"]["tell:told"] == 3
        assert stats["dropped_notices"] == 0
        assert "tell:twice" not in stats["calls"]


async def test_names_that_somebody_made_up_do_not_fill_the_counters() -> None:
    async with running() as hub:
        for number in range(300):
            with pytest.raises(Exception, match="no plugin owns"):
                await hub.call(f"made:up_{number}")
        stats = await hub.call("monitor:get_stats")
        assert not any(event.startswith("made:") for event in stats["calls"])
        assert stats["outcomes"]["unknown_event"] == 300


async def test_notices_that_somebody_made_up_do_not_fill_the_counters_without_bound() -> None:
    """L062: message:publish takes any free name; a million of them must not become a million counters."""
    async with running() as hub:
        for start in range(0, 3_000, 100):
            events = (f"made:up_{number}" for number in range(start, start + 100))
            await asyncio.gather(*(call(hub.hub.router, "message:publish", {"event": event}) for event in events))
        stats = await hub.call("monitor:get_stats")
        assert len(stats["notices"]) <= 2_000


async def test_a_chain_shows_everything_one_call_set_off_in_order() -> None:
    async with running(telling()) as hub:
        await call(hub.hub.router, "tell:twice", correlation_id="the-thread")
        await hub.call("tell:tell")
        chain = await hub.call("monitor:get_correlation_chain", correlation_id="the-thread")
        assert chain["correlation_id"] == "the-thread"
        assert [event["event"] for event in chain["events"]] == [
            "tell:twice",
            "tell:tell",
            "tell:told",
            "tell:tell",
            "tell:told",
        ]
        root, first_call, first_notice, second_call, second_notice = chain["events"]
        assert [event["depth"] for event in chain["events"]] == [0, 1, 2, 1, 2]
        assert (first_call["parent_id"], second_call["parent_id"]) == (root["id"], root["id"])
        assert (first_notice["parent_id"], second_notice["parent_id"]) == (first_call["id"], second_call["id"])


async def test_a_chain_that_nobody_remembers_is_not_found() -> None:
    async with running() as hub:
        with pytest.raises(NotFound):
            await hub.call("monitor:get_correlation_chain", correlation_id="never")
        with pytest.raises(Invalid):
            await hub.call("monitor:get_correlation_chain", correlation_id="x" * 65)


@settings(max_examples=60)
@given(st.lists(st.integers(0, 10**9), max_size=700), st.floats(0, 1))
def test_a_quantile_is_one_of_the_last_durations_by_nearest_rank(durations_us: list[int], share: float) -> None:
    counts = EventCounts()
    for duration in durations_us:
        counts.durations_us.append(duration)
    kept = sorted(durations_us[-DURATIONS_KEPT:])
    quantile = counts.quantile_ms(share)
    if not kept:
        assert quantile is None
    else:
        assert quantile is not None
        at_most = sum(duration / 1000 <= quantile for duration in kept)
        assert quantile in [duration / 1000 for duration in kept]
        assert at_most >= share * len(kept)


@given(st.integers(10**18, 2 * 10**18))
def test_a_time_as_it_is_shown_is_the_time_that_is_compared(nanoseconds: int) -> None:
    """Else `since=<at>` would now and then miss the very event it came from."""
    shown = iso_time(nanoseconds / 1_000_000_000)
    assert iso_time(datetime.fromisoformat(shown).timestamp()) == shown


async def test_every_event_is_found_again_by_the_time_it_was_shown_with() -> None:
    """Enough of them that a comparison of floats would be caught."""
    async with running() as hub:
        for _ in range(100):
            await hub.call("system:echo", text="x")
        for seen in await events(hub, event_patterns=["system:echo"]):
            found = await events(hub, event_patterns=["system:echo"], since=seen["at"], until=seen["at"])
            assert seen["id"] in [event["id"] for event in found]
