"""The helper for tests of plugins: what a plugin does wrong in the background fails the test that waits, with the plugin's own error."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ksi_daemon.notice import Notice
from ksi_daemon.plugin import Context, Home, Nothing, Plugin
from ksi_daemon.testing import TestHub, running
from tests.in_process import Said, until


def failing(error: BaseException) -> Plugin:
    """A plugin whose listener should send a notice and raises instead."""
    plugin = Plugin("notes")
    plugin.announces("notes:added", "A note was added.")
    plugin.announces("notes:indexed", "A note was indexed.")

    @plugin.handles("notes:add")
    async def add(ctx: Context, params: Nothing) -> Said:
        """Add a note."""
        ctx.notify("notes:added")
        return Said()

    @plugin.on("notes:added")
    async def index(ctx: Context, notice: Notice) -> None:
        raise error

    return plugin


async def failed(hub: TestHub) -> None:
    await until(lambda: hub.hub.loader.running["notes"].subscriptions[0].failed)


async def test_a_listeners_error_ends_the_wait_for_the_notice_that_will_never_come() -> None:
    async with running(failing(ValueError("no index"))) as hub:
        hub.subscribe("notes:indexed")
        await hub.call("notes:add")
        with pytest.raises(ValueError, match="no index") as caught:
            await hub.next_notice()
        assert caught.value.__notes__ == ["raised by the listener 'notes:added' of the plugin notes"]


async def test_it_is_raised_by_the_next_call_too_and_once() -> None:
    async with running(failing(SystemExit(3))) as hub:
        await hub.call("notes:add")
        await failed(hub)
        with pytest.raises(RuntimeError, match="SystemExit"):
            await hub.call("system:health")
        assert (await hub.call("system:health"))["plugins"]["notes"]["state"] == "running"


async def test_a_notice_that_has_come_goes_before_an_error_and_loses_none() -> None:
    async with running(failing(ValueError("no index"))) as hub:
        hub.subscribe("notes:*")
        await hub.call("notes:add")
        await failed(hub)
        assert (await hub.next_notice()).event == "notes:added"
        with pytest.raises(ValueError, match="no index"):
            await hub.next_notice()
        hub.hub.router.notify("notes:indexed", {}, principal=hub._principal)
        assert (await hub.next_notice()).event == "notes:indexed"


async def test_the_error_of_background_work_is_raised() -> None:
    plugin, fail = Plugin("notes"), asyncio.Event()

    async def work() -> None:
        await fail.wait()
        raise ValueError("no folder")

    @plugin.lifespan
    @asynccontextmanager
    async def live(home: Home) -> AsyncIterator[None]:
        home.background("watch", work)
        yield

    async with running(plugin) as hub:
        waiting = asyncio.create_task(hub.next_notice())
        await asyncio.sleep(0)
        fail.set()
        with pytest.raises(ValueError, match="no folder"):
            await waiting


async def test_a_test_of_a_failure_can_ask_for_silence() -> None:
    async with running(failing(ValueError("no index")), raise_failures=False) as hub:
        await hub.call("notes:add")
        await failed(hub)
        assert (await hub.call("plugin:inspect", name="notes"))["errors"][0]["error"] == "ValueError: no index"
