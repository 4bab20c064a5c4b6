"""Structured logs: JSON lines in var/log/ksi.jsonl, readable ones on a terminal, secrets redacted first.

A log that cannot be written raises an alarm and is retried; it never stops the daemon.
"""

import io
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, MutableMapping
from pathlib import Path
from typing import Any, TextIO

import msgspec
import structlog

from ksi_daemon.logs.journal import CallRecord, notice_as_dict
from ksi_daemon.logs.redaction import redact
from ksi_daemon.notice import Notice, iso_time

ROTATE_AT_BYTES = 50_000_000
KEPT_FILES = 5
TO_CALLER = "_to_caller"  # in a line: a function that its caller hears it by
NOT_FOR_CALLER = {"exc_info", "stack_info", "plugin", "correlation_id"}
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}

Line = MutableMapping[str, Any]


class LogFile:
    """An append-only file that is rotated by size, follows a rotation by another program, and survives a full disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem: str | None = None
        self.lost_lines = 0
        self._file: io.FileIO | None = None
        self._torn = False  # the last line in the file was cut by a full disk
        self._lock = threading.Lock()

    def write(self, lines: Iterable[bytes]) -> None:
        """Append lines. What cannot be written is counted as lost, with the reason in `problem`."""
        chunk = [line + b"\n" for line in lines]
        with self._lock:
            try:
                file = self._current()
                whole = b"".join([b"\n", *chunk] if self._torn else chunk)
                written = file.write(whole)
                self._torn = written != len(whole)
                if written != len(whole):
                    raise OSError(f"only {written} of {len(whole)} bytes could be written")
                self.problem = None
            except OSError as error:
                self.lost_lines += len(chunk)
                self.problem = f"{self.path} cannot be written: {error.strerror or error}"
                self._close()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._close()

    def _current(self) -> io.FileIO:
        if self._file is not None and self._moved():
            self._close()
        if self._file is None:
            self._file = self._open()
        if os.fstat(self._file.fileno()).st_size >= ROTATE_AT_BYTES:
            self._close()
            for number in range(KEPT_FILES - 1, 0, -1):
                older = self.path.with_name(f"{self.path.name}.{number}")
                if older.exists():
                    older.rename(self.path.with_name(f"{self.path.name}.{number + 1}"))
            self.path.rename(self.path.with_name(f"{self.path.name}.1"))
            self._file = self._open()
        return self._file

    def _open(self) -> io.FileIO:
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        return io.FileIO(handle, "a")

    def _moved(self) -> bool:
        """Whether another program rotated or removed the file."""
        try:
            current = self.path.stat()
        except OSError:
            return True
        opened = os.fstat(self._file.fileno()) if self._file is not None else None
        return opened is None or (current.st_ino, current.st_dev) != (opened.st_ino, opened.st_dev)

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class Log:
    """The daemon's log: its file and terminal, and its level."""

    def __init__(self, path: Path, level: str, terminal: TextIO | None = None) -> None:
        self.file = LogFile(path)
        self.level = level
        self._terminal = terminal
        self.logger = structlog.wrap_logger(
            _Lines(self),
            processors=[_redact, _tell_caller, self._drop_below_level, _add_time, _show_exception],
            wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        )

    @property
    def verbose(self) -> bool:
        """Whether debug lines are kept."""
        return self.level == "debug"

    def emit(self, line: Line) -> None:
        """Write one finished line to every sink."""
        self.file.write([encoded(line)])
        self._show(line)

    def write_records(self, records: list[CallRecord | Notice], left_out: int) -> None:
        """Calls (and, at debug, notices) as log lines, in one write."""
        lines: list[Any] = []
        if LEVELS[self.level] <= LEVELS["info"]:
            lines += [_call_line(record) for record in records if isinstance(record, CallRecord)]
        if self.verbose:
            lines += [_notice_line(record) for record in records if isinstance(record, Notice)]
        if left_out:
            lines.append(
                {
                    "time": iso_time(time.time()),
                    "level": "warning",
                    "event": "calls came faster than they could be logged",
                    "left_out": left_out,
                }
            )
        if lines:
            self.file.write(map(encoded, lines))
        if self._terminal is not None:
            for line in lines:
                self._show(line if isinstance(line, dict) else msgspec.structs.asdict(line))

    def take_standard_logging(self) -> None:
        """Route the logging of libraries (uvicorn, asyncio) into this log."""
        root = logging.getLogger()
        root.handlers = [_Forward(self)]
        root.setLevel(logging.WARNING)

    def _drop_below_level(self, _logger: Any, method: str, line: Line) -> Line:
        if LEVELS[method if method in LEVELS else "error"] < LEVELS[self.level]:
            raise structlog.DropEvent
        return {"level": method, **line}

    def _show(self, line: Line) -> None:
        if self._terminal is not None:
            self._terminal.write(readable(line) + "\n")


class _Lines:
    """The final logger of structlog's processor chain."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def __getattr__(self, _level: str) -> Callable[..., None]:
        return self._emit

    def _emit(self, **line: Any) -> None:
        self._log.emit(line)


class _Forward(logging.Handler):
    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        level = record.levelname.lower() if record.levelname.lower() in LEVELS else "info"
        log_line = getattr(self._log.logger, level)
        log_line(record.getMessage(), source=record.name, exc_info=record.exc_info)


def _redact(_logger: Any, _method: str, line: Line) -> Line:
    kept = {name: line.pop(name) for name in ("exc_info", TO_CALLER) if name in line}
    return {**redact(line), **kept}


def _tell_caller(_logger: Any, method: str, line: Line) -> Line:
    """Before lines are dropped by the daemon's own level: the caller has asked for another."""
    tell = line.pop(TO_CALLER, None)
    if tell is not None:
        tell(method, {name: value for name, value in line.items() if name not in NOT_FOR_CALLER})
    return line


def _add_time(_logger: Any, _method: str, line: Line) -> Line:
    return {"time": iso_time(time.time()), **line}


def _show_exception(_logger: Any, _method: str, line: Line) -> Line:
    error = line.pop("exc_info", None)
    if isinstance(error, tuple):
        error = error[1]
    if error is True:
        error = sys.exc_info()[1]
    if isinstance(error, BaseException):
        line["exception"] = redact("".join(traceback.format_exception(error)))[-8_000:]
    return line


class CallLine(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A finished call as a log line. A struct, because there is one for every call and a dict costs three times as much."""

    time: str
    level: str
    event: str
    called: str
    id: str
    correlation_id: str
    depth: int
    principal: str
    outcome: str
    duration_ms: float
    result_bytes: int
    parent_id: str | None = None


def _call_line(record: CallRecord) -> CallLine:
    return CallLine(
        iso_time(record.time_s),
        "info",
        "call",
        record.event,
        record.id,
        record.correlation_id,
        record.depth,
        record.principal,
        record.outcome,
        record.duration_us / 1000,
        record.result_bytes,
        record.parent_id,
    )


def _notice_line(notice: Notice) -> Line:
    facts = notice_as_dict(notice)
    data = facts.pop("data", None)
    shown = {} if data is None else {"data": redact(msgspec.json.decode(data))}
    return {
        "time": facts.pop("at"),
        "level": "debug",
        "event": "notice",
        "noticed": facts.pop("event"),
        **facts,
        **shown,
    }


def encoded(line: Any) -> bytes:
    """A line as JSON. Values that JSON cannot encode are converted to text, so that no line is lost."""
    try:
        return _encode(line)
    except Exception:  # noqa: BLE001 - a value may be anything, and its __str__ may raise anything
        return _encode(_json_safe(line if isinstance(line, dict) else msgspec.structs.asdict(line)))


def _json_safe(value: Any, depth: int = 0) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, dict) and depth < 4:
        return {str(_json_safe(str(name), depth)): _json_safe(inner, depth + 1) for name, inner in value.items()}
    if isinstance(value, list | tuple) and depth < 4:
        return [_json_safe(inner, depth + 1) for inner in value]
    try:
        return str(value).encode("utf-8", "backslashreplace").decode()
    except Exception as error:  # noqa: BLE001
        return f"({type(value).__name__}, which cannot be shown: {type(error).__name__})"


_encode = msgspec.json.Encoder(enc_hook=str).encode


def readable(line: Line) -> str:
    """One line for a terminal, without terminal escape sequences."""
    facts = " ".join(
        f"{name}={value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()}"
        for name, value in line.items()
        if name not in ("time", "level", "event", "exception") and value not in (None, "")
    )
    text = printable(f"{str(line['time'])[11:23]} {line['level']:<7} {line['event']}  {facts}".rstrip())
    trace = [f"    {printable(part)}" for part in str(line.get("exception") or "").splitlines()]
    return "\n".join([text, *trace])


def printable(text: str) -> str:
    """Control, format and other invisible characters as visible escapes."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
