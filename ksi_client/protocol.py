"""The operator socket's lines: one JSON object each way. Shared by both clients; does no I/O."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ksi_client.errors import Internal, Invalid, KsiError, TooLarge, from_wire

if TYPE_CHECKING:
    from ksi_client.notice import Notice

LINE_LIMIT_BYTES = 1_000_000
RECEIVE_LIMIT_BYTES = 16_000_000  # larger than the limit for requests: a newer daemon may send longer answers
GRACE_S = 0.5  # the daemon enforces the deadline; the client waits this much longer for its answer


class Answer(NamedTuple):
    """The answer to one request: its data, or the error it failed with."""

    id: Any
    data: Any
    error: KsiError | None

    def unwrap(self) -> Any:
        """The data, or the error raised."""
        if self.error is not None:
            raise self.error
        return self.data


class Dropped(NamedTuple):
    """How many notices this connection has missed since the last such line."""

    notices: int


def encode_request(
    event: str,
    data: Mapping[str, Any] | None,
    *,
    request_id: int,
    timeout_s: float,
    correlation_id: str | None = None,
    as_agent: str | None = None,
    token: str | None = None,
) -> bytes:
    """Encode a request as one line. Raises Invalid or TooLarge for a line that the daemon would refuse."""
    request: dict[str, Any] = {"event": event, "data": dict(data or {}), "id": request_id, "timeout_s": timeout_s}
    if correlation_id is not None:
        request["correlation_id"] = correlation_id
    if as_agent is not None:
        request["as"] = as_agent
    if token is not None:
        request["token"] = token
    try:
        line = json.dumps(request, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"the data for {event} cannot be written as JSON: {error}") from error
    if len(line) > LINE_LIMIT_BYTES:
        raise TooLarge(
            f"the request for {event} has {len(line):,} bytes, the socket takes {LINE_LIMIT_BYTES:,}",
            hint="send it in parts, or put the content in a file and send its path",
        )
    return line


def decode_line(line: bytes) -> "Answer | Notice | Dropped":
    """Decode one line from the daemon."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Internal(f"the daemon sent a line that is not JSON: {line[:80]!r}") from error
    match message:
        case {"notice": dict(fields)}:
            from ksi_client.notice import Notice  # late, because dataclasses cost a plain send 10 ms

            return Notice.from_wire(fields)
        case {"dropped": int(notices)}:
            return Dropped(notices)
        case {"ok": True}:
            return Answer(message.get("id"), message.get("data"), None)
        case {"ok": False, "error": dict(failure)}:
            return Answer(message.get("id"), None, from_wire(failure))
    raise Internal(f"the daemon sent a line this client does not know: {line[:80]!r}")


def backoff_s(attempt: int) -> float:
    """How long to wait before the next try to connect: 50 ms, doubling, at most 2 s."""
    return float(min(0.05 * 2 ** min(attempt, 10), 2.0))
