"""Converts rows to JSON lines, for the mirror and exports, and back without changing a byte that the hash covers."""

from typing import Any

import msgspec

from ksi_daemon.audit.entry import COLUMNS, FIELDS, JSON_FIELDS, Row

NULL = msgspec.Raw(b"null")

_encode = msgspec.json.Encoder().encode


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    daemon_id: str
    seq: int
    time: str
    type: str
    phase: str
    status: str
    call_id: str | None = None
    correlation_id: str | None = None
    parent_id: str | None = None
    transport: str
    principal: str
    agent_id: str | None = None
    user_id: str | None = None
    session_id: str | None = None
    credential_id: str | None = None
    conversation_id: str | None = None
    event: str | None = None
    tool: str | None = None
    arguments: msgspec.Raw = NULL
    arguments_bytes: int | None = None
    arguments_sha256: str | None = None
    rule: str | None = None
    reason: str | None = None
    duration_ms: float | None = None
    result_bytes: int | None = None
    count: int
    details: msgspec.Raw = NULL
    prev_hash: str
    hash: str


_decoder = msgspec.json.Decoder(_Line)


def line_of(row: Row) -> bytes:
    """The JSON of a row; fields it does not have are left out."""
    return _encode(shown(row))


def shown(row: Row) -> dict[str, Any]:
    """A row by the names of its fields, hashes in hex, arguments and details as raw JSON."""
    fields: dict[str, Any] = {name: value for name, value in zip(COLUMNS, row, strict=True) if value is not None}
    for name in JSON_FIELDS:
        if name in fields:
            fields[name] = msgspec.Raw(fields[name].encode())
    fields["prev_hash"] = fields["prev_hash"].hex()
    fields["hash"] = fields["hash"].hex()
    return fields


def row_of(line: bytes) -> Row:
    """Parse a line into its row. Raises `ValueError` for anything else."""
    try:
        read = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"it is not a valid audit row: {error}") from error
    fields = tuple(_text(name, getattr(read, name)) for name in FIELDS)
    return (*fields, bytes.fromhex(read.prev_hash), bytes.fromhex(read.hash))


def _text(name: str, value: Any) -> Any:
    if name not in JSON_FIELDS:
        return value
    raw = bytes(value)
    return None if raw == b"null" else raw.decode()
