"""What a running plugin does by itself, with rights of its own: background work, calls and notices.

The work begins when the plugin's events can be called, and ends before the lifespan does. What the plugin may call the gate decides.
"""

import contextvars
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from ksi_daemon.errors import Forbidden, Unavailable
from ksi_daemon.logs.failures import Failures
from ksi_daemon.notice import Notice
from ksi_daemon.plugin import Plugin
from ksi_daemon.principal import Principal
from ksi_daemon.routing.current_call import current_call
from ksi_daemon.routing.router import Router
from ksi_daemon.workers.supervisor import Supervisor, Work

WORKS_LIMIT = 100


class OwnActs:
    """Of one version of a plugin."""

    def __init__(self, plugin: Plugin, router: Router, failures: Failures, log: Any) -> None:
        self._plugin = plugin.name
        self._announces = frozenset(plugin.notices)
        self._router = router
        self._principal = own_principal(plugin.name)
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

    async def call(self, event: str, data: Mapping[str, Any], timeout_s: float | None) -> bytes:
        """Call an event as the plugin; part of the call or notice that it handles, if it handles one."""
        return await self._router.call(
            event, data, principal=self._principal, parent=current_call.get(), timeout_s=timeout_s
        )

    def notify(self, event: str, data: Mapping[str, Any]) -> Notice:
        """Send one of the plugin's notices as the plugin."""
        if event not in self._announces:
            raise Forbidden(
                f"the plugin {self._plugin} may not send {event}: it does not announce it",
                hint="plugin.announces(event, meaning)",
            )
        cause = current_call.get()
        notice, _ = self._router.publish(event, data, principal=self._principal, parent=cause, foreign=True)
        return notice

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


def own_principal(plugin: str) -> Principal:
    """The caller that a plugin is when it acts by itself."""
    return Principal(kind="plugin", name=plugin, transport="plugin")


async def run_work(work: Callable[[], Awaitable[None]]) -> None:
    """One run of a plugin's work, in a function of its own: the watchdog may interrupt what it calls."""
    await work()
