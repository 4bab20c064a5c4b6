"""The plugin API: everything that a plugin may import from the daemon.

A plugin is a folder with an `__init__.py` that makes one `plugin` object, typed params and results, and async handlers:
see docs/plugins.md. The loader finds, checks and starts plugins.
"""

import inspect
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeVar, cast

import msgspec
from pydantic import Field, JsonValue
from structlog.typing import FilteringBoundLogger

from ksi_daemon.access import Need
from ksi_daemon.errors import (
    ApprovalRequired,
    Conflict,
    Forbidden,
    Internal,
    Invalid,
    KsiError,
    NotFound,
    TooLarge,
    TooMany,
    Unavailable,
    bounded,
)
from ksi_daemon.handler import (
    Annotations,
    Handler,
    Nothing,
    Params,
    PluginRefused,
    Result,
    Traits,
    handler_from_function,
)
from ksi_daemon.hygiene.beneath import create_beneath, open_beneath, read_beneath
from ksi_daemon.hygiene.boundary import normalize_error, with_error_boundary
from ksi_daemon.hygiene.mirrored_headers import mirroring_problem
from ksi_daemon.hygiene.paths import sanitize_path
from ksi_daemon.hygiene.queries import sanitize_query
from ksi_daemon.identifiers import EVENT_NAME, PATTERN, PLUGIN_NAME
from ksi_daemon.logs.log import TO_CALLER
from ksi_daemon.notice import Notice
from ksi_daemon.plugin_settings import PluginSettings, check_model
from ksi_daemon.principal import Principal
from ksi_daemon.retrieval.document import EVERY_DOCUMENT, Document, Edge, Filter, Hit, Node, Parts
from ksi_daemon.retrieval.file_scan import FileChoice, FileStamp
from ksi_daemon.retrieval.front_matter import BadFrontMatter, FrontMatter, read_front_matter
from ksi_daemon.retrieval.git_facts import GitFacts, NoGitFacts
from ksi_daemon.retrieval.graph import GraphNode, Neighbour
from ksi_daemon.retrieval.index_state import IndexState
from ksi_daemon.retrieval.retrieval import Retrieval
from ksi_daemon.retrieval.symbols import FileSymbols, Symbol
from ksi_daemon.retrieval.watch import Changes, Rename, Watcher, WatchSettings, WatchState
from ksi_daemon.storage.sqlite import Database, Row, Transaction
from ksi_daemon.view import Dialect, Failure, View, ViewTool
from ksi_daemon.workers.worker import in_process, in_thread

__all__ = [
    "EVERY_DOCUMENT", "Annotations", "ApprovalRequired", "BadFrontMatter", "Changes", "Conflict", "Context",
    "Database", "Dialect", "Document", "Edge", "Failure", "Field", "FileChoice", "FileStamp", "FileSymbols", "Filter",
    "Forbidden", "FrontMatter", "GitFacts", "GraphNode", "HealthPart", "Hit", "Home", "IndexState", "Internal",
    "Invalid", "JsonValue", "KsiError", "Neighbour", "NoGitFacts", "Node", "NotFound", "Nothing", "Notice", "Params",
    "Parts", "Plugin", "PluginRefused", "PluginSettings", "Principal", "Rename", "Result", "Retrieval", "Row",
    "Symbol", "TooLarge", "TooMany", "Transaction", "Unavailable", "View", "ViewTool", "WatchSettings", "WatchState",
    "Watcher", "create_beneath", "in_process", "in_thread", "normalize_error", "open_beneath", "read_beneath",
    "read_front_matter", "sanitize_path", "sanitize_query", "with_error_boundary",
]  # fmt: skip

Capability = TypeVar("Capability")
Model = TypeVar("Model", bound=PluginSettings)


class Acts(Protocol):
    """The part of the plugin host that a home uses for what the plugin does by itself."""

    def background(self, name: str, work: Callable[[], Awaitable[None]]) -> None: ...

    async def call(self, event: str, data: Mapping[str, Any], timeout_s: float | None) -> bytes: ...

    def notify(self, event: str, data: Mapping[str, Any]) -> Notice: ...


class Home:
    """The resources of a running plugin: its folder, its database, its log, its settings and its capabilities."""

    __slots__ = ("_acts", "_capabilities", "_database", "_settings", "announces", "folder", "log", "plugin")

    def __init__(
        self,
        plugin: str,
        folder: Path,
        *,
        log: FilteringBoundLogger,
        database: Database | None = None,
        capabilities: Mapping[type, object] = MappingProxyType({}),
        announces: Iterable[str] = (),
        settings: PluginSettings | None = None,
        acts: Acts | None = None,
    ) -> None:
        self.plugin = plugin
        self.folder = folder
        self.announces = frozenset(announces)
        self.log = log
        self._database = database
        self._capabilities = capabilities
        self._settings = settings
        self._acts = acts

    @property
    def database(self) -> Database:
        """The plugin's own SQLite database; available if the plugin declares migrations."""
        if self._database is None:
            raise Unavailable(
                f"the plugin {self.plugin!r} has no database", hint="declare its tables: Plugin(…, migrations=[…])"
            )
        return self._database

    def settings(self, kind: type[Model]) -> Model:
        """The plugin's settings: an object of the class that it declared with `settings=`."""
        if not isinstance(self._settings, kind):
            raise Unavailable(
                f"the plugin {self.plugin!r} has no settings {kind.__name__}",
                hint=f"declare them: Plugin(…, settings={kind.__name__})",
            )
        return self._settings

    def capability(self, kind: type[Capability]) -> Capability:
        """A capability the plugin declared with `uses=[…]`."""
        if kind not in self._capabilities:
            raise Unavailable(
                f"the plugin {self.plugin!r} was not given {kind.__name__}", hint=f"declare uses=[{kind.__name__}]"
            )
        return cast(Capability, self._capabilities[kind])

    def background(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work()` for as long as the plugin runs, from when its events can be called until before its lifespan ends.

        If it raises or returns it is started again, after a pause that grows; `ksi plugins show` has its last error.
        """
        self._own_acts().background(name, work)

    async def call(self, event: str, data: Mapping[str, Any] | None = None, *, timeout_s: float | None = None) -> Any:
        """Call an event as the plugin itself: one of its own, or one that it declares with `calls=[…]`; returns plain data."""
        return msgspec.json.decode(await self._own_acts().call(event, dict(data or {}), timeout_s))

    def notify(self, event: str, data: Mapping[str, Any] | None = None) -> Notice:
        """Send a notice as the plugin itself. Never waits; only notices that this plugin declared."""
        return self._own_acts().notify(event, dict(data or {}))

    def _own_acts(self) -> Acts:
        if self._acts is None:
            raise Unavailable(f"the plugin {self.plugin!r} does not run")
        return self._acts


class Hub(Protocol):
    """The part of the router that a context uses."""

    async def call(
        self,
        event: str,
        data: Any,
        *,
        principal: Principal,
        parent: "Context | None" = None,
        timeout_s: float | None = None,
    ) -> bytes: ...

    def notify(self, event: str, data: Any, *, principal: Principal, parent: "Context | None" = None) -> Notice: ...


class Feedback(Protocol):
    """How a transport tells the caller of a running call about it. Neither method waits."""

    def progress(self, done: float, total: float | None, message: str | None) -> None: ...

    def log(self, level: str, line: Mapping[str, Any]) -> None: ...


class Context(msgspec.Struct, eq=False):
    """The context of one call: its caller, ids and plugin, and methods to call other events with the caller's rights."""

    home: Home
    hub: Hub
    principal: Principal
    event: str
    call_id: str
    correlation_id: str
    parent_id: str | None = None
    depth: int = 0
    feedback: Feedback | None = None

    @property
    def database(self) -> Database:
        """The plugin's own SQLite database."""
        return self.home.database

    @property
    def announces(self) -> frozenset[str]:
        """The notices that the plugin may send."""
        return self.home.announces

    @property
    def folder(self) -> Path:
        """The plugin's own folder under var/plugins/."""
        return self.home.folder

    @property
    def log(self) -> FilteringBoundLogger:
        """A logger bound to the plugin and the call; add fields as keywords. An MCP client that asked for them gets its lines too."""
        bound = self.home.log.bind(call_id=self.call_id, correlation_id=self.correlation_id)
        return bound if self.feedback is None else bound.bind(**{TO_CALLER: self.feedback.log})

    def settings(self, kind: type[Model]) -> Model:
        """The plugin's settings: an object of the class that it declared with `settings=`."""
        return self.home.settings(kind)

    def capability(self, kind: type[Capability]) -> Capability:
        """A capability the plugin declared with `uses=[…]`."""
        return self.home.capability(kind)

    async def call(self, event: str, data: Mapping[str, Any] | None = None, *, timeout_s: float | None = None) -> Any:
        """Call another event with the caller's rights, as part of this call; returns its result as plain data."""
        answer = await self.hub.call(
            event, dict(data or {}), principal=self.principal, parent=self, timeout_s=timeout_s
        )
        return msgspec.json.decode(answer)

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Say how far the call is, if its caller asked. Never waits, from any thread; what comes too often is merged."""
        if not math.isfinite(done) or not (total is None or math.isfinite(total)):
            raise ValueError(f"progress of {self.event}: done and total must be finite numbers, not {done} and {total}")
        if self.feedback is not None:
            self.feedback.progress(done, total, None if message is None else bounded(message))

    def notify(self, event: str, data: Mapping[str, Any] | None = None) -> Notice:
        """Send a notice. Never waits; only notices that this plugin declared."""
        return self.hub.notify(event, dict(data or {}), principal=self.principal, parent=self)


class HealthPart(Result):
    """How one part of a plugin is, and why."""

    name: str = Field(max_length=64, description="The part: index, watcher, queue.")
    state: Literal["ok", "degraded", "failed"] = Field(
        "ok", description="degraded: it works with less; failed: it does not."
    )
    reason: str | None = Field(None, description="Why it is not ok; its first 300 characters are shown.")


HandlerFunction = Callable[..., Awaitable[Result]]
Listener = Callable[[Context, Notice], Awaitable[None]]
Lifespan = Callable[[Home], AbstractAsyncContextManager[None]]
HealthFunction = Callable[[Home], Awaitable[Sequence[HealthPart]]]


class Plugin:
    """One plugin: its handlers, listeners, notices, settings, capabilities, migrations and view."""

    def __init__(
        self,
        name: str,
        *,
        settings: type[PluginSettings] | None = None,
        uses: Sequence[type] = (),
        calls: Sequence[str] = (),
        migrations: Sequence[str] = (),
        view: View | None = None,
    ) -> None:
        if not PLUGIN_NAME.fullmatch(name):
            raise PluginRefused(
                f"{name!r} is not a valid plugin name: use lower-case letters, digits and underscores, at most 32"
            )
        for pattern in calls:
            if pattern == "*" or not PATTERN.fullmatch(pattern):
                raise PluginRefused(f"{name}: calls: {pattern!r} is not an event's name or namespace:*")
        if settings is not None:
            check_model(name, settings)
        self.name = name
        self.settings = settings
        self.calls = tuple(calls)
        self.uses = tuple(uses)
        self.migrations = tuple(migrations)
        self.view = view
        self.handlers: dict[str, Handler] = {}
        self.listeners: list[tuple[str, Listener]] = []
        self.notices: dict[str, str] = {}
        self.lifespan_function: Lifespan | None = None
        self.health_function: HealthFunction | None = None

    def handles(
        self,
        event: str,
        *,
        reads: bool = False,
        timeout_s: float | None = None,
        uses: Sequence[type] = (),
        operator_only: bool = False,
        needs: Sequence[tuple[str, Need]] = (),
        cost: float = 1.0,
        title: str | None = None,
        annotations: Annotations | None = None,
        tool: str | None = None,
        every_agent: bool = False,
    ) -> Callable[[HandlerFunction], HandlerFunction]:
        """Register the handler of an event.

        `reads=True` promises that it changes nothing. `uses` names capabilities that only it needs; `needs` what a caller must
        hold in addition to the event itself, such as ("knowledge/maintainer", "execute"); `cost` how many calls one counts as.
        `title` is the tool's name for people, `annotations` what MCP clients may show them before a call.

        Only the daemon's own events can have another tool name (`tool`) or need no grant (`every_agent`).
        """

        def register(function: HandlerFunction) -> HandlerFunction:
            if event in self.handlers:
                raise PluginRefused(
                    f"{self.name}: {event!r} has two handlers, {self.handlers[event].invoke} and {function}"
                )
            traits = Traits(
                reads=reads,
                timeout_s=timeout_s,
                uses=tuple(uses),
                operator_only=operator_only,
                needs=tuple(needs),
                cost=cost,
                title=title,
                annotations=annotations or Annotations(),
                tool=tool,
                every_agent=every_agent,
            )
            handler = handler_from_function(self.name, event, function, traits)
            if problem := mirroring_problem(handler.input_schema):
                raise PluginRefused(f"{self.name}: the params of {event!r}: {problem}")
            self.handlers[event] = handler
            return function

        return register

    def on(self, pattern: str) -> Callable[[Listener], Listener]:
        """Register a listener for notices: `agent:terminated`, `agent:*` or `*`."""
        if not PATTERN.fullmatch(pattern):
            raise PluginRefused(
                f"{self.name}: {pattern!r} is not a valid pattern; use a notice's name, namespace:* or *"
            )

        def register(function: Listener) -> Listener:
            if not inspect.iscoroutinefunction(function) or len(inspect.signature(function).parameters) != 2:
                raise PluginRefused(
                    f"{self.name}: the listener for {pattern!r} must be an async function (ctx, notice)"
                )
            self.listeners.append((pattern, function))
            return function

        return register

    def announces(self, event: str, meaning: str) -> None:
        """Declare a notice of this plugin and what it means."""
        if not EVENT_NAME.fullmatch(event) or not event.startswith(self.name + ":"):
            raise PluginRefused(f"{self.name}: {event!r} is not a valid notice name for this plugin; use {self.name}:…")
        if event in self.notices or event in self.handlers:
            raise PluginRefused(f"{self.name}: {event!r} is declared twice")
        self.notices[event] = meaning

    def lifespan(self, function: Callable[[Home], AbstractAsyncContextManager[None]]) -> Lifespan:
        """Register an async context manager over the home, entered before the first call and left after the last."""
        if self.lifespan_function is not None:
            raise PluginRefused(f"{self.name} has two lifespans")
        self.lifespan_function = function
        return function

    def health(self, function: HealthFunction) -> HealthFunction:
        """Register an async function over the home that returns how the plugin's parts are. It may take 2 seconds."""
        if self.health_function is not None:
            raise PluginRefused(f"{self.name} has two health functions")
        if not inspect.iscoroutinefunction(function) or len(inspect.signature(function).parameters) != 1:
            raise PluginRefused(f"{self.name}: the health function must be an async function (home)")
        self.health_function = function
        return function
