"""Asks before something is gone for good: a person on a terminal, by word; a script, by --force."""

import sys

from ksi_client.command.fault import FAILED, USAGE, Fault
from ksi_client.terminal import visible


def confirm(question: str, *, force: bool) -> None:
    """Return when it may be done, raise when not."""
    if force:
        return
    if not asks():
        raise Fault("nobody is here to ask, so nothing was done", exit_code=USAGE, hint="say --force to do it anyway")
    sys.stderr.write(f"{visible(question)} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Fault("nothing was done", exit_code=FAILED)


def asks() -> bool:
    """Whether a person can see the question and answer it."""
    return sys.stdin.isatty() and sys.stderr.isatty()
