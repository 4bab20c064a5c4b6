"""A plugin's settings: from its table and its variables to the plugin, shown with their source, and applied without losing a call."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import field_validator

from ksi_daemon.config import SettingsRead, read_settings
from ksi_daemon.errors import Invalid, Unavailable
from ksi_daemon.plugin import Context, Field, Home, Nothing, Plugin, PluginRefused, PluginSettings
from ksi_daemon.plugin_host.settings_of_plugins import unchecked_rows
from ksi_daemon.plugin_settings import BadPluginSettings, PluginSettingsRead, read_plugin_settings
from ksi_daemon.testing import TestHub, running
from tests.cases import case
from tests.in_process import Said, soon
from tests.plugin_folders import write_plugin


class NotesSettings(PluginSettings):
    folders: list[str] = Field([], description="Folders to read.")
    limit: int = Field(10, ge=1, le=100, description="Largest number of notes.")
    api_key: str = Field("", description="Key of the service.")
    names: dict[str, str] = Field({}, description="Other names of notes.")


def reading(table: Any = None, **variables: str) -> PluginSettingsRead:
    table = {} if table is None else table
    return read_plugin_settings("notes", NotesSettings, table, variables=variables, file="ksi.toml")


def problem(table: Any = None, **variables: str) -> str:
    with pytest.raises(BadPluginSettings) as caught:
        reading(table, **variables)
    return str(caught.value)


SOURCE = '''"""Notes of a test."""

import asyncio

from ksi_daemon.plugin import Context, Field, Nothing, Plugin, PluginSettings, Result


class NotesSettings(PluginSettings):
    limit: int = Field(10, ge=1, description="Largest number of notes.")


plugin = Plugin("notes", settings=NotesSettings)
plugin.announces("notes:began", "A slow call began.")
go_on = asyncio.Event()


class Said(Result):
    limit: int


@plugin.handles("notes:limit", reads=True)
async def limit(ctx: Context, params: Nothing) -> Said:
    """Return the limit."""
    return Said(limit=ctx.settings(NotesSettings).limit)


@plugin.handles("notes:slow")
async def slow(ctx: Context, params: Nothing) -> Said:
    """Return the limit of the start after a while."""
    ctx.notify("notes:began")
    await go_on.wait()
    return Said(limit=ctx.settings(NotesSettings).limit)
'''


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """ksi.toml of a working folder, without any variables."""
    for name in [name for name in os.environ if name.startswith("KSI_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "ksi.toml"


async def rows(hub: TestHub) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in (await hub.call("config:show"))["settings"]}


def test_variables_go_before_the_table_and_each_value_says_where_it_came_from() -> None:
    found = reading(
        {"limit": 20, "names": {"a": "b"}}, KSI_NOTES_LIMIT="30", KSI_NOTES_FOLDERS="one,two", KSI_OTHER="1"
    )
    assert found.settings == NotesSettings(limit=30, folders=["one", "two"], names={"a": "b"})
    sources = {row["name"]: row["source"] for row in found.rows()}
    assert sources == {
        "plugins.notes.folders": "KSI_NOTES_FOLDERS",
        "plugins.notes.limit": "KSI_NOTES_LIMIT",
        "plugins.notes.api_key": "default",
        "plugins.notes.names": "ksi.toml",
    }


def test_a_row_has_the_default_and_the_help_and_hides_a_secret() -> None:
    found = {row["name"]: row for row in reading({"limit": 20, "api_key": "hunter2"}).rows()}
    assert (found["plugins.notes.limit"]["value"], found["plugins.notes.limit"]["default"]) == (20, 10)
    assert found["plugins.notes.limit"]["help"] == "Largest number of notes."
    assert "hunter2" not in str(found)


def test_every_mistake_is_named_with_its_place_and_the_nearest_name() -> None:
    cases: list[tuple[Any, dict[str, str], str]] = [
        ({"limt": 5}, {}, "unknown setting plugins.notes.limt; did you mean 'limit'?"),
        ({"zzz": 5}, {}, "there are api_key, folders, limit, names"),
        ({"limit": 0}, {}, "plugins.notes.limit = 0 (from ksi.toml)"),
        ({}, {"KSI_NOTES_LIMIT": "many"}, "plugins.notes.limit = many (from KSI_NOTES_LIMIT)"),
        ({}, {"KSI_NOTES_LIMIT": ""}, "KSI_NOTES_LIMIT is empty"),
        ({}, {"KSI_NOTES_NAMES": "a"}, "only ksi.toml can hold"),
        (5, {}, "plugins.notes must be a table"),
    ]
    for table, variables, expected in cases:
        with case(table, variables):
            assert expected in problem(table, **variables)
    both = problem({"limt": 5, "limit": 0, "api_key": 5})
    assert "limt" in both
    assert "plugins.notes.limit = 0" in both
    assert "hunter2" not in problem({"api_key": ["hunter2"]})
    assert "hunter2" not in problem({"names": {"password": ["hunter2"]}})


def test_a_model_that_breaks_a_rule_is_refused_with_the_plugin_and_the_field() -> None:
    class Undescribed(PluginSettings):
        limit: int = 5

    class Open(PluginSettings, extra="allow"):
        pass

    class Level(PluginSettings):
        level: str = Field("", description="Collides with KSI_LOG_LEVEL.")

    for name, model, expected in [
        ("notes", Undescribed, "Undescribed.limit has no description"),
        ("notes", Open, "refuse unknown names"),
        ("notes", dict, "made from PluginSettings"),
        ("log", Level, "KSI_LOG_LEVEL"),
    ]:
        with case(expected), pytest.raises(PluginRefused, match=expected):
            Plugin(name, settings=model)  # type: ignore[arg-type]


def test_the_file_takes_tables_of_plugins_and_the_nearest_name_of_an_absent_one_is_shown(file: Path) -> None:
    file.write_text("[plugins.notse]\nlimit = 5\n[plugins.other]\nday = 2026-01-01\n", encoding="utf-8")
    read = read_settings({"KSI_NOTES_LIMIT": "5", "KSI_PROT": "1"})
    absent, variable = read.warnings({"notes", "other"})
    assert "[plugins.notse]" in absent
    assert "did you mean 'notes'?" in absent
    assert "KSI_PROT" in variable
    assert [row["name"] for row in unchecked_rows(read)] == ["plugins.notse.limit", "plugins.other.day"]


async def test_a_plugin_reads_its_settings_in_its_lifespan_and_its_handlers() -> None:
    plugin = Plugin("notes", settings=NotesSettings)
    seen: list[int] = []

    @plugin.lifespan
    @asynccontextmanager
    async def live(home: Home) -> AsyncIterator[None]:
        seen.append(home.settings(NotesSettings).limit)
        with pytest.raises(Unavailable, match="has no settings"):
            home.settings(type("Other", (PluginSettings,), {}))
        yield

    @plugin.handles("notes:limit", reads=True)
    async def limit(ctx: Context, params: Nothing) -> Said:
        """Return the limit."""
        return Said(text=str(ctx.settings(NotesSettings).limit))

    async with running(plugin, plugin_settings={"notes": {"limit": 7}}) as hub:
        assert seen == [7]
        assert await hub.call("notes:limit") == {"text": "7"}
        assert (await rows(hub))["plugins.notes.limit"]["value"] == 7


async def test_bad_settings_set_only_that_plugin_aside_and_better_ones_start_it(file: Path, tmp_path: Path) -> None:
    """Promise 5."""
    file.write_text(f"plugin_dirs = ['{tmp_path / 'mine'}']\n[plugins.notes]\nlimt = 5\n", encoding="utf-8")
    write_plugin(tmp_path / "mine", "notes", SOURCE)
    read = read_settings({})
    async with running(plugin_settings=read.plugins) as hub:
        await hub.hub.loader.load_all(read.settings.plugin_dirs, ())
        health = (await hub.call("system:health"))["plugins"]["notes"]
        assert health["state"] == "broken"
        assert "did you mean 'limit'?" in health["reason"]
        file.write_text("[plugins.notes]\nlimit = 5\n", encoding="utf-8")
        assert "plugins.notes" in (await hub.call("config:reload"))["changed"]
        assert await hub.call("notes:limit") == {"limit": 5}


async def test_new_settings_start_the_plugin_again_without_losing_a_call(file: Path, tmp_path: Path) -> None:
    folder = write_plugin(tmp_path / "mine", "notes", SOURCE)
    async with running(folder, plugin_settings={"notes": {"limit": 1}}) as hub:
        hub.subscribe("notes:began")
        slow = asyncio.create_task(hub.call("notes:slow"))
        await hub.next_notice()
        old = sys.modules["ksi_plugins.notes"]
        file.write_text("[plugins.notes]\nlimit = 2\n", encoding="utf-8")
        assert "plugins.notes" in (await hub.call("config:reload"))["changed"]
        assert await hub.call("notes:limit") == {"limit": 2}
        old.go_on.set()
        assert await soon(slow) == {"limit": 1}
        assert "plugins.notes" not in (await hub.call("config:reload"))["changed"]


async def test_bad_new_settings_leave_the_plugin_its_old_ones_and_are_a_warning(file: Path, tmp_path: Path) -> None:
    folder = write_plugin(tmp_path / "mine", "notes", SOURCE)
    async with running(folder, plugin_settings={"notes": {"limit": 1}}) as hub:
        file.write_text("[plugins.notes]\nlimit = 0\n", encoding="utf-8")
        answer = await hub.call("config:reload")
        assert "plugins.notes" not in answer["changed"]
        assert "it keeps the old ones" in answer["warnings"][0]
        assert await hub.call("notes:limit") == {"limit": 1}
        assert (await hub.call("config:show"))["warnings"] == answer["warnings"]
        file.write_text("plugins = 5\n", encoding="utf-8")
        with pytest.raises(Invalid, match="plugins must hold a table"):
            await hub.call("config:reload")


async def test_what_fits_no_setting_of_a_plugin_is_a_warning_with_the_nearest(file: Path, tmp_path: Path) -> None:
    plain, long = Plugin("plain"), Plugin("notes_more", settings=NotesSettings)
    read = SettingsRead(
        settings=read_settings({}).settings,
        config_file=file,
        sources={},
        plugins={"plain": {"a": 1}, "notes": {"limit": 3}},
        variables={"KSI_NOTES_LIMT": "1", "KSI_NOTES_MORE_LIMIT": "5", "KSI_AGENT_STATE_KEY": "5"},
    )
    async with running(plain, long, write_plugin(tmp_path / "mine", "notes", SOURCE)) as hub:
        hub.hub.control.read = read
        assert sorted(hub.hub.control.warnings()) == [
            "ksi.toml: [plugins.plain]: this plugin has no settings",
            "the variable KSI_AGENT_STATE_KEY is ignored: it is not a known setting; did you mean 'KSI_AGENT_STATE_KEYS'?",
            "the variable KSI_NOTES_LIMT is ignored: it is not a setting of the plugin notes; did you mean 'limit'?",
        ]


def test_a_validator_that_breaks_is_bad_settings_and_a_field_that_no_file_can_hold_is_refused() -> None:
    class Checked(PluginSettings):
        limit: int = Field(1, description="A number.")

        @field_validator("limit")
        @classmethod
        def _breaks(cls, limit: int) -> int:
            raise KeyError("no such limit")

    with pytest.raises(BadPluginSettings, match="Checked failed with KeyError"):
        read_plugin_settings("notes", Checked, {"limit": 5}, variables={}, file="ksi.toml")

    class Called(PluginSettings):
        function: Callable[[], None] = Field(print, description="What to call.")

    with pytest.raises(PluginRefused, match="no file can hold"):
        Plugin("notes", settings=Called)


async def test_two_plugins_cannot_share_a_variable() -> None:
    class Short(PluginSettings):
        b_c: int = Field(1, description="A number.")

    class Long(PluginSettings):
        c: int = Field(1, description="A number.")

    async with running(Plugin("a", settings=Short)) as hub:
        with pytest.raises(PluginRefused, match="KSI_A_B_C"):
            await hub.load(Plugin("a_b", settings=Long))
