"""Finds plugins: in the shipped folder, in folders from the settings, and in installed packages.

The loader imports and starts them.
"""

import importlib.metadata
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import ksi_daemon
from ksi_daemon.handler import PluginRefused
from ksi_daemon.identifiers import PLUGIN_NAME
from ksi_daemon.plugin import Plugin
from ksi_daemon.workers.plugin_import import import_plugin

ENTRY_POINTS = "ksi.plugins"
_loaded: set[str] = set()  # entry points that were imported before
Source = Literal["core", "shipped", "folder", "package"]


@dataclass(frozen=True, slots=True)
class Found:
    """A plugin that could be loaded; `load` imports it (again)."""

    name: str
    source: Source
    path: str
    load: Callable[[], tuple[Plugin, str]]  # the plugin and its one-line summary


def shipped_folder() -> Path:
    """The folder of the shipped plugins: in a wheel inside the package, in a checkout the top-level folder `plugins`."""
    package = Path(ksi_daemon.__file__).parent
    inside = package / "shipped_plugins"
    return inside if inside.is_dir() else package.parent / "plugins"


def find_plugins(folders: Sequence[Path]) -> Iterator[Found]:
    """Every plugin outside the core, shipped ones first."""
    yield from _in_folder(shipped_folder(), "shipped")
    for folder in folders:
        yield from _in_folder(folder, "folder")
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        yield Found(entry.name, "package", entry.value, lambda entry=entry: _from_entry_point(entry))  # type: ignore[misc]


def _in_folder(folder: Path, source: Source) -> Iterator[Found]:
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.name.startswith((".", "_")):
            yield Found(path.name, source, str(path), lambda path=path: load_folder(path))  # type: ignore[misc]


def load_folder(path: Path) -> tuple[Plugin, str]:
    """Import the plugin in a folder and check its name and type."""
    if not PLUGIN_NAME.fullmatch(path.name):
        raise PluginRefused(
            f"the folder name {path.name!r} is not a valid plugin name: use lower-case letters, digits and underscores, at most 32"
        )
    if not (path / "__init__.py").is_file():
        raise PluginRefused(f"{path} has no __init__.py")
    module = import_plugin(path.name, path)
    return _checked(path.name, getattr(module, "plugin", None), f"{path / '__init__.py'}"), _summary(module.__doc__)


def _from_entry_point(entry: importlib.metadata.EntryPoint) -> tuple[Plugin, str]:
    if entry.value in _loaded and getattr(sys.modules.get(entry.module), "__file__", None):
        # A reload must read the code on disk again.
        for name in [name for name in list(sys.modules) if name == entry.module or name.startswith(entry.module + ".")]:
            del sys.modules[name]
    target = entry.load()
    _loaded.add(entry.value)
    plugin = target if isinstance(target, Plugin) else getattr(target, "plugin", None)
    return _checked(entry.name, plugin, f"the entry point {entry.value}"), _summary(getattr(target, "__doc__", None))


def _checked(name: str, plugin: object, path: str) -> Plugin:
    if not isinstance(plugin, Plugin):
        raise PluginRefused(f"{path} has no object named plugin made with Plugin({name!r})")
    if plugin.name != name:
        raise PluginRefused(f"{path} is named {name!r} but its object says Plugin({plugin.name!r}): use the same name")
    return plugin


def _summary(docstring: str | None) -> str:
    return " ".join((docstring or "").strip().split("\n\n")[0].split())[:200]
