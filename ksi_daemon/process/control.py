"""The daemon's control object: data about this process, its settings, and the stop request. For core plugins only."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ksi_daemon.config import NEED_RESTART, Settings, SettingsRead, read_settings
from ksi_daemon.errors import BadSettings, Invalid
from ksi_daemon.principal import DAEMON
from ksi_daemon.routing.router import Router


class Control:
    """One per daemon. `apply` is called with new settings when a reload accepts them."""

    def __init__(
        self,
        read: SettingsRead,
        *,
        router: Router,
        log: Any,
        apply: Callable[[SettingsRead], None],
        stop_requested: asyncio.Event,
    ) -> None:
        self.read = read
        self.started_at = time.time()
        self._started = time.monotonic()  # uptime does not follow a clock that is set
        self.pid = os.getpid()
        self.url = ""
        self.stop_requested = stop_requested
        self.connections: Callable[[], int] = lambda: 0
        self.problems_of: Callable[[Settings], list[str]] = lambda settings: []
        self.warnings: Callable[[], list[str]] = list
        self.plugin_rows: Callable[[], list[dict[str, Any]]] = list
        self.apply_to_plugins: Callable[[], Awaitable[list[str]]] = _no_plugins
        self.alarm_sources: list[Callable[[], list[str]]] = []
        self._router = router
        self._log = log
        self._apply = apply
        self._reloading = asyncio.Lock()

    @property
    def socket_path(self) -> Path:
        """The operator socket."""
        return self.read.settings.var_dir / "run" / "ksi.sock"

    @property
    def mcp_url(self) -> str:
        """Where agents connect."""
        return f"{self.url}/mcp"

    @property
    def uptime_s(self) -> float:
        """Seconds since the start."""
        return round(time.monotonic() - self._started, 3)

    def alarms(self) -> list[str]:
        """The current alarms."""
        return [alarm for source in self.alarm_sources for alarm in source()]

    def shown(self) -> dict[str, Any]:
        """The document of `config:show`."""
        return self.read.as_dict(self.plugin_rows(), self.warnings())

    async def reload_on_signal(self) -> None:
        """`reload_settings` without a caller; a refusal is logged and announced."""
        with suppress(Invalid):
            await self.reload_settings()

    async def reload_settings(self) -> tuple[list[str], list[str]]:
        """Read the settings again. Invalid ones are refused and the old ones stay in effect.

        Returns the names that changed, and which of them need a restart. A plugin whose settings changed is started again.
        """
        async with self._reloading:
            return await self._reload()

    async def _reload(self) -> tuple[list[str], list[str]]:
        try:
            new = read_settings()
            if problems := self.problems_of(new.settings):
                raise BadSettings("the settings cannot be used:\n  " + "\n  ".join(problems))
        except BadSettings as error:
            self._log.error("new settings refused, the old ones stay in effect", problem=str(error))
            self._router.notify("config:rejected", {"problem": str(error)}, principal=DAEMON)
            raise Invalid(
                f"{error}\nThe old settings stay in effect.", hint="`ksi config check` shows the problems of the file"
            ) from error
        old, fresh = self.read.settings.model_dump(), new.settings.model_dump()
        changed = sorted(name for name in fresh if fresh[name] != old[name])
        waiting = [name for name in changed if name in NEED_RESTART]
        self.read = new.keeping(waiting, self.read.settings)
        self._apply(self.read)
        changed += [f"plugins.{name}" for name in await self.apply_to_plugins()]
        self._log.info("settings reloaded", changed=changed, needs_restart=waiting)
        self.log_warnings()
        self._router.notify("config:reloaded", {"changed": changed, "needs_restart": waiting}, principal=DAEMON)
        return changed, waiting

    def log_warnings(self) -> None:
        """Log what in the settings does not fit the plugins that run now."""
        for warning in self.warnings():
            self._log.warning(warning)


async def _no_plugins() -> list[str]:
    return []
