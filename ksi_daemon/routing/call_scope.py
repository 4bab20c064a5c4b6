"""The scope around one call: it sees success, refusals, crashes and cancellation, and records each as what it was.

It holds what the call holds (a slot, a breaker's guard) and gives it back however the call ends. A handler that ignores its
cancellation is abandoned: the outcome row is written and the caller answered although the handler still runs.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from ksi_daemon.errors import ApprovalRequired, Forbidden, Internal, KsiError, TimedOut, TooMany, bounded
from ksi_daemon.gate.breaker import Guard
from ksi_daemon.gate.slots import Slot
from ksi_daemon.logs.journal import CallRecord
from ksi_daemon.logs.redaction import redact
from ksi_daemon.plugin import Context
from ksi_daemon.routing.recorder import Outcome
from ksi_daemon.routing.route import Route

if TYPE_CHECKING:
    from ksi_daemon.routing.router import Router

REFUSALS = (Forbidden, ApprovalRequired, TooMany)
REFUSED_DELAY_S = 0.1  # before the reply to a refused call of an agent that has had too many refusals


class CallScope(msgspec.Struct, eq=False, gc=False):
    """One call from its arrival to its durable outcome."""

    router: "Router"
    context: Context
    data: Any
    started_s: float
    on_abandoned: Callable[[KsiError], None] | None = None
    route: Route | None = None
    rule: str | None = None
    intended: bool = False
    invoked: bool = False  # whether the handler was reached: what it raises is its own answer, not the gate's
    result_bytes: int = 0
    slot: Slot | None = None
    guard: Guard | None = None
    caller_limited: bool = False  # the caller set a shorter deadline than the handler has
    delay_s: float = 0.0
    status: str = "cancelled"
    reason: str | None = None
    duration_s: float = 0.0
    abandoned: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.abandoned:
            if error is not None and not isinstance(error, KsiError | asyncio.CancelledError | GeneratorExit):
                raise self._internal(error) from error
            return
        raised = self._finish(error)
        if raised is not error and raised is not None:
            raise raised from error

    async def close(self) -> None:
        """Write the outcome row, durable before the reply leaves; until then the call counts as under way."""
        try:
            if not self.abandoned:
                await self._write_outcome()
        finally:
            self.release()
        if self.delay_s:
            await asyncio.sleep(self.delay_s)

    def release(self) -> None:
        """Give back what the call holds."""
        if self.slot is not None:
            self.slot.release()
        if self.route is not None:
            self.route.owner.end_call()

    def abandon(self) -> None:
        """The handler ignores every cancellation. Its caller is answered now; its plugin stays busy until it really ends."""
        self.abandoned = True
        error = TimedOut(
            f"{self.context.event} passed its deadline and does not stop",
            hint="its plugin ignores cancellation; system:health and the log name it",
        )
        self._finish(error)
        self.router.run_in_background(self._answer_abandoned(error), f"outcome of {self.context.event}, abandoned")

    async def _answer_abandoned(self, error: KsiError) -> None:
        try:
            await self._write_outcome()
        except KsiError as unavailable:
            error = unavailable
        finally:
            if self.slot is not None:
                self.slot.release()
            if self.on_abandoned is not None:
                self.on_abandoned(error)

    def _finish(self, error: BaseException | None) -> BaseException | None:
        """Decide what the call ended as, and count it; returns the error to raise, if any."""
        if self.guard is not None:
            self.guard.end(error)
        if error is None:
            self.status = "ok"
        elif isinstance(error, KsiError):
            error = self._limited(error)
            error.by_handler = self.invoked
            self.status, self.reason = error.code, bounded(error.message)
        elif not (isinstance(error, GeneratorExit | asyncio.CancelledError) and _is_being_cancelled()):
            self.status, self.reason = "internal", bounded(_describe(error))
            error = self._internal(error)
            error.by_handler = self.invoked
        router, route, call = self.router, self.route, self.context
        self.duration_s = router.deadlines.clock() - self.started_s
        record = CallRecord(
            call.call_id,
            call.event if route is not None else bounded(redact(call.event[:100])),
            call.correlation_id,
            call.parent_id,
            call.depth,
            call.principal.label,
            self.status,
            int(self.duration_s * 1_000_000),
            self.result_bytes,
        )
        router.journal.add_call(record, None if route is None else route.counts)
        return error

    async def _write_outcome(self) -> None:
        if self.router.recorder is not None:
            await self.router.recorder.outcome(
                self.context,
                Outcome(self.status, self.reason, self.duration_s, self.result_bytes),
                None if self.route is None else self.route.handler,
                rule=self.rule,
                arguments=None if self.intended else self.data,
                intended=self.intended,
            )

    def _limited(self, error: KsiError) -> KsiError:
        """Refusals have a limit of their own: an agent that keeps asking for what it may not have is answered slowly."""
        gate, principal = self.router.gate, self.context.principal
        if gate is None or principal.agent_id is None or self.context.depth or self.invoked:
            return error
        if not isinstance(error, REFUSALS):
            return error
        limited = gate.limit_refusals(principal)
        if limited is None:
            return error
        self.delay_s = REFUSED_DELAY_S
        return error if isinstance(error, TooMany) else limited

    def _internal(self, error: BaseException) -> Internal:
        call = self.context
        if self.route is not None:
            self.route.owner.failures.note("handler", call.event, error)
        self.router.log.error(
            "handler failed",
            called=call.event,
            call_id=call.call_id,
            correlation_id=call.correlation_id,
            exc_info=error,
        )
        details = f": {_describe(error)}" if self.router.limits.expose_error_details else ""
        return Internal(
            f"the handler of {call.event} failed{details}",
            hint=f"the log has the details: grep {call.call_id} var/log/ksi.jsonl",
            call_id=call.call_id,
        )


def _describe(error: BaseException) -> str:
    """The type and text of an exception; even its text may fail."""
    try:
        return f"{type(error).__name__}: {error}"[:500]
    except Exception:  # noqa: BLE001 - whatever its __str__ raises
        return type(error).__name__


def _is_being_cancelled() -> bool:
    """A handler may raise CancelledError although its task was not cancelled: that is a failure of the handler."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs: what is left is being closed
        return True
    return task is None or task.cancelling() > 0
