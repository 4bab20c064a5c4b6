"""Sessions of the revisions before 2026. Their ids are ours, and stored: a session goes on over a restart of the daemon.

The SDK's own session lives behind ours, under an id that no client sees. It is made when the client initializes, ended when it is idle or its
agent has too many, and made anew by replaying the client's `initialize` when a request for it arrives.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import Any
from weakref import WeakValueDictionary

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ksi_daemon.errors import Invalid, Unavailable
from ksi_daemon.mcp.list_changes import ListChanges
from ksi_daemon.mcp.request import PRINCIPAL, SESSION, VIEW, header, replay
from ksi_daemon.principal import Principal
from ksi_daemon.storage.protocol_sessions import SessionStore, StoredSession

LIVE_LIMIT = 16  # of one agent in memory; idle ones beyond it are unloaded
STORED_LIMIT = 256  # of one agent
ALL_STORED_LIMIT = 100_000
INITIALIZE_PARAMS = {"protocolVersion": str, "capabilities": dict, "clientInfo": dict}
INITIALIZE_LIMIT_BYTES = 16 * 1024
UNLOAD_AFTER_S = 30 * 60.0  # without a request
FORGET_AFTER_S = 7 * 86_400.0
UPKEEP_EVERY_S = 60.0
REPLAY_LIMIT_S = 10.0
TELL_LIMIT_S = 10.0
SAME_ID_WAIT_S = 1.0

ID_HEADER = b"mcp-session-id"
INITIALIZED = msgspec.json.encode({"jsonrpc": "2.0", "method": "notifications/initialized"})

Tell = Callable[[], Any]  # sends list_changed on the session's stream


class Session:
    """A session that is in memory."""

    def __init__(
        self, session_id: str, agent_id: str, seen: str | None, now: float, log_level: str | None = None
    ) -> None:
        self.session_id = session_id
        self.agent_id = agent_id
        self.inner_id = ""  # the SDK's
        self.seen = seen  # the fingerprint of the last list of tools that was sent
        self.used_at = now
        self.log_level = log_level  # of the lowest log lines that the client asked for, if it did
        self.requests = 0  # under way, streams too
        self.request_ids: dict[str, asyncio.Event] = {}  # of those under way; set when one has ended
        self.tell: Tell | None = None


class Sessions:
    """Serves requests with a session, and the `initialize` that opens one. What the SDK notes in the scope must reach the caller's."""

    def __init__(
        self, store: SessionStore, list_changes: ListChanges, log: Any, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.live: dict[str, Session] = {}
        self.store = store
        self._list_changes = list_changes
        self._log = log
        self.clock = clock
        self._inner: ASGIApp | None = None
        self._loading: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._telling: set[asyncio.Task[None]] = set()

    def attach(self, inner: ASGIApp) -> None:
        """The SDK is there."""
        self._inner = inner

    async def open(self, scope: Scope, receive: Receive, send: Send, params: Mapping[str, Any]) -> None:
        """Serve an `initialize` request: a new session, stored before its id is given out."""
        initialize = msgspec.json.encode(params)
        if len(initialize) > INITIALIZE_LIMIT_BYTES:
            raise Invalid(
                f"the params of initialize have more than {INITIALIZE_LIMIT_BYTES:,} bytes",
                hint="send fewer capabilities",
            )
        missing = [name for name, kind in INITIALIZE_PARAMS.items() if not isinstance(params.get(name), kind)]
        if missing:  # the SDK would keep a session that nothing can use
            raise Invalid(
                f"the params of initialize lack {', '.join(missing)}, or have something else there",
                hint="send protocolVersion as text, capabilities and clientInfo as objects",
            )
        now, agent_id = self.clock(), _agent(scope)
        session = Session(secrets.token_hex(16), agent_id, None, now)
        await self._unload_surplus(agent_id)

        async def send_with_id(message: Message) -> None:
            inner_id = _header_of(message)
            if inner_id is not None and message["status"] == 200:
                session.inner_id = inner_id
                stored = StoredSession(session.session_id, agent_id, initialize, None, now, now)
                await self.store.add(stored, keep=STORED_LIMIT)
                self.live[session.session_id] = session
                message = _with_id(message, session.session_id)
            await send(message)

        await self._serve(session, scope, receive, send_with_id)

    async def serve(self, scope: Scope, receive: Receive, send: Send, request_id: str | int | None) -> None:
        """Serve a request that names a session. To any other agent the session does not exist."""
        session_id = header(scope["headers"], ID_HEADER) or ""
        session = await self._find(session_id, scope)
        if session is None:
            await self._require_inner()(scope, receive, send)  # the SDK's words for a session that does not exist
            return

        if scope["method"] == "DELETE":
            await self.store.delete(session_id)  # before the reply says so
            self.live.pop(session_id, None)

        async def send_with_id(message: Message) -> None:
            await send(_with_id(message, session.session_id) if _header_of(message) is not None else message)

        if scope["method"] == "GET":
            await self._stream(session, scope, receive, send_with_id)
        else:
            async with _answering(session, request_id):
                await self._serve(session, scope, receive, send_with_id)

    async def saw(self, session: Session, seen: str) -> None:
        """The client was sent a list of tools."""
        if session.seen != seen:
            session.seen = seen
            await self.store.set_seen(session.session_id, seen)

    async def asked_for_lines(self, session: Session, level: str) -> None:
        """The client wants log lines of this level and above."""
        session.log_level = level
        await self.store.set_log_level(session.session_id, level)

    async def keep_up(self) -> None:
        """Unload sessions that are idle, forget old ones and store when they were used, every minute until cancelled."""
        while True:
            now = self.clock()
            used = [
                session
                for session in self.live.values()
                if session.requests or session.used_at > now - UPKEEP_EVERY_S * 2
            ]
            await self.store.touch([session.session_id for session in used], now)
            await self.store.drop_idle(before=now - FORGET_AFTER_S, keep=ALL_STORED_LIMIT)
            for session in [session for session in self.live.values() if session.used_at < now - UNLOAD_AFTER_S]:
                await self._unload(session)
            await asyncio.sleep(UPKEEP_EVERY_S)

    # --- one request

    async def _serve(self, session: Session, scope: Scope, receive: Receive, send: Send) -> None:
        session.requests += 1
        try:
            scope[SESSION] = session
            scope["headers"] = [
                (key, session.inner_id.encode() if key == ID_HEADER else value) for key, value in scope["headers"]
            ]
            await self._require_inner()(scope, receive, send)
        finally:
            session.requests -= 1
            session.used_at = self.clock()

    async def _stream(self, session: Session, scope: Scope, receive: Receive, send: Send) -> None:
        """The session's stream, on which it is told of changes; ended when the caller's token is not valid any more."""
        ended = asyncio.Event()

        async def receive_or_end() -> Message:
            waiting = {asyncio.ensure_future(receive()), asyncio.ensure_future(ended.wait())}
            try:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for future in waiting:
                    future.cancel()
            if ended.is_set():
                return {"type": "http.disconnect"}
            return done.pop().result()  # type: ignore[return-value]

        began = False

        async def send_and_note(message: Message) -> None:
            nonlocal began
            began = began or (message["type"] == "http.response.start" and message["status"] == 200)
            if began and message["type"] == "http.response.start":
                watching.enter_context(
                    self._list_changes.watching(
                        scope[PRINCIPAL], scope[VIEW], lambda: self._tell(session), ended.set, seen=session.seen
                    )
                )
            await send(message)

        with ExitStack() as watching:
            await self._serve(session, scope, receive_or_end, send_and_note)
        if began and ended.is_set():
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _tell(self, session: Session) -> None:
        async def tell() -> None:
            if session.tell is not None:
                with suppress(TimeoutError):  # a client that does not read
                    async with asyncio.timeout(TELL_LIMIT_S):
                        await session.tell()

        task = asyncio.create_task(tell(), name="telling a session that its list has changed")
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    # --- in memory and out of it

    async def _find(self, session_id: str, scope: Scope) -> Session | None:
        """The session, made anew if it is only stored."""
        agent_id = _agent(scope)
        lock = self._loading.setdefault(session_id, asyncio.Lock())
        async with lock:
            session = self.live.get(session_id)
            if session is not None:
                return session if session.agent_id == agent_id else None
            stored = await self.store.get(session_id)
            if stored is None or stored.agent_id != agent_id:
                return None
            await self._unload_surplus(agent_id)
            return await self._load(stored, scope)

    async def _load(self, stored: StoredSession, scope: Scope) -> Session | None:
        """Make the SDK's session behind a stored one, as the client once did."""
        session = Session(stored.session_id, stored.agent_id, stored.seen, self.clock(), stored.log_level)
        body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": msgspec.Raw(stored.initialize)}
        try:
            async with asyncio.timeout(REPLAY_LIMIT_S):
                status = await self._replay(session, scope, msgspec.json.encode(body))
                if status != 200 or not session.inner_id:
                    self._log.warning(
                        "a stored session could not be opened again", agent=stored.agent_id, status=status
                    )
                    await self.store.delete(stored.session_id)
                    return None
                await self._replay(session, scope, INITIALIZED)
        except TimeoutError:
            raise Unavailable("the session could not be opened again in time", hint="try again") from None
        self.live[session.session_id] = session
        return session

    async def _replay(self, session: Session, scope: Scope, body: bytes) -> int:
        """Send one message of the session's beginning to the SDK; the HTTP status of the reply."""
        status = 0

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                session.inner_id = _header_of(message) or session.inner_id

        headers = [(b"content-type", b"application/json"), (b"accept", b"application/json, text/event-stream")]
        if session.inner_id:
            headers.append((ID_HEADER, session.inner_id.encode()))
        replayed = {**scope, "method": "POST", "headers": headers, SESSION: session}
        await self._require_inner()(replayed, replay(body, _connected), note)
        return status

    async def _unload_surplus(self, agent_id: str) -> None:
        """Make room for one more session of this agent."""
        own = [session for session in self.live.values() if session.agent_id == agent_id]
        idle = sorted((session for session in own if not session.requests), key=lambda session: session.used_at)
        for session in idle[: max(0, len(own) + 1 - LIVE_LIMIT)]:
            await self._unload(session)

    async def _unload(self, session: Session) -> None:
        """End the SDK's session. Ours stays stored."""
        if session.requests or self.live.pop(session.session_id, None) is None:
            return
        principal = Principal(kind="agent", name=session.agent_id, transport="http", agent_id=session.agent_id)
        scope: Scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "path": "/mcp", "raw_path": b"/mcp",
            "query_string": b"", "root_path": "", "server": None, "client": None, "method": "DELETE",
            "headers": [(ID_HEADER, session.inner_id.encode())], PRINCIPAL: principal, VIEW: None,
        }  # fmt: skip

        async def ignore(message: Message) -> None:
            pass

        await self._require_inner()(scope, replay(b"", _connected), ignore)

    def _require_inner(self) -> ASGIApp:
        if self._inner is None:
            raise Unavailable("the MCP server is starting", hint="try again in a second")
        return self._inner


@asynccontextmanager
async def _answering(session: Session, request_id: str | int | None) -> AsyncIterator[None]:
    """One request of a session under way. With the id of another the SDK would send both answers to either of them.

    A client may use an id again as soon as it has the answer, a moment before the reply has ended: that is waited for.
    """
    if request_id is None:
        yield
        return
    written = str(request_id)  # the SDK takes 1 and "1" for the same
    try:
        async with asyncio.timeout(SAME_ID_WAIT_S):
            while (earlier := session.request_ids.get(written)) is not None:
                await earlier.wait()
    except TimeoutError:
        raise Invalid(
            f"a request with the id {ascii(request_id)[:140]} is under way in this session",
            hint="count the ids up: no two requests of a session may have the same",
        ) from None
    ended = session.request_ids[written] = asyncio.Event()
    try:
        yield
    finally:
        del session.request_ids[written]
        ended.set()


def _agent(scope: Scope) -> str:
    principal: Principal = scope[PRINCIPAL]
    return principal.agent_id or ""


def _header_of(message: Message) -> str | None:
    """The SDK's session id in the head of a response."""
    if message["type"] != "http.response.start":
        return None
    return next((value.decode("latin-1") for key, value in message["headers"] if key.lower() == ID_HEADER), None)


def _with_id(message: Message, session_id: str) -> Message:
    headers = [(key, session_id.encode() if key.lower() == ID_HEADER else value) for key, value in message["headers"]]
    return {**message, "headers": headers}


async def _connected() -> Message:
    """Wait for a client that never leaves."""
    await asyncio.Event().wait()
    raise AssertionError
