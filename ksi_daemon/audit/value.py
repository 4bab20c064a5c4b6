"""Converts any value to a short JSON text for the audit: redacted first, then truncated, with the digest of the whole.

The digest is of the value as it was sent, so that a stored request can be matched with its audit row; the text is redacted.
"""

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from ksi_daemon.logs.redaction import redact

LIMIT_BYTES = 4_096  # of the JSON text
WHOLE_LIMIT_BYTES = 16_384  # above this only the beginning is redacted: redacting megabytes would delay all rows
PREVIEW_CHARACTERS = 8_192
SPLIT_SECRET_CHARACTERS = (
    2_048  # at the end of a preview a secret may be cut in two and not be recognised: that end is dropped
)
DEPTH_LIMIT = 16
ITEMS_LIMIT = 256

_encode = msgspec.json.Encoder(enc_hook=str).encode


class ShownValue(msgspec.Struct, frozen=True):
    """JSON text; `full_bytes` and `full_sha256` are set when it is truncated."""

    text: str | None
    full_bytes: int | None = None
    full_sha256: str | None = None

    def with_digest(self) -> str | None:
        """The text, with the length and digest of the whole added if it is truncated, for columns without digest columns."""
        if self.full_sha256 is None or self.text is None:
            return self.text
        cut = msgspec.json.decode(self.text)
        return _encode(cut | {"bytes": self.full_bytes, "sha256": self.full_sha256}).decode()


NOTHING = ShownValue(None)


def shown_json(value: Any) -> ShownValue:
    """The JSON of a value without secrets; when it is too long, `{"cut": "<its beginning>"}` and the digest of the whole."""
    if value is None:
        return NOTHING
    full = encode_anything(value)
    if len(full) <= WHOLE_LIMIT_BYTES:
        shown = encode_anything(redact(value))
        if len(shown) <= LIMIT_BYTES:
            return ShownValue(shown.decode())
        beginning = shown[:LIMIT_BYTES]
    else:
        shown = encode_anything(redact(_Preview().of(value)))
        beginning = shown[: min(LIMIT_BYTES, max(0, len(shown) - SPLIT_SECRET_CHARACTERS))]
    cut = _encode({"cut": beginning.decode("utf-8", "ignore")}).decode()
    return ShownValue(cut, len(full), hashlib.sha256(full).hexdigest())


def encode_anything(value: Any) -> bytes:
    """Any value as JSON: what has no JSON form (NaN, half a surrogate pair) becomes descriptive text."""
    try:
        encoded = _encode(value)
    except (UnicodeError, TypeError, ValueError, OverflowError, RecursionError):
        return _encode(_json_safe(value, 0))
    if b"null" in encoded:  # may have been NaN
        return _encode(_json_safe(value, 0))
    return encoded


def _json_safe(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    if isinstance(value, int) and abs(value) >= 2**64:
        return hex(value)  # hex has no digit limit, decimal has
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth >= DEPTH_LIMIT:
        return "[nested too deep]"
    if isinstance(value, Mapping):
        return {_json_safe(str(name), depth): _json_safe(inner, depth + 1) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_json_safe(inner, depth + 1) for inner in value]
    return str(value).encode("utf-8", "backslashreplace").decode()


class _Preview:
    """Truncates a large value to its first characters, keeping its structure."""

    def __init__(self) -> None:
        self._left = PREVIEW_CHARACTERS

    def of(self, value: Any, depth: int = 0) -> Any:
        if self._left <= 0:
            return None
        if isinstance(value, str):
            taken = value[: self._left]
            self._left -= len(taken) + 2
            return taken
        if isinstance(value, bytes):
            return self.of(value[: self._left].decode("utf-8", "backslashreplace"), depth)
        if isinstance(value, Mapping) and depth < DEPTH_LIMIT:
            return {
                self.of(str(name)[: self._left]): self.of(inner, depth + 1)
                for name, inner in list(value.items())[:ITEMS_LIMIT]
                if self._left > 0
            }
        if isinstance(value, list | tuple | set | frozenset) and depth < DEPTH_LIMIT:
            return [self.of(inner, depth + 1) for inner in list(value)[:ITEMS_LIMIT] if self._left > 0]
        self._left -= 8
        return value
