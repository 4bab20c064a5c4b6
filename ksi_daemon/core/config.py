"""Config: what the hub was set to, where each value came from, and reading it again."""

from typing import Any

from ksi_daemon.plugin import Context, Nothing, Plugin, Result
from ksi_daemon.process.control import Control

plugin = Plugin("config", uses=[Control])
plugin.announces("config:reloaded", "New settings were accepted; data names what changed and what waits for a restart.")
plugin.announces("config:rejected", "New settings were refused and the old ones stay; data has the reason.")


class Shown(Result):
    ok: bool
    config_file: str
    config_file_exists: bool
    settings: list[dict[str, Any]]
    problems: list[str]
    warnings: list[str]


@plugin.handles("config:show", reads=True)
async def show(ctx: Context, params: Nothing) -> Shown:
    """Show every setting that is in force and where its value came from."""
    return Shown(**ctx.capability(Control).read.as_dict())


class Reloaded(Result):
    changed: list[str]
    needs_restart: list[str]


@plugin.handles("config:reload", operator_only=True)
async def reload(ctx: Context, params: Nothing) -> Reloaded:
    """Read the settings again. If they are bad, the old ones stay and the answer says why."""
    changed, waiting = ctx.capability(Control).reload_settings()
    return Reloaded(changed=changed, needs_restart=waiting)
