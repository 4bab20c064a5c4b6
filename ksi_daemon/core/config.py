"""Config: show the settings with the source of each value, and reload them."""

from typing import Any

from ksi_daemon.plugin import Context, Field, Nothing, Plugin, Result
from ksi_daemon.process.control import Control

plugin = Plugin("config", uses=[Control])
plugin.announces("config:reloaded", "New settings were accepted; data names what changed and what needs a restart.")
plugin.announces("config:rejected", "New settings were refused and the old ones stay in effect; data has the reason.")


class Shown(Result):
    ok: bool
    config_file: str
    config_file_exists: bool
    settings: list[dict[str, Any]]
    problems: list[str]
    warnings: list[str]


@plugin.handles("config:show", reads=True)
async def show(ctx: Context, params: Nothing) -> Shown:
    """Show every setting with its current value and the source of the value."""
    return Shown(**ctx.capability(Control).shown())


class Reloaded(Result):
    changed: list[str] = Field(
        description="Names of settings, and plugins.NAME for each plugin that was started again."
    )
    needs_restart: list[str]
    warnings: list[str] = Field(description="What in them does not fit the plugins that run now.")


@plugin.handles("config:reload", operator_only=True, timeout_s=120)
async def reload(ctx: Context, params: Nothing) -> Reloaded:
    """Read the settings again. If they are invalid, the old ones stay in effect and the error says why.

    A plugin whose settings changed is started again, without dropping calls; one whose new settings are bad keeps the old ones.
    """
    control = ctx.capability(Control)
    changed, waiting = await control.reload_settings()
    return Reloaded(changed=changed, needs_restart=waiting, warnings=control.warnings())
