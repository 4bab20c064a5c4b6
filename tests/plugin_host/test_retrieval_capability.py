"""The capability `Retrieval` as plugins get it: one index over the plugin's own database, for all versions of the plugin."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from ksi_daemon.errors import Unavailable
from ksi_daemon.plugin import Context, Nothing, Plugin, Retrieval
from ksi_daemon.retrieval.minilm_embedder import MiniLmEmbedder
from ksi_daemon.testing import running
from tests.in_process import Said, soon
from tests.plugin_folders import write_plugin

NOTES = '''"""Notes that can be searched."""

from ksi_daemon.plugin import Context, Document, Field, Params, Plugin, Result, Retrieval

plugin = Plugin("{name}", uses=[Retrieval])


class Note(Params):
    id: str = Field(max_length=100, description="Its name.")
    text: str = Field(max_length=10_000, description="What it says.")
    reader: str | None = Field(None, max_length=100, description="The one agent that may find it; all if left out.")


class Query(Params):
    query: str = Field(max_length=1_000, description="Words to look for.")


class Found(Result):
    ids: list[str]
    version: str


@plugin.handles("{name}:add")
async def add(ctx: Context, params: Note) -> Found:
    """Keep a note."""
    readers = None if params.reader is None else frozenset({{params.reader}})
    await ctx.capability(Retrieval).put([Document(id=params.id, text=params.text, visible_to=readers)])
    return Found(ids=[params.id], version="{version}")


@plugin.handles("{name}:find", reads=True)
async def find(ctx: Context, params: Query) -> Found:
    """Find notes."""
    hits = await ctx.capability(Retrieval).search(params.query, agent=ctx.principal.name)
    return Found(ids=[hit.document_id for hit in hits], version="{version}")
'''


@pytest.fixture(autouse=True)
def forgotten_modules() -> Iterator[None]:
    """Plugins of one test are not in the import table of the next."""
    yield
    for name in [name for name in sys.modules if name.startswith("ksi_plugins.")]:
        del sys.modules[name]


def write_notes(parent: Path, name: str = "notes", *, version: str = "one") -> Path:
    return write_plugin(parent, name, NOTES.format(name=name, version=version))


async def test_what_a_plugin_puts_is_found_also_by_its_next_version_and_after_a_restart(tmp_path: Path) -> None:
    folder = write_notes(tmp_path / "plugins")
    settings: dict[str, Any] = {"var_dir": tmp_path / "var", "plugin_dirs": (tmp_path / "plugins",)}
    async with running(folder, **settings) as hub:
        await hub.call("notes:add", id="orchard", text="Apples grow on trees.")
        await hub.call("notes:add", id="cellar", text="Wine is kept cool.")
        assert (await hub.call("notes:find", query="where do apples grow"))["ids"][0] == "orchard"
        write_notes(tmp_path / "plugins", version="two")
        await hub.call("plugin:reload", name="notes")
        await hub.call("notes:add", id="orchard", text="The orchard was cut down.")
        await hub.call("notes:add", id="shed", text="Apples are stored in the shed.")
        found = await hub.call("notes:find", query="apples")
        assert found["version"] == "two"
        assert found["ids"][0] == "shed"
    async with running(folder, **settings) as hub:
        assert (await hub.call("notes:find", query="apples"))["ids"][0] == "shed"


async def test_two_plugins_search_their_own_texts_and_an_agent_what_it_may_see(tmp_path: Path) -> None:
    folders = [write_notes(tmp_path, name) for name in ("notes", "diary")]
    async with running(*folders) as hub:
        await hub.call("notes:add", id="open", text="Apples for everybody.")
        await hub.call("notes:add", id="closed", text="Apples for eve.", reader="eve")
        await hub.call("diary:add", id="today", text="Apples again.")
        assert (await hub.call("notes:find", query="apples"))["ids"] == ["open"]
        assert (await hub.call("diary:find", query="apples"))["ids"] == ["today"]


async def test_health_has_an_alarm_while_a_search_must_do_without_its_best_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(embedder: MiniLmEmbedder, texts: Sequence[str]) -> NoReturn:
        raise Unavailable("the model is gone")

    monkeypatch.setattr(MiniLmEmbedder, "embed", fail)
    async with running(write_notes(tmp_path)) as hub:
        assert not any("the search of" in alarm for alarm in (await hub.call("system:health"))["alarms"])
        await hub.call("notes:add", id="orchard", text="Apples grow on trees.")
        index = hub.hub.loader.opened(Retrieval)["notes"]
        await soon(index.idle())
        assert (await hub.call("notes:find", query="where do apples grow"))["ids"] == ["orchard"]
        alarms = (await hub.call("system:health"))["alarms"]
        assert any("the search of the plugin notes" in alarm and "the model is gone" in alarm for alarm in alarms)


async def test_a_plugin_that_does_not_declare_it_has_no_index_and_no_database() -> None:
    plugin = Plugin("plain")

    @plugin.handles("plain:find")
    async def find(ctx: Context, params: Nothing) -> Said:
        """Search without having declared it."""
        return Said(text=str(ctx.capability(Retrieval)))

    async with running(plugin) as hub:
        with pytest.raises(Unavailable, match="was not given Retrieval"):
            await hub.call("plain:find")
        assert hub.hub.loader.running["plain"].database is None


async def test_an_index_that_a_newer_version_wrote_sets_the_plugin_aside_with_the_reason(tmp_path: Path) -> None:
    folder = write_notes(tmp_path / "plugins")
    async with running(folder, var_dir=tmp_path / "var") as hub:
        database = hub.hub.loader.running["notes"].database
        assert database is not None
        await database.execute("UPDATE retrieval_facts SET value = '99' WHERE name = 'version'")
    async with running(var_dir=tmp_path / "var") as hub:
        await hub.hub.loader.load_all([tmp_path / "plugins"], [])
        plugins = (await hub.call("plugin:list"))["plugins"]
        notes = next(plugin for plugin in plugins if plugin["name"] == "notes")
        assert notes["state"] == "broken"
        assert "a newer KSI wrote it" in notes["reason"]
