"""A signed head: the end of a chain as one line of text, to keep where the chain is not: the log, `ksi.db`, another machine."""

import hmac
import re

import msgspec

from ksi_daemon.audit.chain import Head

PATTERN = r"ksi-audit-head:([0-9a-f]{16}):([0-9]{1,18}):([0-9a-f]{64}):([0-9a-f]{64})"
_TEXT = re.compile(PATTERN)
_DOMAIN = b"ksi audit head\n"  # the key also signs groups, checkpoints and exports, which begin otherwise


class SignedHead(msgspec.Struct, frozen=True, kw_only=True):
    """That the chain of `daemon_id` has row `seq` with this hash."""

    daemon_id: str
    seq: int
    hash: bytes
    mac: str

    def is_signed_with(self, key: bytes) -> bool:
        """Whether the holder of `key` signed this."""
        return hmac.compare_digest(self.mac, _mac(key, self.daemon_id, seq=self.seq, row_hash=self.hash))

    def __str__(self) -> str:
        return f"ksi-audit-head:{self.daemon_id}:{self.seq}:{self.hash.hex()}:{self.mac}"


def sign_head(key: bytes, daemon_id: str, head: Head) -> SignedHead:
    """The signed head for this position."""
    mac = _mac(key, daemon_id, seq=head.seq, row_hash=head.hash)
    return SignedHead(daemon_id=daemon_id, seq=head.seq, hash=head.hash, mac=mac)


def parse_head(text: str) -> SignedHead:
    """The signed head that a text is. Raises `ValueError` for any other text."""
    found = _TEXT.fullmatch(text.strip())
    if found is None:
        raise ValueError("it does not have the form ksi-audit-head:DAEMON:ROW:HASH:MAC")
    return SignedHead(daemon_id=found[1], seq=int(found[2]), hash=bytes.fromhex(found[3]), mac=found[4])


def _mac(key: bytes, daemon_id: str, *, seq: int, row_hash: bytes) -> str:
    return hmac.digest(key, _DOMAIN + f"{daemon_id} {seq} {row_hash.hex()}".encode(), "sha256").hex()
