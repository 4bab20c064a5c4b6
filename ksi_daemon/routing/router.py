"""`call` and `notify`: the whole path of every event on one screen.

The order of the steps in `call` is a security property, so it is one function with scopes and not a list of middleware. Transports
(the operator's socket, later MCP) make a principal and end here; plugins calling plugins end here too, with their caller's rights.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import structlog

from ksi_daemon.errors import (
    AuditUnavailable,
    Forbidden,
    Invalid,
    KsiError,
    TooDeep,
    TooLarge,
    TooMany,
    Unavailable,
    UnknownEvent,
)
from ksi_daemon.gate.gate import Gate
from ksi_daemon.handler import Handler
from ksi_daemon.identifiers import new_id
from ksi_daemon.logs.journal import Journal
from ksi_daemon.logs.redaction import redact
from ksi_daemon.notice import Notice
from ksi_daemon.plugin import Context, Feedback, Home
from ksi_daemon.principal import Principal
from ksi_daemon.routing.bus import Bus
from ksi_daemon.routing.call_scope import CallScope
from ksi_daemon.routing.current_call import current_call
from ksi_daemon.routing.deadlines import Deadline, Deadlines
from ksi_daemon.routing.recorder import Recorder
from ksi_daemon.routing.route import Limits, Owner, Route

DEPTH_LIMIT = 16
CALLS_LIMIT = 10_000  # under way at once, for one plugin
NO_HOME = Home("", Path(), log=structlog.get_logger())  # of a call whose owner is not found yet

_encode = msgspec.json.Encoder().encode


class Router:
    """Owns the catalogue of events. `origin` names this daemon in the notices it sends.

    Without a gate no call is refused, without a recorder none is audited: for benchmarks of the bare path only.
    """

    def __init__(
        self,
        *,
        bus: Bus,
        journal: Journal,
        limits: Limits,
        deadlines: Deadlines,
        origin: str,
        log: Any,
        gate: Gate | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.gate = gate
        self.recorder = recorder
        self.bus = bus
        self.journal = journal
        self.limits = limits
        self.deadlines = deadlines
        self.origin = origin
        self.log = log
        self.stopping = False
        self.catalogue_version = 0
        self.on_new_catalogue: Callable[[], None] = lambda: None
        self._routes: dict[str, Route] = {}
        self._background: set[asyncio.Task[None]] = set()

    @property
    def routes(self) -> Mapping[str, Route]:
        """The catalogue as it is now; a new mapping replaces it, it is never changed."""
        return MappingProxyType(self._routes)

    @property
    def in_flight(self) -> int:
        """How many calls are under way."""
        return sum(owner.in_flight for owner in self._owners())

    async def idle(self, limit_s: float) -> bool:
        """Wait until no call is under way; False when `limit_s` passed first."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await asyncio.gather(*(owner.idle() for owner in self._owners()))
        return self.in_flight == 0

    def _owners(self) -> set[Owner]:
        return {route.owner for route in self._routes.values()}

    def replace_routes(self, routes: Mapping[str, Route]) -> None:
        """Swap the whole catalogue at once. Calls under way keep the handlers they found."""
        self._routes = dict(routes)
        self.renew_catalogue()

    def renew_catalogue(self) -> None:
        """What is made of the catalogue, such as lists of tools, is to be made anew."""
        self.catalogue_version += 1
        self.on_new_catalogue()

    async def call(
        self,
        event: str,
        data: Any,
        *,
        principal: Principal,
        parent: Context | None = None,
        correlation_id: str | None = None,
        timeout_s: float | None = None,
        on_abandoned: Callable[[KsiError], None] | None = None,
        feedback: Feedback | None = None,
    ) -> bytes:
        """Send an event to the one handler that owns it; returns its result, encoded. Raises only `KsiError` or cancellation.

        A handler that ignores its cancellation keeps this coroutine from returning; `on_abandoned` is then called with the
        error to reply with, after the outcome is recorded. `feedback` takes the progress and the log lines of this handler, not of
        those that it calls.
        """
        call_id = new_id()
        if parent is None:
            context = Context(
                NO_HOME,
                self,
                principal,
                event,
                call_id,
                str(redact(correlation_id)) if correlation_id else call_id,
                feedback=feedback,
            )
        else:
            context = Context(
                NO_HOME, self, principal, event, call_id, parent.correlation_id, parent.call_id, parent.depth + 1
            )
        scope = CallScope(self, context, data, self.deadlines.clock(), on_abandoned)
        try:
            with scope:
                route = scope.route = self._find(event, context)
                handler = route.handler
                self._permit(scope, handler, parent)
                self._require_capacity(route)
                if parent is None and principal.agent_id is not None:
                    await self._enter(scope, handler)
                limit_s = handler.traits.timeout_s or self.limits.call_timeout_s
                if timeout_s is not None and timeout_s < limit_s:
                    limit_s, scope.caller_limited = timeout_s, True
                with Deadline(self.deadlines, self.deadlines.clock() + limit_s, limit_s, scope.abandon):
                    params = handler.parse(data)
                    if self.recorder is not None and not handler.traits.reads:
                        await self.recorder.intent(context, handler, data, rule=scope.rule)
                        scope.intended = True
                        self._permit(scope, handler, parent)  # a right revoked meanwhile is gone
                    if route.breaker is not None:
                        scope.guard = route.breaker.guard(caller_limited=scope.caller_limited)
                    scope.invoked = True
                    current_call.set(context)
                    try:
                        result = await handler.invoke(context, params)
                    finally:
                        current_call.set(parent)
                return self._fit(scope, handler.encode(result))
        finally:
            if self.recorder is None:
                scope.release()
            else:
                await scope.close()

    async def note(self, event: str, details: Any, *, about: Principal | None = None) -> None:
        """Record something the daemon itself did, `about` an agent perhaps; raises when it cannot be recorded."""
        if self.recorder is not None:
            await self.recorder.note(event, details, about=about)

    async def record_unauthenticated(self, principal: Principal, event: str, error: KsiError) -> None:
        """Record a call whose caller did not prove who it says it is; raises when even that cannot be recorded."""
        if self.recorder is not None:
            await self.recorder.unauthenticated(principal, event, error)

    async def record_bad_request(self, principal: Principal, error: KsiError) -> None:
        """Record a message that is not a request; raises when even that cannot be recorded."""
        if self.recorder is not None:
            await self.recorder.bad_request(principal, error)

    async def record_listing(self, principal: Principal, details: Any) -> None:
        """Record what an agent was shown of its tools; raises when that cannot be recorded."""
        if self.recorder is not None:
            await self.recorder.listing(principal, details)

    def run_in_background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run something to its end beside the calls; a failure is logged."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._background.add(task)
        task.add_done_callback(self._background_ended)

    def _background_ended(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.log.error("background work failed", task=task.get_name(), exc_info=error)

    def notify(self, event: str, data: Any, *, principal: Principal, parent: Context | None = None) -> Notice:
        """Send a notice to every subscriber; never waits. Part of `parent`, if there is one, and one level deeper."""
        notice, _ = self.publish(event, data, principal=principal, parent=parent)
        return notice

    def publish(
        self, event: str, data: Any, *, principal: Principal, parent: Context | None = None, foreign: bool = False
    ) -> tuple[Notice, tuple[int, int]]:
        """`notify`, with the numbers of subscribers and of full mailboxes. `foreign`: not a notice that the plugin announces."""
        depth = 0 if parent is None else parent.depth + 1
        if depth > DEPTH_LIMIT:
            raise TooDeep(f"{event} is nested {depth} deep: notices and calls cause each other in a loop")
        if parent is not None and not foreign and event not in parent.announces:
            raise Forbidden(
                f"{parent.event} may not send {event}: its plugin does not announce it",
                hint="plugin.announces(event, meaning)",
            )
        try:
            raw = msgspec.Raw(_encode(data))
        except (TypeError, ValueError, RecursionError, UnicodeEncodeError) as error:
            raise Invalid(f"the data of {event} cannot be written as JSON: {error}") from error
        if len(bytes(raw)) > self.limits.result_bytes:
            raise TooLarge(f"the data of {event} has {len(bytes(raw)):,} bytes, more than {self.limits.result_bytes:,}")
        notice = Notice(
            event=event,
            raw=raw,
            sender=principal.label,
            principal=principal,
            origin=self.origin,
            correlation_id=new_id() if parent is None else parent.correlation_id,
            parent_id=None if parent is None else parent.call_id,
            depth=depth,
            size=len(bytes(raw)),
        )
        self.journal.add_notice(notice)
        return notice, self.bus.deliver(notice)

    def _find(self, event: str, call: Context) -> Route:
        """The event's route; from here on the call counts as under way in the plugin that owns it."""
        if call.depth > DEPTH_LIMIT:
            raise TooDeep(f"{event} is nested {call.depth} deep: calls and notices cause each other in a loop")
        self.require_audit()
        route = self._routes.get(event)
        if route is None and self.gate is not None and call.principal.agent_id is not None:
            raise self.gate.unseen(call.principal, event)
        if route is None:
            raise UnknownEvent(
                f"no plugin owns the event {event[:100]!r}", hint="`ksi events ls` shows the events there are"
            )
        route.owner.in_flight += 1
        call.home = route.owner.home
        return route

    def require_audit(self) -> None:
        """Raise when calls cannot be recorded: then nothing is served."""
        if self.recorder is not None and not self.recorder.audit.available:
            raise AuditUnavailable(
                "the audit cannot be written, so nothing is served", hint="run `ksi doctor`; the log has the details"
            )

    def require_running(self) -> None:
        """Raise when the daemon takes no new calls because it stops."""
        if self.stopping:
            raise Unavailable("the daemon is stopping", hint="try again when `ksi status` says that it runs")

    def _require_capacity(self, route: Route) -> None:
        """After the caller's right, so that no refusal shows what exists."""
        if route.owner.in_flight > CALLS_LIMIT:
            raise TooMany(
                f"{CALLS_LIMIT:,} calls of the plugin {route.handler.plugin!r} are under way", retry_after_s=1.0
            )

    def _permit(self, scope: CallScope, handler: Handler, parent: Context | None) -> None:
        """Whether this caller may do this now: the same predicate that lists and explains."""
        if parent is None:
            self.require_running()
        if self.gate is not None:
            scope.rule = self.gate.permit(scope.context.principal, handler)

    async def _enter(self, scope: CallScope, handler: Handler) -> None:
        """Charge the agent's rate and take one of its slots; after any wait its right is asked for again."""
        if self.gate is not None:
            scope.slot = await self.gate.enter(scope.context.principal, handler)
            scope.rule = self.gate.permit(scope.context.principal, handler)

    def _fit(self, scope: CallScope, answer: bytes) -> bytes:
        scope.result_bytes = len(answer)
        if len(answer) > self.limits.result_bytes:
            raise TooLarge(
                f"the result of {scope.context.event} has {len(answer):,} bytes, more than the limit of "
                f"{self.limits.result_bytes:,}",
                hint="ask for less at once, or raise result_limit_bytes",
            )
        return answer
