"""Asks for confirmation before something is deleted. On a terminal a person answers; scripts use --force."""

import sys

from ksi_client.command.fault import FAILED, USAGE, Fault
from ksi_client.terminal import visible


def confirm(question: str, *, force: bool) -> None:
    """Return if confirmed, raise `Fault` if not."""
    if force:
        return
    if not can_ask():
        raise Fault(
            "stdin is not a terminal, so confirmation is not possible and nothing was changed",
            exit_code=USAGE,
            hint="add --force to do it without confirmation",
        )
    sys.stderr.write(f"{visible(question)} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Fault("not confirmed, nothing was changed", exit_code=FAILED)


def can_ask() -> bool:
    """Whether stdin and stderr are a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()
