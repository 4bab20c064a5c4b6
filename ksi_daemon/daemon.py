"""Puts the parts together on one exit stack; the only file that knows them all."""

import asyncio
import gc
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import uvloop

from ksi_daemon import __version__
from ksi_daemon.bus import Bus
from ksi_daemon.config import SettingsRead
from ksi_daemon.control import Control
from ksi_daemon.core import CORE
from ksi_daemon.deadlines import Deadlines
from ksi_daemon.errors import Invalid
from ksi_daemon.identifiers import new_id
from ksi_daemon.journal import Journal
from ksi_daemon.loader import Loader
from ksi_daemon.log import Log
from ksi_daemon.operator_socket import OperatorSocket
from ksi_daemon.principal import DAEMON
from ksi_daemon.router import Limits, Router
from ksi_daemon.running_plugin import Subscription
from ksi_daemon.sqlite import open_database
from ksi_daemon.store.state import MIGRATIONS, SqliteState, StateStore
from ksi_daemon.watchdog import Watchdog
from ksi_daemon.web.app import make_app
from ksi_daemon.web.listener import bind, serving

DRAIN_S = 4.0
EXIT_AT_THE_LATEST_S = 9.5


@dataclass(slots=True)
class Hub:
    """The inner parts, without any door."""

    router: Router
    loader: Loader
    control: Control
    log: Log


@asynccontextmanager
async def open_hub(read: SettingsRead, log: Log, *, shipped: bool = True) -> AsyncIterator[Hub]:
    """Everything but the doors: store, router, plugins. Also what plugin tests run in, there without the shipped ones."""
    settings = read.settings
    limits = Limits()
    bus, journal, deadlines = Bus(settings.notice_inbox), Journal(settings.monitor_events), Deadlines()
    router = Router(bus=bus, journal=journal, limits=limits, deadlines=deadlines, origin=new_id(), log=log.logger)

    def apply(new: SettingsRead) -> None:
        log.level = new.settings.log_level
        limits.call_timeout_s = new.settings.call_timeout_s
        limits.result_bytes = new.settings.result_limit_bytes
        limits.expose_error_details = new.settings.expose_error_details

    apply(read)
    control = Control(read, router=router, log=log.logger, apply=apply)
    watchdog = Watchdog(frozenset({Router.call.__code__, Subscription._handle.__code__}), log.logger)
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(open_database(settings.var_dir / "db" / "ksi.db", MIGRATIONS))
        for task in (deadlines.run(), journal.write_lines(log.write_records)):
            stack.push_async_callback(_cancelled, asyncio.create_task(task))
        if threading.current_thread() is threading.main_thread():
            await stack.enter_async_context(watchdog.watching())
        inner = {
            Router: router, Bus: bus, Journal: journal, Control: control, Watchdog: watchdog, StateStore: SqliteState(database),
        }  # fmt: skip
        loader = Loader(router, settings.var_dir / "plugins", log=log.logger, capabilities={}, inner=inner)
        control.alarm_sources += [lambda: [log.file.problem] if log.file.problem else []]
        stack.push_async_callback(loader.close)
        await loader.load_core(CORE)
        if shipped:
            await loader.load_all(settings.plugin_dirs, settings.plugins_disabled)
        yield Hub(router, loader, control, log)


async def serve(read: SettingsRead, log: Log) -> None:
    """Run the daemon until it is asked to stop."""
    settings = read.settings
    run = settings.var_dir / "run"
    for warning in read.warnings:
        log.logger.warning(warning)
    listener = bind(settings.host, settings.port, run / "http_port")
    port = listener.getsockname()[1]
    word = "starting"
    hosts = frozenset(f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]"))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serving(make_app(lambda: word, lambda: hosts), listener))
        hub = await stack.enter_async_context(open_hub(read, log))
        control, router = hub.control, hub.router
        control.url = f"http://{'[' + settings.host + ']' if ':' in settings.host else settings.host}:{port}"
        door = OperatorSocket(router, log.logger)
        control.connections = lambda: len(door.connections)
        await stack.enter_async_context(door.listening(control.socket_path))
        _handle_signals(control, log)
        gc.collect()
        gc.freeze()  # what lives as long as the daemon need not be looked at again
        word = "ready"
        router.notify("system:ready", {"version": __version__, "url": control.url}, principal=DAEMON)
        log.logger.info("ready", url=control.url, pid=control.pid, version=__version__, plugins=len(hub.loader.running))
        _greet(control)
        await control.stop_requested.wait()
        word = "stopping"
        _exit_at_the_latest(log)
        log.logger.info("stopping", calls_in_flight=router.in_flight.count)
        router.notify("system:stopping", {}, principal=DAEMON)
        router.stopping = True
        if not await router.in_flight.idle(DRAIN_S):
            log.logger.warning("calls under way are cut", calls_in_flight=router.in_flight.count)
    log.logger.info("stopped")
    log.file.close()


def run(read: SettingsRead, *, terminal: bool) -> None:
    """The whole life of a daemon process, once it holds the lock."""
    os.umask(0o077)
    log = Log(read.settings.var_dir / "log" / "ksi.jsonl", read.settings.log_level, sys.stderr if terminal else None)
    log.take_standard_logging()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(read, log))


def _handle_signals(control: Control, log: Log) -> None:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if control.stop_requested.is_set():
            log.logger.warning("asked to stop again: stopping at once")
            os._exit(128 + signal.SIGTERM)
        control.stop_requested.set()

    def reload() -> None:
        with suppress(Invalid):  # already logged, and announced as config:rejected
            control.reload_settings()

    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_signal_handler(signal.SIGINT, stop)
    loop.add_signal_handler(signal.SIGHUP, reload)


def _exit_at_the_latest(log: Log) -> None:
    """If closing hangs, the process ends all the same: every database survives a kill."""

    def give_up() -> None:
        log.logger.error("closing took too long: ending now")
        os._exit(1)

    timer = threading.Timer(EXIT_AT_THE_LATEST_S, give_up)
    timer.daemon = True
    timer.start()


def _greet(control: Control) -> None:
    command = "./scripts/ksi" if Path("scripts/ksi").exists() else "ksi"
    sys.stdout.write(
        f"KSI {__version__} is ready (pid {control.pid}). Ctrl-C stops it.\n"
        f"  HTTP     {control.url}/readyz\n"
        f"  socket   {control.socket_path}\n"
        f"  log      {control.read.settings.var_dir / 'log' / 'ksi.jsonl'}\n"
        "Next, in another terminal:\n"
        f"  {command} status                          how it is\n"
        f"  {command} send system:echo text=hello     send an event\n"
        f"  {command} events ls                       what it can do\n"
        f"  {command} plugins new hello               write a plugin\n"
    )
    sys.stdout.flush()


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
