"""One line of the operator's socket: read strictly, and refused with what is wrong and what to send."""

import re
from typing import Any

import msgspec

from ksi_daemon.errors import Invalid
from ksi_daemon.hygiene.strict_json import is_usable_id, refuse_deep_nesting, refuse_duplicate_keys

CORRELATION_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")


class Request(msgspec.Struct, forbid_unknown_fields=True):
    """One line from a client."""

    event: str
    data: dict[str, Any] = msgspec.field(default_factory=dict)
    id: str | int | None = None
    correlation_id: str | None = None
    timeout_s: float | None = None
    token: str | None = None  # an agent's: the call is that agent's
    as_agent: str | None = msgspec.field(name="as", default=None)  # the operator acting as this agent

    def __post_init__(self) -> None:
        if self.id is not None and not is_usable_id(self.id):
            raise ValueError("id: at most 128 characters, or an integer of 64 bits")
        if self.correlation_id is not None and not CORRELATION_ID.fullmatch(self.correlation_id):
            raise ValueError("correlation_id: 1 to 64 letters, digits and any of . _ : -")
        if self.timeout_s is not None and not 0 < self.timeout_s <= 86_400:
            raise ValueError("timeout_s: above 0 and at most 86400")
        if self.token is not None and self.as_agent is not None:
            raise ValueError("say either token or as, not both")


_decode = msgspec.json.Decoder(Request).decode
_decode_anything = msgspec.json.Decoder().decode


def parse_request(line: bytes) -> Request:
    """A line as a request, or `Invalid` that says what is wrong with it."""
    try:
        request = _decode(line)
        refuse_duplicate_keys(line)
        refuse_deep_nesting(line, request.data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        shape = 'send one object a line: {"event":"system:health","data":{},"id":1}'
        raise Invalid(f"this line is not a valid request: {str(error)[:200]}", hint=shape) from error
    return request


def id_of(line: bytes) -> str | int | None:
    """The id of a line that is not a valid request, so that its sender can still tell which one it was."""
    try:
        found = _decode_anything(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    candidate = found.get("id") if isinstance(found, dict) else None
    return candidate if is_usable_id(candidate) else None
