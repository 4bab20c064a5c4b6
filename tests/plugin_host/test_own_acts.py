"""What a plugin does by itself: background work that is started again and visible."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from ksi_daemon.errors import Unavailable
from ksi_daemon.plugin import Context, Home, Nothing, Plugin
from ksi_daemon.testing import TestHub, running
from ksi_daemon.workers import supervisor
from tests.agents_at_work import add_agent, call_as
from tests.in_process import Said, log_lines, until

Work = Callable[[Home], Awaitable[None]]


def working(name: str, **works: Work) -> Plugin:
    """A plugin that begins this work in its lifespan."""
    plugin = Plugin(name)

    @plugin.lifespan
    @asynccontextmanager
    async def live(home: Home) -> AsyncIterator[None]:
        for title, work in works.items():
            home.background(title, lambda work=work: work(home))  # type: ignore[misc]
        yield

    @plugin.handles(f"{name}:say", reads=True)
    async def say(ctx: Context, params: Nothing) -> Said:
        """Say something."""
        return Said(text="here")

    return plugin


async def for_ever(home: Home) -> None:
    await asyncio.Event().wait()


async def inspected(hub: TestHub, name: str) -> dict[str, list[dict[str, object]]]:
    return dict(await hub.call("plugin:inspect", name=name))


# --- background work


async def test_work_that_fails_is_started_again_and_seen_with_its_traceback_while_others_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Promise 5."""
    monkeypatch.setattr(supervisor, "PAUSES_S", (0.0,))
    runs = 0

    async def fail_twice(home: Home) -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise ValueError("no disk, password=hunter2")
        if runs == 2:
            raise SystemExit(3)
        await for_ever(home)

    async with running(working("notes", watch=fail_twice, other=for_ever)) as hub:
        await until(lambda: runs == 3)
        assert await hub.call("notes:say") == {"text": "here"}
        shown = await inspected(hub, "notes")
        assert shown["background"] == [
            {"name": "watch", "state": "running", "failed": 2},
            {"name": "other", "state": "running", "failed": 0},
        ]
        (error,) = shown["errors"]
        assert (error["kind"], error["name"], error["count"], error["error"]) == (
            "background",
            "watch",
            2,
            "SystemExit: 3",
        )
        assert "fail_twice" in str(error["traceback"])
        health = await hub.call("system:health")
        assert health["status"] == "degraded"
        (part,) = health["plugins"]["notes"]["parts"]
        assert (part["name"], part["state"]) == ("background watch", "failed")
        log = str([line for line in log_lines(hub.hub.log.file.path) if line["event"] == "long-lived work failed"])
        assert "'plugin': 'notes'" in log
        assert "hunter2" not in log


async def test_an_agent_sees_the_error_without_the_traceback_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "PAUSES_S", (60.0,))

    async def fail(home: Home) -> None:
        raise ValueError("password=hunter2")

    async with running(working("notes", watch=fail)) as hub:
        bot = await add_agent(hub, profile="trusted")
        await until(lambda: hub.hub.loader.running["notes"].failures.count("background", "watch"))
        for_agent = await call_as(hub, bot, "plugin:inspect", name="notes")
        for_operator = await inspected(hub, "notes")
        assert "traceback" not in for_agent["errors"][0]
        assert "traceback" in for_operator["errors"][0]
        assert for_agent["background"][0]["state"] == "waiting to start again"
        assert "hunter2" not in str([for_agent, for_operator])


async def test_it_ends_with_the_plugin_before_what_the_lifespan_opened() -> None:
    order: list[str] = []
    plugin = Plugin("notes")

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            order.append("work ended")  # and returns, as if nothing had happened

    @plugin.lifespan
    @asynccontextmanager
    async def live(home: Home) -> AsyncIterator[None]:
        home.background("watch", work)
        yield
        order.append("lifespan ended")

    async with running(plugin):
        await asyncio.sleep(0)
    assert order == ["work ended", "lifespan ended"]


async def test_two_works_of_one_name_and_work_of_an_ended_plugin_are_refused() -> None:
    plugin = Plugin("notes")
    homes: list[Home] = []

    @plugin.lifespan
    @asynccontextmanager
    async def live(home: Home) -> AsyncIterator[None]:
        home.background("watch", lambda: for_ever(home))
        with pytest.raises(ValueError, match="two background works 'watch'"):
            home.background("watch", lambda: for_ever(home))
        homes.append(home)
        yield

    async with running(plugin):
        pass
    with pytest.raises(Unavailable, match="has ended"):
        homes[0].background("late", lambda: for_ever(homes[0]))


async def test_what_a_failed_start_began_is_ended() -> None:
    started: list[str] = []
    plugin = Plugin("notes")

    async def work() -> None:
        started.append("work")

    @plugin.lifespan
    @asynccontextmanager
    async def live(home: Home) -> AsyncIterator[None]:
        home.background("watch", work)
        raise OSError("no such device")
        yield

    async with running() as hub:
        with pytest.raises(OSError, match="no such device"):
            await hub.load(plugin)
        await asyncio.sleep(0)
        assert started == []
