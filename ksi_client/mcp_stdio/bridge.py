"""Reads a client's lines, posts each message to the hub and writes what comes back: many requests at once, each a task of its own."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from ksi_client.mcp_stdio.http_request import Interrupted, NotSent
from ksi_client.mcp_stdio.hub import Answer, Hub
from ksi_client.mcp_stdio.message import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    LISTEN,
    BadLine,
    Message,
    answer,
    error,
    id_key,
    parse,
)
from ksi_client.mcp_stdio.session import NotRenewed, Session
from ksi_client.mcp_stdio.subscription import Subscription

DRAIN_LIMIT_S = 10
RENEWALS = 3  # of the session, for one message

NOT_SENT_HINT = "nothing was done; start the hub with `ksi start` and try again"
UNKNOWN_HINT = "look whether it had its effect before you call it again"


class Bridge:
    """One client on standard input and output."""

    def __init__(self, hub: Hub, *, write: Callable[[bytes], None], note: Callable[[str], None]) -> None:
        self._hub = hub
        self._write = write
        self._note = note
        self._session = Session(hub, write, note)
        self._tasks = asyncio.TaskGroup()
        self._running: dict[str, tuple[Message, asyncio.Task[None]]] = {}  # requests, by id
        self._deliveries: set[asyncio.Task[None]] = set()
        self._cancelled: set[asyncio.Task[None]] = set()
        self._earlier: asyncio.Task[None] | None = None  # what a message of a session must not overtake

    async def run(self, lines: AsyncIterator[bytes | BadLine]) -> None:
        """Serve until the client closes its side, and then until what runs is answered."""
        try:
            async with self._tasks:
                async for line in lines:
                    self._take(line)
                await self._drain()
        except ExceptionGroup as group:  # such as a BrokenPipeError: the client does not read any more
            raise group.exceptions[0] from group

    def _take(self, line: bytes | BadLine) -> None:
        try:
            message = parse(line) if isinstance(line, bytes) else None
        except BadLine as bad:
            line, message = bad, None
        if message is None:
            assert isinstance(line, BadLine)
            self._write(answer(None, {"code": line.code, "message": str(line)}))
        elif message.is_request:
            self._start_request(message)
        elif message.method != "notifications/cancelled" or not self._cancel(message):
            self._start_delivery(message)

    def _start_request(self, message: Message) -> None:
        key = id_key(message.id)
        if key in self._running:
            reason = "a request with this id is still running; use each id once"
            self._write(answer(message.id, {"code": -32600, "message": reason}))
            return
        task = self._tasks.create_task(self._serve(message, None if message.revision else self._earlier))
        self._running[key] = (message, task)
        if message.method == "initialize":
            self._earlier = task

        def end(_: object) -> None:
            del self._running[key]
            self._cancelled.discard(task)

        task.add_done_callback(end)

    def _start_delivery(self, message: Message) -> None:
        """Deliver a notification, or an answer to the hub; neither is answered."""
        task = self._tasks.create_task(self._deliver(message, self._earlier))
        self._deliveries.add(task)
        task.add_done_callback(self._deliveries.discard)
        if message.method is not None:
            self._earlier = task

    def _cancel(self, message: Message) -> bool:
        """Cancel a request as the client wants; whether the hub need not be told. A cancelled request is not answered."""
        request, task = self._running.get(id_key(message.params.get("requestId")), (None, None))
        if request is None or task is None:
            return True  # answered already
        if request.revision is None and not self._hub.is_away:
            self._cancelled.add(task)
            return False
        task.cancel()  # which closes its connection: that is how the hub learns of it since 2026
        return True

    async def _serve(self, message: Message, earlier: asyncio.Task[None] | None) -> None:
        """Answer one request."""
        if earlier is not None:
            await asyncio.wait([earlier])
        line = await self._answer(message)
        if asyncio.current_task() not in self._cancelled:
            self._write(line)

    async def _answer(self, message: Message) -> bytes:
        try:
            reply = await self._send(message)
        except NotSent as reason:
            return answer(
                message.id,
                error(CONNECTION_CLOSED, str(reason), word="unavailable", outcome="not_run", hint=NOT_SENT_HINT),
            )
        except Interrupted as reason:
            text = f"the connection to the hub ended before {message.method} was answered, it may have run: {reason}"
            return answer(
                message.id, error(CONNECTION_CLOSED, text, word="unavailable", outcome="unknown", hint=UNKNOWN_HINT)
            )
        except NotRenewed as refused:
            reply = refused.answer
        if message.method == "initialize":
            self._session.opened(message.line, reply)
        return _line_for(message.id, reply)

    async def _deliver(self, message: Message, earlier: asyncio.Task[None] | None) -> None:
        if earlier is not None:
            await asyncio.wait([earlier])
        try:
            reply = await self._send(message)
        except (NotSent, Interrupted, NotRenewed) as reason:
            self._note(f"{message.method or 'an answer'} was not delivered: {reason}")
            return
        if reply.status >= 400:
            self._note(f"{message.method or 'an answer'} was refused with HTTP status {reply.status}")
        elif message.method == "notifications/initialized":
            self._session.start_stream(self._tasks)

    async def _send(self, message: Message) -> Answer:
        """Send a message, in its session if it belongs to one; in a new one if the hub has forgotten that."""
        in_session = message.revision is None and message.method != "initialize"
        listens = message.method == LISTEN
        on_notice = Subscription(message, self._write).take if listens else self._write
        for renewals in range(RENEWALS + 1):
            lost_id = self._session.id if in_session else None
            headers = self._session.headers() if in_session else message.routing_headers()
            reply = await self._hub.send(
                message.line,
                headers=headers,
                repeatable=message.is_repeatable,
                on_notice=on_notice,
                endless=listens,
            )
            if reply.status != 404 or lost_id is None or renewals == RENEWALS:
                break
            await self._session.renew(lost_id)
        return reply

    async def _drain(self) -> None:
        """Wait for what runs, within a limit; a subscription, which never ends, is closed at once."""
        for message, task in self._running.values():
            if message.method == LISTEN:
                task.cancel()
        tasks = [task for _, task in self._running.values()] + list(self._deliveries)
        if tasks:
            _, unanswered = await asyncio.wait(tasks, timeout=DRAIN_LIMIT_S)
            for task in unanswered:
                task.cancel()
            if unanswered:
                self._note(f"{len(unanswered)} requests were still running {DRAIN_LIMIT_S} s after the input ended")
        await self._session.close()


def _line_for(message_id: Any, reply: Answer) -> bytes:
    """The answer that the client gets: the hub's own, with the request's id where the hub could not know it."""
    if "result" in reply.fields and reply.status == 200:
        return reply.line
    if isinstance(reply.fields.get("error"), dict):
        return answer(message_id, reply.fields["error"])
    text = f"the hub answered with HTTP status {reply.status} and no JSON-RPC message"
    return answer(
        message_id, error(INTERNAL_ERROR, text, word="internal", hint="is the address that of an MCP server?")
    )
