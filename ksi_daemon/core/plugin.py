"""Plugins: list them, inspect one, and reload one from disk."""

from pathlib import Path
from typing import Any, Literal

from ksi_daemon.errors import NotFound
from ksi_daemon.notice import iso_time
from ksi_daemon.plugin import Context, Field, HealthPart, Nothing, Params, Plugin, Result
from ksi_daemon.plugin_host.loader import Loader, SetAside
from ksi_daemon.plugin_host.running_plugin import RunningPlugin
from ksi_daemon.routing.router import Router

plugin = Plugin("plugin", uses=[Loader, Router])
plugin.announces("plugin:loaded", "A plugin has started.")
plugin.announces("plugin:failed", "A plugin was set aside; data has its name and the reason.")
plugin.announces("plugin:reloaded", "A plugin was reloaded from disk.")


class Listed(Result):
    name: str
    state: Literal["running", "broken", "disabled"]
    source: str
    path: str
    summary: str
    events: list[str]
    notices: list[str]
    reason: str | None = None


class PluginList(Result):
    plugins: list[Listed]
    folders: list[str]


@plugin.handles("plugin:list", reads=True)
async def list_plugins(ctx: Context, params: Nothing) -> PluginList:
    """List every plugin that was found, running or not, and the folders that are searched."""
    loader = ctx.capability(Loader)
    rows = [_running(running) for running in loader.running.values()] + [
        _aside(aside) for aside in loader.set_aside.values()
    ]
    return PluginList(
        plugins=sorted(rows, key=lambda row: row.name), folders=[str(folder) for folder in loader.searched()]
    )


class Name(Params):
    name: str = Field(max_length=64, description="The plugin's name.")


class Inspection(Listed):
    handlers: list[dict[str, Any]] = []
    subscriptions: list[dict[str, Any]] = []
    health: list[HealthPart] = Field([], description="What it says of its parts, and work of its own that failed.")
    calls: list[str] = Field([], description="What it may call by itself, besides its own events.")
    background: list[dict[str, Any]] = Field([], description="Work of the plugin's own, and whether it runs.")
    errors: list[dict[str, Any]] = Field([], description="The last failure of each part; the operator sees tracebacks.")
    database: dict[str, Any] | None = None
    loaded_at: str | None = None
    omitted: list[dict[str, str]] = []


@plugin.handles("plugin:inspect", reads=True)
async def inspect(ctx: Context, params: Name) -> Inspection:
    """Show one plugin: its health, handlers with their counts, listeners, its own work, last errors, database, and omitted events."""
    loader = ctx.capability(Loader)
    running = loader.running.get(params.name)
    if running is None:
        aside = loader.set_aside.get(params.name)
        if aside is None:
            raise NotFound(
                f"there is no plugin named {params.name!r}", hint="plugin:list lists the plugins that were found"
            )
        return Inspection(**_aside(aside).model_dump())
    return Inspection(
        **_running(running).model_dump(),
        handlers=_handlers(ctx.capability(Router), params.name),
        subscriptions=[
            {
                "pattern": subscription.pattern,
                "delivered": subscription.mailbox.delivered,
                "failed": subscription.failed,
                "dropped": subscription.mailbox.dropped,
                "waiting": len(subscription.mailbox.waiting),
            }
            for subscription in running.subscriptions
        ],
        health=await running.health(),
        calls=list(running.plugin.calls),
        background=list(running.acts.rows()),
        errors=running.failures.rows(with_tracebacks=ctx.principal.agent_id is None),
        database=_database(running),
        loaded_at=iso_time(running.loaded_at),
        omitted=[{"event": event, "needs": needs} for event, needs in running.omitted.items()],
    )


class Reloaded(Result):
    name: str
    state: Literal["running"]
    events: list[str]
    cut_calls: int = Field(description="Calls of the old version that were cancelled after the drain time.")


@plugin.handles("plugin:reload", operator_only=True, timeout_s=120)
async def reload(ctx: Context, params: Name) -> Reloaded:
    """Replace a plugin by the version on disk, without dropping calls. If the new version is broken, the old one stays."""
    running, left = await ctx.capability(Loader).reload(params.name)
    return Reloaded(name=params.name, state="running", events=sorted(running.plugin.handlers), cut_calls=left)


def _running(running: RunningPlugin) -> Listed:
    return Listed(
        name=running.plugin.name,
        state="running",
        source=running.found.source,
        path=running.found.path,
        summary=running.summary,
        events=sorted(set(running.plugin.handlers) - set(running.omitted)),
        notices=sorted(running.plugin.notices),
    )


def _aside(aside: SetAside) -> Listed:
    return Listed(
        name=aside.name,
        state=aside.state,
        source=aside.source,
        path=aside.path,
        summary="",
        events=[],
        notices=[],
        reason=aside.reason,
    )


def _handlers(router: Router, name: str) -> list[dict[str, Any]]:
    return [
        {
            "event": event,
            "tool": route.handler.tool,
            "summary": route.handler.summary,
            "reads": route.handler.traits.reads,
            "timeout_s": route.handler.traits.timeout_s,
            "calls": route.counts.calls,
            "errors": route.counts.errors,
        }
        for event, route in sorted(router.routes.items())
        if route.handler.plugin == name
    ]


def _database(running: RunningPlugin) -> dict[str, Any] | None:
    database = running.database
    if database is None:
        return None
    path: Path = database.path
    return {"path": str(path), "bytes": path.stat().st_size, "version": len(database.migrations)}
