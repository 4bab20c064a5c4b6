"""The hub as the bridge sees it: sends one message and returns its answer, over restarts, and never twice what may have had an effect."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, NamedTuple

from ksi_client.errors import KsiError, Unauthenticated, Unreachable
from ksi_client.mcp_stdio.event_stream import messages
from ksi_client.mcp_stdio.http_request import Address, Interrupted, NotSent, Reply, requested
from ksi_client.mcp_stdio.message import one_line
from ksi_client.protocol import backoff_s

UNAVAILABLE = 503
ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


class Answer(NamedTuple):
    """The hub's reply to one message. A message without an id has no fields."""

    status: int
    headers: Mapping[str, str]
    line: bytes
    fields: dict[str, Any]


class Hub:
    """Sends requests to the address that `locate` finds, with these headers. A hub that is away is waited for, `wait_s` at most."""

    def __init__(
        self,
        locate: Callable[[], Address],
        headers: Mapping[str, str],
        *,
        wait_s: float,
        note: Callable[[str], None],
        detail: Callable[[str], None],
    ) -> None:
        self.wait_s = wait_s
        self.detail = detail
        self._locate = locate
        self._headers = dict(headers)
        self._note = note
        self._address: Address | None = None
        self.is_away = False  # the last request found no hub
        self._is_refused = False
        self.exit_error: type[KsiError] | None = None  # what the last request met

    @asynccontextmanager
    async def requested(self, method: str, *, headers: Mapping[str, str], body: bytes = b"") -> AsyncIterator[Reply]:
        """One request, tried once."""
        if self._address is None:
            try:
                self._address = await asyncio.to_thread(self._locate)
            except KsiError as error:
                self._is_absent(error.message)
                raise NotSent(error.message) from error
        try:
            async with requested(
                self._address, method, headers={**ACCEPT, **self._headers, **headers}, body=body
            ) as reply:
                self._is_there()
                yield reply
        except NotSent as error:
            self._address = None  # it may come back at another port
            self._is_absent(str(error))
            raise

    async def send(
        self,
        body: bytes,
        *,
        headers: Mapping[str, str],
        repeatable: bool,
        on_notice: Callable[[bytes], None],
        endless: bool = False,
    ) -> Answer:
        """Post a message until it is answered. `on_notice` takes what the hub sends before the answer.

        Sent again is what no connection was made for, and what is repeatable. An endless request has no answer but errors: when
        its reply ends it is sent again.
        """
        loop = asyncio.get_running_loop()
        deadline: float | None = None
        heard = False

        def hear(line: bytes) -> None:
            nonlocal heard
            heard = True
            on_notice(line)

        for attempt in count():
            try:
                answer = await self._send_once(body, headers, hear)
                if endless and answer.status == 200:
                    raise Interrupted("the hub ended the stream")
                if not (repeatable and answer.status == UNAVAILABLE) or _is_over(deadline, loop.time()):
                    self._judge(answer, repeatable=repeatable)
                    return answer
            except (NotSent, Interrupted) as error:
                deadline = None if heard else deadline
                if (isinstance(error, Interrupted) and not repeatable) or _is_over(deadline, loop.time()):
                    raise
            if deadline is None:
                deadline = loop.time() + self.wait_s
            heard = False
            await asyncio.sleep(backoff_s(attempt))
        raise AssertionError("unreachable")

    async def _send_once(self, body: bytes, headers: Mapping[str, str], on_notice: Callable[[bytes], None]) -> Answer:
        async with self.requested("POST", headers=headers, body=body) as reply:
            if reply.content_type != "text/event-stream":
                line = one_line(await reply.body())
                return Answer(reply.status, reply.headers, line, _fields(line))
            async for line, fields in self.events(reply):
                if "method" not in fields and ("result" in fields or "error" in fields):
                    return Answer(reply.status, reply.headers, line, fields)
                on_notice(line)
            raise Interrupted("the hub ended the reply before the answer")

    async def events(self, reply: Reply) -> AsyncIterator[tuple[bytes, dict[str, Any]]]:
        """The messages of a stream, each as its line and its fields. What is not a message must not reach the client."""
        async for text in messages(reply.pieces()):
            line = one_line(text)
            fields = _fields(line)
            if fields:
                yield line, fields
            else:
                self._note(f"the hub sent an event that is not a JSON-RPC message, which is left out: {line[:80]!r}")

    def _is_there(self) -> None:
        self.exit_error = None
        if self.is_away:
            self.is_away = False
            self._note("the hub answers again")

    def _judge(self, answer: Answer, *, repeatable: bool) -> None:
        """Note once that the hub does not accept who calls. A call of a tool can be refused with 403 for other reasons."""
        is_refused = answer.status == 401 or (answer.status == 403 and repeatable)
        if is_refused and not self._is_refused:
            self._note(
                f"the hub refuses the token in KSI_TOKEN, or the identity given with it: {_reason(answer)}\n"
                "  next: ksi tokens create AGENT, and set KSI_TOKEN where the client starts this command"
            )
        self._is_refused = is_refused
        self.exit_error = Unauthenticated if is_refused else None

    def _is_absent(self, reason: str) -> None:
        if not self.is_away:
            self.is_away = True
            self._note(f"{reason}; requests wait up to {self.wait_s:g} s for it")
        self.exit_error = Unreachable


def _is_over(deadline: float | None, now: float) -> bool:
    return deadline is not None and now > deadline


def _reason(answer: Answer) -> str:
    match answer.fields:
        case {"error": {"message": str(message)}}:
            return message
    return f"HTTP status {answer.status}"


def _fields(line: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(line) if line else {}
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}
