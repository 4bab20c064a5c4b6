"""Ways off the event loop for plugin code that blocks (a thread) or that may run wild (a process that can die alone)."""

import functools
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ksi_daemon.errors import Unavailable
from ksi_daemon.plugin_import import ROOT, import_plugin

Answer = TypeVar("Answer")


async def in_thread(function: Callable[..., Answer], *args: Any, **kwargs: Any) -> Answer:
    """Run a blocking function in a worker thread. A deadline ends the wait, not the thread."""
    from anyio import to_thread

    return await to_thread.run_sync(functools.partial(function, *args, **kwargs), abandon_on_cancel=True)


async def in_process(function: Callable[..., Answer], *args: Any) -> Answer:
    """Run a module-level function in a worker process: killed at the deadline; if it crashes, only the call fails.

    Arguments and answer must be picklable.
    """
    from anyio import BrokenWorkerProcess, to_process

    name, qualified, folder = function.__module__, function.__qualname__, None
    if name.startswith(ROOT + "."):
        plugin = name.split(".")[1]
        folder = Path(sys.modules[f"{ROOT}.{plugin}"].__path__[0])
    try:
        return await to_process.run_sync(_in_child, folder, name, qualified, args, cancellable=True)
    except BrokenWorkerProcess as error:
        raise Unavailable(
            f"the worker process that ran {qualified} died", hint="its plugin's author will want to know"
        ) from error


def _in_child(folder: Path | None, module_name: str, qualified: str, args: tuple[Any, ...]) -> Any:
    if folder is not None and module_name not in sys.modules:
        import_plugin(module_name.split(".")[1], folder)
    target: Any = importlib.import_module(module_name)
    for part in qualified.split("."):
        target = getattr(target, part)
    return target(*args)
