"""Finds, checks, starts and reloads plugins; a broken plugin is set aside with the reason, and the others keep running."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar, cast

import msgspec

from ksi_daemon.config import SettingsRead
from ksi_daemon.errors import BadData, Conflict, Invalid, KsiError, NotFound
from ksi_daemon.gate.resources import parse_concrete
from ksi_daemon.handler import PluginRefused
from ksi_daemon.logs.failures import Kind
from ksi_daemon.plugin import HealthPart, Plugin
from ksi_daemon.plugin_host.discovery import Found, Source, find_plugins, shipped_folder
from ksi_daemon.plugin_host.imports import Imported, imported, importing
from ksi_daemon.plugin_host.running_plugin import RunningPlugin
from ksi_daemon.plugin_host.settings_of_plugins import SettingsOfPlugins
from ksi_daemon.plugin_settings import BadPluginSettings, PluginSettingsRead
from ksi_daemon.principal import DAEMON
from ksi_daemon.routing.route import Route
from ksi_daemon.routing.router import Router
from ksi_daemon.storage.sqlite import Database, open_database
from ksi_daemon.view import View
from ksi_daemon.workers.plugin_import import forget_plugin

DRAIN_S = 30.0
HEALTH_EVERY_S = 10.0

OpenBound = Callable[[Database], AbstractAsyncContextManager[object]]
Bound = TypeVar("Bound")


class SetAside(msgspec.Struct, frozen=True):
    """A plugin that was found but does not run, and why."""

    name: str
    source: Source
    path: str
    state: Literal["broken", "disabled"]
    reason: str
    by_settings: bool = False  # new settings may mend it


class Loader:
    """The plugins of one daemon.

    `capabilities` maps what any plugin may use; `bound` how one is opened over a plugin's own database, once for all versions
    of the plugin; `inner` what only the daemon's own may use; a `known` type without an object is a capability that this
    machine does not have. `read` returns the settings that are in effect.
    """

    def __init__(
        self,
        router: Router,
        folder: Path,
        *,
        log: Any,
        read: Callable[[], SettingsRead],
        capabilities: Mapping[type, object],
        inner: Mapping[type, object],
        bound: Mapping[type, OpenBound] = MappingProxyType({}),
        known: Sequence[type] = (),
    ) -> None:
        self.running: dict[str, RunningPlugin] = {}
        self.set_aside: dict[str, SetAside] = {}
        self.folders: tuple[Path, ...] = ()
        self.missing_folders: list[Path] = []
        self.on_failure: Callable[[str, Kind, str, BaseException], None] = lambda plugin, kind, name, error: None
        self._router = router
        self._folder = folder
        self._log = log
        self._capabilities = dict(capabilities)
        self._inner = {**inner, Loader: self}
        self._bound = dict(bound)
        self._known = set(known) | set(capabilities) | set(bound)
        self.settings = SettingsOfPlugins(read, self._settings_in_use, self._names)
        self._reloading: set[str] = set()
        self._unwell = False
        self._closing_old: set[asyncio.Task[int]] = set()
        self._databases: dict[str, Database] = {}
        self._opened: dict[tuple[str, type], object] = {}  # bound capabilities, open as long as their databases
        self._open_databases = AsyncExitStack()

    async def load_core(self, plugins: Sequence[tuple[Plugin, str]]) -> None:
        """Start the daemon's own plugins. A failure ends the daemon."""
        for plugin, summary in plugins:
            found = Found(plugin.name, "core", f"ksi_daemon.core.{plugin.name}", _constant(plugin, summary))
            await self._start(found, plugin, summary)

    async def load_all(self, folders: Sequence[Path], disabled: Sequence[str]) -> None:
        """Find every other plugin, import them side by side, start one after the other; broken ones are set aside."""
        self.folders = tuple(folders)
        self.missing_folders = [folder for folder in folders if not folder.is_dir()]
        for folder in self.missing_folders:
            self._log.warning("a folder of plugin_dirs does not exist or is not a folder", folder=str(folder))
        plugins = list(find_plugins(folders))
        taken = {*disabled, *self.running}
        async with importing(found for found in plugins if found.name not in taken) as imports:
            for found in plugins:
                if found.name in disabled:
                    self.set_aside[found.name] = SetAside(
                        found.name, found.source, found.path, "disabled", "named in plugins_disabled"
                    )
                elif found.name in self.running:
                    other = self.running[found.name].found.path
                    self._set_aside(
                        found, f"the name {found.name!r} is already used by {other}", key=f"{found.name} ({found.path})"
                    )
                else:
                    await self._load_or_set_aside(found, imports.pop(found.name, None))

    async def load(self, found: Found, begun: Awaitable[Imported] | None = None) -> RunningPlugin:
        """Import (unless that has begun), check and start one plugin. Raises if it is broken."""
        plugin, summary = await (begun or imported(found))
        return await self._start(found, plugin, summary)

    async def reload(self, name: str) -> tuple[RunningPlugin, int]:
        """Replace a plugin by the version on disk. If the new version is broken, the old one keeps running.

        Returns the new plugin, and how many calls of the old one were cancelled after the drain time.
        """
        new, closing = await self._replace(name)
        if closing is None:
            return new, 0
        return new, await asyncio.shield(closing)  # a caller that disconnects must not keep the old version running

    async def apply_settings(self) -> list[str]:
        """Start every plugin again whose settings have changed, and those that bad settings had set aside; returns their names.

        The old version finishes its calls, as in a reload. If the new settings are bad, the plugin keeps the old ones.
        """
        changed = []
        self.settings.kept.clear()
        for name, running in list(self.running.items()):
            try:
                new = self.settings.of(running.plugin)
            except BadPluginSettings as error:
                self.settings.kept[name] = f"{error}; it keeps the old ones"
                continue
            if new is None or running.settings is None or new.settings == running.settings.settings:
                running.settings = new
            elif await self._start_again(name):
                changed.append(name)
        by_settings = [name for name, aside in self.set_aside.items() if aside.by_settings]
        return changed + [name for name in by_settings if await self._start_again(name)]

    async def _start_again(self, name: str) -> bool:
        try:
            await self._replace(name)
        except KsiError as error:
            self.settings.kept[name] = error.message
            return False
        return True

    async def _replace(self, name: str) -> tuple[RunningPlugin, asyncio.Task[int] | None]:
        """The new version of a plugin, and the task that closes the old one."""
        old = self.running.get(name)
        found = old.found if old is not None else self._find_again(name)
        if found.source == "core":
            raise Conflict(f"{name} is part of the daemon and cannot be reloaded", hint="use `ksi restart` instead")
        if name in self._reloading:
            raise Conflict(f"{name} is already being reloaded", hint="wait for that reload to finish")
        self._reloading.add(name)
        try:
            new = await self._swap(old, found)
        finally:
            self._reloading.discard(name)
        if old is None:
            return new, None
        closing = asyncio.create_task(_close_when_idle(old), name=f"last calls of the old {name}")
        self._closing_old.add(closing)
        closing.add_done_callback(self._closing_old.discard)
        return new, closing

    async def close(self) -> None:
        """Stop every plugin, the daemon's own last."""
        await asyncio.sleep(0)  # a task that has not started cannot be cancelled cleanly
        for closing in self._closing_old:
            closing.cancel()
        if self._closing_old:
            await asyncio.wait(self._closing_old)
        outside = [running for running in self.running.values() if running.found.source != "core"]
        await asyncio.gather(*(running.stop() for running in outside))
        for running in reversed([running for running in self.running.values() if running.found.source == "core"]):
            await running.stop()
        await self._open_databases.aclose()

    def _settings_in_use(self) -> dict[str, PluginSettingsRead]:
        return {name: running.settings for name, running in self.running.items() if running.settings is not None}

    def _names(self) -> dict[str, bool]:
        outside = [name for name, running in self.running.items() if running.found.source != "core"]
        return {aside.name: False for aside in self.set_aside.values()} | dict.fromkeys(outside, True)

    async def health(self) -> dict[str, list[HealthPart]]:
        """The parts of each running plugin that has any; all are asked at the same time."""
        asked = list(self.running.items())
        answers = await asyncio.gather(*(running.health() for _, running in asked))
        parts = {name: answer for (name, _), answer in zip(asked, answers, strict=True) if answer}
        self._unwell = any(part.state != "ok" for answer in answers for part in answer)
        return parts

    @property
    def degraded(self) -> bool:
        """Whether a plugin is broken, its own work failed lately, or a part of one was not ok when it was asked last."""
        return (
            self._unwell
            or any(aside.state == "broken" for aside in self.set_aside.values())
            or any(running.acts.troubles() for running in self.running.values())
        )

    async def keep_asking(self) -> None:
        """Ask for the health of the plugins now and then, so that it is known without asking them."""
        while True:
            await self.health()
            await asyncio.sleep(HEALTH_EVERY_S)

    def searched(self) -> list[Path]:
        """The folders that are searched for plugins."""
        return [shipped_folder(), *self.folders]

    def _find_again(self, name: str) -> Found:
        for found in find_plugins(self.folders):
            if found.name == name:
                return found
        raise NotFound(
            f"there is no plugin named {name[:64]!r}", hint="`ksi plugins ls` lists the plugins that were found"
        )

    async def _load_or_set_aside(self, found: Found, begun: Awaitable[Imported] | None) -> None:
        try:
            await self.load(found, begun)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and _cancelled():
                raise
            self._set_aside(found, _reason(error), error=error)

    async def _swap(self, old: RunningPlugin | None, found: Found) -> RunningPlugin:
        earlier = {} if old is None else forget_plugin(found.name)
        try:
            new = await self.load(found)
        except BaseException as error:
            if old is not None:
                forget_plugin(found.name)
                sys.modules.update(earlier)
            if isinstance(error, asyncio.CancelledError) and _cancelled():
                raise
            if old is None:
                self._set_aside(found, _reason(error), error=error)
            self._log.warning("plugin reload refused", plugin=found.name, reason=_reason(error))
            kept = "" if old is None else "; the running version stays in use"
            raise Conflict(
                f"{found.name} cannot be loaded: {_reason(error)}{kept}", hint="fix it and reload again"
            ) from error
        self._announce("plugin:reloaded", {"name": found.name, "events": sorted(new.plugin.handlers)})
        return new

    async def _start(self, found: Found, plugin: Plugin, summary: str) -> RunningPlugin:
        given, omitted = self._check(found, plugin)
        settings = self.settings.of(plugin)
        folder = self._folder / plugin.name
        if found.source != "core":
            folder.mkdir(mode=0o700, exist_ok=True)
        bound = [kind for kind in given if kind in self._bound]
        database = await self._database(plugin, folder) if plugin.migrations or bound else None
        if database is not None:
            given |= {kind: await self._open_bound(plugin, kind, database=database) for kind in bound}
        running = RunningPlugin(
            found,
            plugin,
            summary,
            router=self._router,
            folder=folder,
            database=database,
            omitted=omitted,
            settings=settings,
            log=self._log,
            on_failure=lambda kind, name, error: self.on_failure(plugin.name, kind, name, error),
        )
        self._declare_calls(plugin.name, plugin)  # its lifespan may call others already
        try:
            task = await running.start(given)
        except BaseException:
            old = self.running.get(plugin.name)
            self._declare_calls(plugin.name, None if old is None else old.plugin)
            raise
        self._publish_routes(running)
        task.add_done_callback(lambda ended: self._on_end(running, ended))
        if found.source != "core":
            self._announce("plugin:loaded", {"name": plugin.name, "events": sorted(plugin.handlers)})
        return running

    def _declare_calls(self, name: str, plugin: Plugin | None) -> None:
        """What the running version may call by itself; nothing when none runs."""
        if self._router.gate is not None and plugin is not None:
            self._router.gate.plugins.declare(name, plugin.calls)
        elif self._router.gate is not None:
            self._router.gate.plugins.forget(name)

    async def _open_bound(self, plugin: Plugin, kind: type, *, database: Database) -> object:
        """One object for all versions of the plugin, as its database: two of them would not see each other's changes."""
        opened = self._opened.get((plugin.name, kind))
        if opened is None:
            opened = await self._open_databases.enter_async_context(self._bound[kind](database))
            self._opened[plugin.name, kind] = opened
        return opened

    def opened(self, kind: type[Bound]) -> dict[str, Bound]:
        """By plugin, what is open of one kind of bound capability."""
        return {plugin: cast(Bound, opened) for (plugin, known), opened in self._opened.items() if known is kind}

    async def _database(self, plugin: Plugin, folder: Path) -> Database:
        """The plugin's database. It stays open during a reload, because the old version's last calls and the new version share it."""
        database = self._databases.get(plugin.name)
        if database is None:
            opened = open_database(folder / f"{plugin.name}.db", plugin.migrations)
            database = self._databases[plugin.name] = await self._open_databases.enter_async_context(opened)
        elif database.migrations != plugin.migrations:
            await database.migrate(plugin.migrations)
        return database

    def _check(self, found: Found, plugin: Plugin) -> tuple[dict[type, object], dict[str, str]]:
        """The capabilities for the plugin, and its events that are omitted because a capability is missing."""
        already = self.running.get(plugin.name)
        if already is not None and already.found.path != found.path:
            raise PluginRefused(f"the name {plugin.name!r} is already used by {already.found.path}")
        offered = self._capabilities | self._bound | (self._inner if found.source == "core" else {})
        for kind in plugin.uses:
            if kind not in offered:
                reason = "this machine does not have it" if kind in self._known else "there is no such capability"
                raise PluginRefused(f"{plugin.name} uses {kind.__name__}: {reason}")
        omitted: dict[str, str] = {}
        for event, handler in plugin.handlers.items():
            if found.source != "core" and (handler.traits.tool is not None or handler.traits.every_agent):
                raise PluginRefused(f"{plugin.name}: {event}: tool and every_agent are for the daemon's own events")
            for resource, _ in handler.traits.needs:
                try:
                    parse_concrete(resource)
                except Invalid as error:
                    raise PluginRefused(f"{plugin.name}: {event} needs {resource!r}: {error.message}") from error
            for kind in handler.traits.uses:
                if kind not in self._known and kind not in offered:
                    raise PluginRefused(f"{plugin.name}: {event} uses {kind.__name__}: there is no such capability")
                if kind not in offered:
                    omitted[event] = kind.__name__
        self._refuse_collisions(plugin)
        self.settings.refuse_shared_variables(plugin)
        self._check_view(plugin)
        wanted = {*plugin.uses, *(kind for handler in plugin.handlers.values() for kind in handler.traits.uses)}
        return {kind: offered[kind] for kind in wanted if kind in offered}, omitted

    def _refuse_collisions(self, plugin: Plugin) -> None:
        tools = {
            route.handler.tool: event
            for event, route in self._router.routes.items()
            if route.handler.plugin != plugin.name
        }
        for event, handler in plugin.handlers.items():
            other = tools.get(handler.tool)
            if other is not None:
                raise PluginRefused(f"{plugin.name}: {event} and {other} would both be the tool {handler.tool!r}")
            tools[handler.tool] = event
            if event in plugin.notices:
                raise PluginRefused(f"{plugin.name}: {event} is both a call and a notice")

    def views(self) -> dict[str, View]:
        """The views of the running plugins, by name."""
        plugins = [running.plugin for running in self.running.values()]
        return {plugin.view.name: plugin.view for plugin in plugins if plugin.view is not None}

    def _check_view(self, plugin: Plugin) -> None:
        if plugin.view is None:
            return
        for tool in plugin.view.tools:
            if tool.event not in plugin.handlers:
                raise PluginRefused(
                    f"{plugin.name}: the view {plugin.view.name} names {tool.event!r}, which this plugin does not handle"
                )
        for running in self.running.values():
            other = running.plugin
            if other.name != plugin.name and other.view is not None and other.view.name == plugin.view.name:
                raise PluginRefused(f"{plugin.name}: the view {plugin.view.name} is that of the plugin {other.name}")

    def _publish_routes(self, running: RunningPlugin) -> None:
        """Replace all routes at once, so that no caller sees a part of a plugin."""
        name = running.plugin.name
        old = self.running.get(name)
        if old is not None:
            old.acts.end()
        gate = self._router.gate
        breaker = None
        if gate is not None and running.found.source != "core":
            gate.breakers.forget(name)  # a new version starts with a new breaker
            breaker = gate.breakers.of(name)
        routes = {event: route for event, route in self._router.routes.items() if route.handler.plugin != name}
        for event, handler in running.plugin.handlers.items():
            if event not in running.omitted:
                routes[event] = Route(handler, running.owner, self._router.journal.counts_of(event), breaker)
        self._router.replace_routes(routes)
        self.running[name] = running
        running.acts.begin()
        self.set_aside.pop(name, None)
        self.settings.kept.pop(name, None)

    def _on_end(self, running: RunningPlugin, task: asyncio.Task[None]) -> None:
        """A plugin's task ended. If the stop was not requested, one of its tasks failed: the plugin is set aside."""
        error = RuntimeError("the plugin cancelled its own task") if task.cancelled() else task.exception()
        if error is None or (task.cancelled() and running.stop_requested.is_set()):
            return
        if self.running.get(running.plugin.name) is not running:
            self._log.error("plugin did not close cleanly", plugin=running.plugin.name, exc_info=error)
            return
        del self.running[running.plugin.name]
        name = running.plugin.name
        self._declare_calls(name, None)
        self._router.replace_routes(
            {event: route for event, route in self._router.routes.items() if route.handler.plugin != name}
        )
        self._set_aside(running.found, _reason(error), error=error)

    def _set_aside(
        self, found: Found, reason: str, *, key: str | None = None, error: BaseException | None = None
    ) -> None:
        unexpected = error is not None and not isinstance(error, PluginRefused | BadData)
        self._log.error(
            "plugin set aside",
            plugin=found.name,
            place=found.path,
            reason=reason,
            exc_info=error if unexpected else None,
        )
        self.set_aside[key or found.name] = SetAside(
            found.name, found.source, found.path, "broken", reason, isinstance(error, BadPluginSettings)
        )
        self._announce("plugin:failed", {"name": found.name, "reason": reason})

    def _announce(self, event: str, data: Mapping[str, Any]) -> None:
        self._router.notify(event, data, principal=DAEMON)


async def _close_when_idle(old: RunningPlugin) -> int:
    """Wait for the last calls of an old version; when the daemon closes, stop without waiting."""
    try:
        return await old.stop(drain_s=DRAIN_S)
    except asyncio.CancelledError:
        return await old.stop()


def _reason(error: BaseException) -> str:
    if isinstance(error, PluginRefused | BadData | KsiError):
        return str(error)
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_reason(inner) for inner in error.exceptions)
    return f"{type(error).__name__}: {error}"


def _cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _constant(plugin: Plugin, summary: str) -> Callable[[], tuple[Plugin, str]]:
    return lambda: (plugin, summary)
