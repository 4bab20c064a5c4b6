"""A daemon ends when it is told to: also with its event loop blocked or stopped, and without children that hold its lock."""

import os
import signal
import time

from tests.live.daemon_process import Daemon, until

BAD = """
class Child(Result):
    pid: int

@plugin.handles("bad:stop_loop", timeout_s=3600)
async def stop_loop(ctx: Context, params: Nothing) -> Done:
    \"\"\"Stop the event loop.\"\"\"
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.05)
    return Done()

@plugin.handles("bad:block", timeout_s=3600)
async def block(ctx: Context, params: Nothing) -> Done:
    \"\"\"Block the event loop from a callback, where the watchdog does not interrupt it.\"\"\"
    asyncio.get_running_loop().call_soon(time.sleep, 3600)
    return Done()

@plugin.handles("bad:fork")
async def fork(ctx: Context, params: Nothing) -> Child:
    \"\"\"Fork a child that lives on.\"\"\"
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    return Child(pid=pid)
"""


def _blocked(daemon: Daemon) -> None:
    with daemon.connect() as connection:
        connection.post("bad:block")
        until(lambda: daemon.audit_rows("event = 'bad:block'"), what="the call has begun")
        time.sleep(
            0.3
        )  # nothing shows from outside that the callback has begun; earlier the test is only easier to pass


def test_a_second_signal_ends_it_at_once_while_its_loop_is_blocked(daemon: Daemon) -> None:
    """F07"""
    daemon.plugin("bad", BAD)
    daemon.start()
    _blocked(daemon)
    daemon.signal(signal.SIGTERM)
    time.sleep(0.3)  # two pending signals of one number are one signal
    began = time.monotonic()
    daemon.signal(signal.SIGTERM)
    assert daemon.wait(8) == 128 + signal.SIGTERM
    assert time.monotonic() - began <= 5


def test_one_signal_ends_it_within_ten_seconds_while_its_loop_is_blocked(daemon: Daemon) -> None:
    """F07: the timer that ends it is not on the loop."""
    daemon.plugin("bad", BAD)
    daemon.start()
    _blocked(daemon)
    daemon.signal(signal.SIGTERM)
    assert daemon.wait(15) == 1


def test_a_handler_that_stops_the_loop_stops_nothing(daemon: Daemon) -> None:
    """F07: it left a process that ignored SIGTERM, with its lock free for a second daemon."""
    daemon.plugin("bad", BAD)
    daemon.start()
    assert daemon.call("bad:stop_loop") == {"done": True}
    assert daemon.call("system:echo", {"text": "on"}) == {"text": "on"}
    assert daemon.stop() == 0
    assert daemon.logged("a plugin stopped the event loop: it runs on")


def test_a_forked_child_keeps_neither_lock_nor_listeners(daemon: Daemon) -> None:
    """F06: the next daemon starts at once, on the same port."""
    daemon.plugin("bad", "import signal\n" + BAD)
    daemon.start()
    url = daemon.call("system:status")["url"]
    child = daemon.call("bad:fork")["pid"]
    try:
        daemon.kill()
        daemon.start()
        assert daemon.call("system:status")["url"] == url
    finally:
        os.kill(child, signal.SIGKILL)
