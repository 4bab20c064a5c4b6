"""Signed checkpoints outside the database: what shows that a chain is ours and whole, and not a recomputed or shortened one.

Each line of the anchor file says how far the chain had come and with which hash, and is signed with HMAC-SHA256 under a random
32-byte key (0600, var/run/audit.key): a signature that only this hub can make *and check*, because no library for public-key
signatures is among our dependencies. Every line carries the whole state, so a start reads only the last one. Who can write var/
but not read the key cannot forge a line; he can put back older copies of both the database and the anchor, which is why each
checkpoint also goes to the log.
"""

import hashlib
import hmac
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from ksi_daemon.audit.chain import Head
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
    exported_through: int = 0
    open: tuple[int, ...] = ()
    time: str
    after: str = ""  # the signature of the line before
    mac: str = ""

    def signed(self, key: bytes, after: str) -> "Checkpoint":
        """This checkpoint as the line that follows the one signed `after`."""
        unsigned = msgspec.structs.replace(self, after=after, mac="")
        return msgspec.structs.replace(unsigned, mac=unsigned._signature(key))

    def is_signed_with(self, key: bytes) -> bool:
        """Whether the holder of `key` wrote exactly this."""
        return hmac.compare_digest(self.mac, msgspec.structs.replace(self, mac="")._signature(key))

    def _signature(self, key: bytes) -> str:
        return hmac.new(key, msgspec.json.encode(self), hashlib.sha256).hexdigest()

    @property
    def base(self) -> Head:
        """The place that the first remaining row follows."""
        return Head(self.base_seq, bytes.fromhex(self.base_hash))


class BrokenAnchor(Exception):
    """The anchor file itself was changed: its line (0 is the last), and why."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"{f'line {line}' if line else 'the last line'} of the anchor file {reason}")
        self.line = line


def write_key(path: Path, key: bytes) -> None:
    """Keep the signing key. Its presence says from then on that an audit must be there."""
    unfinished = path.with_name(path.name + ".new")
    unfinished.unlink(missing_ok=True)
    write_durably(unfinished, key)
    unfinished.rename(path)
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
        raise BadData(f"{path} is not the audit's key: it has not {KEY_BYTES} bytes. Restore it from a backup.")
    return key


class Anchor:
    """The end of the anchor file, for the one writer. A line is durable when `append` returns, or not there at all."""

    def __init__(self, path: Path, key: bytes, last: Checkpoint | None) -> None:
        self.path = path
        self.last = last
        self._key = key

    def append(self, checkpoint: Checkpoint) -> Checkpoint:
        """Sign and add a line. Raises `OSError`, leaving the file as it was."""
        signed = checkpoint.signed(self._key, "" if self.last is None else self.last.mac)
        handle = os.open(
            self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )  # opened anew each time: a file moved away in between must not swallow the line
        try:
            length = os.fstat(handle).st_size
            if length == 0 and self.last is not None:
                raise OSError(f"{self.path} is gone or empty, though it had lines")
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
        kept[0] = msgspec.structs.replace(
            kept[0], kind="base", base_seq=kept[-1].base_seq, base_hash=kept[-1].base_hash
        )
        after = ""
        for place, line in enumerate(kept):
            kept[place] = line.signed(self._key, after)
            after = kept[place].mac
        unfinished = self.path.with_name(self.path.name + ".new")
        write_durably(unfinished, b"".join(msgspec.json.encode(line) + b"\n" for line in kept))
        unfinished.rename(self.path)
        sync_folder(self.path.parent)
        self.last = kept[-1]


def read_lines(path: Path, key: bytes) -> Iterator[Checkpoint]:
    """Every checkpoint, its signature and its place checked. A last line that was never finished does not count."""
    before: Checkpoint | None = None
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                return
            checkpoint = _read_line(line, key, number)
            if before is not None and (checkpoint.after != before.mac or checkpoint.seq < before.seq):
                raise BrokenAnchor(number, "does not follow the line before it: lines were removed or reordered")
            if before is None and (checkpoint.kind not in ("first", "base") or checkpoint.after):
                raise BrokenAnchor(number, "is not how an anchor begins: lines before it were removed")
            before = checkpoint
            yield checkpoint


def read_last_line(path: Path, key: bytes) -> Checkpoint:
    """The last finished line, without reading the others."""
    finished = _finished_tail(path)[1]
    if not finished:
        raise BrokenAnchor(1, "is not there: the file is empty or cut")
    return _read_line(finished.rpartition(b"\n")[2], key, 0)


def cut_unfinished_line(path: Path) -> None:
    """Take away what a crash left of a line, so that the next one starts on its own."""
    start, finished = _finished_tail(path)
    os.truncate(path, start + len(finished) + 1)


def _finished_tail(path: Path) -> tuple[int, bytes]:
    """The end of the file from some place on, with at least its last finished line whole, and without that line's end."""
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
        bytes.fromhex(checkpoint.hash), bytes.fromhex(checkpoint.base_hash)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise BrokenAnchor(number, f"is not a checkpoint ({error})") from error
    if not checkpoint.is_signed_with(key):
        raise BrokenAnchor(number, "is not signed with the key of this hub")
    return checkpoint


def _write_whole(handle: int, content: bytes) -> None:
    written = os.write(handle, content)
    if written != len(content):
        raise OSError(f"only {written} of {len(content)} bytes could be written")
