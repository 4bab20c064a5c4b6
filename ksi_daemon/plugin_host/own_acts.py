"""What a running plugin does by itself, without a caller: its background work.

It begins when the plugin's events can be called, and ends before the lifespan does.
"""

import contextvars
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from ksi_daemon.errors import Unavailable
from ksi_daemon.logs.failures import Failures
from ksi_daemon.workers.supervisor import Supervisor, Work

WORKS_LIMIT = 100


class OwnActs:
    """Of one version of a plugin."""

    def __init__(self, plugin: str, failures: Failures, log: Any) -> None:
        self._plugin = plugin
        self._failures = failures
        self._supervisor = Supervisor(log, on_failure=lambda name, error: failures.note("background", name, error))
        self._works: dict[str, Work] = {}
        self._begun = False
        self._ended = False

    def background(self, name: str, work: Work) -> None:
        """Run some work for as long as the plugin runs; it is started again when it fails or returns."""
        if self._ended:
            raise Unavailable(f"this version of the plugin {self._plugin!r} has ended")
        if name in self._works:
            raise ValueError(f"the plugin {self._plugin!r} has two background works {name!r}")
        if len(self._works) >= WORKS_LIMIT:
            raise ValueError(
                f"the plugin {self._plugin!r} has {WORKS_LIMIT} background works: use one with a task group"
            )
        self._works[name] = work
        if self._begun:
            self._start(name)

    def begin(self) -> None:
        """The plugin's events can be called now."""
        self._begun = True
        for name in self._works:
            self._start(name)

    def end(self) -> None:
        """Cancel the work: a new version does it from now on."""
        self._ended = True
        self._supervisor.cancel()

    async def stop(self) -> None:
        """Cancel the work and wait until it has ended."""
        self._ended = True
        await self._supervisor.stop()

    def troubles(self) -> dict[str, str]:
        """The work that failed lately, and how."""
        return self._supervisor.failing()

    def rows(self) -> Iterable[dict[str, Any]]:
        """One row per work, for `ksi plugins show`."""
        for name in self._works:
            waiting = name in self._supervisor.waiting
            state = "waiting to start again" if waiting else "running" if self._begun else "not begun"
            yield {"name": name, "state": state, "failed": self._failures.count("background", name)}

    def _start(self, name: str) -> None:
        # Work that a call began is not a part of that call.
        contextvars.Context().run(self._supervisor.start, name, lambda: run_work(self._works[name]))


async def run_work(work: Callable[[], Awaitable[None]]) -> None:
    """One run of a plugin's work, in a function of its own: the watchdog may interrupt what it calls."""
    await work()
