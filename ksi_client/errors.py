"""The errors a call can raise in a client: one class for each error code of the daemon, and two of the client itself.

    KsiError
    ├── Invalid          the parameters are not valid         ├── TimedOut      the deadline passed
    ├── UnknownEvent     no plugin handles this event         ├── Cancelled     the call was cancelled
    ├── NotFound         the requested item does not exist    ├── Unavailable   a dependency is down
    ├── Conflict         it conflicts with what exists        │   ├── CircuitOpen     too many failures, retry later
    ├── Unauthenticated  the caller is unknown                │   └── ConnectionLost  sent, never answered
    ├── Forbidden        the caller lacks the permission      ├── AuditUnavailable  nothing can be audited
    ├── ApprovalRequired a person must approve it first       ├── Internal      a bug in a plugin or the daemon
    ├── TooMany          rate limit                           └── Unreachable   no daemon answers at the socket
    ├── TooLarge, TooDeep

`exit_code` is the exit code of the `ksi` command, unless a verb sets another.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar


class KsiError(Exception):
    """A call failed. `str(error)` is the message; `hint`, if set, says what to do next."""

    code: ClassVar[str] = "internal"
    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        fields: Sequence[Mapping[str, str]] = (),
        call_id: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.fields = tuple(dict(field) for field in fields)
        self.call_id = call_id
        self.retry_after_s = retry_after_s


class Invalid(KsiError):
    """The parameters are not valid for the event; `fields` lists each invalid one."""

    code = "invalid"
    exit_code = 2


class UnknownEvent(KsiError):
    """No plugin handles an event of this name."""

    code = "unknown_event"
    exit_code = 3


class NotFound(KsiError):
    """The event exists, but the requested item does not."""

    code = "not_found"
    exit_code = 3


class Conflict(KsiError):
    """The call conflicts with something that already exists."""

    code = "conflict"
    exit_code = 7


class Unauthenticated(KsiError):
    """The caller is unknown: the token is missing, wrong, expired or revoked."""

    code = "unauthenticated"
    exit_code = 4


class ApprovalRequired(KsiError):
    """The caller may do this, but a person must approve it first."""

    code = "approval_required"
    exit_code = 4


class Forbidden(KsiError):
    """The caller does not hold the permission."""

    code = "forbidden"
    exit_code = 4


class TooMany(KsiError):
    """Too many calls at once or in a row; `retry_after_s` says how long to wait, where known."""

    code = "too_many"


class TooLarge(KsiError):
    """The request or its answer is over a size limit."""

    code = "too_large"
    exit_code = 65


class TooDeep(KsiError):
    """Calls and notices caused each other too many levels deep."""

    code = "too_deep"


class TimedOut(KsiError):
    """No answer before the deadline. The call may or may not have had its effect."""

    code = "timed_out"
    exit_code = 6


class Cancelled(KsiError):
    """The daemon cancelled the call, for example because it is stopping."""

    code = "cancelled"


class Unavailable(KsiError):
    """A dependency of the call is down or missing."""

    code = "unavailable"


class CircuitOpen(Unavailable):
    """The circuit breaker is open after too many failures; retry after `retry_after_s`."""

    code = "circuit_open"


class AuditUnavailable(KsiError):
    """The audit cannot be written, so the daemon refuses calls until it can."""

    code = "audit_unavailable"


class ConnectionLost(Unavailable):
    """The request was sent and the connection ended before the answer: it may have run, so it is not sent again."""

    exit_code = 5


class Internal(KsiError):
    """A bug in the daemon or a plugin; `call_id` finds it in the daemon's log."""

    code = "internal"


class Unreachable(KsiError):
    """No daemon answers at the socket."""

    code = "unreachable"
    exit_code = 5


_BY_CODE: dict[str, type[KsiError]] = {
    kind.code: kind
    for kind in (
        Invalid, UnknownEvent, NotFound, Conflict, Unauthenticated, Forbidden, ApprovalRequired, TooMany,
        TooLarge, TooDeep, TimedOut, Cancelled, Unavailable, CircuitOpen, AuditUnavailable, Internal,
    )
}  # fmt: skip


def from_wire(error: Mapping[str, Any]) -> KsiError:
    """The typed error for an `error` object of the daemon; a code newer than this client becomes a plain KsiError."""
    code = str(error.get("code", "internal"))
    message = str(error.get("message") or code)
    if code not in _BY_CODE:
        message = f"{code}: {message}"
    return _BY_CODE.get(code, KsiError)(
        message,
        hint=error.get("hint"),
        fields=error.get("fields") or (),
        call_id=error.get("call_id"),
        retry_after_s=error.get("retry_after_s"),
    )


def unreachable(socket_path: object, reason: OSError) -> Unreachable:
    """The error for a failed connect: why no daemon answers at the socket, and what to do."""
    match reason:
        case FileNotFoundError():
            why, hint = "the socket does not exist, so no daemon runs on this var folder", "ksi start"
        case ConnectionRefusedError():
            why, hint = "the socket is left over from a daemon that has ended", "ksi start"
        case PermissionError():
            why, hint = "it belongs to another user", "run ksi as the user who started the daemon"
        case _:
            why, hint = reason.strerror or str(reason), "ksi doctor"
    return Unreachable(f"no daemon answers at {socket_path}: {why}", hint=hint)
