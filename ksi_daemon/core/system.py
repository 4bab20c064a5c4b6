"""System: the daemon's health and status, its events, and shutdown."""

import platform
from typing import Any, Literal

from pydantic import ConfigDict

from ksi_daemon import __version__
from ksi_daemon.errors import Invalid, UnknownEvent
from ksi_daemon.gate.gate import Gate
from ksi_daemon.handler import Handler
from ksi_daemon.identifiers import namespace_of
from ksi_daemon.notice import iso_time
from ksi_daemon.plugin import Context, Field, HealthPart, JsonValue, Nothing, Params, Plugin, Result
from ksi_daemon.plugin_host.loader import Loader
from ksi_daemon.plugin_host.watchdog import Watchdog
from ksi_daemon.process.control import Control
from ksi_daemon.routing.describe import Format, describe, describe_notice
from ksi_daemon.routing.router import Router

plugin = Plugin("system", uses=[Router, Loader, Control, Watchdog, Gate])
plugin.announces("system:ready", "The daemon has started and accepts calls.")
plugin.announces("system:stopping", "The daemon was asked to stop: running calls are finished, new ones refused.")


class Echo(Params):
    text: str = Field(max_length=100_000, description="The text to return.")


class Echoed(Result):
    text: str


@plugin.handles("system:echo", reads=True)
async def echo(ctx: Context, params: Echo) -> Echoed:
    """Return the text, to test a connection."""
    return Echoed(text=params.text)


class PluginHealth(Result):
    state: Literal["running", "broken", "disabled"]
    reason: str | None = None
    parts: list[HealthPart] = Field(
        [], description="What a running plugin says of its parts, and work of its own that failed."
    )


class Health(Result):
    status: Literal["ok", "degraded"]
    uptime_s: float
    loop_lag_ms: float
    dropped_notices: int
    plugins: dict[str, PluginHealth]
    alarms: list[str]


@plugin.handles("system:health", reads=True)
async def health(ctx: Context, params: Nothing) -> Health:
    """Report the health of the daemon and of each plugin, and the current alarms."""
    loader, control = ctx.capability(Loader), ctx.capability(Control)
    parts = await loader.health()
    plugins = {name: PluginHealth(state="running", parts=parts.get(name, [])) for name in loader.running}
    plugins |= {key: PluginHealth(state=aside.state, reason=aside.reason) for key, aside in loader.set_aside.items()}
    alarms = control.alarms()
    return Health(
        status="degraded" if loader.degraded or alarms else "ok",
        uptime_s=control.uptime_s,
        loop_lag_ms=round(ctx.capability(Watchdog).lag_s * 1000, 1),
        dropped_notices=ctx.capability(Router).bus.dropped,
        plugins=dict(sorted(plugins.items())),
        alarms=alarms,
    )


class Status(Result):
    state: Literal["running", "stopping"]
    pid: int
    version: str
    url: str
    var_dir: str
    socket: str
    config_file: str
    started_at: str
    uptime_s: float
    python: str
    plugins: dict[str, int]
    events: int
    connections: int
    calls_in_flight: int
    alarms: list[str]


@plugin.handles("system:status", reads=True)
async def status(ctx: Context, params: Nothing) -> Status:
    """Report the daemon's addresses, uptime and load."""

    router, loader, control = ctx.capability(Router), ctx.capability(Loader), ctx.capability(Control)
    broken = sum(aside.state == "broken" for aside in loader.set_aside.values())
    return Status(
        state="stopping" if router.stopping else "running",
        pid=control.pid,
        version=__version__,
        url=control.mcp_url,
        var_dir=str(control.read.settings.var_dir),
        socket=str(control.socket_path),
        config_file=str(control.read.config_file),
        started_at=iso_time(control.started_at),
        uptime_s=control.uptime_s,
        python=platform.python_version(),
        plugins={"running": len(loader.running), "broken": broken},
        events=len(router.routes),
        connections=control.connections(),
        calls_in_flight=router.in_flight - 1,
        alarms=control.alarms(),
    )


class Stopping(Result):
    stopping: bool


@plugin.handles("system:shutdown", operator_only=True)
async def shutdown(ctx: Context, params: Nothing) -> Stopping:
    """Stop the daemon: running calls are finished, new ones are refused, then it exits."""
    ctx.capability(Control).stop_requested.set()
    return Stopping(stopping=True)


class Help(Params):
    event: str = Field(max_length=100, description="The event to explain, such as system:health.")
    format_style: Format = Field("verbose", description="Output format: verbose, compact, MCP tool, or JSON Schema.")


class Explained(Result):
    """An event in the requested format."""

    model_config = ConfigDict(extra="allow", frozen=True)

    event: str


@plugin.handles("system:help", reads=True)
async def explain_event(ctx: Context, params: Help) -> Explained:
    """Explain one event: what it does, its parameters and its result."""
    handler = _visible(ctx).get(params.event)
    if handler is not None:
        return Explained(**describe(handler, params.format_style))
    notice = _notices(ctx).get(params.event)
    if notice is None:
        raise UnknownEvent(f"there is no event {params.event!r}", hint="system:discover lists the events")
    return Explained(**notice)


class Discover(Params):
    namespace: str | None = Field(None, max_length=40, description="Only events of this namespace.")
    event: str | None = Field(None, max_length=100, description="Only this event.")
    module: str | None = Field(None, max_length=40, description="Only events of this plugin.")
    detail: bool = Field(False, description="With parameters and results, in the format chosen by format_style.")
    format_style: Format = Field("verbose", description="Format of each event when detail is true.")
    level: Literal["full", "namespace", "summary"] = Field(
        "full", description="full: every event; namespace: names by namespace; summary: how many in each namespace."
    )


class Discovery(Result):
    total: int
    namespaces: dict[str, JsonValue] | list[str]
    events: dict[str, dict[str, Any]]


@plugin.handles("system:discover", reads=True)
async def discover(ctx: Context, params: Discover) -> Discovery:
    """List the events that can be called and the notices that can be subscribed to, in the requested detail."""
    calls = _visible(ctx)
    described = {
        event: describe(handler, params.format_style)
        if params.detail
        else {"summary": handler.summary, "plugin": handler.plugin, "reads": handler.traits.reads, "kind": "call"}
        for event, handler in calls.items()
    } | {
        event: notice if params.detail else {name: notice[name] for name in ("summary", "plugin", "kind")}
        for event, notice in _notices(ctx).items()
    }
    events = {
        event: described[event]
        for event in sorted(described)
        if params.namespace in (None, namespace_of(event))
        and params.event in (None, event)
        and params.module in (None, namespace_of(event))
    }
    names: dict[str, list[str]] = {}
    for event in events:
        names.setdefault(namespace_of(event), []).append(event)
    if params.level == "summary":
        return Discovery(total=len(events), namespaces={name: len(found) for name, found in names.items()}, events={})
    if params.level == "namespace":
        return Discovery(total=len(events), namespaces=dict(names), events={})
    return Discovery(total=len(events), namespaces=list(names), events=events)


def _visible(ctx: Context) -> dict[str, Handler]:
    """The events this caller may call; others are hidden from it."""
    gate = ctx.capability(Gate)
    routes = ctx.capability(Router).routes
    return {event: route.handler for event, route in routes.items() if gate.lists(ctx.principal, route.handler)}


def _notices(ctx: Context) -> dict[str, dict[str, Any]]:
    gate = ctx.capability(Gate)
    return {
        event: describe_notice(event, running.plugin.name, meaning)
        for running in ctx.capability(Loader).running.values()
        for event, meaning in running.plugin.notices.items()
        if gate.receives(ctx.principal, event)
    }


class Validate(Params):
    event: str = Field(max_length=100, description="The event the data is meant for.")
    data: JsonValue = Field(description="The data to check.")


class Problem(Result):
    field: str
    message: str


class Verdict(Result):
    valid: bool
    errors: list[Problem]


@plugin.handles("system:validate", reads=True)
async def validate(ctx: Context, params: Validate) -> Verdict:
    """Check data against an event's parameters without sending it; unknown fields are errors too."""
    handler = _visible(ctx).get(params.event)
    if handler is None:
        raise UnknownEvent(f"there is no event {params.event!r}", hint="system:discover lists the events")
    try:
        handler.parse(params.data)
    except Invalid as error:
        fields = error.fields or [{"field": "(data)", "problem": error.message}]
        return Verdict(
            valid=False, errors=[Problem(field=field["field"], message=field["problem"]) for field in fields]
        )
    return Verdict(valid=True, errors=[])
