"""Converts rows to JSON lines, for the mirror and exports, and back without changing a byte that the hash covers."""

from typing import Any

import msgspec

from ksi_daemon.audit.entry import COLUMNS, FIELDS, JSON_FIELDS, ROW, Row

NULL = msgspec.Raw(b"null")

_encode = msgspec.json.Encoder().encode


_Line: Any = msgspec.defstruct(
    "_Line",
    [
        (name, kind) if always else (name, kind, NULL) if kind is msgspec.Raw else (name, kind | None, None)
        for name, kind, always in (*ROW, ("prev_hash", str, True), ("hash", str, True), ("mac", str, False))
    ],
    frozen=True,
    kw_only=True,
)
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
    if "mac" in fields:
        fields["mac"] = fields["mac"].hex()
    return fields


def row_of(line: bytes) -> Row:
    """Parse a line into its row. Raises `ValueError` for anything else."""
    try:
        read = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"it is not a valid audit row: {error}") from error
    fields = tuple(_text(name, getattr(read, name)) for name in FIELDS)
    mac = None if read.mac is None else bytes.fromhex(read.mac)
    return (*fields, bytes.fromhex(read.prev_hash), bytes.fromhex(read.hash), mac)


def _text(name: str, value: Any) -> Any:
    if name not in JSON_FIELDS:
        return value
    raw = bytes(value)
    return None if raw == b"null" else raw.decode()
