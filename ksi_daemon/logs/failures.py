"""The last failure of each part of a plugin, with its traceback: bounded and redacted, for those who look for the reason.

Every failure is in the log as well; what is here is lost when the plugin stops.
"""

import time
import traceback
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from ksi_daemon.logs.redaction import hide_shapes
from ksi_daemon.notice import iso_time

Kind = Literal["handler", "listener", "background", "health"]

PARTS_LIMIT = 100
ERROR_LIMIT = 300  # characters
TRACEBACK_LIMIT = 4_000  # characters, of the end
FRAMES_LIMIT = 20
RENEW_AFTER_S = 1.0  # the same failure again, sooner than this, is only counted


class Failure(msgspec.Struct):
    """How one part failed last, and how often it has failed."""

    kind: Kind
    name: str
    count: int = 0
    at: float = 0.0
    error: str = ""
    traceback: str = ""


class Failures:
    """Of one running plugin. `heard` is called with each failure; tests raise them."""

    def __init__(self, heard: Callable[[Kind, str, BaseException], None] = lambda kind, name, error: None) -> None:
        self._heard = heard
        self._last: dict[tuple[Kind, str], Failure] = {}

    def note(self, kind: Kind, name: str, error: BaseException) -> None:
        """Keep a failure in the place of the part's last one."""
        failure = self._last.pop((kind, name), None) or Failure(kind, name)
        self._last[kind, name] = failure
        if len(self._last) > PARTS_LIMIT:
            del self._last[next(iter(self._last))]
        failure.count += 1
        text, now = described(error), time.time()
        if text != failure.error or not 0 <= now - failure.at < RENEW_AFTER_S:
            failure.error, failure.traceback = text, _traceback(error)
        failure.at = now
        self._heard(kind, name, error)

    def count(self, kind: Kind, name: str) -> int:
        """How often a part has failed."""
        failure = self._last.get((kind, name))
        return 0 if failure is None else failure.count

    def rows(self, *, with_tracebacks: bool) -> list[dict[str, Any]]:
        """The last failure of each part, the newest first."""
        return [
            {
                "kind": failure.kind,
                "name": failure.name,
                "count": failure.count,
                "last_at": iso_time(failure.at),
                "error": failure.error,
                **({"traceback": failure.traceback} if with_tracebacks else {}),
            }
            for failure in reversed(self._last.values())
        ]


def described(error: BaseException) -> str:
    """The type and text of an exception, bounded and without secrets; even its text may fail."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - whatever its __str__ raises
        text = type(error).__name__
    text = hide_shapes(text[: ERROR_LIMIT * 4].encode("utf-8", "backslashreplace").decode())
    return text if len(text) <= ERROR_LIMIT else text[:ERROR_LIMIT] + "…"


def _traceback(error: BaseException) -> str:
    lines = traceback.TracebackException.from_exception(error, limit=-FRAMES_LIMIT).format()
    text = hide_shapes("".join(lines).encode("utf-8", "backslashreplace").decode())
    return text if len(text) <= TRACEBACK_LIMIT else "…" + text[-TRACEBACK_LIMIT:]
