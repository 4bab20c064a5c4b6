"""The chain: how the hash of a row and the MAC of a commit group are computed, and a check that finds the first invalid row.

hash = SHA-256(prev_hash + JSON array of the row's fields), the array as compact UTF-8 in the order of `entry.FIELDS`; it can be
checked in any language. The last row of each commit group also has a MAC under the daemon's key, over its hash and the MAC of the
group before: recomputed hashes do not get one. Neither shows that the end was cut off: see `verification.py`.
"""

import hashlib
import hmac
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from ksi_daemon.audit.entry import COLUMNS, FIELDS, Row

NO_HASH = bytes(32)  # the prev_hash of a chain's first row
NO_MAC = bytes(32)  # the MAC before a chain's first group
FIELD_COUNT = len(FIELDS)
HASH, MAC = COLUMNS.index("hash"), COLUMNS.index("mac")
GROUP = b"ksi audit group\n"  # the key also signs checkpoints and exports, which begin otherwise

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
    """A position in a chain, usually its end: a row, and the MAC of the last group that ends at it or before it."""

    seq: int
    hash: bytes
    mac: bytes = NO_MAC


class Macs(NamedTuple):
    """What is needed to check MACs: the key, and the first row that is covered by one (older rows were written without)."""

    key: bytes
    first_seq: int


START = Head(0, NO_HASH)


def group_mac(key: bytes, before: bytes, *, daemon_id: str, seq: int, row_hash: bytes) -> bytes:
    """The MAC of a group whose last row has this seq and hash; `before` is the MAC of the group before it."""
    return hmac.digest(key, b"%b%b%b%d %b" % (GROUP, before, row_hash, seq, daemon_id.encode()), "sha256")


def checked(
    rows: Iterable[Row], *, daemon_id: str, after: Head, macs: Macs | None = None
) -> Iterator[tuple[int, bytes]]:
    """Recompute rows from `after` on; yields the seq and hash of each valid row. Raises `Broken` at the first invalid one.

    With `macs`, `rows` must end where a group ends. A wrong MAC shows only at the end of its group, so some rows of the group have
    been yielded by then; the exception names the first of them.
    """
    expected, prev_hash, mac = after.seq + 1, after.hash, after.mac
    group_start = expected
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
        if macs is not None:
            if expected < macs.first_seq:
                group_start = expected + 1
            elif (row_mac := row[MAC]) is not None:
                mac = group_mac(macs.key, mac, daemon_id=daemon_id, seq=expected, row_hash=prev_hash)
                if not isinstance(row_mac, bytes) or not hmac.compare_digest(row_mac, mac):
                    raise Broken(
                        group_start,
                        f"rows {group_start} to {expected} have a wrong MAC: this daemon did not write them so",
                    )
                group_start = expected + 1
        yield expected, prev_hash
        expected += 1
    if macs is not None and group_start < expected:
        raise Broken(
            group_start,
            f"rows {group_start} to {expected - 1} have no MAC: this daemon did not write them, or the end of their group was cut",
        )
