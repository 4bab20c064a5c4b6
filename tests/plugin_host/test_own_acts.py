"""What a plugin does by itself: background work that is started again and visible, calls and notices with rights of its own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ksi_daemon.errors import Forbidden, TooDeep, Unavailable, UnknownEvent
from ksi_daemon.notice import Notice
from ksi_daemon.plugin import Context, Home, Nothing, Plugin, PluginRefused
from ksi_daemon.testing import TestHub, running
from ksi_daemon.workers import supervisor
from tests.agents_at_work import add_agent, call_as, rows
from tests.cases import case
from tests.in_process import Said, log_lines, soon, until
from tests.plugin_folders import write_plugin

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

    async with running(working("notes", watch=fail_twice, other=for_ever), raise_failures=False) as hub:
        await until(lambda: runs == 3)
        assert await hub.call("notes:say") == {"text": "here"}
        assert hub.hub.loader.degraded
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

    async with running(working("notes", watch=fail), raise_failures=False) as hub:
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
        yield  # type: ignore[unreachable]

    async with running() as hub:
        with pytest.raises(OSError, match="no such device"):
            await hub.load(plugin)
        await asyncio.sleep(0)
        assert started == []


SOURCE = '''"""Notes of a test."""

import asyncio
from contextlib import asynccontextmanager

from ksi_daemon.plugin import Plugin

plugin = Plugin("notes")
VERSION = {version}
plugin.announces("notes:works", "A version works.")
plugin.announces("notes:ended", "A version has ended its work.")


@plugin.lifespan
@asynccontextmanager
async def live(home):
    async def work():
        home.notify("notes:works", {{"version": VERSION}})
        try:
            await asyncio.Event().wait()
        finally:
            home.notify("notes:ended", {{"version": VERSION}})

    home.background("work", work)
    yield
'''


async def test_after_a_reload_only_the_new_version_works(tmp_path: Path) -> None:
    folder = write_plugin(tmp_path, "notes", SOURCE.format(version=1))
    async with running() as hub:
        hub.subscribe("notes:*")
        await hub.load(folder)
        assert (await hub.next_notice()).data == {"version": 1}
        write_plugin(tmp_path, "notes", SOURCE.format(version=2))
        await hub.call("plugin:reload", name="notes")
        seen = [await hub.next_notice(), await hub.next_notice()]
        assert sorted((notice.event, notice.data["version"]) for notice in seen) == [
            ("notes:ended", 1),
            ("notes:works", 2),
        ]


# --- calls and notices


def acting(name: str = "notes", **options: Any) -> tuple[Plugin, list[Home]]:
    """A plugin with one event for everybody and one for the operator, and its home once it runs."""
    plugin, homes = Plugin(name, **options), []
    plugin.announces(f"{name}:changed", "Something has changed.")

    @plugin.lifespan
    @asynccontextmanager
    async def live(home: Home) -> AsyncIterator[None]:
        homes.append(home)
        yield

    @plugin.handles(f"{name}:who", reads=True)
    async def who(ctx: Context, params: Nothing) -> Said:
        """Say who calls."""
        return Said(text=ctx.principal.label)

    @plugin.handles(f"{name}:wipe", operator_only=True)
    async def wipe(ctx: Context, params: Nothing) -> Said:
        """Wipe everything."""
        return Said(text="wiped")

    @plugin.handles(f"{name}:guarded", needs=[("knowledge/maintainer", "execute")])
    async def guarded(ctx: Context, params: Nothing) -> Said:
        """Do what needs a further right."""
        return Said(text="done")

    return plugin, homes


async def test_a_plugin_calls_its_own_events_and_those_it_declares_and_nothing_else() -> None:
    plugin, homes = acting(calls=["state:*", "system:health", "other:*"])
    other, _ = acting("other")
    async with running(plugin, other):
        (home,) = homes
        for event, data in [
            ("notes:who", {}),
            ("notes:wipe", {}),
            ("notes:guarded", {}),
            ("state:set", {"key": "k", "value": 1}),
            ("system:health", {}),
            ("other:guarded", {}),
        ]:
            with case(event):
                await home.call(event, data)
        for event, reason in [
            ("system:status", 'calls=["system:status"]'),
            ("agent:list", "for the operator alone"),
            ("other:wipe", "for the operator alone"),
        ]:
            with case(event), pytest.raises(Forbidden) as caught:
                await home.call(event)
            assert reason in f"{caught.value.message} {caught.value.hint}"
        assert (await home.call("notes:who"))["text"] == "plugin/notes"


async def test_what_a_plugin_does_by_itself_is_audited_as_the_plugin_also_a_refusal() -> None:
    plugin, homes = acting(calls=["state:set"])
    async with running(plugin) as hub:
        await homes[0].call("state:set", {"key": "k", "value": 1})
        with pytest.raises(Forbidden):
            await homes[0].call("state:delete", {"key": "k"})
        found = await rows(hub, event="state:set")
        assert [(row["phase"], row["principal"], row["transport"]) for row in found] == [
            ("intent", "plugin", "plugin"),
            ("outcome", "plugin", "plugin"),
        ]
        assert all(row["details"] == {"plugin": "notes"} for row in found)
        (refused,) = await rows(hub, event="state:delete")
        assert (refused["type"], refused["details"]["plugin"]) == ("authorization", "notes")


async def test_a_plugin_lists_what_it_may_call_by_the_same_rule() -> None:
    """Promise 1."""
    plugin, homes = acting(calls=["system:discover", "state:get"])
    async with running(plugin):
        listed = await homes[0].call("system:discover")
        assert set(listed["events"]) >= {"notes:who", "notes:wipe", "state:get", "system:discover"}
        assert "state:set" not in listed["events"]
        assert "agent:list" not in listed["events"]


async def test_an_own_act_inside_a_call_belongs_to_it_and_loops_of_them_end() -> None:
    plugin, homes = acting()

    @plugin.handles("notes:again")
    async def again(ctx: Context, params: Nothing) -> Said:
        """Call itself as the plugin, for ever."""
        return Said(**await homes[0].call("notes:again"))

    @plugin.handles("notes:ask")
    async def ask(ctx: Context, params: Nothing) -> Said:
        """Ask as the plugin."""
        return Said(**await homes[0].call("notes:who"))

    async with running(plugin) as hub:
        assert await hub.call("notes:ask") == {"text": "plugin/notes"}
        (asked, _), (own,) = await rows(hub, event="notes:ask"), await rows(hub, event="notes:who")
        assert (own["parent_id"], own["correlation_id"]) == (asked["call_id"], asked["correlation_id"])
        with pytest.raises(TooDeep):
            await hub.call("notes:again")


async def test_only_announced_notices_are_sent_and_they_carry_the_plugin() -> None:
    plugin, homes = acting()
    async with running(plugin) as hub:
        hub.subscribe("notes:*")
        homes[0].notify("notes:changed", {"id": 1})
        notice = await hub.next_notice()
        assert (notice.sender, notice.data, notice.depth) == ("plugin/notes", {"id": 1}, 0)
        for event in ("notes:other", "state:changed", "system:ready"):
            with case(event), pytest.raises(Forbidden, match="does not announce it"):
                homes[0].notify(event)


async def test_a_notice_of_the_daemon_gives_a_listener_the_rights_of_its_plugin_and_no_more() -> None:
    plugin = Plugin("notes", calls=["state:set"])
    seen: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    @plugin.on("plugin:loaded")
    async def hear(ctx: Context, notice: Notice) -> None:
        await ctx.call("state:set", {"key": "last", "value": notice.data["name"]})
        try:
            await ctx.call("agent:list")
        except Forbidden:
            seen.put_nowait((notice.sender, ctx.principal.label))

    async with running(plugin) as hub:
        assert await soon(seen.get()) == ("daemon", "plugin/notes")
        assert (await hub.call("state:get", key="last"))["value"] == "notes"


async def test_a_plugin_that_ends_has_no_rights_left() -> None:
    plugin, homes = acting()
    async with running(plugin) as hub:
        (home,) = homes
        running_plugin = hub.hub.loader.running["notes"]
        assert running_plugin._task is not None
        running_plugin._task.cancel()
        await until(lambda: "notes" not in hub.hub.loader.running)
        with pytest.raises(UnknownEvent):
            await home.call("notes:who")
        with pytest.raises(Forbidden):
            await home.call("system:health")


def test_a_pattern_of_calls_that_is_none_or_takes_in_everything_is_refused() -> None:
    for pattern in ("*", "state", "state:s*", "", "State:set"):
        with case(pattern), pytest.raises(PluginRefused, match="is not an event's name"):
            Plugin("notes", calls=[pattern])
