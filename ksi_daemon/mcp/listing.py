"""One list of tools: which of them, full or thin, and the record of it in the log and the audit."""

import asyncio
from typing import Any

import msgspec
from starlette.types import Scope

from ksi_daemon.errors import Invalid
from ksi_daemon.mcp.handshakes import Handshakes, completion_of
from ksi_daemon.mcp.request import FLUSHED, PRINCIPAL, SESSION, VIEW, WRITTEN, header
from ksi_daemon.mcp.sessions import Session, Sessions
from ksi_daemon.mcp.tools import OfferedTool, Tools, fingerprint, sizes
from ksi_daemon.principal import Principal
from ksi_daemon.routing.router import Router
from ksi_daemon.storage.mcp_sessions import HandshakeKind


class Listing(msgspec.Struct, frozen=True):
    """The tools that a caller may see now, and how they are shown."""

    tools: list[OfferedTool]
    kind: HandshakeKind


class Listings:
    """Makes lists and records them."""

    def __init__(self, tools: Tools, handshakes: Handshakes, sessions: Sessions, router: Router, log: Any) -> None:
        self._tools = tools
        self._handshakes = handshakes
        self._sessions = sessions
        self._router = router
        self._log = log

    async def make(self, scope: Scope, *, client: str) -> Listing:
        """The list for this request. A view is always shown in full, and so is everything that no conversation is known of."""
        principal: Principal = scope[PRINCIPAL]
        visible = self._tools.visible(principal, scope[VIEW])
        asked = asked_kind(scope)
        session: Session | None = scope.get(SESSION)
        if session is not None:
            await self._sessions.saw(session, fingerprint(visible))
        if scope[VIEW] is not None:
            return Listing(visible, "full")
        if asked is not None:
            return Listing(visible, asked)
        key = completion_of(principal, None if session is None else session.session_id)
        if key is None:
            return Listing(visible, "full")
        completion = await self._handshakes.decide(
            key, fingerprint(visible), client=client, sizes=lambda kind: sizes(visible, kind)
        )
        if not completion.delivered:
            scope[WRITTEN] = written = asyncio.get_running_loop().create_future()
            self._handshakes.expect_delivery(completion, written, scope[FLUSHED])
        return Listing(visible, completion.kind)

    async def record(self, scope: Scope, shown: list[OfferedTool], kind: HandshakeKind, *, client: str) -> None:
        """Put on record what is about to be sent."""
        principal: Principal = scope[PRINCIPAL]
        size, tokens = sizes(shown, kind)
        details = {"handshake": kind, "tools": len(shown), "bytes": size, "tokens": tokens, "client": client}
        details |= {"view": scope[VIEW]} if scope[VIEW] is not None else {}
        details |= {"completion_id": principal.completion_id} if principal.completion_id is not None else {}
        self._log.info("tools listed", agent=principal.agent_id, conversation=principal.conversation_id, **details)
        await self._router.record_listing(principal, details)


def asked_kind(scope: Scope) -> HandshakeKind | None:
    """What the header asks for, if it is sent."""
    asked = header(scope["headers"], b"x-ksi-handshake")
    if asked is None or asked == "full":
        return None if asked is None else "full"
    if asked == "thin":
        return "thin"
    raise Invalid(
        "the header X-KSI-Handshake must be full or thin", hint="leave it away for the list that the conversation gets"
    )
