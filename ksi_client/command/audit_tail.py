"""Prints and follows the audit's readable copy, var/log/audit.jsonl, across rotation; needs no daemon."""

import json
import os
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ksi_client.command.fault import NOT_FOUND, USAGE, Fault
from ksi_client.command.screen import Screen
from ksi_client.paths import audit_file, var_dir
from ksi_client.terminal import json_text, visible

_BLOCK_BYTES = 65_536
_POLL_S = 0.2
_STYLES = {"ok": "good", "started": "faint", "unknown": "warn"}


class RowFilter(NamedTuple):
    """Which rows to print; None matches all."""

    agent: str | None
    event: str | None
    type: str | None
    status: str | None

    def matches(self, row: dict[str, Any]) -> bool:
        """Whether to print the row. A note about missing rows is always printed."""
        return "gap" in row or (
            self.agent in (None, row.get("agent_id"))
            and self.event in (None, row.get("event"), row.get("tool"))
            and self.type in (None, row.get("type"))
            and self.status in (None, row.get("status"))
        )


def show_tail(screen: Screen, wanted: RowFilter, *, lines: int, follow: bool, output: str) -> None:
    """Print the last rows and, when following, each new one."""
    if output not in ("text", "jsonl"):
        raise Fault(f"--output takes text or jsonl, not {output!r}", exit_code=USAGE)
    as_json = screen.json or output == "jsonl"
    path = audit_file(var_dir())
    file = _opened(path)
    if file is None:
        if not follow:
            raise Fault(f"there is no {path} yet", exit_code=NOT_FOUND, hint="ksi start, or ksi audit query")
        screen.note(f"waiting for {path}; Ctrl-C ends")
        start = 0
    else:
        start = _end_of_last_line(file)
        rows = (row for line in _backwards(path, file, start) if (row := _read(line)) and wanted.matches(row))
        for row in reversed(list(islice(rows, lines))):
            _print(screen, row, as_json)
    if not follow:
        if file is not None:
            file.close()
        return
    with closing(_followed(path, file, start)) as following:
        for line in following:
            row = _read(line)
            if row and wanted.matches(row):
                _print(screen, row, as_json)


def _print(screen: Screen, row: dict[str, Any], as_json: bool) -> None:
    print(json_text(row) if as_json else _text(screen, row), flush=True)


def _text(screen: Screen, row: dict[str, Any]) -> str:
    if isinstance(gap := row.get("gap"), dict):
        missing = f"rows {gap.get('first_seq')} to {gap.get('last_seq')} are not in this file: ksi audit query has them"
        return screen.paint(visible(missing), "warn")
    status = str(row.get("status", "?"))
    parts = [
        screen.paint(screen.moment(str(row.get("time", ""))), "faint"),
        visible(str(row.get("seq", "?"))),
        screen.paint(visible(status), _STYLES.get(status, "bad")),
        visible(str(row.get("agent_id") or row.get("principal") or "")),
        screen.paint(visible(str(row.get("event") or row.get("tool") or row.get("type") or "")), "name"),
    ]
    if row.get("duration_ms") is not None:
        parts.append(f"{visible(str(row['duration_ms']))} ms")
    if row.get("arguments") is not None and row.get("phase") != "outcome":
        parts.append(json_text(row["arguments"]))
    if row.get("reason"):
        parts.append(visible(str(row["reason"])))
    return "  ".join(parts)


def _read(line: bytes) -> dict[str, Any] | None:
    """The row; None for an empty line or one that a full disk cut."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _opened(path: Path) -> BinaryIO | None:
    try:
        return path.open("rb")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Fault(f"cannot read {path}: {error.strerror}", hint="run ksi as the user of the daemon") from error


def _end_of_last_line(file: BinaryIO) -> int:
    """The offset where the next line begins: the daemon may be writing it at this moment."""
    end = file.seek(0, os.SEEK_END)
    while end:
        begin = max(0, end - _BLOCK_BYTES)
        newline = os.pread(file.fileno(), end - begin, begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        end = begin
    return 0


def _backwards(path: Path, file: BinaryIO, end: int) -> Iterator[bytes]:
    """Lines from the last to the first, continuing in the rotated file."""
    yield from _lines_backwards(file, end)
    before = _opened(path.with_name(f"{path.name}.1"))
    if before is not None:
        with before:
            if os.path.sameopenfile(file.fileno(), before.fileno()):
                return  # it was rotated while being read
            yield from _lines_backwards(before, before.seek(0, os.SEEK_END))


def _lines_backwards(file: BinaryIO, end: int) -> Iterator[bytes]:
    rest: list[bytes] = []  # the pieces of a line whose beginning is not read yet, last first
    while end:
        begin = max(0, end - _BLOCK_BYTES)
        first, *whole = os.pread(file.fileno(), end - begin, begin).split(b"\n")
        if whole:
            yield b"".join([whole.pop(), *reversed(rest)])
            yield from reversed(whole)
            rest = []
        rest.append(first)
        end = begin
    yield b"".join(reversed(rest))


def _followed(path: Path, file: BinaryIO | None, position: int) -> Generator[bytes, None, None]:
    """Complete lines as they are written, until closed. A rotated file is read to its end before the new one."""
    unfinished = b""
    try:
        while True:
            moved = file is None or _moved(path, file, position)  # before reading: a rotated file is read to its end
            while file is not None and (piece := os.pread(file.fileno(), _BLOCK_BYTES, position)):
                position += len(piece)
                *lines, unfinished = (unfinished + piece).split(b"\n")
                yield from lines
            if not moved:
                time.sleep(_POLL_S)
                continue
            if file is not None:
                file.close()
            file, position, unfinished = _opened(path), 0, b""
            if file is None:
                time.sleep(_POLL_S)
    finally:
        if file is not None:
            file.close()


def _moved(path: Path, file: BinaryIO, position: int) -> bool:
    opened = os.fstat(file.fileno())
    try:
        current = path.stat()
    except OSError:
        return False  # between the two halves of a rotation
    return (current.st_dev, current.st_ino) != (opened.st_dev, opened.st_ino) or current.st_size < position
