"""The errors of calls, and the errors of a start.

    KsiError                      code word         status
    ├── Invalid                   invalid           400   the request is not valid; every invalid field is named
    ├── Unauthenticated           unauthenticated   401   the caller is unknown
    ├── Forbidden                 forbidden         403   the caller may not do this
    │   └── NotVisible            forbidden         403   unknown to the caller: it does not exist, or the caller may not see it
    ├── ApprovalRequired          approval_required 403   the caller may, but a person must approve it first
    ├── UnknownEvent              unknown_event     404   no plugin handles this event
    ├── NotFound                  not_found         404   the event exists, the requested item does not
    ├── Conflict                  conflict          409   it already exists, or the current state forbids it
    ├── TooLarge                  too_large         413   more bytes than the limit
    ├── TooMany                   too_many          429   more calls than the limit; says when to retry
    ├── Cancelled                 cancelled         499   the caller disconnected or the daemon stopped
    ├── Internal                  internal          500   a handler failed; details are in the log, under the call id
    ├── Unavailable               unavailable       503   the daemon is stopping, or a part of it is down
    │   └── CircuitOpen           circuit_open      503   the circuit breaker is open; says when to retry
    ├── AuditUnavailable          audit_unavailable 503   the audit cannot be written, so calls are refused
    ├── TimedOut                  timed_out         504   the deadline passed
    └── TooDeep                   too_deep          508   calls and notices nested past the limit: a loop

    StartError                    exit code
    ├── BadData                   65                a database is corrupt, cut, empty or newer than this program
    ├── CannotRun                 71                the system refused files, disk space or descriptors
    ├── AlreadyRunning            75                another daemon holds this var/
    └── BadSettings               78                the settings, or the mode of var/, must be fixed first

A message says what happened and why; the hint says what to do next. Neither may hold a secret.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

MESSAGE_LIMIT = 2_000
FIELDS_LIMIT = 50


def bounded(message: object) -> str:
    """A message of limited length; a cut is marked. Characters that cannot be encoded are escaped."""
    text = str(message).encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= MESSAGE_LIMIT else f"{text[:MESSAGE_LIMIT]}… (cut from {len(text):,} characters)"


def _text(message: object) -> str:
    """Plugins raise these errors too, with any object as the message."""
    if isinstance(message, str):
        return message
    try:
        return str(message)
    except Exception:  # noqa: BLE001 - even its __str__ may fail
        return f"a {type(message).__name__} that cannot be shown"


class KsiError(Exception):
    """A failed call. Handlers raise its subclasses; the router turns anything else into `Internal`."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    by_handler: bool = False  # whether the call reached its handler; otherwise the daemon refused it before

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = _text(message)
        self.hint = None if hint is None else _text(hint)

    def facts(self) -> dict[str, Any]:
        """The fields of this error besides code, message and hint."""
        return {}

    def as_dict(self) -> dict[str, Any]:
        """The form that every transport sends: code, message, and hint and further fields if set."""
        body: dict[str, Any] = {"code": self.code, "message": bounded(self.message)}
        if self.hint:
            body["hint"] = bounded(self.hint)
        return body | self.facts()


class Invalid(KsiError):
    """The request is not valid; `fields` names every invalid field at once."""

    code = "invalid"
    status = 400

    def __init__(self, message: str, *, hint: str | None = None, fields: Sequence[Mapping[str, str]] = ()) -> None:
        super().__init__(message, hint=hint)
        self.fields = [{name: bounded(text) for name, text in field.items()} for field in fields[:FIELDS_LIMIT]]

    def facts(self) -> dict[str, Any]:
        return {"fields": self.fields} if self.fields else {}


class Unauthenticated(KsiError):
    """The caller is unknown: no valid credential was sent."""

    code = "unauthenticated"
    status = 401


class ApprovalRequired(KsiError):
    """The caller may do this, but a person must approve it first."""

    code = "approval_required"
    status = 403


class Forbidden(KsiError):
    """The caller may not do this."""

    code = "forbidden"
    status = 403


class NotVisible(Forbidden):
    """What does not exist and what the caller may not see, in the same words."""


class UnknownEvent(KsiError):
    """No plugin handles this event."""

    code = "unknown_event"
    status = 404


class NotFound(KsiError):
    """The event exists, the requested item does not."""

    code = "not_found"
    status = 404


class Conflict(KsiError):
    """It already exists, or the current state forbids it."""

    code = "conflict"
    status = 409


class TooLarge(KsiError):
    """More bytes than the limit."""

    code = "too_large"
    status = 413


class TooMany(KsiError):
    """More calls than the limit; retry after `retry_after_s`."""

    code = "too_many"
    status = 429

    def __init__(self, message: str, *, retry_after_s: float, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s

    def facts(self) -> dict[str, Any]:
        return {"retry_after_s": self.retry_after_s}


class Cancelled(KsiError):
    """The caller disconnected or the daemon stopped before the call was answered."""

    code = "cancelled"
    status = 499


class Internal(KsiError):
    """A handler failed; the log has the details under `call_id`."""

    code = "internal"
    status = 500

    def __init__(self, message: str, *, hint: str | None = None, call_id: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.call_id = call_id

    def facts(self) -> dict[str, Any]:
        return {"call_id": self.call_id} if self.call_id else {}


class Unavailable(KsiError):
    """The daemon is stopping, or a part of it is down."""

    code = "unavailable"
    status = 503


class CircuitOpen(Unavailable):
    """The circuit breaker is open after too many failures; retry after `retry_after_s`."""

    code = "circuit_open"

    def __init__(self, message: str, *, retry_after_s: float, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s

    def facts(self) -> dict[str, Any]:
        return {"retry_after_s": self.retry_after_s}


class AuditUnavailable(KsiError):
    """The audit cannot be written, so calls are refused until it can."""

    code = "audit_unavailable"
    status = 503


class TimedOut(KsiError):
    """The deadline passed; whatever the handler had begun was cancelled."""

    code = "timed_out"
    status = 504


class TooDeep(KsiError):
    """Calls and notices nested past the limit: almost always a loop."""

    code = "too_deep"
    status = 508


class StartError(Exception):
    """The daemon cannot start; the message says what to do, the exit code is for scripts."""

    exit_code: ClassVar[int] = 1


class BadData(StartError):
    """A database is corrupt, cut, unexpectedly empty, or newer than this program."""

    exit_code = 65


class CannotRun(StartError):
    """The operating system refused what the daemon needs: files, disk space, descriptors."""

    exit_code = 71


class AlreadyRunning(StartError):
    """Another daemon holds this var/."""

    exit_code = 75


class BadSettings(StartError):
    """The settings, or the mode of var/, must be fixed first."""

    exit_code = 78
