"""Asks for confirmation before something is deleted. On a terminal a person answers; scripts use an option."""

import sys

from ksi_client.command.fault import FAILED, USAGE, Fault
from ksi_client.terminal import visible


def confirm(question: str, *, force: bool, option: str = "--force") -> None:
    """Return if confirmed, by a person or by `option`, raise `Fault` if not."""
    if force:
        return
    if not can_ask():
        raise Fault(
            "stdin is not a terminal, so confirmation is not possible and nothing was changed",
            exit_code=USAGE,
            hint=f"add {option} to do it without confirmation",
        )
    if not is_answered_yes(question):
        raise Fault("not confirmed, nothing was changed", exit_code=FAILED)


def is_answered_yes(question: str) -> bool:
    """Ask on the terminal; anything but a yes is a no."""
    sys.stderr.write(f"{visible(question)} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def can_ask() -> bool:
    """Whether stdin and stderr are a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()
