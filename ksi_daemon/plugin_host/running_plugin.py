"""One running plugin: its lifespan and listeners, opened and closed in one separate task.

One task, because what a lifespan opens (task groups, cancel scopes) must be closed by the task that opened it.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec

from ksi_daemon.errors import KsiError
from ksi_daemon.identifiers import new_id
from ksi_daemon.logs.failures import Failures, Kind
from ksi_daemon.notice import Notice
from ksi_daemon.plugin import Context, HealthPart, Home, Listener, Plugin
from ksi_daemon.plugin_host.discovery import Found
from ksi_daemon.plugin_host.health_check import HealthCheck
from ksi_daemon.plugin_host.own_acts import OwnActs, own_principal
from ksi_daemon.plugin_settings import PluginSettingsRead
from ksi_daemon.principal import Principal
from ksi_daemon.routing.bus import Mailbox
from ksi_daemon.routing.current_call import current_call
from ksi_daemon.routing.route import Owner
from ksi_daemon.routing.router import Router
from ksi_daemon.storage.sqlite import Database

START_LIMIT_S = 30.0
STOP_LIMIT_S = 3.0
TURN = 64  # notices a listener may handle before other tasks run
TURNS_BEFORE_REST = 8  # and before threads run too: they get the interpreter promptly only when the loop waits
REST_S = 0.001


class Subscription:
    """A plugin's listener with its own mailbox: a slow, failing or looping listener delays no others.

    It acts with the rights of whoever caused the notice, never more; with those of its plugin, if that was the daemon.
    """

    def __init__(self, router: Router, home: Home, pattern: str, *, listener: Listener, failures: Failures) -> None:
        self.pattern = pattern
        self.failed = 0
        self.mailbox: Mailbox = router.bus.open(f"{home.plugin}/{pattern}/{new_id()}")
        self._router = router
        self._home = home
        self._listener = listener
        self._failures = failures

    async def run(self) -> None:
        """Handle notices until cancelled."""
        self.mailbox.subscribe([self.pattern], name=f"plugin/{self._home.plugin}")
        try:
            for turn in itertools.count(1):
                for _ in range(TURN):
                    await self._handle(await self.mailbox.take())
                rests = turn % TURNS_BEFORE_REST == 0 and self.mailbox.waiting
                await asyncio.sleep(REST_S if rests else 0)
        finally:
            self.mailbox.close()

    async def _handle(self, notice: Notice) -> None:
        context = Context(
            self._home,
            self._router,
            self._principal(notice.principal),
            notice.event,
            notice.id,
            notice.correlation_id,
            notice.parent_id,
            notice.depth,
        )
        current_call.set(context)
        try:
            with self._router.deadlines.within(self._router.limits.call_timeout_s):
                await self._listener(context, notice)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            self._note_failure(notice, asyncio.CancelledError("raised by the listener itself"))
        except BaseException as error:  # noqa: BLE001 - an error of a listener must not affect others
            self._note_failure(notice, error)

    def _principal(self, cause: Principal) -> Principal:
        """What the daemon itself causes is nobody's order: a listener then has its plugin's own rights."""
        if cause.kind == "daemon":
            return own_principal(self._home.plugin)
        return msgspec.structs.replace(cause, mailbox=None, listener_of=self._home.plugin)

    def _note_failure(self, notice: Notice, error: BaseException) -> None:
        self.failed += 1
        self._failures.note("listener", self.pattern, error)
        if self.failed > 10 and self.failed % 1000:  # repeated failures are not logged each
            return
        fields = {"pattern": self.pattern, "notice": notice.event, "notice_id": notice.id, "failed": self.failed}
        if isinstance(error, KsiError):
            self._home.log.warning("listener failed", **fields, code=error.code, message=error.message)
        else:
            self._home.log.error("listener failed unexpectedly", **fields, exc_info=error)


class RunningPlugin:
    """A loaded plugin. `start` starts it or raises; `stop` waits for its calls, then closes what it opened."""

    def __init__(
        self,
        found: Found,
        plugin: Plugin,
        summary: str,
        *,
        router: Router,
        folder: Path,
        database: Database | None,
        omitted: Mapping[str, str],
        settings: PluginSettingsRead | None,
        log: Any,
        on_failure: Callable[[Kind, str, BaseException], None],
    ) -> None:
        self.found = found
        self.plugin = plugin
        self.summary = summary
        self.loaded_at = time.time()
        self.subscriptions: list[Subscription] = []
        self.database = database
        self.omitted = omitted  # omitted events -> the missing capability
        self.settings = settings
        self.owner: Owner
        self._router = router
        self._folder = folder
        self._log = log
        self.stop_requested = asyncio.Event()
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None
        self._listening: asyncio.Future[list[None]]
        self._check: HealthCheck | None = None
        self.failures = Failures(on_failure)
        self.acts = OwnActs(plugin, router, self.failures, log.bind(plugin=plugin.name))

    async def start(self, capabilities: Mapping[type, object]) -> asyncio.Task[None]:
        """Start the plugin; returns the task that runs until it stops."""
        self._task = asyncio.create_task(self._live(capabilities), name=f"plugin {self.plugin.name}")
        try:
            await asyncio.wait_for(asyncio.shield(self._started), START_LIMIT_S)
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        except TimeoutError:
            self._task.cancel()
            raise TimeoutError(f"it did not start within {START_LIMIT_S:g} s") from None
        return self._task

    async def health(self) -> list[HealthPart]:
        """What the plugin says of its parts, and a failed part for each background work that failed lately."""
        said = [] if self._check is None else await self._check.parts()
        return said + [
            HealthPart(
                name=f"background {name}"[:64], state="failed", reason=f"it is started again after: {reason}"[:300]
            )
            for name, reason in self.acts.troubles().items()
        ]

    async def stop(self, drain_s: float = 0.0) -> int:
        """Close it; returns how many of its calls were still running after `drain_s`."""
        self._listening.cancel()  # a new version receives the notices from now on, and does the work
        self.acts.end()
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.owner.idle(), drain_s)
        finally:
            left = self.owner.in_flight
            self.stop_requested.set()
        if self._task is not None:
            _, late = await asyncio.wait([self._task], timeout=STOP_LIMIT_S)
            for task in late:
                self._log.error(
                    "plugin did not stop in time and is abandoned", plugin=self.plugin.name, limit_s=STOP_LIMIT_S
                )
                task.cancel()
        return left

    async def _live(self, capabilities: Mapping[type, object]) -> None:
        try:
            async with AsyncExitStack() as stack:
                await self._open(stack, capabilities)
                self._listening = asyncio.gather(*(subscription.run() for subscription in self.subscriptions))
                stack.push_async_callback(_end, self._listening)
                await asyncio.sleep(0)  # the listeners subscribe before the plugin is announced
                self._started.set_result(None)
                await self.stop_requested.wait()
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                self._started.cancel()
                raise
            failure = error if isinstance(error, Exception) else RuntimeError(f"it raised {error!r}")
            if self._started.done():
                raise failure from error
            self._started.set_exception(failure)

    async def _open(self, stack: AsyncExitStack, capabilities: Mapping[type, object]) -> None:
        home = Home(
            self.plugin.name,
            self._folder,
            log=self._log.bind(plugin=self.plugin.name),
            database=self.database,
            capabilities=capabilities,
            announces=self.plugin.notices,
            settings=None if self.settings is None else self.settings.settings,
            acts=self.acts,
        )
        self.owner = Owner(home, self.failures)
        stack.push_async_callback(self.acts.stop)
        if self.plugin.lifespan_function is not None:
            await stack.enter_async_context(self.plugin.lifespan_function(home))
            stack.push_async_callback(self.acts.stop)  # it uses what the lifespan has opened
        self.subscriptions = [
            Subscription(self._router, home, pattern, listener=listener, failures=self.failures)
            for pattern, listener in self.plugin.listeners
        ]
        if self.plugin.health_function is not None:
            self._check = HealthCheck(self.plugin.health_function, home, self.failures)
            stack.callback(self._check.end)


async def _end(listening: asyncio.Future[list[None]]) -> None:
    listening.cancel()
    with suppress(asyncio.CancelledError):
        await listening
