"""Calls and notices that answer each other in a loop are cut, and the daemon hardly notices."""

import statistics

import pytest

from tests.live.daemon_process import Daemon, Refused, until

LOOPS = '''
plugin.announces("loops:rang", "It rang.")
plugin.announces("loops:split", "It split in two.")

@plugin.handles("loops:self")
async def self_call(ctx: Context, params: Nothing) -> Done:
    """Call itself."""
    await ctx.call("loops:self")
    return Done()

@plugin.handles("loops:fan")
async def fan(ctx: Context, params: Nothing) -> Done:
    """Call itself many times at once."""
    await asyncio.gather(*(ctx.call("loops:fan") for _ in range(3)))
    return Done()

@plugin.handles("loops:ping")
async def ping(ctx: Context, params: Nothing) -> Done:
    """Call pong."""
    await ctx.call("pong:pong")
    return Done()

@plugin.handles("loops:swallow")
async def swallow(ctx: Context, params: Nothing) -> Done:
    """Call itself and never mind what comes back."""
    with contextlib.suppress(Exception):
        await ctx.call("loops:swallow")
    return Done()

@plugin.handles("loops:ring")
async def ring(ctx: Context, params: Nothing) -> Done:
    """Ring once."""
    ctx.notify("loops:rang")
    return Done()

@plugin.on("loops:rang")
async def again(ctx: Context, notice: Notice) -> None:
    ctx.notify("loops:rang")

@plugin.handles("loops:divide")
async def divide(ctx: Context, params: Nothing) -> Done:
    """Split once."""
    ctx.notify("loops:split")
    return Done()

@plugin.on("loops:split")
async def twice(ctx: Context, notice: Notice) -> None:
    ctx.notify("loops:split")
    ctx.notify("loops:split")

@plugin.on("loops:bounced")
async def bounce(ctx: Context, notice: Notice) -> None:
    await ctx.call("loops:bounce")

plugin.announces("loops:bounced", "It bounced.")

@plugin.handles("loops:bounce")
async def bounced(ctx: Context, params: Nothing) -> Done:
    """Bounce: the notice's listener calls this again."""
    ctx.notify("loops:bounced")
    return Done()
'''

PONG = '''
@plugin.handles("pong:pong")
async def pong(ctx: Context, params: Nothing) -> Done:
    """Call ping."""
    await ctx.call("loops:ping")
    return Done()
'''


@pytest.fixture
def looping(daemon: Daemon) -> Daemon:
    daemon.plugin("loops", LOOPS)
    daemon.plugin("pong", PONG)
    return daemon.start()


@pytest.mark.parametrize("event", ["loops:self", "loops:ping"])
def test_calls_that_call_each_other_are_cut_at_depth_sixteen(looping: Daemon, event: str) -> None:
    """D08"""
    with pytest.raises(Refused) as refused:
        looping.call(event)
    assert refused.value.code == "too_deep"
    calls = looping.call("monitor:get_events", {"event_patterns": ["loops:*", "pong:*"], "limit": 1000})["events"]
    assert max(call["depth"] for call in calls) == 17
    assert {call["outcome"] for call in calls} == {"too_deep"}
    assert looping.health_s() <= 0.5


def test_a_handler_that_swallows_the_refusal_still_ends(looping: Daemon) -> None:
    """D08"""
    assert looping.call("loops:swallow") == {"done": True}


def test_calls_that_fan_out_in_a_loop_end_at_their_deadline_or_depth_and_others_are_served(looping: Daemon) -> None:
    """D08"""
    with looping.connect(wait_s=15) as connection:
        request = connection.post("loops:fan", timeout_s=2)
        times = sorted(looping.health_s() for _ in range(5))
        assert connection.answer(request)["error"]["code"] in ("too_deep", "timed_out", "too_many")
    assert statistics.median(times) <= 0.5
    until(lambda: looping.call("system:status")["calls_in_flight"] == 0, what="nothing of it goes on")


@pytest.mark.parametrize(("event", "notice"), [("loops:ring", "loops:rang"), ("loops:bounce", "loops:bounced")])
def test_a_listener_that_sends_its_own_notice_again_is_cut_at_depth_sixteen(
    looping: Daemon, event: str, notice: str
) -> None:
    """D08"""
    with looping.connect() as connection:
        connection.call("message:subscribe", {"patterns": [notice]})
        connection.call(event)
        depths = [connection.notice()["depth"]]
        while depths[-1] < 15:
            depths.append(connection.notice()["depth"])
    until(lambda: _failed(looping, notice) == 1, what="the listener was refused once")
    assert max(depths) <= 16
    assert looping.health_s() <= 0.5


def _failed(daemon: Daemon, pattern: str) -> int:
    subscriptions = daemon.call("plugin:inspect", {"name": "loops"})["subscriptions"]
    return int(next(one["failed"] for one in subscriptions if one["pattern"] == pattern))


def test_notices_that_double_themselves_are_bounded_and_the_daemon_answers_meanwhile(looping: Daemon) -> None:
    """D08"""
    looping.call("loops:divide")
    times = [looping.health_s() for _ in range(9)]
    assert statistics.median(times) <= 0.5
    until(lambda: _waiting(looping) == 0, what="it dies out")
    assert looping.call("loops:swallow") == {"done": True}


def _waiting(daemon: Daemon) -> int:
    return sum(one["waiting"] for one in daemon.call("plugin:inspect", {"name": "loops"})["subscriptions"])


CROWD = '''
plugin.announces("crowd:heard", "One of many heard it.")
heard = 0

class Count(Result):
    heard: int

@plugin.handles("crowd:count")
async def count(ctx: Context, params: Nothing) -> Count:
    """How often anyone heard it."""
    return Count(heard=heard)

def one_more():
    @plugin.on("storm:blew")
    async def listen(ctx: Context, notice: Notice) -> None:
        global heard
        heard += 1

for _ in range(1_000):
    one_more()
'''


def test_a_thousand_listeners_on_one_event_all_hear_it_and_the_daemon_answers_meanwhile(daemon: Daemon) -> None:
    """D08"""
    daemon.plugin("crowd", CROWD)
    daemon.start()
    with daemon.connect() as connection:
        requests = [connection.post("message:publish", {"event": "storm:blew"}) for _ in range(100)]
        times = [daemon.health_s() for _ in range(9)]
        for request in requests:
            assert connection.answer(request)["data"]["matched"] == 1_000
        assert statistics.median(times) <= 0.5
        until(lambda: connection.call("crowd:count")["heard"] == 100_000, what="everyone heard everything")
