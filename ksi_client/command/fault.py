"""A failure of a verb itself: a message, a hint, and the exit code."""

OK = 0
FAILED = 1
USAGE = 2
NOT_FOUND = 3
DENIED = 4
UNREACHABLE = 5
TIMED_OUT = 6
CONFLICT = 7
BAD_DATA = 65
ALREADY_RUNNING = 75
BAD_CONFIG = 78
INTERRUPTED = 130


class Fault(Exception):
    """Ends the command with one message on stderr."""

    def __init__(self, message: str, *, exit_code: int = FAILED, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
        self.hint = hint
