"""Notices on their way: who hears what, what happens to a subscriber that cannot keep up, and that every notice is accounted for."""

import asyncio

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ksi_daemon.errors import Invalid, NotFound
from ksi_daemon.identifiers import EVENT_NAME, PATTERN
from ksi_daemon.notice import Notice
from ksi_daemon.plugin import Context, Field, Params, Plugin
from ksi_daemon.routing.bus import ALL_WAITING_LIMIT_BYTES, PATTERNS_LIMIT, Bus, Mailbox
from ksi_daemon.testing import TestHub, running
from tests.in_process import Said, log_lines, soon, take_clock, until


def notice(event: str = "agent:spawned") -> Notice:
    return Notice(event=event, raw=msgspec.Raw(b"{}"), sender="test", origin="here", correlation_id="c")


class Times(Params):
    """How many notices to send."""

    times: int = Field(1, description="How often.")


def flooding() -> Plugin:
    """A plugin that sends as many notices as it is told to, without ever waiting."""
    plugin = Plugin("flood")
    plugin.announces("flood:came", "A drop.")

    @plugin.handles("flood:send", timeout_s=60)
    async def send(ctx: Context, params: Times) -> Said:
        """Send many notices."""
        for number in range(params.times):
            ctx.notify("flood:came", {"number": number})
        return Said()

    return plugin


async def counts(hub: TestHub, plugin: str) -> dict[str, int]:
    """The counters of a plugin's one subscription."""
    (subscription,) = (await hub.call("plugin:inspect", name=plugin))["subscriptions"]
    return dict(subscription)


def oracle(pattern: str, event: str) -> bool:
    """What a pattern means, told in another way than the daemon does."""
    if pattern == "*":
        return True
    wanted, named = pattern.split(":"), event.split(":")
    return wanted[0] == named[0] and wanted[1] in ("*", named[1])


@given(
    st.lists(
        st.lists(st.from_regex(PATTERN, fullmatch=True) | st.sampled_from(["*", "a:*", "b:*", "a:b"]), max_size=4),
        max_size=5,
    ),
    st.from_regex(EVENT_NAME, fullmatch=True) | st.sampled_from(["a:b", "a:c", "b:b"]),
)
def test_exactly_the_subscribers_with_a_matching_pattern_hear_a_notice_and_each_hears_it_once(
    subscribers: list[list[str]], event: str
) -> None:
    bus = Bus(10)
    boxes = [bus.open(str(number)) for number, _ in enumerate(subscribers)]
    bus.deliver(notice(event))  # nobody subscribed yet: a route that was worked out must not stay
    for box, patterns in zip(boxes, subscribers, strict=True):
        box.subscribe(patterns)
    expected = [any(oracle(pattern, event) for pattern in patterns) for patterns in subscribers]
    assert bus.deliver(notice(event)) == (sum(expected), 0)
    assert [len(box.waiting) for box in boxes] == [int(hears) for hears in expected]
    for box, patterns in zip(boxes, subscribers, strict=True):
        box.unsubscribe(patterns)
    assert bus.deliver(notice(event)) == (0, 0)


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "agent",
        "agent:",
        ":spawned",
        "agent:sp*",
        "a*",
        "**",
        "*:*",
        "*:spawned",
        "Agent:*",
        "a:b:c",
        "a:b ",
        "x" * 90 + ":*",
    ],
)
def test_what_is_no_pattern_is_refused_and_nothing_of_the_list_is_taken(pattern: str) -> None:
    box = Bus(10).open("one")
    with pytest.raises(Invalid):
        box.subscribe(["agent:*", pattern])
    assert box.patterns == set()


def test_a_subscriber_has_a_bounded_number_of_patterns() -> None:
    box = Bus(10).open("one")
    box.subscribe(f"agent:event_{number}" for number in range(PATTERNS_LIMIT))
    box.subscribe(["agent:event_1"])
    with pytest.raises(Invalid, match=str(PATTERNS_LIMIT)):
        box.subscribe(["agent:one_more"])
    assert len(box.patterns) == PATTERNS_LIMIT


def test_a_full_mailbox_drops_the_newcomer_keeps_the_order_and_counts() -> None:
    bus = Bus(2)
    box, other = bus.open("one"), bus.open("other")
    box.subscribe(["*"])
    sent = [notice() for _ in range(5)]
    assert [bus.deliver(one) for one in sent] == [(1, 0), (1, 0), (1, 1), (1, 1), (1, 1)]
    assert list(box.waiting) == sent[:2]
    assert (box.dropped, other.dropped, bus.dropped) == (3, 0, 3)


def test_what_waits_when_a_mailbox_closes_counts_as_dropped_and_its_name_is_free_again() -> None:
    bus = Bus(5)
    box = bus.open("one")
    with pytest.raises(ValueError, match="already open"):
        bus.open("one")
    box.subscribe(["*"])
    for _ in range(3):
        bus.deliver(notice())
    box.close()
    assert (box.dropped, bus.dropped, bus.mailboxes()) == (3, 3, [])
    assert bus.deliver(notice()) == (0, 0)
    again = bus.open("one")
    box.close()
    assert bus.mailbox("one") is again


def test_names_of_events_that_are_made_up_do_not_fill_the_memory() -> None:
    bus = Bus(1)
    bus.open("one").subscribe(["*"])
    for number in range(25_000):
        bus.deliver(notice(f"made:up_{number}"))
    assert len(bus._routes) <= 10_001


async def test_taking_waits_for_a_notice_and_a_cancelled_wait_loses_none() -> None:
    bus = Bus(5)
    box = bus.open("one")
    box.subscribe(["*"])
    for _ in range(3):
        waiter = asyncio.create_task(box.take())
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
    sent = notice()
    bus.deliver(sent)
    assert await soon(box.take()) is sent
    assert box.delivered == 1


async def test_a_wait_that_is_cancelled_just_as_a_notice_arrives_loses_none() -> None:
    bus = Bus(5)
    box = bus.open("one")
    box.subscribe(["*"])
    waiter = asyncio.create_task(box.take())
    await asyncio.sleep(0)
    bus.deliver(notice())
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    assert (box.delivered, len(box.waiting)) == (0, 1)
    await soon(box.take())


@settings(max_examples=50)
@given(st.lists(st.sampled_from(["send", "take", "resubscribe"]), max_size=60), st.integers(1, 5))
def test_delivered_waiting_and_dropped_are_together_what_was_sent(steps: list[str], limit: int) -> None:
    """L06."""

    async def walk() -> None:
        bus = Bus(limit)
        box: Mailbox = bus.open("one")
        box.subscribe(["*"])
        sent = 0
        for step in steps:
            if step == "send":
                bus.deliver(notice())
                sent += 1
            elif step == "take" and box.waiting:
                await box.take()
            else:
                box.subscribe(["agent:*"])
        assert box.delivered + len(box.waiting) + box.dropped == sent
        box.close()
        assert box.delivered + bus.dropped == sent

    asyncio.run(walk())


# --- listeners of plugins


async def test_a_listener_hears_its_pattern_and_nothing_else() -> None:
    plugin = flooding()
    heard: list[tuple[str, str]] = []

    def hear(pattern: str) -> None:
        async def listen(ctx: Context, told: Notice) -> None:
            heard.append((pattern, told.event))

        plugin.on(pattern)(listen)

    for pattern in ("flood:came", "flood:*", "*", "state:*", "flood:went"):
        hear(pattern)
    async with running(plugin) as hub:
        await hub.call("flood:send")
        await hub.call("state:set", key="k", value=1)
        await until(lambda: len(heard) >= 5)
        await asyncio.sleep(0)
        from_start = {pair for pair in heard if not pair[1].startswith("plugin:")}
        assert from_start == {
            ("flood:came", "flood:came"),
            ("flood:*", "flood:came"),
            ("*", "flood:came"),
            ("*", "state:changed"),
            ("state:*", "state:changed"),
        }


async def test_a_slow_listener_loses_only_its_own_notices_and_the_loss_is_visible() -> None:
    """L06: promise 6, a dropped notice is counted."""
    slow, quick = Plugin("slow"), Plugin("quick")
    release = asyncio.Event()
    got: list[int] = []

    @slow.on("flood:*")
    async def dawdle(ctx: Context, told: Notice) -> None:
        await release.wait()

    @quick.on("flood:*")
    async def hurry(ctx: Context, told: Notice) -> None:
        got.append(told.data["number"])

    async with running(flooding(), slow, quick, notice_inbox=10) as hub:
        for _ in range(10):
            await hub.call("flood:send", times=10)
            await until(lambda: not hub.hub.loader.running["quick"].subscriptions[0].mailbox.waiting)
        assert got == list(range(10)) * 10
        slow_counts, quick_counts = await counts(hub, "slow"), await counts(hub, "quick")
        assert quick_counts["dropped"] == 0
        assert slow_counts["delivered"] + slow_counts["waiting"] + slow_counts["dropped"] == 100
        assert slow_counts["dropped"] >= 89
        assert (await hub.call("system:health"))["dropped_notices"] == slow_counts["dropped"]
        assert (await hub.call("monitor:get_stats"))["dropped_notices"] == slow_counts["dropped"]
        release.set()


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        SystemExit(1),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        BaseException("x"),
        TimeoutError(),
        StopAsyncIteration(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_failing_listener_is_counted_logged_and_goes_on_hearing(error: BaseException) -> None:
    """D07 for listeners."""
    plugin = Plugin("sour")
    heard = 0

    @plugin.on("flood:*")
    async def fail(ctx: Context, told: Notice) -> None:
        nonlocal heard
        heard += 1
        raise error

    async with running(flooding(), plugin, raise_failures=False) as hub:
        await hub.call("flood:send", times=3)
        await until(lambda: heard == 3)
        await asyncio.sleep(0)
        told = await counts(hub, "sour")
        assert (told["delivered"], told["failed"], told["dropped"]) == (3, 3, 0)
        assert (await hub.call("plugin:inspect", name="sour"))["state"] == "running"
        assert sum(line["event"] == "listener failed unexpectedly" for line in log_lines(hub.hub.log.file.path)) == 3


@pytest.mark.parametrize("error", [ValueError("again"), NotFound("again")], ids=["broken", "refused"])
async def test_a_flood_of_one_failure_does_not_become_a_flood_in_the_log(error: Exception) -> None:
    plugin = Plugin("sour")

    @plugin.on("flood:*")
    async def fail(ctx: Context, told: Notice) -> None:
        raise error

    async with running(flooding(), plugin, raise_failures=False) as hub:
        await hub.call("flood:send", times=900)
        await until(lambda: hub.hub.loader.running["sour"].subscriptions[0].failed == 900)
        assert sum("listener" in line["event"] for line in log_lines(hub.hub.log.file.path)) <= 20


async def test_a_listener_that_hangs_is_cut_at_the_deadline_and_hears_the_next_one() -> None:
    plugin = Plugin("stuck")
    heard: list[int] = []

    @plugin.on("flood:*")
    async def hang(ctx: Context, told: Notice) -> None:
        heard.append(told.data["number"])
        if told.data["number"] == 0:
            await asyncio.Event().wait()

    async with running(flooding(), plugin, call_timeout_s=5, raise_failures=False) as hub:
        clock = take_clock(hub)
        await hub.call("flood:send", times=2)
        await until(lambda: heard == [0])
        clock.now_s += 5
        hub.hub.router.deadlines.sweep()
        await until(lambda: heard == [0, 1])
        assert (await counts(hub, "stuck"))["failed"] == 1


async def test_a_listener_that_notifies_into_its_own_full_inbox_does_not_wait_for_itself() -> None:
    """Trap 11."""
    plugin = flooding()
    finished = asyncio.Event()

    @plugin.on("flood:came")
    async def listen(ctx: Context, told: Notice) -> None:
        if told.depth == 1:
            for _ in range(50):
                ctx.notify("flood:came", {"number": -1})
            finished.set()

    async with running(plugin, notice_inbox=3) as hub:
        await hub.call("flood:send")
        await soon(finished.wait())
        await until(lambda: not hub.hub.loader.running["flood"].subscriptions[0].mailbox.waiting)
        told = await counts(hub, "flood")
        assert (told["delivered"], told["dropped"]) == (1 + 3, 47)


async def test_a_flood_leaves_the_hub_answering_and_every_notice_accounted_for() -> None:
    """L06: delivered + dropped = sent, and health answers."""
    plugin = Plugin("thirsty")

    @plugin.on("flood:*")
    async def drink(ctx: Context, told: Notice) -> None:
        await asyncio.sleep(0)

    async with running(flooding(), plugin, notice_inbox=100) as hub:
        for _ in range(10):
            await hub.call("flood:send", times=1_000)
            await soon(hub.call("system:health"))
        await until(lambda: not hub.hub.loader.running["thirsty"].subscriptions[0].mailbox.waiting)
        told = await counts(hub, "thirsty")
        assert told["delivered"] + told["dropped"] == 10_000
        assert told["dropped"] > 0


async def test_a_listener_whose_notices_never_end_lets_others_have_their_turn() -> None:
    plugin = flooding()

    @plugin.on("flood:came")
    async def feed(ctx: Context, told: Notice) -> None:
        bus = hub.hub.router.bus
        bus.deliver(told)  # always one more, at the same depth: only the loop's fairness can help

    async with running(plugin) as hub:
        await hub.call("flood:send")
        for _ in range(20):
            await soon(hub.call("system:echo", text="my turn"))
        assert hub.hub.loader.running["flood"].subscriptions[0].mailbox.delivered > 0


async def test_a_thousand_listeners_of_one_notice_all_hear_it_while_the_hub_answers() -> None:
    """D08: 1,000 handlers on one event."""
    plugin = flooding()
    heard = 0

    async def listen(ctx: Context, told: Notice) -> None:
        nonlocal heard
        heard += 1

    for _ in range(1_000):
        plugin.on("flood:came")(listen)
    async with running(plugin) as hub:
        await hub.call("flood:send")
        assert await soon(hub.call("system:echo", text="hello"))
        await until(lambda: heard == 1_000)


def _large(event: str) -> Notice:
    raw = msgspec.Raw(b'"' + b"x" * 1_000_000 + b'"')
    return Notice(event=event, raw=raw, sender="test", origin="here", correlation_id="c", size=len(raw))


def test_all_mailboxes_together_are_bounded_and_the_fullest_loses_what_waits_in_it() -> None:
    """D04"""
    bus = Bus(1_000)
    deaf = [bus.open(f"deaf{number}") for number in range(20)]
    for number, box in enumerate(deaf):
        box.subscribe([f"deaf:n{number}"])
    keen = bus.open("keen")
    keen.subscribe(["keen:*"])
    sent = 0
    for _ in range(7):
        for number in range(20):
            bus.deliver(_large(f"deaf:n{number}"))
            sent += 1
            assert bus.waiting_bytes <= ALL_WAITING_LIMIT_BYTES
    assert bus.deliver(_large("keen:one")) == (1, 0)
    assert (len(keen.waiting), keen.dropped) == (1, 0)
    assert sum(box.dropped for box in deaf) == bus.dropped > 0
    assert sum(len(box.waiting) + box.dropped for box in deaf) == sent
    for box in (*deaf, keen):
        box.close()
    assert bus.waiting_bytes == 0


async def test_a_notice_that_waits_in_many_mailboxes_counts_once() -> None:
    """D04"""
    bus = Bus(1_000)
    boxes = [bus.open(f"box{number}") for number in range(200)]
    for box in boxes:
        box.subscribe(["*"])
    for _ in range(7):
        assert bus.deliver(_large("load:item")) == (200, 0)
    assert bus.waiting_bytes < 8_000_000
    for box in boxes:
        for _ in range(7):
            await box.take()
    assert bus.waiting_bytes == 0
