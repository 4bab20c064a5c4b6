"""`call` and `notify`: the whole path of every event on one screen.

The order of the steps in `call` is a security property, so it is one function with scopes and not a list of middleware. Transports
(the operator's socket, later MCP) make a principal and end here; plugins calling plugins end here too, with their caller's rights.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

import msgspec
import structlog

from ksi_daemon.errors import (
    AuditUnavailable,
    Forbidden,
    Internal,
    Invalid,
    KsiError,
    TooDeep,
    TooLarge,
    TooMany,
    Unavailable,
    UnknownEvent,
    bounded,
)
from ksi_daemon.gate.breaker import Breaker, verdict
from ksi_daemon.gate.gate import Gate
from ksi_daemon.handler import Handler
from ksi_daemon.identifiers import new_id
from ksi_daemon.logs.journal import CallRecord, EventCounts, Journal
from ksi_daemon.logs.redaction import redact
from ksi_daemon.notice import Notice
from ksi_daemon.plugin import Context, Home
from ksi_daemon.principal import Principal
from ksi_daemon.routing.bus import Bus
from ksi_daemon.routing.deadlines import Deadline, Deadlines
from ksi_daemon.routing.recorder import Recorder

DEPTH_LIMIT = 16
CALLS_LIMIT = 10_000  # under way at once, for one plugin
NO_HOME = Home("", Path(), log=structlog.get_logger())  # where a call lives until its owner is found

_encode = msgspec.json.Encoder().encode


class Limits(msgspec.Struct):
    """The bounds every call is held to; changed in place when settings are reloaded."""

    call_timeout_s: float = 30.0
    result_bytes: int = 1_000_000
    expose_error_details: bool = False


class Owner:
    """A running plugin as the router sees it: its home, and how many of its calls are under way."""

    __slots__ = ("_idle", "home", "in_flight")

    def __init__(self, home: Home) -> None:
        self.home = home
        self.in_flight = 0
        self._idle: asyncio.Event | None = None  # made when somebody waits: most plugins are never waited for

    def end_call(self) -> None:
        """One call less; wakes `idle` at the last one."""
        self.in_flight -= 1
        if self._idle is not None and self.in_flight == 0:
            self._idle.set()

    async def idle(self) -> None:
        """Wait until no call is under way."""
        self._idle = self._idle or asyncio.Event()
        while self.in_flight:
            self._idle.clear()
            await self._idle.wait()


class Route:
    """An event's handler, its owner, its counters, and the breaker of the plugin behind it (the daemon's own have none)."""

    __slots__ = ("breaker", "counts", "handler", "owner")

    def __init__(self, handler: Handler, owner: Owner, counts: EventCounts, breaker: Breaker | None = None) -> None:
        self.handler = handler
        self.owner = owner
        self.counts = counts
        self.breaker = breaker


class Router:
    """Owns the catalogue of events. `origin` names this daemon in the notices it sends.

    Without a gate nobody is refused, without a recorder nothing is audited: for benchmarks of the bare path only.
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
        self._routes: dict[str, Route] = {}

    @property
    def routes(self) -> Mapping[str, Route]:
        """The catalogue as it is now; a new mapping replaces it, it never changes in your hands."""
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
        self.catalogue_version += 1

    async def call(
        self,
        event: str,
        data: Any,
        *,
        principal: Principal,
        parent: Context | None = None,
        correlation_id: str | None = None,
        timeout_s: float | None = None,
    ) -> bytes:
        """Send an event to the one handler that owns it; returns its result, encoded. Raises only `KsiError` or cancellation."""
        call_id = new_id()
        if parent is None:
            context = Context(NO_HOME, self, principal, event, call_id, correlation_id or call_id)
        else:
            context = Context(
                NO_HOME, self, principal, event, call_id, parent.correlation_id, parent.call_id, parent.depth + 1
            )
        started_s = self.deadlines.clock()
        observed = _Observed(self, context, data, started_s)
        try:
            with observed:
                route = observed.route = self._find(event, context)
                handler = route.handler
                self._permit(observed, handler, parent)
                if parent is None and principal.agent_id is not None:
                    await self._enter(observed, handler)
                limit_s = handler.traits.timeout_s or self.limits.call_timeout_s
                if timeout_s is not None:
                    limit_s = min(limit_s, timeout_s)
                with Deadline(self.deadlines, self.deadlines.clock() + limit_s, limit_s):
                    params = handler.parse(data)
                    if self.recorder is not None and not handler.traits.reads:
                        await self.recorder.intent(context, handler, data, rule=observed.rule)
                        observed.intended = True
                        self._permit(observed, handler, parent)  # a right revoked meanwhile is gone
                    observed.try_breaker(route.breaker)
                    result = await handler.invoke(context, params)
                return self._fit(observed, handler.encode(result))
        finally:
            try:
                if self.recorder is not None:
                    await observed.write_outcome(self.recorder)
            finally:
                observed.end()

    async def note(self, event: str, details: Any) -> None:
        """Record something the daemon itself did."""
        if self.recorder is not None:
            await self.recorder.note(event, details)

    async def record_unauthenticated(self, principal: Principal, event: str, error: KsiError) -> None:
        """Record somebody who could not say who they are; raises when even that cannot be recorded."""
        if self.recorder is not None:
            await self.recorder.unauthenticated(principal, event, error)

    def notify(self, event: str, data: Any, *, principal: Principal, parent: Context | None = None) -> Notice:
        """Tell everyone who hears this event; never waits. Part of `parent`, if there is one, and one deeper than it."""
        notice, _ = self.publish(event, data, principal=principal, parent=parent)
        return notice

    def publish(
        self, event: str, data: Any, *, principal: Principal, parent: Context | None = None, foreign: bool = False
    ) -> tuple[Notice, tuple[int, int]]:
        """`notify`, telling also how many heard it and how many mailboxes were full. `foreign`: not a plugin's own notice."""
        depth = 0 if parent is None else parent.depth + 1
        if depth > DEPTH_LIMIT:
            raise TooDeep(f"{event} is nested {depth} deep: notices and calls answer each other in a loop")
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
            sender=principal.name,
            origin=self.origin,
            correlation_id=new_id() if parent is None else parent.correlation_id,
            parent_id=None if parent is None else parent.call_id,
            depth=depth,
            size=len(bytes(raw)),
        )
        self.journal.add_notice(notice)
        return notice, self.bus.deliver(notice)

    def _find(self, event: str, call: Context) -> Route:
        """The event's owner; from here on the call is one of its own, until the scope around it ends."""
        if call.depth > DEPTH_LIMIT:
            raise TooDeep(f"{event} is nested {call.depth} deep: calls and notices answer each other in a loop")
        if self.recorder is not None and not self.recorder.audit.available:
            raise AuditUnavailable(
                "the audit cannot be written, so nothing is served", hint="see `ksi doctor`, then the log"
            )
        route = self._routes.get(event)
        if route is None and self.gate is not None and call.principal.agent_id is not None:
            raise self.gate.unseen(call.principal, event)
        if route is None:
            raise UnknownEvent(
                f"no plugin owns the event {event[:100]!r}", hint="`ksi events ls` shows the events there are"
            )
        if route.owner.in_flight >= CALLS_LIMIT:
            raise TooMany(
                f"{CALLS_LIMIT:,} calls of the plugin {route.handler.plugin!r} are under way", retry_after_s=1.0
            )
        route.owner.in_flight += 1
        call.home = route.owner.home
        return route

    def _permit(self, observed: "_Observed", handler: Handler, parent: Context | None) -> None:
        """May this caller do this, now? The same predicate that lists and explains."""
        if self.stopping and parent is None:
            raise Unavailable("the daemon is stopping", hint="try again when `ksi status` says that it runs")
        if self.gate is not None:
            observed.rule = self.gate.permit(observed.context.principal, handler)

    async def _enter(self, observed: "_Observed", handler: Handler) -> None:
        """Room for one more call of this agent; after any wait its right is asked for again."""
        if self.gate is not None:
            observed.has_slot = await self.gate.enter(observed.context.principal, handler)
            observed.rule = self.gate.permit(observed.context.principal, handler)

    def _fit(self, observed: "_Observed", answer: bytes) -> bytes:
        observed.result_bytes = len(answer)
        if len(answer) > self.limits.result_bytes:
            raise TooLarge(
                f"the result of {observed.context.event} has {len(answer):,} bytes, more than the limit of "
                f"{self.limits.result_bytes:,}",
                hint="ask for less at once, or raise result_limit_bytes",
            )
        return answer


class _Observed(msgspec.Struct, eq=False):
    """The scope around a whole call. It sees success, refusals, crashes and cancellation, and records each as what it was."""

    router: Router
    context: Context
    data: Any
    started_s: float
    route: Route | None = None
    result_bytes: int = 0
    status: str = "cancelled"
    reason: str | None = None
    rule: str | None = None
    intended: bool = False
    has_slot: bool = False
    invoked: bool = False
    probe: bool = False

    def try_breaker(self, breaker: Breaker | None) -> None:
        """Refuse to call a plugin that keeps failing, or call it as a probe."""
        if breaker is not None and not breaker.closed:
            self.probe = breaker.enter()
        self.invoked = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        route = self.route
        if route is not None and self.invoked and route.breaker is not None and (error is not None or self.probe):
            route.breaker.leave(self.probe, verdict(error))
        if error is None:
            self._record("ok")
        elif isinstance(error, KsiError):
            self.reason = error.message
            self._record(error.code)
        elif isinstance(error, GeneratorExit | asyncio.CancelledError) and _is_being_ended():
            self._record("cancelled")
        else:
            self.reason = _told(error)
            self._record("internal")
            raise self._internal(error) from error

    def end(self) -> None:
        """After the outcome is written, not before: until then the call is under way, and a stop waits for it."""
        if self.route is not None:
            self.route.owner.end_call()
        if self.has_slot and self.router.gate is not None:
            self.router.gate.leave(self.context.principal)

    async def write_outcome(self, recorder: Recorder) -> None:
        """The outcome row, durable before the reply leaves."""
        await recorder.outcome(
            self.context,
            self.status,
            handler=None if self.route is None else self.route.handler,
            intended=self.intended,
            arguments=None if self.intended else self.data,
            rule=self.rule,
            reason=None if self.reason is None else bounded(self.reason),
            duration_ms=(self.router.deadlines.clock() - self.started_s) * 1000,
            result_bytes=self.result_bytes,
        )

    def _internal(self, error: BaseException) -> Internal:
        call = self.context
        self.router.log.error(
            "handler broke", called=call.event, call_id=call.call_id, correlation_id=call.correlation_id, exc_info=error
        )
        told = f": {_told(error)}" if self.router.limits.expose_error_details else ""
        return Internal(
            f"the handler of {call.event} broke{told}",
            hint=f"the log has the details: grep {call.call_id} var/log/ksi.jsonl",
            call_id=call.call_id,
        )

    def _record(self, outcome: str) -> None:
        self.status = outcome
        call = self.context
        record = CallRecord(
            call.call_id,
            call.event if self.route is not None else bounded(redact(call.event[:100])),
            call.correlation_id,
            call.parent_id,
            call.depth,
            call.principal.name,
            outcome,
            int((self.router.deadlines.clock() - self.started_s) * 1_000_000),
            self.result_bytes,
        )
        self.router.journal.add_call(record, None if self.route is None else self.route.counts)


def _told(error: BaseException) -> str:
    """What an exception says of itself; even that may fail."""
    try:
        return f"{type(error).__name__}: {error}"[:500]
    except Exception:  # noqa: BLE001 - whatever its __str__ raises
        return type(error).__name__


def _is_being_ended() -> bool:
    """A handler may raise CancelledError without anybody having cancelled anything: that is a broken handler."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs: what is left is being closed
        return True
    return task is None or task.cancelling() > 0
