"""The reply to one MCP request on its way out: gets the HTTP status of a refusal, and is recorded when it is an error."""

import asyncio

from starlette.responses import Response
from starlette.types import Message, Scope, Send

from ksi_daemon.errors import Invalid, KsiError
from ksi_daemon.mcp.message import Rpc
from ksi_daemon.mcp.protocol_errors import explained
from ksi_daemon.mcp.refusals import error_body, error_object, refusal_headers
from ksi_daemon.mcp.request import HAS_LEFT, PRINCIPAL, REFUSAL, WRITTEN
from ksi_daemon.routing.router import Router

TOOLS = b'"tools":['  # in the event of a stream that has the list
DESCRIBES_BODY = (b"content-type", b"content-length")


class Reply:
    """An ASGI `send`. The server notes the refusal of a call in the scope; the SDK would choose other statuses.

    With `status` a refusal decides the status as long as the reply has not begun. In a session the reply begins before the call does:
    with `wait` its head is held back until there is a first part.
    """

    def __init__(self, router: Router, scope: Scope, send: Send, rpc: Rpc, *, status: bool, wait: bool) -> None:
        self._router = router
        self._scope = scope
        self._send = send
        self._rpc = rpc
        self._status = status
        self._wait = wait and not status
        self._head: Message | None = None
        self._replaced = False
        self._error: Message | None = None  # the head of an error that the SDK replies with
        self._error_body = b""

    async def __call__(self, message: Message) -> None:
        if self._replaced:
            return
        if message["type"] == "http.response.start":
            await self._begin(message)
            return
        if self._error is not None:
            await self._explain(self._error, message)
            return
        if self._head is not None:
            head, self._head = self._head, None
            refusal = self._scope.get(REFUSAL)
            if refusal is not None:
                await self._replace(refusal)
                return
            await self._send(head)
        has_left = self._has_left()
        await self._send(message)
        if message["type"] == "http.response.body" and (
            not message.get("more_body", False) or TOOLS in message.get("body", b"")
        ):
            self._note_written(whole=not has_left)

    def end(self) -> None:
        """The request is over: what was not written by now never is."""
        self._note_written(whole=False)

    def _has_left(self) -> bool:
        """Whether the client closed its connection before what is sent now: some close as soon as they have the list."""
        return WRITTEN in self._scope and bool(self._scope[HAS_LEFT]())

    def _note_written(self, *, whole: bool) -> None:
        """Say whether the reply, or the part of it that has the list of tools, was written, if somebody waits to hear it."""
        written: asyncio.Future[bool] | None = self._scope.get(WRITTEN)
        if written is not None and not written.done():
            written.set_result(whole)

    async def _begin(self, head: Message) -> None:
        refusal = self._scope.get(REFUSAL)
        if refusal is not None and self._status:
            extra = [(name.encode(), value.encode()) for name, value in refusal_headers(refusal).items()]
            head = {**head, "status": refusal.status, "headers": [*head["headers"], *extra]}
        elif head["status"] >= 400:
            self._error = {**head, "status": await self._recorded(head["status"])}
            return
        if self._wait and self._rpc.method == "tools/call" and head["status"] == 200:
            self._head = head
        else:
            await self._send(head)

    async def _explain(self, head: Message, part: Message) -> None:
        """Collect the body of an error of the SDK's, and send what it means."""
        self._error_body += part.get("body", b"")
        if part.get("more_body", False):
            return
        body = explained(head["status"], self._error_body, self._rpc.id)
        kept = [(name, value) for name, value in head["headers"] if name.lower() not in DESCRIBES_BODY]
        described = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self._send({**head, "headers": [*kept, *described]})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
        self._note_written(whole=True)

    async def _recorded(self, status: int) -> int:
        """Record an error that the SDK replies with; the status to send."""
        asked = self._rpc.method or self._scope["method"]
        try:
            await self._router.record_bad_request(
                self._scope[PRINCIPAL], Invalid(f"{asked[:100]} was answered with HTTP status {status}")
            )
        except KsiError as unavailable:
            return unavailable.status
        return status

    async def _replace(self, refusal: KsiError) -> None:
        self._replaced = True
        body = error_body(error_object(refusal), self._rpc.id)
        response = Response(body, refusal.status, refusal_headers(refusal), "application/json")
        await response(self._scope, _nothing, self._send)


async def _nothing() -> Message:
    return {"type": "http.disconnect"}
