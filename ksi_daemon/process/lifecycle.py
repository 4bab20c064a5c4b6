"""The daemon as a process: its signals, its limits, the message when it is ready, and the time limit for closing."""

import asyncio
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from ksi_daemon import __version__
from ksi_daemon.errors import Invalid
from ksi_daemon.process.control import Control


class Signals:
    """SIGTERM and SIGINT ask to stop, a second one ends at once; SIGHUP does `on_hangup`."""

    def __init__(self, stop_requested: asyncio.Event, log: Any) -> None:
        self.on_hangup: Callable[[], object] = lambda: None
        self._stop_requested = stop_requested
        self._log = log
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop)
        loop.add_signal_handler(signal.SIGINT, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)

    def _stop(self) -> None:
        if self._stop_requested.is_set():
            self._log.warning("second stop signal: exiting at once")
            os._exit(128 + signal.SIGTERM)
        self._stop_requested.set()

    def _hang_up(self) -> None:
        with suppress(Invalid):  # already logged, and announced as config:rejected
            self.on_hangup()


def end_at_the_latest(limit_s: float, log: Any) -> None:
    """Exit the process if closing takes too long. Every database survives a kill."""

    def give_up() -> None:
        log.error("closing took too long: exiting now", limit_s=limit_s)
        os._exit(1)

    timer = threading.Timer(limit_s, give_up)
    timer.daemon = True
    timer.start()


def run_to_the_end(loop: asyncio.AbstractEventLoop, life: Coroutine[Any, Any, None], log: Any) -> None:
    """Run until `life` ends. A plugin's task that raises SystemExit must not end the daemon."""
    asyncio.set_event_loop(loop)
    main = loop.create_task(life, name="daemon")
    while not main.done():
        try:
            loop.run_until_complete(main)
        except (SystemExit, KeyboardInterrupt) as error:
            if main.done():
                raise
            log.exception("a plugin's task tried to end the daemon", raised=repr(error))
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
