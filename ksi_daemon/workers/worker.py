"""Runs plugin code off the event loop: blocking code in a thread, unsafe code in a process that can be killed."""

import functools
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ksi_daemon.errors import Unavailable
from ksi_daemon.workers.plugin_import import ROOT, import_number, import_plugin

Answer = TypeVar("Answer")


async def in_thread(function: Callable[..., Answer], *args: Any, **kwargs: Any) -> Answer:
    """Run a blocking function in a worker thread. A deadline ends the wait, not the thread."""
    from anyio import to_thread

    return await to_thread.run_sync(functools.partial(function, *args, **kwargs), abandon_on_cancel=True)


async def in_process(function: Callable[..., Answer], *args: Any) -> Answer:
    """Run a module-level function in a worker process: it is killed at the deadline; if it crashes, only the call fails.

    Arguments and answer must be picklable.
    """
    from anyio import BrokenWorkerProcess, to_process

    name, qualified, copy = function.__module__, function.__qualname__, None
    if name.startswith(ROOT + "."):
        plugin = sys.modules[".".join(name.split(".")[:2])]
        copy = (Path(plugin.__path__[0]), import_number(plugin))
    try:
        return await to_process.run_sync(_in_child, copy, name, qualified, args, cancellable=True)
    except BrokenWorkerProcess as error:
        raise Unavailable(
            f"the worker process that ran {qualified} died", hint="report it to the author of the plugin"
        ) from error


_copies: dict[Path, int] = {}  # in a worker process: which copy of a plugin it has imported


def _in_child(copy: tuple[Path, int] | None, module_name: str, qualified: str, args: tuple[Any, ...]) -> Any:
    if copy is not None and _copies.get(copy[0]) != copy[1]:
        import_plugin(module_name.split(".")[1], copy[0])
        _copies[copy[0]] = copy[1]
    target: Any = importlib.import_module(module_name)
    for part in qualified.split("."):
        target = getattr(target, part)
    return target(*args)
