"""Imports plugin folders under `ksi_plugins.<name>`, always from source: a reload must never use stale bytecode.

Imports the standard library only, so that worker processes can use it too.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

ROOT = "ksi_plugins"
NUMBER = "__ksi_import__"

_numbers = itertools.count(1)
_installing = threading.Lock()  # plugins are imported side by side


class _SourceOnly(importlib.machinery.SourceFileLoader):
    def path_stats(self, path: str) -> dict[str, float]:
        raise OSError("bytecode is not cached for plugins")  # importlib then compiles the source

    def _cache_bytecode(self, source_path: str, cache_path: str, data: bytes) -> None:
        """Write no bytecode into plugin folders."""


class _Submodules(importlib.abc.MetaPathFinder):
    """Finds the modules inside plugin folders; everything else is left to the ordinary finders."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith(ROOT + ".") or path is None:
            return None
        for folder in path:
            finder = importlib.machinery.FileFinder(folder, (_SourceOnly, importlib.machinery.SOURCE_SUFFIXES))
            spec = finder.find_spec(name)
            if spec is not None:
                return spec
        return None


def import_plugin(name: str, folder: Path) -> ModuleType:
    """Import (again) the plugin in `folder`. An earlier copy stays usable for running calls."""
    _install()
    forget_plugin(name)
    full_name = f"{ROOT}.{name}"
    spec = importlib.util.spec_from_file_location(
        full_name,
        folder / "__init__.py",
        loader=_SourceOnly(full_name, str(folder / "__init__.py")),
        submodule_search_locations=[str(folder)],
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder} is not a plugin folder")
    module = importlib.util.module_from_spec(spec)
    vars(module)[NUMBER] = next(_numbers)
    sys.modules[full_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        forget_plugin(name)
        raise
    return module


def import_number(module: ModuleType) -> int:
    """The number of the import that made a plugin's module: each reload has a new one."""
    return int(vars(module)[NUMBER])


def forget_plugin(name: str) -> dict[str, ModuleType]:
    """Remove a plugin's modules from sys.modules; returns them, so that a failed reload can restore them."""
    prefix = f"{ROOT}.{name}"
    known = [module for module in list(sys.modules) if module == prefix or module.startswith(prefix + ".")]
    return {module: sys.modules.pop(module) for module in known}


def _install() -> None:
    with _installing:
        if ROOT not in sys.modules:
            root = ModuleType(ROOT)
            root.__path__ = []
            sys.meta_path.insert(0, _Submodules())  # before the path finder, which would read stale bytecode
            sys.modules[ROOT] = root
