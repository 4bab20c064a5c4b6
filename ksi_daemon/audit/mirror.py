"""The audit's readable copy in var/log/audit.jsonl, as JSON lines for `tail -f`: written in order after the commit, by a separate thread.

When it cannot be written an alarm is raised, calls are still served, and the next line that can be written
names the missing rows. The file is rotated by size, and a rotation by another program is followed.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue

import msgspec

from ksi_daemon.audit.entry import Row
from ksi_daemon.audit.line import line_of
from ksi_daemon.logs.log import LogFile

WAITING_ROWS_LIMIT = 50_000
TAIL_BYTES = 65_536


class Mirror:
    """Takes committed rows from the writer without blocking it."""

    def __init__(self, path: Path, on_alarm: Callable[[str], None]) -> None:
        self._file = LogFile(path)
        self._on_alarm = on_alarm
        last = last_mirrored(path)
        self._last_seq = None if last is None else last.seq
        self._queue: SimpleQueue[Sequence[Row] | None] = SimpleQueue()
        self._taken = 0  # rows; counted by the writer's thread only
        self._done = 0  # rows; counted by the mirror's thread only
        self._behind = False
        self._thread = threading.Thread(target=self._run, name="audit mirror", daemon=True)

    @property
    def problem(self) -> str | None:
        """Why rows are missing in the mirror now, or None."""
        if self._file.problem is not None:
            return f"rows are missing in the audit's mirror: {self._file.problem}"
        return "rows are missing in the audit's mirror: its disk is too slow" if self._behind else None

    @property
    def waiting(self) -> int:
        """How many rows are not yet written."""
        return self._taken - self._done

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def put(self, rows: Sequence[Row]) -> None:
        """Hand over committed rows. When too many wait, these are left out and the gap is noted."""
        if self.waiting > WAITING_ROWS_LIMIT:
            if not self._behind:
                self._behind = True
                self._on_alarm("rows are missing in the audit's mirror: its disk is too slow")
            return
        self._taken += len(rows)
        self._queue.put(rows)

    def close(self) -> None:
        """Write the waiting rows, then close the file."""
        self._queue.put(None)
        self._thread.join()
        self._file.close()

    def _run(self) -> None:
        while (rows := self._queue.get()) is not None:
            self.write(rows)
            self._done += len(rows)

    def write(self, rows: Sequence[Row]) -> None:
        """Append these rows, after a note of the gap when they do not follow the last line."""
        first, last = int(rows[0][1] or 0), int(rows[-1][1] or 0)
        had_problem = self._file.problem is not None
        lines = [line_of(row) for row in rows]
        if self._last_seq is not None and first != self._last_seq + 1:
            lines.insert(0, _gap(self._last_seq + 1, first - 1))
        if had_problem:
            lines.insert(0, b"")  # ends a line that a full disk cut in two
        self._file.write(lines)
        if self._file.problem is not None:
            if not had_problem:
                self._on_alarm(f"rows are missing in the audit's mirror: {self._file.problem}")
            if self._last_seq is None:
                self._last_seq = first - 1
            return
        self._last_seq = last
        self._behind = False


def _gap(first: int, last: int) -> bytes:
    note = "these rows are not in this file; `ksi audit query` has them"
    return msgspec.json.encode({"gap": {"first_seq": first, "last_seq": last, "rows": last - first + 1, "note": note}})


class MirroredRow(msgspec.Struct, frozen=True):
    """What identifies a row of the mirror."""

    daemon_id: str
    seq: int
    hash: str


def last_mirrored(path: Path) -> MirroredRow | None:
    """The last row of the present file; None if there is no file or no row."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(0, end - TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            return msgspec.json.decode(line, type=MirroredRow)
        except msgspec.DecodeError:
            continue
    return None
