"""The hash chain: how a row's hash is computed, and a check of a whole chain that finds the first invalid row.

hash = SHA-256(prev_hash + JSON array of the row's fields), the array as compact UTF-8 in the order of `entry.FIELDS`; it can be
checked in any language. Only the anchor proves that the chain was written by this daemon and is complete: see `verification.py`.
"""

import hashlib
from collections.abc import Iterable, Iterator

import msgspec

from ksi_daemon.audit.entry import FIELDS, Row

NO_HASH = bytes(32)  # the prev_hash of a chain's first row
FIELD_COUNT = len(FIELDS)

canonical = msgspec.json.Encoder().encode
_sha256 = hashlib.sha256


class Broken(Exception):
    """The chain is broken: its first invalid row, and the reason."""

    def __init__(self, seq: int, reason: str) -> None:
        super().__init__(f"row {seq}: {reason}")
        self.seq = seq
        self.reason = reason


def link(fields: Row, prev_hash: bytes) -> bytes:
    """The hash of a row with these fields (without the hash fields)."""
    return _sha256(prev_hash + canonical(fields)).digest()


class Head(msgspec.Struct, frozen=True):
    """A position in a chain, usually its end."""

    seq: int
    hash: bytes


START = Head(0, NO_HASH)


def checked(rows: Iterable[Row], *, daemon_id: str, after: Head) -> Iterator[tuple[int, bytes]]:
    """Recompute rows from `after` on; yields the seq and hash of each valid row. Raises `Broken` at the first invalid one."""
    expected, prev_hash = after.seq + 1, after.hash
    for row in rows:
        seq = row[1]
        if seq != expected:
            raise Broken(expected, f"it is missing: row {expected - 1} is followed by row {seq!r}")
        if row[0] != daemon_id:
            raise Broken(expected, "it belongs to another daemon")
        if row[FIELD_COUNT] != prev_hash:
            raise Broken(expected, "it does not follow the row before it")
        try:
            prev_hash = _sha256(prev_hash + canonical(row[:FIELD_COUNT])).digest()
        except (UnicodeError, TypeError) as error:
            raise Broken(expected, f"it cannot be read ({error})") from error
        if row[FIELD_COUNT + 1] != prev_hash:
            raise Broken(expected, "its content was changed")
        yield expected, prev_hash
        expected += 1
