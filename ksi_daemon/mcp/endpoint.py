"""The way into MCP over HTTP: who calls, whether the request is well-formed, and which transport serves it.

Both eras of the protocol share one URL. A request of 2026 names its revision in a header; one of a session its session; what names
neither is answered without a session. Nothing of a request's body is looked at before its caller is known.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import nullcontext

from msgspec.structs import replace
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ksi_daemon.config import Settings
from ksi_daemon.errors import Forbidden, Invalid, KsiError, NotFound, TooMany, Unauthenticated, Unavailable
from ksi_daemon.gate.gate import Gate
from ksi_daemon.gate.resolvers import Resolvers
from ksi_daemon.mcp.leaving import serve_until_client_leaves
from ksi_daemon.mcp.message import Rpc, parse_message
from ksi_daemon.mcp.protocol_errors import explained
from ksi_daemon.mcp.refusals import HEADER_MISMATCH, INVALID_REQUEST, error_body, error_object, refusal_headers
from ksi_daemon.mcp.reply import Reply
from ksi_daemon.mcp.request import (
    PRINCIPAL,
    VIEW,
    ClientLeft,
    HeaderMismatch,
    Headers,
    bearer_token,
    check_routing_headers,
    header,
    identifier,
    joined_header,
    read_body,
    refuse_lookalike_headers,
    replay,
    with_header,
)
from ksi_daemon.mcp.sessions import Sessions
from ksi_daemon.mcp.tools import Tools
from ksi_daemon.mcp.transports import Transports
from ksi_daemon.principal import Principal
from ksi_daemon.routing.router import Router

REQUESTS_LIMIT = 128  # of one agent at once
STREAMS_LIMIT = 8  # of one agent at once
SESSION_REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")  # every later one has no sessions
STATELESS_REVISION = "2026-07-28"
MISMATCH_HINT = "leave the header away, or send the one that belongs to the token"
UNKNOWN_CALLER = Principal(kind="agent", name="unknown", transport="http")
UNAUTHENTICATED_DELAY_S = 0.1  # before the reply, when there are very many requests without a valid token


class Endpoint:
    """The ASGI application behind `/mcp`."""

    def __init__(
        self,
        router: Router,
        gate: Gate,
        resolvers: Resolvers,
        tools: Tools,
        sessions: Sessions,
        transports: Callable[[], Awaitable[Transports]],
        settings: Callable[[], Settings],
    ) -> None:
        self._router = router
        self._gate = gate
        self._resolvers = resolvers
        self._tools = tools
        self._sessions = sessions
        self._transports = transports
        self._settings = settings
        self.requests: Counter[str] = Counter()  # under way, by agent
        self.streams: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        principal, rpc = UNKNOWN_CALLER, Rpc()
        try:
            principal = self._caller(scope["headers"])
            principal = _in_conversation(principal, scope["headers"])
            self._router.require_running()
            self._router.require_audit()
            with _Counted(self.requests, principal, REQUESTS_LIMIT, "requests"):
                if scope["method"] == "POST":
                    body = await read_body(receive)
                    rpc = parse_message(body)
                    receive = replay(body, receive)
                elif scope["method"] not in ("GET", "DELETE") or header(scope["headers"], b"mcp-session-id") is None:
                    body = explained(405, b"", None)
                    await Response(body, 405, {"allow": "POST"}, "application/json")(scope, receive, send)
                    return
                await self._serve(scope, receive, send, principal, rpc)
        except ClientLeft:
            return
        except HeaderMismatch as mismatch:
            await self._refuse(Invalid(str(mismatch)), HEADER_MISMATCH, scope, principal, rpc, receive, send)
        except KsiError as error:
            await self._refuse(error, _code(error), scope, principal, rpc, receive, send)

    def _caller(self, headers: Headers) -> Principal:
        """Who calls: the token says it. Without one it is unknown, unless headers are trusted."""
        agent_id = identifier(headers, b"x-ksi-agent-id") if self._settings().trust_headers else None
        if agent_id is None or header(headers, b"authorization") is not None:
            return self._resolvers.principal(bearer_token(headers))
        if agent_id not in self._gate.rights.agents:
            raise Unauthenticated(
                f"there is no agent {agent_id}", hint=f"the operator adds it: ksi agents add {agent_id}"
            )
        return Principal(kind="agent", name=agent_id, transport="http", agent_id=agent_id, ceiling="restricted")

    async def _serve(self, scope: Scope, receive: Receive, send: Send, principal: Principal, rpc: Rpc) -> None:
        """Hand the request to the transport that it is for."""
        headers = scope["headers"]
        version, session = header(headers, b"mcp-protocol-version"), header(headers, b"mcp-session-id")
        has_sessions = version is None or version in SESSION_REVISIONS
        session = session if has_sessions else None  # later revisions know of none: what names one is ignored
        transports = await self._transports()
        check_routing_headers(headers, rpc, transports.decoded_header)
        accept = joined_header(headers, b"accept")
        json_only = session is None and (accept is None or ("json" in accept and "event-stream" not in accept))
        stateless = json_only or (session is None and version is None and rpc.method != "initialize")
        inner: Scope = {**scope, PRINCIPAL: principal, VIEW: self._view(scope, principal)}
        inner = with_header(inner, b"accept", accept or "application/json")
        if stateless and version is None:
            inner = with_header(inner, b"mcp-protocol-version", SESSION_REVISIONS[-1])
        in_session = not stateless and has_sessions
        reply = Reply(
            self._router, inner, send, rpc, status=not in_session, wait=self._settings().old_era_refusal == "http"
        )
        try:
            if stateless and not has_sessions:
                await serve_until_client_leaves(transports.stateless, inner, receive, reply)
                return
            if stateless:
                await transports.stateless(inner, receive, reply)
                return
            is_stream = scope["method"] == "GET" or rpc.method == "subscriptions/listen"
            with _Counted(self.streams, principal, STREAMS_LIMIT, "streams") if is_stream else nullcontext():
                if not in_session:
                    await transports.sessions(inner, receive, reply)
                elif session is not None:
                    await self._sessions.serve(inner, receive, reply, None if rpc.method is None else rpc.id)
                elif rpc.method == "initialize":
                    await self._sessions.open(inner, receive, reply, rpc.params)
                else:
                    await transports.sessions(inner, receive, reply)
        finally:
            reply.end()

    def _view(self, scope: Scope, principal: Principal) -> str | None:
        """The view that the path names, or the caller's own at the plain address."""
        named: str | None = scope.get("path_params", {}).get("view")
        if named is not None and not self._tools.has_view(named):
            raise NotFound(f"there is no view {ascii(named)[:60]}", hint="the address of all tools is /mcp")
        own = principal.default_view
        if named is None and own is not None and not self._tools.has_view(own):
            raise Unavailable(f"the view {own} of this token is not served now", hint="`ksi plugins ls` shows why")
        return named or own

    async def _refuse(
        self, error: KsiError, code: int, scope: Scope, principal: Principal, rpc: Rpc, receive: Receive, send: Send
    ) -> None:
        """Reply with an error: on record first, then the reply."""
        try:
            if isinstance(error, Unauthenticated | Forbidden):
                await self._router.record_unauthenticated(principal, f"{scope['method']} {scope['path']}", error)
                if isinstance(error, Unauthenticated) and self._gate.has_many_unauthenticated():
                    await asyncio.sleep(UNAUTHENTICATED_DELAY_S)
            else:
                await self._router.record_bad_request(principal, error)
        except KsiError as unavailable:
            error, code = unavailable, unavailable.status
        body = error_body({**error_object(error), "code": code}, rpc.id)
        await Response(body, error.status, refusal_headers(error), "application/json")(scope, receive, send)


def _in_conversation(principal: Principal, headers: Headers) -> Principal:
    """The caller, in the conversation that its header names. The token says who calls; identity headers must agree with it."""
    refuse_lookalike_headers(headers)
    agent_id = identifier(headers, b"x-ksi-agent-id")
    conversation_id = identifier(headers, b"x-ksi-conversation-id")
    if agent_id is not None and agent_id != principal.agent_id:
        raise Forbidden("identity_mismatch: X-KSI-Agent-ID names another agent than the token", hint=MISMATCH_HINT)
    if conversation_id is None or conversation_id == principal.conversation_id:
        return principal
    if principal.conversation_id is not None:
        raise Forbidden(
            "identity_mismatch: X-KSI-Conversation-ID names another conversation than the token", hint=MISMATCH_HINT
        )
    return replace(principal, conversation_id=conversation_id)


class _Counted:
    """One more of something that an agent may only have so many of at once."""

    def __init__(self, counts: Counter[str], principal: Principal, limit: int, what: str) -> None:
        self._counts = counts
        self._agent_id = principal.agent_id or principal.name
        self._limit = limit
        self._what = what

    def __enter__(self) -> None:
        if self._counts[self._agent_id] >= self._limit:
            raise TooMany(f"more than {self._limit} {self._what} of this agent at once", retry_after_s=1.0)
        self._counts[self._agent_id] += 1

    def __exit__(self, *error: object) -> None:
        self._counts[self._agent_id] -= 1
        if not self._counts[self._agent_id]:
            del self._counts[self._agent_id]


def _code(error: KsiError) -> int:
    return INVALID_REQUEST if isinstance(error, Invalid) else error.status
