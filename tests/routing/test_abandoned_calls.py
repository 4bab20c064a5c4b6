"""Handlers that ignore their cancellation: the outcome row first, then the reply, and nothing of it twice when they end at last."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from ksi_daemon.errors import AuditUnavailable, KsiError
from ksi_daemon.plugin import Context, Nothing, Plugin
from ksi_daemon.routing.deadlines import CANCELLATIONS_LIMIT
from ksi_daemon.testing import TestHub, running
from tests.agents_at_work import add_agent, gate_of, rows, told
from tests.in_process import OPERATOR, Clock, Said, soon, take_clock, until


class Stubborn:
    """A plugin whose handler swallows every cancellation until it is released."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.entered = 0
        self.plugin = Plugin("stubborn")

        @self.plugin.handles("stubborn:wait")
        async def wait(ctx: Context, params: Nothing) -> Said:
            """Wait, whatever happens."""
            self.entered += 1
            while not self.release.is_set():
                with suppress(asyncio.CancelledError):
                    await self.release.wait()
            return Said(text="at last")

        @self.plugin.handles("stubborn:outer")
        async def outer(ctx: Context, params: Nothing) -> Said:
            """Call the other."""
            return Said(text=str(await ctx.call("stubborn:wait")))


@pytest.fixture
def stubborn() -> Stubborn:
    return Stubborn()


@pytest.fixture
async def hub(stubborn: Stubborn) -> AsyncIterator[TestHub]:
    async with running(stubborn.plugin) as found:
        yield found
        stubborn.release.set()


async def ignore_deadline(hub: TestHub, clock: Clock) -> None:
    """Let the deadline pass and every cancellation be swallowed."""
    clock.now_s += 3600
    for _ in range(CANCELLATIONS_LIMIT + 1):
        hub.hub.router.deadlines.sweep()
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_the_outcome_is_durable_before_the_caller_is_answered(hub: TestHub, stubborn: Stubborn) -> None:
    """L062, U04: an intent row alone would leave a call without an end."""
    clock = take_clock(hub)
    bot = await add_agent(hub, profile="trusted")
    answered: asyncio.Future[list[tuple[str, str, str]]] = asyncio.get_running_loop().create_future()
    reading: list[asyncio.Task[None]] = []

    def reply(error: KsiError) -> None:
        async def read() -> None:
            answered.set_result(told(await rows(hub, agent="bot", event="stubborn:wait")))

        assert error.code == "timed_out"
        reading.append(asyncio.create_task(read()))

    call = asyncio.create_task(hub.hub.router.call("stubborn:wait", {}, principal=bot, on_abandoned=reply))
    await until(lambda: stubborn.entered)
    await ignore_deadline(hub, clock)
    both = [("tool_call", "intent", "started"), ("tool_call", "outcome", "timed_out")]
    assert await soon(answered) == both
    assert gate_of(hub).slots.in_use("bot") == 0, "the agent has its slot back"
    assert hub.hub.router.in_flight == 1, "the plugin is still busy"
    assert any("ignore their cancellation" in alarm for alarm in (await hub.call("system:health"))["alarms"])
    stubborn.release.set()
    assert await soon(call) == b'{"text":"at last"}'
    assert told(await rows(hub, agent="bot", event="stubborn:wait")) == both
    assert hub.hub.router.in_flight == 0
    stats = (await hub.call("monitor:get_stats"))["calls"]["stubborn:wait"]
    assert (stats["calls"], stats["errors"]) == (1, 1)


async def test_a_call_inside_a_call_leaves_an_outcome_for_each(hub: TestHub, stubborn: Stubborn) -> None:
    clock = take_clock(hub)
    answered: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    call = asyncio.create_task(
        hub.hub.router.call(
            "stubborn:outer", {}, principal=OPERATOR, on_abandoned=lambda error: answered.set_result(error.code)
        )
    )
    await until(lambda: stubborn.entered)
    await ignore_deadline(hub, clock)
    assert await soon(answered) == "timed_out"
    for event in ("stubborn:wait", "stubborn:outer"):
        await until(lambda: not hub.hub.router._background)
        assert [row["status"] for row in await rows(hub, event=event)] == ["started", "timed_out"], event
    stubborn.release.set()
    await soon(call)


async def test_when_the_outcome_cannot_be_written_the_caller_is_told_that(
    hub: TestHub, stubborn: Stubborn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U02."""
    clock = take_clock(hub)
    answered: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    call = asyncio.create_task(
        hub.hub.router.call(
            "stubborn:wait", {}, principal=OPERATOR, on_abandoned=lambda error: answered.set_result(error.code)
        )
    )
    await until(lambda: stubborn.entered)

    async def unavailable(*_: object, **__: object) -> None:
        raise AuditUnavailable("no disk")

    with monkeypatch.context() as patched:
        patched.setattr(hub.hub.router.recorder, "outcome", unavailable)
        await ignore_deadline(hub, clock)
        assert await soon(answered) == "audit_unavailable"
    stubborn.release.set()
    await soon(call)
