"""Signed checkpoints outside the database: they prove that a chain was written by this daemon and is complete, not recomputed or shortened.

Each line of the anchor file holds the last row and its hash at that time, and is signed with HMAC-SHA256 under a random
32-byte key (0600, var/run/audit.key or elsewhere): only this daemon can make *and check* a signature, because none of the dependencies
has public-key signatures. Every line carries the whole state, so a start reads only the last one. A user who can write var/
but not read the key cannot forge a line, but can restore older copies of both the database and the anchor; therefore each
checkpoint is also logged.
"""

import hashlib
import hmac
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from ksi_daemon.audit.chain import Head, Macs
from ksi_daemon.errors import BadData
from ksi_daemon.storage.database_file import sync_folder, write_durably

KEY_BYTES = 32
BLOCK_BYTES = 65_536


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One signed line. Rows up to `base_seq` were dropped by retention; `open` are the intents that had no outcome yet."""

    kind: Literal["first", "checkpoint", "closed", "base", "exported"]
    daemon_id: str
    seq: int
    hash: str
    rows: int
    base_seq: int = 0
    base_hash: str = "00" * 32
    base_mac: str = "00" * 32
    group_mac: str = "00" * 32  # of the group that ends with row `seq`
    macs_from: int = 0  # the first row covered by a MAC; 0 in lines of a daemon that wrote none
    exported_through: int = 0
    open: tuple[int, ...] = ()
    time: str
    after: str = ""  # the signature of the line before
    mac: str = ""

    def signed(self, key: bytes, after: str) -> "Checkpoint":
        """This checkpoint as the line that follows the one signed `after`."""
        unsigned = msgspec.structs.replace(self, after=after, mac="")
        return msgspec.structs.replace(unsigned, mac=_signature(key, msgspec.json.encode(unsigned)))

    @property
    def base(self) -> Head:
        """The position before the first remaining row."""
        return Head(self.base_seq, bytes.fromhex(self.base_hash), bytes.fromhex(self.base_mac))

    @property
    def head(self) -> Head:
        """The signed position."""
        return Head(self.seq, bytes.fromhex(self.hash), bytes.fromhex(self.group_mac))

    def macs(self, key: bytes) -> Macs | None:
        """What is needed to check the rows' MACs; None when the daemon that signed this wrote none."""
        return Macs(key, self.macs_from) if self.macs_from else None


class BrokenAnchor(Exception):
    """The anchor file itself was changed: the line (0 is the last), and the reason."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"{f'line {line}' if line else 'the last line'} of the anchor file {reason}")
        self.line = line


def write_key(path: Path, key: bytes) -> None:
    """Store the signing key. If it exists, the audit must exist too."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    write_durably(temporary, key)
    temporary.rename(path)
    sync_folder(path.parent)


def read_key(path: Path) -> bytes:
    """The signing key; refused when it is not a private file of the right length."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        mode, key = os.fstat(handle), os.read(handle, KEY_BYTES + 1)
    finally:
        os.close(handle)
    if stat.S_IMODE(mode.st_mode) & 0o077 or mode.st_uid != os.geteuid():
        raise BadData(
            f"{path} can be reached by other users, so checkpoints could be forged. Run: chmod 600 '{path}' (as its owner)"
        )
    if len(key) != KEY_BYTES:
        raise BadData(f"{path} is not a valid audit key: it does not have {KEY_BYTES} bytes. Restore it from a backup.")
    return key


class Anchor:
    """The anchor file, for its only writer. When `append` returns the line is durable; when it raises, nothing was written."""

    def __init__(self, path: Path, key: bytes, last: Checkpoint | None) -> None:
        self.path = path
        self.last = last
        self._key = key

    def append(self, checkpoint: Checkpoint) -> Checkpoint:
        """Sign and add a line. Raises `OSError`, leaving the file as it was."""
        signed = checkpoint.signed(self._key, "" if self.last is None else self.last.mac)
        handle = os.open(
            self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )  # opened again each time: if the file was moved away, the line must not be lost with it
        try:
            length = os.fstat(handle).st_size
            if length == 0 and self.last is not None:
                raise OSError(f"{self.path} is missing or empty, but it had lines before")
            try:
                _write_whole(handle, msgspec.json.encode(signed) + b"\n")
                os.fdatasync(handle)
            except OSError:
                os.ftruncate(handle, length)
                raise
        finally:
            os.close(handle)
        self.last = signed
        return signed

    def drop_before(self, seq: int) -> None:
        """Rewrite the file without the lines of rows that retention dropped; the last line always stays."""
        kept = [line for line in read_lines(self.path, self._key) if line.seq >= seq]
        last = kept[-1]
        kept[0] = msgspec.structs.replace(
            kept[0], kind="base", base_seq=last.base_seq, base_hash=last.base_hash, base_mac=last.base_mac
        )
        self._rewrite(kept)

    def begin_macs(self, seq: int) -> None:
        """Sign in every line that rows from `seq` on have MACs: no older line, put back, could allow rows without."""
        self._rewrite([msgspec.structs.replace(line, macs_from=seq) for line in read_lines(self.path, self._key)])

    def _rewrite(self, lines: list[Checkpoint]) -> None:
        after = ""
        for index, line in enumerate(lines):
            lines[index] = line.signed(self._key, after)
            after = lines[index].mac
        temporary = self.path.with_name(self.path.name + ".new")
        write_durably(temporary, b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
        temporary.rename(self.path)
        sync_folder(self.path.parent)
        self.last = lines[-1]


def read_lines(path: Path, key: bytes) -> Iterator[Checkpoint]:
    """Every checkpoint, with its signature and its order checked. An unfinished last line is ignored."""
    before: Checkpoint | None = None
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                return
            checkpoint = _read_line(line, key, number)
            if before is not None and (checkpoint.after != before.mac or checkpoint.seq < before.seq):
                raise BrokenAnchor(number, "does not follow the line before it: lines were removed or reordered")
            if before is None and (checkpoint.kind not in ("first", "base") or checkpoint.after):
                raise BrokenAnchor(number, "cannot be the first line: lines before it were removed")
            before = checkpoint
            yield checkpoint


def read_last_line(path: Path, key: bytes) -> Checkpoint:
    """The last finished line, without reading the others."""
    finished = _finished_tail(path)[1]
    if not finished:
        raise BrokenAnchor(1, "is missing: the file is empty or truncated")
    return _read_line(finished.rpartition(b"\n")[2], key, 0)


def cut_unfinished_line(path: Path) -> None:
    """Remove an unfinished last line left by a crash, so that the next line starts on its own."""
    start, finished = _finished_tail(path)
    os.truncate(path, start + len(finished) + 1)


def _finished_tail(path: Path) -> tuple[int, bytes]:
    """The end of the file, with at least its last finished line complete, without that line's newline, and its offset."""
    with path.open("rb") as file:
        start = end = file.seek(0, os.SEEK_END)
        tail = b""
        while start > 0 and b"\n" not in tail.rpartition(b"\n")[0]:
            start = max(0, start - BLOCK_BYTES)
            file.seek(start)
            tail = file.read(end - start)
    return start, tail.rpartition(b"\n")[0]


def _read_line(line: bytes, key: bytes, number: int) -> Checkpoint:
    try:
        checkpoint = msgspec.json.decode(line, type=Checkpoint)
        for text in (checkpoint.hash, checkpoint.group_mac, checkpoint.base_hash, checkpoint.base_mac):
            bytes.fromhex(text)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise BrokenAnchor(number, f"is not a checkpoint ({error})") from error
    if not _is_signed(line.removesuffix(b"\n"), checkpoint.mac, key):
        raise BrokenAnchor(number, "is not signed with the key of this daemon")
    return checkpoint


def _is_signed(line: bytes, mac: str, key: bytes) -> bool:
    """Whether the holder of `key` wrote this line. It is checked as it stands, so that lines of older versions stay valid."""
    end = f'"mac":"{mac}"}}'.encode()
    signed = line.removesuffix(end) + b'"mac":""}'
    return line.endswith(end) and hmac.compare_digest(mac.encode(), _signature(key, signed).encode())


def _signature(key: bytes, content: bytes) -> str:
    return hmac.new(key, content, hashlib.sha256).hexdigest()


def _write_whole(handle: int, content: bytes) -> None:
    written = os.write(handle, content)
    if written != len(content):
        raise OSError(f"only {written} of {len(content)} bytes could be written")
