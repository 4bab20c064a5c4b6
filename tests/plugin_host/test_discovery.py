"""Where plugins are looked for, in which order, and what is no plugin."""

import importlib.metadata
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ksi_daemon.handler import PluginRefused
from ksi_daemon.plugin import Plugin
from ksi_daemon.plugin_host import discovery
from ksi_daemon.plugin_host.discovery import ENTRY_POINTS, find_plugins, load_folder, shipped_folder
from tests.plugin_folders import SOURCE, write_plugin


@pytest.fixture(autouse=True)
def nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No shipped plugins and none that happen to be installed."""
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    monkeypatch.setattr(discovery, "shipped_folder", lambda: shipped)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [])
    return shipped


def names(*folders: Path) -> list[tuple[str, str]]:
    return [(found.name, found.source) for found in find_plugins(folders)]


def test_shipped_ones_come_first_then_folders_in_their_order_then_packages(
    tmp_path: Path, nothing_else: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plugin(nothing_else, "notes", "")
    write_plugin(tmp_path / "z", "second", "")
    write_plugin(tmp_path / "z", "first", "")
    write_plugin(tmp_path / "a", "third", "")
    entry = importlib.metadata.EntryPoint("packed", "packed_module:plugin", ENTRY_POINTS)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry] if group == "ksi.plugins" else [])
    assert names(tmp_path / "z", tmp_path / "a") == [
        ("notes", "shipped"),
        ("first", "folder"),
        ("second", "folder"),
        ("third", "folder"),
        ("packed", "package"),
    ]


def test_files_hidden_folders_caches_and_folders_that_are_not_there_are_no_plugins(tmp_path: Path) -> None:
    for name in (".hidden", "__pycache__", "_private"):
        (tmp_path / "more" / name).mkdir(parents=True)
    (tmp_path / "more" / "README.md").write_text("not a plugin", encoding="utf-8")
    assert names(tmp_path / "more", tmp_path / "nowhere") == []


def test_looking_imports_nothing(tmp_path: Path) -> None:
    write_plugin(tmp_path / "more", "sample", "raise AssertionError('it was imported')")
    assert names(tmp_path / "more") == [("sample", "folder")]


def test_a_plugin_is_imported_under_a_name_that_clashes_with_nothing(tmp_path: Path) -> None:
    folder = write_plugin(tmp_path, "json", SOURCE.format(name="json", answer="x"))
    plugin, summary = load_folder(folder)
    assert (plugin.name, summary) == ("json", "A plugin that says x.")
    import json

    assert json.dumps is not None
    assert sys.modules["json"] is json
    assert sys.modules.pop("ksi_plugins.json") is not json


@pytest.mark.parametrize("name", ["Upper", "has-dash", "9lives", "has space", "x" * 33, "ünicode"])
def test_a_folder_whose_name_is_no_plugin_name_is_refused_with_the_rule(tmp_path: Path, name: str) -> None:
    folder = write_plugin(tmp_path, name, SOURCE.format(name="sample", answer="x"))
    with pytest.raises(PluginRefused, match="lower-case"):
        load_folder(folder)


def test_a_folder_without_a_plugin_inside_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(PluginRefused, match="no __init__"):
        load_folder(tmp_path / "empty")
    with pytest.raises(PluginRefused, match=r"Plugin\('nothing'\)"):
        load_folder(write_plugin(tmp_path, "nothing", "plugin = 5"))
    with pytest.raises(PluginRefused, match="its object says"):
        load_folder(write_plugin(tmp_path, "mine", SOURCE.format(name="other", answer="x")))


def test_the_summary_is_one_bounded_line(tmp_path: Path) -> None:
    source = SOURCE.format(name="wordy", answer="x").replace(
        "A plugin that says x.", "First\n    line. " + "word " * 100 + "\n\n    Second."
    )
    _, summary = load_folder(write_plugin(tmp_path, "wordy", source))
    assert summary.startswith("First line. word")
    assert len(summary) <= 200
    assert "Second" not in summary


@pytest.mark.parametrize("target", ["packed_module", "packed_module:plugin"])
def test_an_entry_point_may_name_the_module_or_the_object(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    module = ModuleType("packed_module", "Packed.")
    module.plugin = Plugin("packed")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "packed_module", module)
    entry = importlib.metadata.EntryPoint("packed", target, ENTRY_POINTS)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry])
    (found,) = find_plugins([])
    plugin, _ = found.load()
    assert plugin.name == "packed"


def test_an_entry_point_under_another_name_than_its_plugin_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("packed_module")
    module.plugin = Plugin("packed")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "packed_module", module)
    entry = importlib.metadata.EntryPoint("renamed", "packed_module", ENTRY_POINTS)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry])
    (found,) = find_plugins([])
    with pytest.raises(PluginRefused, match="its object says"):
        found.load()


def test_in_a_checkout_the_shipped_plugins_are_the_top_folder() -> None:
    assert shipped_folder() == Path(__file__).parents[2] / "plugins"
