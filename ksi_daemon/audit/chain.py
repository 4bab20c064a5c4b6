"""The hash chain: how a row's hash is made, and the reading of a whole chain that finds the first row that does not fit.

hash = SHA-256(prev_hash + JSON array of the row's fields), the array as compact UTF-8 in the order of `entry.FIELDS`; seven lines of
any language can check it. That the chain is *ours*, and whole, only the anchor can tell: see `verification.py`.
"""

import hashlib
from collections.abc import Iterable, Iterator

import msgspec

from ksi_daemon.audit.entry import FIELDS, Row

NO_HASH = bytes(32)  # what the first row of a chain follows
FIELD_COUNT = len(FIELDS)

canonical = msgspec.json.Encoder().encode
_sha256 = hashlib.sha256


class Broken(Exception):
    """A row does not fit: the first one, and why."""

    def __init__(self, seq: int, reason: str) -> None:
        super().__init__(f"row {seq}: {reason}")
        self.seq = seq
        self.reason = reason


def link(fields: Row, prev_hash: bytes) -> bytes:
    """The hash of a row whose fields (without hashes) these are."""
    return _sha256(prev_hash + canonical(fields)).digest()


class Head(msgspec.Struct, frozen=True):
    """The end of a chain, or any place in it."""

    seq: int
    hash: bytes


START = Head(0, NO_HASH)


def checked(rows: Iterable[Row], *, daemon_id: str, after: Head) -> Iterator[tuple[int, bytes]]:
    """Recompute rows from `after` on; yields each row's seq and hash once it is found good. Raises `Broken` at the first bad one."""
    expected, prev_hash = after.seq + 1, after.hash
    for row in rows:
        seq = row[1]
        if seq != expected:
            raise Broken(expected, f"it is missing: after row {expected - 1} comes row {seq!r}")
        if row[0] != daemon_id:
            raise Broken(expected, "it belongs to another daemon")
        if row[FIELD_COUNT] != prev_hash:
            raise Broken(expected, "it does not follow the row before it")
        try:
            prev_hash = _sha256(prev_hash + canonical(row[:FIELD_COUNT])).digest()
        except (UnicodeError, TypeError) as error:
            raise Broken(expected, f"it is not readable ({error})") from error
        if row[FIELD_COUNT + 1] != prev_hash:
            raise Broken(expected, "its content was changed")
        yield expected, prev_hash
        expected += 1
