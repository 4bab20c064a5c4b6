"""Plugins from disk to service: what is given to them, what breaks them, and how one is swapped while calls are under way."""

import asyncio
import contextlib
import os
import py_compile
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from ksi_daemon.config import Settings, SettingsRead
from ksi_daemon.core import plugin as core_plugin
from ksi_daemon.daemon import Hub, open_hub
from ksi_daemon.errors import Conflict, Unavailable, UnknownEvent
from ksi_daemon.logs.log import Log
from ksi_daemon.notice import Notice
from ksi_daemon.plugin import Context, Home, Nothing, Plugin, PluginRefused
from ksi_daemon.plugin_host import imports, running_plugin
from ksi_daemon.plugin_host import loader as loader_module
from ksi_daemon.plugin_host.discovery import Found, load_folder
from ksi_daemon.plugin_host.loader import Loader
from ksi_daemon.process.var_dir import prepare
from ksi_daemon.routing.router import Router
from ksi_daemon.storage.state import StateStore
from ksi_daemon.testing import running
from tests.in_process import Said, bare_router, call, log_lines, soon, until
from tests.plugin_folders import SOURCE, write_plugin


@pytest.fixture(autouse=True)
def forgotten_modules() -> Iterator[None]:
    """Plugins of one test are not in the import table of the next."""
    yield
    for name in [name for name in sys.modules if name.startswith("ksi_plugins.")]:
        del sys.modules[name]


@contextlib.asynccontextmanager
async def hub_with_folders(tmp_path: Path, *folders: Path, **settings: Any) -> AsyncIterator[Hub]:
    """A hub that looks for plugins in these folders, as the daemon does."""
    var_dir = tmp_path / "var"
    prepare(var_dir)
    read = SettingsRead(
        settings=Settings(var_dir=var_dir, plugin_dirs=folders, **settings),
        config_file=tmp_path / "ksi.toml",
        sources={},
    )
    log = Log(var_dir / "log" / "ksi.jsonl", "info")
    try:
        async with open_hub(read, log) as hub:
            yield hub
    finally:
        log.file.close()


def found(plugin: Plugin) -> Found:
    return Found(plugin.name, "package", "a test", lambda: (plugin, ""))


def saying(name: str = "sample", answer: str = "one") -> str:
    return SOURCE.format(name=name, answer=answer)


# --- set aside


BROKEN: dict[str, str] = {
    "a syntax error": "def broken(:",
    "an exception": "raise ValueError('no luck')",
    "an exit": "import sys; sys.exit(3)",
    "a missing module": "import no_such_module_anywhere",
    "no plugin object": "x = 1",
    "another name": "from ksi_daemon.plugin import Plugin\nplugin = Plugin('other')",
    "a bad migration": "from ksi_daemon.plugin import Plugin\nplugin = Plugin('broken', migrations=['nonsense'])",
    "a lifespan that fails": (
        "from contextlib import asynccontextmanager\nfrom ksi_daemon.plugin import Plugin\nplugin = Plugin('broken')\n"
        "@plugin.lifespan\n@asynccontextmanager\nasync def live(home):\n    raise OSError('no such device')\n    yield\n"
    ),
    "a lifespan that exits": (
        "from contextlib import asynccontextmanager\nfrom ksi_daemon.plugin import Plugin\nplugin = Plugin('broken')\n"
        "@plugin.lifespan\n@asynccontextmanager\nasync def live(home):\n    raise SystemExit(3)\n    yield\n"
    ),
    "a lifespan that is none": (
        "from ksi_daemon.plugin import Plugin\nplugin = Plugin('broken')\n@plugin.lifespan\ndef live(home):\n    return 5\n"
    ),
    "a handler that breaks a rule": (
        "from ksi_daemon.plugin import *\nplugin = Plugin('broken')\n"
        "@plugin.handles('other:event')\nasync def f(ctx: Context, params: Nothing) -> Result:\n    'Do.'\n"
    ),
}


@pytest.mark.parametrize("source", BROKEN.values(), ids=BROKEN.keys())
async def test_a_broken_plugin_is_set_aside_with_a_reason_and_the_rest_serves(tmp_path: Path, source: str) -> None:
    """Promise 5; D07."""
    folder = tmp_path / "more"
    write_plugin(folder, "broken", source)
    write_plugin(folder, "sound", saying("sound"))
    async with hub_with_folders(tmp_path, folder) as hub:
        health = await call(hub.router, "system:health")
        assert health["status"] == "degraded"
        assert health["plugins"]["broken"]["state"] == "broken"
        assert len(health["plugins"]["broken"]["reason"]) > 5
        listed = {row["name"]: row for row in (await call(hub.router, "plugin:list"))["plugins"]}
        assert (listed["broken"]["state"], listed["broken"]["path"]) == ("broken", str(folder / "broken"))
        assert (await call(hub.router, "plugin:inspect", {"name": "broken"}))["reason"] == health["plugins"]["broken"][
            "reason"
        ]
        assert (await call(hub.router, "system:status"))["plugins"]["broken"] == 1
        assert (await call(hub.router, "sound:say"))["text"] == "one"
        failed = await call(hub.router, "monitor:get_events", {"event_patterns": ["plugin:failed"]})
        assert failed["events"][0]["data"]["name"] == "broken"
        write_plugin(folder, "broken", saying("broken"))
        assert (await call(hub.router, "plugin:reload", {"name": "broken"}))["state"] == "running"
        assert (await call(hub.router, "system:health"))["status"] == "ok"
        assert (await call(hub.router, "broken:say"))["text"] == "one"


async def test_a_plugin_that_hangs_while_it_is_imported_or_started_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imports, "START_LIMIT_S", 0.1)
    monkeypatch.setattr(running_plugin, "START_LIMIT_S", 0.1)
    folder = tmp_path / "more"
    flag = tmp_path / "flag"
    write_plugin(folder, "imports", f"import os, time\nwhile not os.path.exists({str(flag)!r}): time.sleep(0.01)\n")
    lifespan = (
        "import asyncio\nfrom contextlib import asynccontextmanager\nfrom ksi_daemon.plugin import Plugin\nplugin = Plugin('starts')\n"
        "@plugin.lifespan\n@asynccontextmanager\nasync def live(home):\n    await asyncio.Event().wait()\n    yield\n"
    )
    write_plugin(folder, "starts", lifespan)
    async with hub_with_folders(tmp_path, folder) as hub:
        plugins = (await call(hub.router, "system:health"))["plugins"]
        assert "did not finish importing within 0.1 s" in plugins["imports"]["reason"]
        assert "did not start within 0.1 s" in plugins["starts"]["reason"]
        flag.touch()


@pytest.mark.parametrize("count", [3, 40])
async def test_plugins_that_hang_while_they_are_imported_cost_one_limit_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """G05: forty are more than the threads that everything else runs in."""
    limit_s = 3.0
    monkeypatch.setattr(imports, "START_LIMIT_S", limit_s)
    folder = tmp_path / "more"
    flag = tmp_path / "flag"
    hanging = [f"hangs{number}" for number in range(count)]
    for name in hanging:
        write_plugin(folder, name, f"import os, time\nwhile not os.path.exists({str(flag)!r}): time.sleep(0.05)\n")
    write_plugin(folder, "sound", saying("sound"))
    began = time.monotonic()
    async with hub_with_folders(tmp_path, folder) as hub:
        assert limit_s <= time.monotonic() - began < 2 * limit_s
        assert (await call(hub.router, "sound:say"))["text"] == "one"
        plugins = (await call(hub.router, "system:health"))["plugins"]
        for name in hanging:
            assert plugins[name]["state"] == "broken"
            assert "did not finish importing within 3 s" in plugins[name]["reason"]
        assert await soon(asyncio.to_thread(lambda: "a thread is free")) == "a thread is free"
        flag.touch()


async def test_of_two_plugins_with_one_name_the_second_runs_when_the_first_is_broken(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    write_plugin(first, "sample", "raise ValueError('no luck')")
    write_plugin(second, "sample", saying("sample"))
    async with hub_with_folders(tmp_path, first, second) as hub:
        assert (await call(hub.router, "sample:say"))["text"] == "one"


async def test_a_disabled_plugin_is_shown_but_neither_imported_nor_a_reason_to_worry(tmp_path: Path) -> None:
    folder = tmp_path / "more"
    write_plugin(folder, "sample", "raise AssertionError('it was imported')")
    async with hub_with_folders(tmp_path, folder, plugins_disabled=("sample",)) as hub:
        health = await call(hub.router, "system:health")
        assert (health["status"], health["plugins"]["sample"]["state"]) == ("ok", "disabled")


async def test_of_two_plugins_with_one_name_the_first_found_runs_and_the_second_is_named(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    write_plugin(first, "sample", saying(answer="first"))
    write_plugin(second, "sample", saying(answer="second"))
    async with hub_with_folders(tmp_path, first, second) as hub:
        assert (await call(hub.router, "sample:say"))["text"] == "first"
        rows = [row for row in (await call(hub.router, "plugin:list"))["plugins"] if row["name"] == "sample"]
        assert {(row["state"], row["path"]) for row in rows} == {
            ("running", str(first / "sample")),
            ("broken", str(second / "sample")),
        }
        (reason,) = [row["reason"] for row in rows if row["reason"]]
        assert str(first / "sample") in reason


async def test_a_second_plugin_of_a_broken_ones_name_runs_and_is_shown_as_running(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    write_plugin(first, "sample", "raise ValueError('no luck')")
    write_plugin(second, "sample", saying(answer="second"))
    async with hub_with_folders(tmp_path, first, second) as hub:
        assert (await call(hub.router, "sample:say"))["text"] == "second"
        assert (await call(hub.router, "system:health"))["plugins"]["sample"]["state"] == "running"


async def test_no_plugin_can_take_the_name_of_a_part_of_the_daemon(tmp_path: Path) -> None:
    folder = tmp_path / "more"
    write_plugin(folder, "system", saying("system"))
    async with hub_with_folders(tmp_path, folder) as hub:
        assert "system:say" not in hub.router.routes
        assert await call(hub.router, "system:echo", {"text": "mine"}) == {"text": "mine"}
    with pytest.raises(PluginRefused):
        async with running(Plugin("system")):
            raise AssertionError("the core was replaced")


# --- collisions


async def test_two_events_that_would_be_one_tool_are_refused_naming_both() -> None:
    """G02, trap 1: `task_queue:add` and `task:queue_add` are both ksi_task_queue_add."""

    def owner(name: str, event: str) -> Plugin:
        plugin = Plugin(name)

        @plugin.handles(event)
        async def add(ctx: Context, params: Nothing) -> Said:
            """Add."""
            return Said(text=event)

        return plugin

    async with running(owner("task_queue", "task_queue:add")) as hub:
        with pytest.raises(PluginRefused, match=r"task:queue_add.*task_queue:add.*ksi_task_queue_add"):
            await hub.hub.loader.load(found(owner("task", "task:queue_add")))
        assert (await hub.call("task_queue:add"))["text"] == "task_queue:add"
        assert "task:queue_add" not in hub.hub.router.routes


async def test_a_collision_that_comes_with_a_new_version_keeps_the_old_one(tmp_path: Path) -> None:
    """Trap 1, at reload."""
    folder = write_plugin(tmp_path, "task", saying("task"))
    other = Plugin("task_queue")

    @other.handles("task_queue:add")
    async def add(ctx: Context, params: Nothing) -> Said:
        """Add."""
        return Said()

    async with running(folder, other) as hub:
        write_plugin(tmp_path, "task", saying("task").replace("task:say", "task:queue_add"))
        with pytest.raises(Conflict, match="ksi_task_queue_add"):
            await hub.call("plugin:reload", name="task")
        assert (await hub.call("task:say"))["text"] == "one"


# --- capabilities


class Telescope:
    """A capability that this hub has."""


class Microscope:
    """A capability that is known but that this machine lacks."""


class Unheard:
    """No capability at all."""


@contextlib.asynccontextmanager
async def hub_with_capabilities(tmp_path: Path) -> AsyncIterator[tuple[Router, Loader]]:
    log = Log(tmp_path / "ksi.jsonl", "info")
    router = bare_router(log)
    loader = Loader(
        router,
        tmp_path,
        log=log.logger,
        read=lambda: SettingsRead(settings=Settings(), config_file=tmp_path / "ksi.toml", sources={}),
        capabilities={Telescope: Telescope()},
        inner={Router: router},
        known=[Microscope],
    )
    await loader.load_core([(core_plugin.plugin, "Plugins.")])
    try:
        yield router, loader
    finally:
        await loader.close()
        log.file.close()


async def test_a_plugin_is_given_what_it_declares_and_nothing_else(tmp_path: Path) -> None:
    plugin = Plugin("astronomer", uses=[Telescope])
    idle = Plugin("idle")

    @plugin.handles("astronomer:look")
    async def look(ctx: Context, params: Nothing) -> Said:
        """Look."""
        return Said(text=type(ctx.capability(Telescope)).__name__)

    @idle.handles("idle:look")
    async def try_to_look(ctx: Context, params: Nothing) -> Said:
        """Look without a telescope."""
        return Said(text=str(ctx.capability(Telescope)))

    async with hub_with_capabilities(tmp_path) as (router, loader):
        await loader.load(found(plugin))
        await loader.load(found(idle))
        assert (await call(router, "astronomer:look"))["text"] == "Telescope"
        with pytest.raises(Unavailable, match=r"not given Telescope") as caught:
            await call(router, "idle:look")
        assert "uses=[Telescope]" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Unheard, "there is no such capability"),
        (Microscope, "this machine does not have it"),
        (Router, "there is no such capability"),
        (Loader, "there is no such capability"),
        (StateStore, "there is no such capability"),
    ],
    ids=lambda kind: getattr(kind, "__name__", ""),
)
async def test_a_plugin_that_needs_what_it_cannot_have_is_refused(tmp_path: Path, kind: type, reason: str) -> None:
    """The daemon's inner parts are for the daemon's own plugins only."""
    async with hub_with_capabilities(tmp_path) as (_, loader):
        with pytest.raises(PluginRefused, match=f"greedy uses {kind.__name__}: {reason}"):
            await loader.load(found(Plugin("greedy", uses=[kind])))


async def test_a_handler_whose_capability_is_absent_does_not_exist_and_inspect_says_what_it_needs(
    tmp_path: Path,
) -> None:
    plugin = Plugin("biologist")

    @plugin.handles("biologist:zoom", uses=[Microscope])
    async def zoom(ctx: Context, params: Nothing) -> Said:
        """Zoom."""
        return Said()

    @plugin.handles("biologist:think")
    async def think(ctx: Context, params: Nothing) -> Said:
        """Think."""
        return Said(text="thought")

    async with hub_with_capabilities(tmp_path) as (router, loader):
        await loader.load(found(plugin))
        assert (await call(router, "biologist:think"))["text"] == "thought"
        with pytest.raises(UnknownEvent):
            await call(router, "biologist:zoom")
        seen = await call(router, "plugin:inspect", {"name": "biologist"})
        assert seen["omitted"] == [{"event": "biologist:zoom", "needs": "Microscope"}]
        assert seen["events"] == ["biologist:think"]


@pytest.mark.parametrize("kind", [Unheard, Router, Loader], ids=lambda kind: str(kind.__name__))
async def test_a_handler_that_needs_what_no_plugin_can_have_breaks_its_plugin(tmp_path: Path, kind: type) -> None:
    plugin = Plugin("greedy")

    @plugin.handles("greedy:take", uses=[kind])
    async def take(ctx: Context, params: Nothing) -> Said:
        """Take."""
        return Said()

    async with hub_with_capabilities(tmp_path) as (router, loader):
        with pytest.raises(PluginRefused, match=f"greedy:take uses {kind.__name__}"):
            await loader.load(found(plugin))
        assert "greedy:take" not in router.routes


# --- lifespans


async def test_a_lifespan_opens_before_the_first_call_and_closes_after_the_last_in_one_task() -> None:
    """K005."""
    plugin = Plugin("living")
    tasks: list[object] = []
    steps: list[str] = []

    @plugin.lifespan
    @contextlib.asynccontextmanager
    async def live(home: Home) -> AsyncIterator[None]:
        tasks.append(asyncio.current_task())
        steps.append("opened")
        async with asyncio.timeout(3600):  # a cancel scope: it must be left by the task that entered it
            yield
        steps.append("closed")
        tasks.append(asyncio.current_task())

    @plugin.handles("living:use")
    async def use(ctx: Context, params: Nothing) -> Said:
        """Use."""
        steps.append("used")
        return Said()

    async with running(plugin) as hub:
        await hub.call("living:use")
    assert steps == ["opened", "used", "closed"]
    assert tasks[0] is tasks[1]
    assert tasks[0] is not asyncio.current_task()


async def test_a_lifespan_whose_background_work_dies_sets_its_plugin_aside_and_nothing_else() -> None:
    """Promise 5."""
    plugin = Plugin("watcher")
    die = asyncio.Event()
    closed: list[str] = []

    async def work() -> None:
        await die.wait()
        raise OSError("the device is gone")

    @plugin.lifespan
    @contextlib.asynccontextmanager
    async def live(home: Home) -> AsyncIterator[None]:
        try:
            async with asyncio.TaskGroup() as group:
                task = group.create_task(work())
                yield
                task.cancel()
        finally:
            closed.append("closed")

    @plugin.handles("watcher:ask")
    async def ask(ctx: Context, params: Nothing) -> Said:
        """Ask."""
        return Said()

    async with running(plugin) as hub:
        hub.subscribe("plugin:failed")
        await hub.call("watcher:ask")
        die.set()
        notice = await hub.next_notice()
        assert "the device is gone" in notice.data["reason"]
        assert closed == ["closed"]
        with pytest.raises(UnknownEvent):
            await hub.call("watcher:ask")
        health = await hub.call("system:health")
        assert (health["status"], health["plugins"]["watcher"]["state"]) == ("degraded", "broken")
        assert await hub.call("system:echo", text="still here")


async def test_a_lifespan_that_is_cancelled_from_inside_sets_its_plugin_aside_too() -> None:
    """What it had open is closed: it must not be shown as running."""
    plugin = Plugin("watcher")
    end = asyncio.Event()

    @plugin.lifespan
    @contextlib.asynccontextmanager
    async def live(home: Home) -> AsyncIterator[None]:
        owner = asyncio.current_task()
        assert owner is not None

        async def work() -> None:
            await end.wait()
            owner.cancel()

        task = asyncio.create_task(work())
        yield
        task.cancel()

    async with running(plugin) as hub:
        end.set()
        await until(lambda: "watcher" not in hub.hub.loader.running)
        assert (await hub.call("system:health"))["plugins"]["watcher"]["state"] == "broken"


@pytest.mark.parametrize(
    "error", [ValueError("sour"), SystemExit(3), KeyboardInterrupt()], ids=lambda error: type(error).__name__
)
def test_a_lifespan_that_fails_while_closing_is_logged_and_takes_nothing_down(
    error: BaseException, tmp_path: Path
) -> None:
    """D07: its own loop, because an exit that gets through would end the loop of the tests as well."""
    plugin = Plugin("sour")

    @plugin.lifespan
    @contextlib.asynccontextmanager
    async def live(home: Home) -> AsyncIterator[None]:
        yield
        raise error

    async def walk() -> None:
        async with running(plugin) as hub:
            await hub.hub.loader.reload("sour")
            assert await hub.call("system:echo", text="still here")
            lines = log_lines(hub.hub.log.file.path)
            assert any(line["event"] == "plugin did not close cleanly" for line in lines)

    try:
        asyncio.run(walk())
    except (SystemExit, KeyboardInterrupt):
        pytest.fail("it ended the whole process")


async def test_a_plugin_that_will_not_close_is_left_behind_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_plugin, "STOP_LIMIT_S", 0.05)
    plugin = Plugin("clinging")
    gone = asyncio.Event()

    @plugin.lifespan
    @contextlib.asynccontextmanager
    async def live(home: Home) -> AsyncIterator[None]:
        yield
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()

    async with running(plugin):
        pass
    await soon(gone.wait())


async def test_a_plugin_has_its_own_folder_database_and_log() -> None:
    plugin = Plugin("keeper", migrations=["CREATE TABLE kept (x)"])
    plain = Plugin("plain")

    @plugin.handles("keeper:keep")
    async def keep(ctx: Context, params: Nothing) -> Said:
        """Keep."""
        await ctx.database.execute("INSERT INTO kept VALUES (1)")
        ctx.log.info("kept", what="a thing")
        return Said(text=str(ctx.folder))

    @plain.handles("plain:keep")
    async def try_to_keep(ctx: Context, params: Nothing) -> Said:
        """Keep without a database."""
        return Said(text=str(ctx.database))

    async with running(plugin, plain) as hub:
        folder = Path((await hub.call("keeper:keep"))["text"])
        assert (folder.name, (folder / "keeper.db").exists()) == ("keeper", True)
        (line,) = [line for line in log_lines(hub.hub.log.file.path) if line["event"] == "kept"]
        assert (line["plugin"], line["what"]) == ("keeper", "a thing")
        assert line["call_id"]
        with pytest.raises(Unavailable, match="has no database") as caught:
            await hub.call("plain:keep")
        assert "migrations" in str(caught.value.hint)


async def test_a_plugin_whose_database_is_damaged_is_set_aside_and_the_rest_serves(tmp_path: Path) -> None:
    """F04: nobody decides for it that its data may go."""
    folder = tmp_path / "more"
    source = saying().replace('Plugin("sample")', 'Plugin("sample", migrations=["CREATE TABLE a (x)"])')
    write_plugin(folder, "sample", source)
    async with hub_with_folders(tmp_path, folder) as hub:
        assert hub.loader.running["sample"].database
    database = tmp_path / "var" / "plugins" / "sample" / "sample.db"
    database.write_bytes(b"")
    async with hub_with_folders(tmp_path, folder) as hub:
        reason = (await call(hub.router, "system:health"))["plugins"]["sample"]["reason"]
        assert "is empty" in reason
        assert database.read_bytes() == b""


# --- reload


WAITING = '''"""A plugin whose call can be held."""

import asyncio
from ksi_daemon.plugin import Context, Nothing, Plugin, Result

plugin = Plugin("sample")
entered, release = asyncio.Event(), asyncio.Event()


class Said(Result):
    text: str


@plugin.handles("sample:say")
async def say(ctx: Context, params: Nothing) -> Said:
    """Say it late."""
    entered.set()
    await release.wait()
    return Said(text="old")
'''


def module() -> Any:
    return sys.modules["ksi_plugins.sample"]


async def test_a_call_under_way_ends_on_the_old_code_while_the_new_code_serves(tmp_path: Path) -> None:
    folder = write_plugin(tmp_path, "sample", WAITING)
    async with running(folder) as hub:
        old_module = module()
        late = asyncio.create_task(hub.call("sample:say"))
        await soon(old_module.entered.wait())
        write_plugin(tmp_path, "sample", saying(answer="new"))
        reload = asyncio.create_task(hub.call("plugin:reload", name="sample"))
        await until(lambda: hub.hub.loader.running["sample"].plugin is not old_module.plugin)
        assert (await soon(hub.call("sample:say")))["text"] == "new"
        assert not reload.done()
        assert (await soon(hub.call("plugin:reload", name="sample")))[
            "cut_calls"
        ] == 0  # one more does not have to wait
        old_module.release.set()
        assert (await soon(late))["text"] == "old"
        await soon(reload)


async def test_a_mended_version_can_follow_while_calls_of_the_first_still_drain(tmp_path: Path) -> None:
    folder = write_plugin(tmp_path, "sample", WAITING)
    async with running(folder) as hub:
        old_module = module()
        late = asyncio.create_task(hub.call("sample:say"))
        await soon(old_module.entered.wait())
        write_plugin(tmp_path, "sample", saying(answer="mistake"))
        first = asyncio.create_task(hub.call("plugin:reload", name="sample"))
        await until(lambda: hub.hub.loader.running["sample"].plugin is not old_module.plugin)
        write_plugin(tmp_path, "sample", saying(answer="mended"))
        await soon(hub.call("plugin:reload", name="sample"))
        assert (await hub.call("sample:say"))["text"] == "mended"
        old_module.release.set()
        assert (await soon(late))["text"] == "old"
        assert (await soon(first))["cut_calls"] == 0


async def test_a_hub_that_closes_while_an_old_version_still_drains_closes_that_too(tmp_path: Path) -> None:
    """K005: what a lifespan opened is closed, whichever version it was."""
    folder = write_plugin(tmp_path, "sample", WAITING.replace('plugin = Plugin("sample")', CLOSING))
    async with running(folder) as hub:
        old_module = module()
        late = asyncio.create_task(hub.call("sample:say"))
        await soon(old_module.entered.wait())
        write_plugin(tmp_path, "sample", saying(answer="new"))
        reload = asyncio.create_task(hub.call("plugin:reload", name="sample"))
        await until(lambda: hub.hub.loader.running["sample"].plugin is not old_module.plugin)
    assert old_module.closed
    for task in (late, reload):
        task.cancel()
    await asyncio.wait([late, reload], timeout=5)
    await asyncio.gather(late, reload, return_exceptions=True)


async def test_two_reloads_of_one_plugin_do_not_start_at_once(tmp_path: Path) -> None:
    folder = write_plugin(tmp_path, "sample", saying())
    async with running(folder) as hub:
        write_plugin(tmp_path, "sample", STARTING)
        first = asyncio.create_task(hub.call("plugin:reload", name="sample"))
        await until(lambda: getattr(sys.modules.get("ksi_plugins.sample"), "steps", None) == ["starting"])
        with pytest.raises(Conflict, match="being reloaded"):
            await hub.call("plugin:reload", name="sample")
        module().may_start.set()
        assert (await soon(first))["state"] == "running"


async def test_calls_of_other_plugins_go_on_during_a_reload(tmp_path: Path) -> None:
    folder = write_plugin(tmp_path, "sample", saying())
    other = Plugin("other")
    entered, release = asyncio.Event(), asyncio.Event()

    @other.handles("other:wait")
    async def wait(ctx: Context, params: Nothing) -> Said:
        """Wait."""
        entered.set()
        await release.wait()
        return Said(text="whole")

    async with running(folder, other) as hub:
        task = asyncio.create_task(hub.call("other:wait"))
        await soon(entered.wait())
        await soon(hub.call("plugin:reload", name="sample"))
        release.set()
        assert (await soon(task))["text"] == "whole"


async def test_an_edit_in_the_same_second_and_of_the_same_size_is_seen(tmp_path: Path) -> None:
    """Even when other tools left compiled copies beside the source."""
    folder = write_plugin(tmp_path, "sample", saying(answer="aaa"))
    source = folder / "__init__.py"
    when = source.stat().st_mtime_ns
    py_compile.compile(str(source), doraise=True)
    async with running(folder) as hub:
        for answer in ("bbb", "ccc"):
            write_plugin(tmp_path, "sample", saying(answer=answer))
            os.utime(source, ns=(when, when))
            await hub.call("plugin:reload", name="sample")
            assert (await hub.call("sample:say"))["text"] == answer


async def test_a_plugin_folder_stays_as_its_author_left_it(tmp_path: Path) -> None:
    folder = write_plugin(tmp_path, "sample", saying(), words="")
    async with running(folder) as hub:
        await hub.call("plugin:reload", name="sample")
    assert sorted(path.name for path in folder.iterdir()) == ["__init__.py", "words.py"]


async def test_the_modules_inside_a_plugin_are_read_again_too(tmp_path: Path) -> None:
    source = saying().replace('text="one"', "text=words.ANSWER").replace("plugin = ", "from . import words\nplugin = ")
    folder = write_plugin(tmp_path, "sample", source, words="from .deep import ANSWER", deep="ANSWER = 'one'")
    async with running(folder) as hub:
        assert (await hub.call("sample:say"))["text"] == "one"
        write_plugin(tmp_path, "sample", source, deep="ANSWER = 'two'")
        await hub.call("plugin:reload", name="sample")
        assert (await hub.call("sample:say"))["text"] == "two"


@pytest.mark.parametrize("source", BROKEN.values(), ids=BROKEN.keys())
async def test_whatever_is_wrong_with_a_new_version_the_old_one_goes_on(tmp_path: Path, source: str) -> None:
    """Promise 5."""
    folder = write_plugin(tmp_path, "broken", saying("broken"))
    async with running(folder) as hub:
        old = sys.modules["ksi_plugins.broken"]
        write_plugin(tmp_path, "broken", source)
        with pytest.raises(Conflict, match="stays in use"):
            await soon(hub.call("plugin:reload", name="broken"))
        assert (await hub.call("broken:say"))["text"] == "one"
        assert sys.modules["ksi_plugins.broken"] is old
        assert (await hub.call("plugin:inspect", name="broken"))["state"] == "running"
        write_plugin(tmp_path, "broken", saying("broken", "mended"))
        await hub.call("plugin:reload", name="broken")
        assert (await hub.call("broken:say"))["text"] == "mended"


async def test_events_that_a_new_version_dropped_are_gone_and_new_ones_are_there(tmp_path: Path) -> None:
    folder = write_plugin(tmp_path, "sample", saying())
    async with running(folder) as hub:
        write_plugin(tmp_path, "sample", saying().replace("sample:say", "sample:tell"))
        await hub.call("plugin:reload", name="sample")
        with pytest.raises(UnknownEvent):
            await hub.call("sample:say")
        assert (await hub.call("sample:tell"))["text"] == "one"


LISTENING = (
    SOURCE
    + """

@plugin.on("free:*")
async def listen(ctx: Context, notice: object) -> None:
    await ctx.call("state:set", {{"key": "heard", "value": "{answer}", "namespace": ctx.call_id}})
"""
)


async def test_after_a_reload_a_notice_is_heard_once_and_by_the_new_version(tmp_path: Path) -> None:
    folder = write_plugin(tmp_path, "sample", LISTENING.format(name="sample", answer="old"))
    async with running(folder) as hub:
        write_plugin(tmp_path, "sample", LISTENING.format(name="sample", answer="new"))
        await hub.call("plugin:reload", name="sample")
        sent = await call(hub.hub.router, "message:publish", {"event": "free:word"})
        assert sent["matched"] == 1
        hub.subscribe("state:changed")
        await until(lambda: hub.hub.loader.running["sample"].subscriptions[0].mailbox.delivered)
        await soon(hub.next_notice())
        assert (await hub.call("state:get", key="heard", namespace=sent["id"]))["value"] == "new"


async def test_a_reload_whose_caller_goes_away_while_old_calls_drain_still_ends_the_old_version(tmp_path: Path) -> None:
    """Else two versions would listen for ever."""
    folder = write_plugin(tmp_path, "sample", WAITING.replace('plugin = Plugin("sample")', CLOSING))
    async with running(folder) as hub:
        old_module = module()
        late = asyncio.create_task(hub.call("sample:say"))
        await soon(old_module.entered.wait())
        write_plugin(tmp_path, "sample", saying(answer="new"))
        reload = asyncio.create_task(hub.call("plugin:reload", name="sample"))
        await until(lambda: hub.hub.loader.running["sample"].plugin is not old_module.plugin)
        reload.cancel()
        await asyncio.wait([reload], timeout=5)
        old_module.release.set()
        assert (await soon(late))["text"] == "old"
        await until(lambda: old_module.closed)
        assert (await hub.call("plugin:reload", name="sample"))["state"] == "running"


CLOSING = """plugin = Plugin("sample")
closed = []

from contextlib import asynccontextmanager

@plugin.lifespan
@asynccontextmanager
async def live(home):
    yield
    closed.append(True)
"""

STARTING = '''"""A plugin that takes its time to start."""
import asyncio
from contextlib import asynccontextmanager
from ksi_daemon.plugin import Plugin
plugin = Plugin("sample")
steps = []
may_start = asyncio.Event()

@plugin.lifespan
@asynccontextmanager
async def live(home):
    steps.append("starting")
    try:
        await may_start.wait()
        steps.append("started")
        yield
    finally:
        steps.append("ended")
'''


async def test_a_reload_that_is_cancelled_while_the_new_version_starts_leaves_only_the_old_one(tmp_path: Path) -> None:
    folder = write_plugin(tmp_path, "sample", saying())
    async with running(folder) as hub:
        old_module = module()
        write_plugin(tmp_path, "sample", STARTING)
        reload = asyncio.create_task(hub.call("plugin:reload", name="sample"))
        await until(lambda: "ksi_plugins.sample" in sys.modules and getattr(module(), "steps", None) == ["starting"])
        new_module = module()
        reload.cancel()
        await asyncio.wait([reload], timeout=5)
        await until(lambda: new_module.steps[-1] == "ended")
        assert new_module.steps == ["starting", "ended"]
        assert module() is old_module
        assert (await hub.call("sample:say"))["text"] == "one"
        write_plugin(tmp_path, "sample", saying(answer="two"))
        await hub.call("plugin:reload", name="sample")
        assert (await hub.call("sample:say"))["text"] == "two"


KEEPING = '''"""A plugin with a table."""
from ksi_daemon.plugin import Context, Nothing, Plugin, Result
plugin = Plugin("sample", migrations=[{migrations}])

class Counted(Result):
    rows: int

@plugin.handles("sample:count")
async def count(ctx: Context, params: Nothing) -> Counted:
    """Count after adding one."""
    await ctx.database.execute("INSERT INTO a (x) VALUES (1)")
    return Counted(rows=len(await ctx.database.fetch("SELECT * FROM {table}")))
'''


async def test_a_new_version_brings_the_database_up_to_date_and_keeps_what_is_in_it(tmp_path: Path) -> None:
    one, view = "'CREATE TABLE a (x)'", "'CREATE VIEW b AS SELECT * FROM a'"
    folder = write_plugin(tmp_path, "sample", KEEPING.format(migrations=one, table="a"))
    async with running(folder) as hub:
        await hub.call("sample:count")
        write_plugin(tmp_path, "sample", KEEPING.format(migrations=f"{one}, {view}", table="b"))
        await hub.call("plugin:reload", name="sample")
        assert (await hub.call("sample:count"))["rows"] == 2
        assert (await hub.call("plugin:inspect", name="sample"))["database"]["version"] == 2


@pytest.mark.parametrize(
    "migrations", ["'CREATE TABLE a (x, y)'", "'CREATE TABLE a (x)', 'nonsense'"], ids=["rewritten", "broken"]
)
async def test_a_new_version_whose_migrations_do_not_follow_is_refused_and_the_old_one_goes_on(
    tmp_path: Path, migrations: str
) -> None:
    folder = write_plugin(tmp_path, "sample", KEEPING.format(migrations="'CREATE TABLE a (x)'", table="a"))
    async with running(folder) as hub:
        await hub.call("sample:count")
        write_plugin(tmp_path, "sample", KEEPING.format(migrations=migrations, table="a"))
        with pytest.raises(Conflict, match="migration"):
            await hub.call("plugin:reload", name="sample")
        assert (await hub.call("sample:count"))["rows"] == 2
        assert (await hub.call("plugin:inspect", name="sample"))["database"]["version"] == 1


async def test_a_call_that_will_not_end_is_counted_and_the_reload_ends_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_module, "DRAIN_S", 0.05)
    folder = write_plugin(tmp_path, "sample", WAITING)
    async with running(folder) as hub:
        old_module = module()
        late = asyncio.create_task(hub.call("sample:say"))
        await soon(old_module.entered.wait())
        write_plugin(tmp_path, "sample", saying(answer="new"))
        answer = await soon(hub.call("plugin:reload", name="sample"))
        assert answer["cut_calls"] == 1
        old_module.release.set()
        await asyncio.wait([late], timeout=5)


async def test_a_new_version_whose_folder_is_gone_keeps_the_old_one(tmp_path: Path) -> None:
    folder = write_plugin(tmp_path, "sample", saying())
    async with running(folder) as hub:
        (folder / "__init__.py").unlink()
        with pytest.raises(Conflict, match="__init__"):
            await hub.call("plugin:reload", name="sample")
        assert (await hub.call("sample:say"))["text"] == "one"


async def test_a_listener_of_a_stopped_plugin_leaves_no_mailbox_and_no_task(tmp_path: Path) -> None:
    """K005."""
    before = asyncio.all_tasks()
    plugin = Plugin("ears")

    @plugin.on("*")
    async def listen(ctx: Context, notice: Notice) -> None:
        """Hear."""

    async with running(plugin) as hub:
        bus = hub.hub.router.bus
        assert any(box.name.startswith("ears/") for box in bus.mailboxes())
        await hub.call("system:echo", text="x")
    assert not any(box.name.startswith("ears/") for box in bus.mailboxes())
    await until(lambda: asyncio.all_tasks() <= before)


def test_a_plugin_loaded_by_hand_is_the_one_in_its_folder(tmp_path: Path) -> None:
    plugin, summary = load_folder(write_plugin(tmp_path, "sample", saying()))
    assert (plugin.name, summary) == ("sample", "A plugin that says one.")
