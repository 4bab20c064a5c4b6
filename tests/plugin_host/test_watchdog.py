"""The watchdog: a handler that holds the event loop is named, interrupted, and costs one call."""

import asyncio
import signal
import threading
import time
from typing import Any

import pytest
import structlog

from ksi_daemon.errors import Internal
from ksi_daemon.notice import Notice
from ksi_daemon.plugin import Context, Nothing, Plugin
from ksi_daemon.plugin_host import watchdog
from ksi_daemon.testing import running
from tests.in_process import Said, call, log_lines, soon, until

HELD_S = 10.0  # far more than the watchdog allows here: only an interruption ends it


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "BEAT_S", 0.02)
    monkeypatch.setattr(watchdog, "BLOCKED_S", 0.2)


def hold() -> None:
    """Hold the loop, in Python's own bytecode."""
    end = time.monotonic() + HELD_S
    while time.monotonic() < end:
        pass


def hold_stubbornly() -> None:
    """Hold the loop and keep every ordinary exception to itself."""
    end = time.monotonic() + HELD_S
    while time.monotonic() < end:
        try:
            time.sleep(0.001)
        except Exception:  # noqa: BLE001, S112 - that is the point
            continue


@pytest.mark.parametrize(
    "block", [hold, hold_stubbornly, lambda: time.sleep(HELD_S)], ids=["computes", "swallows", "sleeps"]
)
async def test_a_handler_that_blocks_the_loop_is_interrupted_logged_and_costs_one_call(block: object) -> None:
    """D07: blocks the loop."""
    plugin = Plugin("blocker")

    @plugin.handles("blocker:block")
    async def handle(ctx: Context, params: Nothing) -> Said:
        """Block."""
        block()  # type: ignore[operator]
        return Said()

    async with running(plugin) as hub:
        await asyncio.sleep(0)
        started = time.monotonic()
        with pytest.raises(Internal):
            await hub.call("blocker:block")
        assert time.monotonic() - started < HELD_S / 2
        assert await soon(hub.call("system:echo", text="still here"))
        lines = log_lines(hub.hub.log.file.path)
        (blocked,) = [line for line in lines if line["event"] == "the event loop is blocked"]
        assert "test_watchdog" in blocked["stack"]
        (broke,) = [line for line in lines if line["event"] == "handler failed"]
        assert "in_thread or in_process" in broke["exception"]


async def test_a_listener_that_blocks_the_loop_is_interrupted_and_goes_on_hearing() -> None:
    plugin = Plugin("blocker")
    heard: list[str] = []

    @plugin.on("free:*")
    async def listen(ctx: Context, notice: Notice) -> None:
        heard.append(notice.event)
        if notice.event == "free:block":
            hold()

    async with running(plugin, raise_failures=False) as hub:
        for event in ("free:block", "free:next"):
            await call(hub.hub.router, "message:publish", {"event": event})
        await until(lambda: heard == ["free:block", "free:next"])
        (subscription,) = (await hub.call("plugin:inspect", name="blocker"))["subscriptions"]
        assert (subscription["failed"], subscription["delivered"]) == (1, 2)


async def test_health_shows_the_lag_of_the_loop() -> None:
    plugin = Plugin("slowish")

    @plugin.handles("slowish:hold")
    async def handle(ctx: Context, params: Nothing) -> Said:
        """Hold the loop for a moment, within what is allowed."""
        end = time.monotonic() + 0.1
        while time.monotonic() < end:
            pass
        return Said()

    async with running(plugin) as hub:
        await asyncio.sleep(0)
        await hub.call("slowish:hold")
        dog = next(one for one in hub.hub.loader._inner.values() if isinstance(one, watchdog.Watchdog))
        await until(lambda: dog.lag_s > 0.05)
        assert (await hub.call("system:health"))["loop_lag_ms"] > 50
        assert dog.interruptions == 0


async def test_a_stray_signal_interrupts_nothing() -> None:
    async with running() as hub:
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR2)
        assert await hub.call("system:echo", text="unharmed")


async def test_code_of_the_daemon_itself_is_never_interrupted() -> None:
    async with running() as hub:
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            pass
        assert await hub.call("system:echo", text="unharmed")
        assert any(line["event"] == "the event loop is blocked" for line in log_lines(hub.hub.log.file.path))


async def test_the_signal_and_the_thread_are_given_back_at_the_end() -> None:
    before = signal.getsignal(signal.SIGUSR2)
    async with running():
        assert signal.getsignal(signal.SIGUSR2) != before
    assert signal.getsignal(signal.SIGUSR2) == before
    await until(lambda: not any(thread.name == "watchdog" for thread in threading.enumerate()))


async def test_its_thread_has_ended_before_the_signal_loses_its_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """L03: a signal that came after that ended the whole process (exit 140) in one of seven runs."""
    restored: list[bool] = []
    original = signal.signal

    def watched(number: int, handler: Any) -> Any:
        if number == signal.SIGUSR2:
            restored.append(any(thread.name == "watchdog" for thread in threading.enumerate()))
        return original(number, handler)

    monkeypatch.setattr(signal, "signal", watched)
    async with watchdog.Watchdog(frozenset(), structlog.get_logger()).watching():
        assert any(thread.name == "watchdog" for thread in threading.enumerate())
    assert restored == [False, False], "not yet running when it is set, ended when it is restored"
