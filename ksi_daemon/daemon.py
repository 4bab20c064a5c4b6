"""Puts the parts together on one exit stack; the only file that knows them all."""

import asyncio
import gc
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass

import uvloop

from ksi_daemon import __version__
from ksi_daemon.audit import Audit, open_audit
from ksi_daemon.completion.completions import Completions
from ksi_daemon.config import SettingsRead
from ksi_daemon.core import CORE
from ksi_daemon.errors import AuditUnavailable
from ksi_daemon.gate.credentials import keep_credentials
from ksi_daemon.gate.gate import Gate
from ksi_daemon.gate.profiles import read_profiles
from ksi_daemon.gate.resolvers import Resolvers
from ksi_daemon.gate.rights import Rights, keep_expired
from ksi_daemon.logs.journal import Journal
from ksi_daemon.logs.log import Log
from ksi_daemon.mcp.handshakes import Handshakes
from ksi_daemon.mcp.list_changes import ListChanges
from ksi_daemon.mcp.mcp_service import McpService
from ksi_daemon.mcp.views import Views
from ksi_daemon.operator_socket.server import OperatorSocket
from ksi_daemon.plugin_host.health_check import ask_health
from ksi_daemon.plugin_host.loader import Loader
from ksi_daemon.plugin_host.own_acts import run_work
from ksi_daemon.plugin_host.running_plugin import RunningPlugin, Subscription
from ksi_daemon.plugin_host.watchdog import Watchdog
from ksi_daemon.principal import DAEMON
from ksi_daemon.process.control import Control
from ksi_daemon.process.forked import close_in_forked_children
from ksi_daemon.process.lifecycle import ExitTimer, Signals, greet, raise_file_limit, run_to_the_end
from ksi_daemon.process.start_failure import cannot_run
from ksi_daemon.retrieval.retrieval import Retrieval, RetrievalSettings, open_retrieval
from ksi_daemon.routing.agent_tools import AgentTools
from ksi_daemon.routing.bus import Bus
from ksi_daemon.routing.deadlines import Deadlines
from ksi_daemon.routing.recorder import Recorder
from ksi_daemon.routing.route import Limits
from ksi_daemon.routing.router import Router
from ksi_daemon.routing.slow_readers import SlowReaders
from ksi_daemon.storage import completions as stored_completions
from ksi_daemon.storage import mcp_sessions
from ksi_daemon.storage.agents import SqliteAgents
from ksi_daemon.storage.audit_head import AuditHead
from ksi_daemon.storage.migrations import MIGRATIONS
from ksi_daemon.storage.protocol_sessions import SqliteSessions
from ksi_daemon.storage.sqlite import DatabaseError, open_database
from ksi_daemon.storage.state import SqliteState, StateStore
from ksi_daemon.web.app import make_app, own_hosts
from ksi_daemon.web.listener import bind, serving
from ksi_daemon.workers.supervisor import Supervisor, supervising

DRAIN_S = 4.0
REPLIES_S = 1.0  # for the replies of calls that have ended
EXIT_AT_THE_LATEST_S = 9.5


@dataclass(slots=True)
class Hub:
    """The inner parts, without the transports that callers come by."""

    router: Router
    loader: Loader
    control: Control
    log: Log
    rights: Rights
    audit: Audit
    background: Supervisor
    mcp: McpService
    completions: Completions


@asynccontextmanager
async def open_hub(
    read: SettingsRead,
    log: Log,
    *,
    stop_requested: asyncio.Event | None = None,
    slow_readers: SlowReaders | None = None,
    shipped: bool = True,
) -> AsyncIterator[Hub]:
    """Storage, router and plugins, without transports. Also what plugin tests run in, there without the shipped plugins."""
    settings = read.settings
    limits = Limits()
    bus, journal, deadlines = Bus(settings.notice_inbox), Journal(settings.monitor_events), Deadlines()
    profiles = read_profiles(settings.var_dir / "profiles", core=frozenset(plugin.name for plugin, _ in CORE))
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(open_database(settings.var_dir / "db" / "ksi.db", MIGRATIONS))
        audit = await stack.enter_async_context(
            open_audit(
                settings.var_dir,
                log=log.logger,
                key_file=settings.audit_key_file,
                save_head=AuditHead(database).save,
            )
        )
        rights = Rights(SqliteAgents(database), profiles)
        await rights.load()
        gate = Gate(rights)
        router = Router(
            bus=bus,
            journal=journal,
            limits=limits,
            deadlines=deadlines,
            origin=audit.daemon_id,
            log=log.logger,
            gate=gate,
            recorder=Recorder(audit),
        )

        def apply(new: SettingsRead) -> None:
            log.level = new.settings.log_level
            gate.rate_limited = new.settings.rate_limit == "on"
            limits.call_timeout_s = new.settings.call_timeout_s
            limits.result_bytes = new.settings.result_limit_bytes
            limits.expose_error_details = new.settings.expose_error_details
            router.renew_catalogue()  # its views may be others

        apply(read)
        control = Control(
            read, router=router, log=log.logger, apply=apply, stop_requested=stop_requested or asyncio.Event()
        )
        guarded = (Router.call, Subscription._handle, RunningPlugin._live, run_work, ask_health)
        watchdog = Watchdog(frozenset(function.__code__ for function in guarded), log.logger)
        background = await stack.enter_async_context(supervising(log.logger))
        background.start("the deadline sweep", deadlines.run)
        background.start("the journal's log", lambda: journal.write_lines(log.write_records))
        background.start("the credentials' upkeep", lambda: keep_credentials(rights.credentials))
        background.start("the upkeep of expiries", lambda: keep_expired(rights))
        if threading.current_thread() is threading.main_thread():
            await stack.enter_async_context(watchdog.watching())
        sessions = await stack.enter_async_context(
            open_database(settings.var_dir / "db" / "mcp_sessions.db", mcp_sessions.MIGRATIONS)
        )
        views = Views(router, lambda: control.read.settings, lambda: loader.views())  # noqa: PLW0108 - the loader is made below
        mcp = McpService(
            router,
            gate,
            Resolvers(rights.credentials),
            log.logger,
            settings=lambda: control.read.settings,
            views=views,
            handshakes=Handshakes(mcp_sessions.SqliteHandshakes(sessions)),
            stored_sessions=SqliteSessions(sessions),
        )
        completions = Completions(
            stored_completions.SqliteCompletions(
                await stack.enter_async_context(
                    open_database(settings.var_dir / "db" / "completions.db", stored_completions.MIGRATIONS)
                )
            ),
            rights,
            mcp.handshakes.store,
            var_dir=settings.var_dir,
            url=lambda: control.mcp_url,
            most_at_once=lambda: control.read.settings.completions_at_once,
            notify=lambda event, data, principal: router.notify(event, data, principal=principal),
            record=lambda event, details, principal: router.note(event, details, about=principal),
            log=log.logger,
        )
        stack.push_async_callback(completions.stop, keep_running=False)
        background.start("the clean-up of handshakes", mcp.handshakes.clean_up)
        background.start("the upkeep of MCP sessions", mcp.sessions.keep_up)
        background.start("the changes of lists", mcp.list_changes.run)
        inner = {
            Router: router, Bus: bus, Journal: journal, Control: control, Watchdog: watchdog, Rights: rights, Gate: gate,
            Audit: audit, AgentTools: AgentTools(router, gate), StateStore: SqliteState(database), McpService: mcp,
            Completions: completions, SlowReaders: slow_readers or SlowReaders(log.logger),
        }  # fmt: skip
        search = RetrievalSettings()  # its embedders are loaded at their first use, once for all plugins
        loader = Loader(
            router,
            settings.var_dir / "plugins",
            log=log.logger,
            read=lambda: control.read,
            capabilities={},
            inner=inner,
            bound={Retrieval: lambda database: open_retrieval(database, search)},
        )
        rights.on_change = lambda agents: _announce_change(router, mcp.list_changes, completions, agents)
        rights.on_revoked = lambda agent_id: mcp.list_changes.rights_changed({agent_id})
        router.on_new_catalogue = mcp.list_changes.tools_changed
        control.problems_of = views.problems
        control.warnings = lambda: [*loader.settings.warnings(), *views.warnings()]
        control.plugin_rows, control.apply_to_plugins = loader.settings.rows, loader.apply_settings
        rights.plugin_names = lambda: {*loader.running, *loader.set_aside}
        control.alarm_sources += [
            audit.alarms,
            lambda: views.problems(control.read.settings),
            background.alarms,
            lambda: [log.file.problem] if log.file.problem else [],
            lambda: (
                [f"{deadlines.uncancellable} handlers ignore their cancellation"] if deadlines.uncancellable else []
            ),
            lambda: [
                f"plugin_dirs: {folder} does not exist or is not a folder; create it or change the setting, then restart"
                for folder in loader.missing_folders
            ],
            lambda: [f"the plugin {breaker.backend} keeps failing" for breaker in gate.breakers.troubled()],
            lambda: [
                f"the search of the plugin {plugin} goes on without its best vectors: {index.problem}"
                for plugin, index in loader.opened(Retrieval).items()
                if index.problem is not None
            ],
        ]
        stack.push_async_callback(loader.close)
        await loader.load_core(CORE)
        if shipped:
            await loader.load_all(settings.plugin_dirs, settings.plugins_disabled)
        control.log_warnings()
        background.start("the health of the plugins", loader.keep_asking)
        yield Hub(router, loader, control, log, rights, audit, background, mcp, completions)


def _announce_change(router: Router, list_changes: ListChanges, completions: Completions, agents: set[str]) -> None:
    list_changes.rights_changed(agents)
    completions.wake()  # one may have been unfrozen
    router.notify("permission:changed", {"agents": sorted(agents)}, principal=DAEMON)


async def serve(read: SettingsRead, log: Log) -> None:
    """Run the daemon until it is asked to stop."""
    settings, stop_requested = read.settings, asyncio.Event()
    exit_timer = ExitTimer(EXIT_AT_THE_LATEST_S, log.logger)
    signals = Signals(stop_requested, exit_timer)
    listener = bind(settings.host, settings.port, settings.var_dir / "run" / "http_port")
    close_in_forked_children(listener.fileno())
    port = listener.getsockname()[1]
    slow_readers = SlowReaders(log.logger)
    word = "starting"
    mcp: McpService | None = None
    async with AsyncExitStack() as stack:
        app = make_app(
            lambda: word,
            own_hosts(port),
            lambda: None if mcp is None else mcp.endpoint,
            degraded=lambda: hub.loader.degraded,
        )
        await stack.enter_async_context(serving(app, listener, slow_readers=slow_readers))
        hub = await stack.enter_async_context(
            open_hub(read, log, stop_requested=stop_requested, slow_readers=slow_readers)
        )
        control, router = hub.control, hub.router
        control.url = f"http://{settings.host if ':' not in settings.host else f'[{settings.host}]'}:{port}"
        await hub.completions.start()
        operator_socket = OperatorSocket(router, hub.rights, slow_readers, log.logger)
        control.connections = lambda: len(operator_socket.connections)
        await stack.enter_async_context(operator_socket.listening(control.socket_path))
        signals.on_hangup = lambda: router.run_in_background(control.reload_on_signal(), "the reload on SIGHUP")
        await hub.router.note("system:started", {"version": __version__, "pid": control.pid})
        gc.collect()
        gc.freeze()  # what lives as long as the daemon need not be looked at again
        word = "ready"
        router.notify("system:ready", {"version": __version__, "url": control.mcp_url}, principal=DAEMON)
        mcp = hub.mcp
        hub.background.start("the MCP server", mcp.run)
        log.logger.info(
            "ready", url=control.mcp_url, pid=control.pid, version=__version__, plugins=len(hub.loader.running)
        )
        greet(control)
        await stop_requested.wait()
        word = "stopping"
        exit_timer.start()
        async with asyncio.TaskGroup() as ending:
            ending.create_task(hub.completions.stop(keep_running=signals.keep_agents))
            ending.create_task(_drain(router, log))
        await hub.mcp.finish(REPLIES_S)
        with suppress(AuditUnavailable):  # its alarm says so; the stop goes on
            await router.note("system:stopped", {"calls_cut": router.in_flight})
    log.logger.info("stopped")


async def _drain(router: Router, log: Log) -> None:
    """Finish the calls under way, refuse new ones."""
    log.logger.info("stopping", calls_in_flight=router.in_flight)
    router.notify("system:stopping", {}, principal=DAEMON)
    router.stopping = True
    if not await router.idle(DRAIN_S):
        log.logger.warning("calls under way are cut", calls_in_flight=router.in_flight)


def run(read: SettingsRead, *, terminal: bool) -> None:
    """The whole life of a daemon process, once it holds the lock. Ends the process."""
    os.umask(0o077)
    raise_file_limit()
    log = Log(read.settings.var_dir / "log" / "ksi.jsonl", read.settings.log_level, sys.stderr if terminal else None)
    log.take_standard_logging()
    try:
        run_to_the_end(uvloop.new_event_loop(), serve(read, log), log.logger)
    except DatabaseError as error:
        log.logger.exception("the daemon ended")
        raise cannot_run(error, read.settings.var_dir) from error
    finally:
        log.file.close()
    sys.stdout.flush()
    os._exit(0)  # a plugin's thread that never ends must not keep the process
