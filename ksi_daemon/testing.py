"""A daemon inside a test: the real router, storage and core events in a temporary folder, with the plugins to test and no transports.

For plugin authors; docs/plugins.md has an example.
"""

import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from ksi_daemon.config import Settings, SettingsRead
from ksi_daemon.daemon import Hub, open_hub
from ksi_daemon.logs.log import Log
from ksi_daemon.notice import Notice
from ksi_daemon.plugin import Plugin
from ksi_daemon.plugin_host.discovery import Found, load_folder
from ksi_daemon.principal import Principal
from ksi_daemon.process.var_dir import prepare
from ksi_daemon.routing.bus import Mailbox


class TestHub:
    """The daemon as a test uses it."""

    __test__ = False  # not a test class, although pytest would take it for one by its name

    def __init__(self, hub: Hub, mailbox: Mailbox) -> None:
        self.hub = hub
        self._mailbox = mailbox
        self._principal = Principal(kind="operator", name="test", mailbox=mailbox.name)

    async def call(self, event: str, /, **data: Any) -> Any:
        """Send an event as the operator; returns its result as plain data, or raises its error."""
        return msgspec.json.decode(await self.hub.router.call(event, data, principal=self._principal))

    async def load(self, plugin: Path | Plugin) -> None:
        """Load one more plugin."""
        await self.hub.loader.load(_found(plugin))

    def subscribe(self, *patterns: str) -> None:
        """Keep the notices that match from now on, for `next_notice`."""
        self._mailbox.subscribe(patterns)

    async def next_notice(self) -> Notice:
        """The next notice that was kept, waiting for it."""
        with self.hub.router.deadlines.within(10):
            return await self._mailbox.take()


@asynccontextmanager
async def running(
    *plugins: Path | Plugin, plugin_settings: Mapping[str, Mapping[str, Any]] | None = None, **settings: Any
) -> AsyncIterator[TestHub]:
    """A daemon with these plugins (folders or objects) and settings. Raises if a plugin breaks a rule of the plugin API.

    `plugin_settings` are the tables `[plugins.NAME]` of ksi.toml: `{"notes": {"limit": 5}}`.

    Its data is in a folder of its own, deleted at the end; `var_dir=` names one that stays.
    """
    with tempfile.TemporaryDirectory(prefix="ksi-test-") as folder:
        var_dir = settings.setdefault("var_dir", Path(folder) / "var")
        prepare(var_dir)
        read = SettingsRead(
            settings=Settings(**settings),
            config_file=Path(folder) / "ksi.toml",
            sources={},
            plugins=dict(plugin_settings or {}),
        )
        log = Log(var_dir / "log" / "ksi.jsonl", read.settings.log_level)
        try:
            async with open_hub(read, log, shipped=False) as hub:
                test_hub = TestHub(hub, hub.router.bus.open("test"))
                for plugin in plugins:
                    await test_hub.load(plugin)
                await hub.completions.start()
                yield test_hub
        finally:
            log.file.close()


def _found(plugin: Path | Plugin) -> Found:
    if isinstance(plugin, Plugin):
        return Found(plugin.name, "package", "a test", lambda: (plugin, ""))
    return Found(plugin.name, "folder", str(plugin), lambda: load_folder(plugin))
