"""A daemon that is asked to stop answers what it has begun, refuses what is new, and is gone within ten seconds."""

import signal
import time

import pytest

from tests.live.daemon_process import Connection, Daemon, until

SLOW = '''
class Wait(Params):
    seconds: float = Field(description="How long.")

@plugin.handles("slow:wait", timeout_s=3600)
async def wait(ctx: Context, params: Wait) -> Done:
    """Answer after a while."""
    await asyncio.sleep(params.seconds)
    return Done()

@plugin.handles("slow:never", timeout_s=3600)
async def never(ctx: Context, params: Nothing) -> Done:
    """Never answer."""
    await asyncio.Event().wait()
    return Done()

@plugin.handles("slow:deaf", timeout_s=3600)
async def deaf(ctx: Context, params: Nothing) -> Done:
    """Never answer, and take no hint."""
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)

@plugin.handles("slow:thread", timeout_s=3600)
async def thread(ctx: Context, params: Nothing) -> Done:
    """Sit in a thread that cannot be interrupted."""
    await in_thread(time.sleep, 3600)
    return Done()

@plugin.handles("slow:executor", timeout_s=3600)
async def executor(ctx: Context, params: Nothing) -> Done:
    """Sit in a thread of the loop's own pool."""
    await asyncio.to_thread(time.sleep, 3600)
    return Done()

@plugin.handles("slow:process", timeout_s=3600)
async def process(ctx: Context, params: Nothing) -> Done:
    """Sit in a worker process."""
    await in_process(time.sleep, 3600)
    return Done()
'''


def _running(daemon: Daemon, count: int) -> None:
    until(lambda: daemon.call("system:status")["calls_in_flight"] >= count, what=f"{count} calls under way")


def test_running_calls_are_answered_and_streams_closed_within_ten_seconds(daemon: Daemon) -> None:
    """F07"""
    daemon.plugin("slow", SLOW)
    daemon.start()
    listeners: list[Connection] = []
    callers: list[Connection] = []
    try:
        for _ in range(50):
            listeners.append(daemon.connect())
            listeners[-1].call("message:subscribe", {"patterns": ["*"]})
        for _ in range(20):
            callers.append(daemon.connect())
            callers[-1].post("slow:wait", {"seconds": 1.5})
        newcomer = daemon.connect()
        callers.append(newcomer)
        _running(daemon, 20)
        began = time.monotonic()
        daemon.signal(signal.SIGTERM)
        until(
            lambda: newcomer.send("system:echo", {"text": "?"}).get("error", {}).get("code") == "unavailable",
            what="new calls refused",
        )
        answers = [caller.answer(1) for caller in callers[:20]]
        assert daemon.wait(10) == 0
        assert time.monotonic() - began <= 10
        assert [answer["ok"] for answer in answers] == [True] * 20
        for listener in listeners:
            events = _rest(listener)
            assert "system:stopping" in events
    finally:
        for connection in [*listeners, *callers]:
            connection.close()


def _rest(connection: Connection) -> list[str]:
    """The names of all notices until the daemon hangs up."""
    events: list[str] = []
    try:
        while True:
            events.append(connection.notice()["event"])
    except (EOFError, ConnectionError):
        return events


def test_an_idle_daemon_with_fifty_streams_stops_within_two_seconds(daemon: Daemon) -> None:
    """F07"""
    daemon.start()
    listeners = [daemon.connect() for _ in range(50)]
    try:
        for listener in listeners:
            listener.call("message:subscribe", {"patterns": ["*"]})
        began = time.monotonic()
        assert daemon.stop() == 0
        assert time.monotonic() - began <= 2
    finally:
        for listener in listeners:
            listener.close()


def test_a_second_signal_ends_it_at_once(daemon: Daemon) -> None:
    """F07"""
    daemon.plugin("slow", SLOW)
    daemon.start()
    with daemon.connect() as caller, daemon.connect() as other:
        caller.post("slow:never")
        _running(daemon, 1)
        daemon.signal(signal.SIGTERM)
        until(lambda: other.send("system:echo", {"text": "?"}).get("error", {}).get("code") == "unavailable")
        began = time.monotonic()
        daemon.signal(signal.SIGTERM)
        assert daemon.wait(5) == 128 + signal.SIGTERM
        assert time.monotonic() - began <= 1


def test_calls_that_never_end_are_cut_and_told_so_within_ten_seconds(daemon: Daemon) -> None:
    """F07"""
    daemon.plugin("slow", SLOW)
    daemon.start()
    events = ["slow:never", "slow:thread", "slow:executor", "slow:process"]
    with daemon.connect() as caller:
        requests = [caller.post(event) for event in events]
        _running(daemon, len(events))
        began = time.monotonic()
        daemon.signal(signal.SIGTERM)
        codes = {
            event: caller.answer(request)["error"]["code"] for event, request in zip(events, requests, strict=True)
        }
        exit_code = daemon.wait(11)
        assert time.monotonic() - began <= 10
        assert codes == dict.fromkeys(events, "cancelled")
        assert exit_code == 0


def test_a_call_that_swallows_its_cancellation_does_not_keep_it_from_stopping(daemon: Daemon) -> None:
    """F07"""
    daemon.plugin("slow", SLOW)
    daemon.start()
    with daemon.connect() as caller:
        caller.post("slow:deaf")
        _running(daemon, 1)
        began = time.monotonic()
        daemon.signal(signal.SIGTERM)
        code = daemon.wait(11)
        assert time.monotonic() - began <= 10
        assert code == 0


def test_a_plugin_that_will_not_close_does_not_keep_it_from_stopping(daemon: Daemon) -> None:
    """F07"""
    daemon.plugin(
        "clings",
        """
@plugin.lifespan
@contextlib.asynccontextmanager
async def alive(home):
    yield
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
""",
    )
    daemon.start()
    began = time.monotonic()
    daemon.signal(signal.SIGTERM)
    code = daemon.wait(11)
    assert time.monotonic() - began <= 10
    assert code == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_both_polite_signals_stop_it_and_clear_away_its_socket(daemon: Daemon, number: signal.Signals) -> None:
    """F07"""
    daemon.start()
    daemon.signal(number)
    assert daemon.wait() == 0
    assert not daemon.socket_path.exists()


def test_the_shutdown_event_is_answered_before_it_stops(daemon: Daemon) -> None:
    """F07"""
    daemon.start()
    with daemon.connect() as connection:
        assert connection.call("system:shutdown") == {"stopping": True}
        assert daemon.wait() == 0


def test_a_signal_during_the_start_ends_it_without_a_traceback(daemon: Daemon) -> None:
    """F07"""
    daemon.plugin("lingers", "time.sleep(1.5)\n")
    daemon.spawn()
    until((daemon.var / "run" / "http_port").exists, what="it is on its way")
    began = time.monotonic()
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() in (0, -signal.SIGTERM)
    assert time.monotonic() - began <= 10
