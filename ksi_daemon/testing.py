"""A daemon inside a test: the real router, storage and core events in a temporary folder, with the plugins to test and no transports.

For plugin authors; docs/plugins.md has an example.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from ksi_daemon.config import Settings, SettingsRead
from ksi_daemon.daemon import Hub, open_hub
from ksi_daemon.logs.failures import Kind
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

    def __init__(self, hub: Hub, mailbox: Mailbox, *, raise_failures: bool) -> None:
        self.hub = hub
        self._mailbox = mailbox
        self._failures: asyncio.Queue[BaseException] = asyncio.Queue()
        if raise_failures:
            hub.loader.on_failure = self._hear_failure
        self._principal = Principal(kind="operator", name="test", mailbox=mailbox.name)

    async def call(self, event: str, /, **data: Any) -> Any:
        """Send an event as the operator; returns its result as plain data, or raises its error.

        Raises what a listener or background work of a plugin raised before.
        """
        self._raise_failure()
        return msgspec.json.decode(await self.hub.router.call(event, data, principal=self._principal))

    async def load(self, plugin: Path | Plugin) -> None:
        """Load one more plugin."""
        await self.hub.loader.load(_found(plugin))

    def subscribe(self, *patterns: str) -> None:
        """Keep the notices that match from now on, for `next_notice`."""
        self._mailbox.subscribe(patterns)

    async def next_notice(self) -> Notice:
        """The next notice that was kept, waiting for it. Raises what a listener or background work raises meanwhile."""
        if self._mailbox.waiting:
            return await self._mailbox.take()
        self._raise_failure()
        notice = asyncio.ensure_future(self._mailbox.take())
        failure = asyncio.ensure_future(self._failures.get())
        try:
            with self.hub.router.deadlines.within(10):
                await asyncio.wait({notice, failure}, return_when=asyncio.FIRST_COMPLETED)
            if notice.done():
                if failure.done():
                    self._failures.put_nowait(failure.result())  # for the next wait
                return notice.result()
            raise failure.result()
        finally:
            notice.cancel()
            failure.cancel()

    def _hear_failure(self, plugin: str, kind: Kind, name: str, error: BaseException) -> None:
        if kind not in ("listener", "background"):
            return
        if not isinstance(error, Exception):
            wrapped = RuntimeError(f"it raised {error!r}")
            wrapped.__cause__ = error
            error = wrapped
        error.add_note(f"raised by the {kind} {name!r} of the plugin {plugin}")
        self._failures.put_nowait(error)

    def _raise_failure(self) -> None:
        if not self._failures.empty():
            raise self._failures.get_nowait()


@asynccontextmanager
async def running(
    *plugins: Path | Plugin,
    plugin_settings: Mapping[str, Mapping[str, Any]] | None = None,
    raise_failures: bool = True,
    **settings: Any,
) -> AsyncIterator[TestHub]:
    """A daemon with these plugins (folders or objects) and settings. Raises if a plugin breaks a rule of the plugin API.

    `plugin_settings` are the tables `[plugins.NAME]` of ksi.toml: `{"notes": {"limit": 5}}`. What a listener or background
    work raises is raised in the test by the next `call` or `next_notice`, unless `raise_failures` is False.

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
                test_hub = TestHub(hub, hub.router.bus.open("test"), raise_failures=raise_failures)
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
