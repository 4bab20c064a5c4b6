"""Turns calls into audit entries: intent before an effect, outcome before a reply, refusals counted. What is recorded, not how."""

import asyncio
from typing import Any

import msgspec

from ksi_daemon.audit import Audit, Entry
from ksi_daemon.audit.entry import EntryType
from ksi_daemon.errors import KsiError
from ksi_daemon.handler import Handler
from ksi_daemon.identifiers import namespace_of, time_of
from ksi_daemon.logs.redaction import redact
from ksi_daemon.plugin import Context
from ksi_daemon.principal import Principal

REFUSALS = frozenset({"unauthenticated", "forbidden", "approval_required", "too_many", "circuit_open"})
AUTHORIZATION = frozenset({"unauthenticated", "forbidden", "approval_required"})
ADMIN = frozenset({"agent", "token", "permission", "config", "plugin", "audit"})


class Outcome(msgspec.Struct, frozen=True):
    """How a call ended: `status` is ok or the code word of its error."""

    status: str
    reason: str | None
    duration_s: float
    result_bytes: int


class Recorder:
    """The audit as the router uses it."""

    def __init__(self, audit: Audit) -> None:
        self.audit = audit

    async def intent(self, call: Context, handler: Handler, arguments: Any, *, rule: str | None) -> None:
        """Durable before the handler runs, or `AuditUnavailable`."""
        type_ = _type(handler.event, "started", known=True)
        await self.audit.append(
            _entry(call, type_, "intent", "started", handler=handler, arguments=arguments, rule=rule)
        )

    async def outcome(
        self,
        call: Context,
        outcome: Outcome,
        handler: Handler | None,
        *,
        rule: str | None,
        arguments: Any,
        intended: bool,
    ) -> None:
        """Durable before the reply leaves, or `AuditUnavailable`. A cancelled caller does not cut it short."""
        entry = _entry(
            call,
            _type(call.event, outcome.status, known=handler is not None),
            "outcome",
            outcome.status,
            handler=handler,
            arguments=arguments,
            rule=rule,
            reason=outcome.reason,
            duration_ms=outcome.duration_s * 1000,
            result_bytes=outcome.result_bytes,
        )
        countable = outcome.status in REFUSALS and not intended  # an intent must find its own outcome
        writing = self.audit.append_refusal(entry) if countable else self.audit.append(entry)
        await asyncio.shield(asyncio.ensure_future(writing))

    async def unauthenticated(self, principal: Principal, event: str, error: KsiError) -> None:
        """A call whose caller did not prove who it says it is. Of the principal only what a credential proved is kept."""
        await self.audit.append_refusal(
            Entry(
                type="authorization",
                phase="outcome",
                status=error.code,
                event=str(redact(event[:100])),
                transport=principal.transport,
                principal="unknown" if principal.agent_id is None else principal.kind,
                agent_id=principal.agent_id,
                credential_id=principal.credential_id,
                reason=error.message,
            )
        )

    async def bad_request(self, principal: Principal, error: KsiError) -> None:
        """A message that is not a request; of its content only what is wrong with it is kept."""
        await self.audit.append_refusal(
            Entry(
                type="error",
                phase="outcome",
                status=error.code,
                transport=principal.transport,
                principal=principal.kind,
                agent_id=principal.agent_id,
                reason=error.message,
            )
        )

    async def listing(self, principal: Principal, details: Any) -> None:
        """What an agent was shown of its tools."""
        await self.audit.append(
            Entry(
                type="session",
                event="mcp:tools_listed",
                transport=principal.transport,
                principal=principal.kind,
                agent_id=principal.agent_id,
                user_id=principal.user_id,
                session_id=principal.session_id,
                credential_id=principal.credential_id,
                conversation_id=principal.conversation_id,
                details=details,
            )
        )

    async def note(self, event: str, details: Any = None, *, about: Principal | None = None) -> None:
        """Something the daemon itself did: started, stopped, ran the program of an agent."""
        facts: dict[str, Any] = {}
        if about is not None:
            facts = {"agent_id": about.agent_id, "conversation_id": about.conversation_id}
        await self.audit.append(Entry(type="system", event=event, details=details, **facts))


def _type(event: str, status: str, *, known: bool) -> EntryType:
    if status in AUTHORIZATION:
        return "authorization"
    if status == "internal":
        return "error"
    namespace = namespace_of(event)
    if namespace == "session":
        return "session"
    return "admin" if namespace in ADMIN and known else "tool_call"


def _entry(call: Context, type_: EntryType, phase: Any, status: str, *, handler: Handler | None, **facts: Any) -> Entry:
    principal = call.principal
    # The name of an event that no plugin owns is whatever the caller sent.
    event = str(redact(call.event[:100])) if handler is None else handler.event
    return Entry(
        type=type_,
        phase=phase,
        status=status,
        event=event,
        tool=None if handler is None else handler.tool,
        call_id=call.call_id,
        correlation_id=call.correlation_id,
        parent_id=call.parent_id,
        transport="plugin" if call.parent_id is not None else principal.transport,
        principal=principal.kind,
        agent_id=principal.agent_id,
        user_id=principal.user_id,
        session_id=principal.session_id,
        credential_id=principal.credential_id,
        conversation_id=principal.conversation_id,
        time_s=time_of(call.call_id) if phase == "intent" else None,
        details=_details(principal),
        **facts,
    )


def _details(principal: Principal) -> dict[str, str] | None:
    """Who acts with the principal's rights, when it is not the principal itself."""
    plugin = principal.name if principal.kind == "plugin" else None
    acting = {"plugin": plugin, "impersonated_by": principal.impersonated_by, "listener_of": principal.listener_of}
    return {name: who for name, who in acting.items() if who is not None} or None
