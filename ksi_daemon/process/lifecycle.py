"""The daemon as a process: its signals, its limits, the message when it is ready, and the time limit for closing."""

import asyncio
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from ksi_daemon import __version__
from ksi_daemon.process.control import Control

LOG_LIMIT_S = 0.3


class ExitTimer:
    """Ends the process some time after `start`, from a thread: also when the event loop is blocked or stopped.

    The thread is begun at once, and `start` only writes to a pipe: a signal's handler may interrupt code that holds any lock.
    """

    def __init__(self, limit_s: float, log: Any) -> None:
        self._limit_s = limit_s
        self._log = log
        self._reader, self._writer = os.pipe()
        threading.Thread(target=self._wait, name="exit timer", daemon=True).start()

    def start(self) -> None:
        """Begin to count, if that has not begun."""
        os.write(self._writer, b".")

    def _wait(self) -> None:
        os.read(self._reader, 1)
        time.sleep(self._limit_s)
        logging = threading.Thread(target=self._log_end, daemon=True)  # the blocked code may hold the log's lock
        logging.start()
        logging.join(LOG_LIMIT_S)
        os._exit(1)

    def _log_end(self) -> None:
        self._log.error("closing took too long: exiting now", limit_s=self._limit_s)


class Signals:
    """SIGTERM and SIGINT ask to stop, a second one ends at once; SIGUSR1 asks too, but agents' programs go on; SIGHUP does `on_hangup`.

    The first three are Python's own signal handlers, which interrupt what the main thread runs: also Python code that blocks the loop.
    """

    def __init__(self, stop_requested: asyncio.Event, exit_timer: ExitTimer) -> None:
        self.on_hangup: Callable[[], object] = lambda: None
        self._stop_requested = stop_requested
        self._exit_timer = exit_timer
        self.keep_agents = False
        self._stopping = False
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self._stop)
        self._loop.add_signal_handler(signal.SIGHUP, self._hang_up)

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        if self._stopping or self._stop_requested.is_set():
            os._exit(128 + signal.SIGTERM)
        self._stopping = True
        self.keep_agents = number == signal.SIGUSR1
        self._exit_timer.start()
        self._loop.call_soon_threadsafe(self._stop_requested.set)

    def _hang_up(self) -> None:
        self.on_hangup()


def run_to_the_end(loop: asyncio.AbstractEventLoop, life: Coroutine[Any, Any, None], log: Any) -> None:
    """Run until `life` ends. A plugin that raises SystemExit in a task, or stops the loop, must not end the daemon."""
    asyncio.set_event_loop(loop)
    main = loop.create_task(life, name="daemon")
    while not main.done():
        try:
            loop.run_until_complete(main)
        except (SystemExit, KeyboardInterrupt) as error:
            if main.done():
                raise
            log.exception("a plugin's task tried to end the daemon", raised=repr(error))
        except RuntimeError:
            if main.done():
                raise
            log.exception("a plugin stopped the event loop: it runs on")
    main.result()


def raise_file_limit() -> None:
    """Raise the limit of open files to the maximum: every connection needs one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def greet(control: Control) -> None:
    """Print the addresses and the first commands to standard output."""
    command = "./scripts/ksi" if Path("scripts/ksi").exists() else "ksi"
    sys.stdout.write(
        f"KSI {__version__} is ready (pid {control.pid}). Ctrl-C stops it.\n"
        f"  MCP      {control.mcp_url}\n"
        f"  socket   {control.socket_path}\n"
        f"  log      {control.read.settings.var_dir / 'log' / 'ksi.jsonl'}\n"
        "Next, in another terminal:\n"
        f"  {command} status                          show its state\n"
        f"  {command} connect claude-code             let Claude Code in this folder use it (or codex, cursor, vscode, generic)\n"
        f"  {command} agents add NAME                 add an agent and get its token\n"
        f"  {command} send system:echo text=hello     send an event\n"
        f"  {command} events ls                       list the events\n"
        f"  {command} plugins new hello               write a plugin\n"
    )
    sys.stdout.flush()
