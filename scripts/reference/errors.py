"""docs/reference/errors.md: the errors of calls and starts, and the exit codes of the command."""

from typing import TypeVar

import ksi_client.errors as client
from ksi_client.command import fault
from ksi_daemon import errors
from scripts.reference.markdown import HEAD, code, table

INTRO = """# Errors

A failed call has a code word, a message that says what happened and why, and often a hint that says what to do next.
Programs match the code word, never the message.

"""

EXTRA = {
    "invalid": "`fields`: every invalid field with its problem",
    "too_many": "`retry_after_s`: seconds to wait",
    "circuit_open": "`retry_after_s`: seconds to wait",
    "internal": "`call_id`: find it in `var/log/ksi.jsonl`",
}


def page() -> str:
    """The whole page."""
    return HEAD + INTRO + _calls() + _starts() + _exits()


def _calls() -> str:
    declaring = [kind for kind in _subclasses(errors.KsiError) if "code" in vars(kind)]
    kinds = sorted(declaring, key=lambda kind: (kind.status, kind.code))
    ours = [kind for kind in _subclasses(client.KsiError) if kind.__module__ == client.__name__]
    exits = {kind.code: kind.exit_code for kind in ours}
    rows = [
        (code(kind.code), str(kind.status), _first_line(kind), EXTRA.get(kind.code, ""), str(exits[kind.code]))
        for kind in kinds
    ]
    own = [
        (code(kind.__name__), code(kind.code), _first_line(kind), str(kind.exit_code))
        for kind in (client.Unreachable, client.ConnectionLost)
    ]
    return (
        "## Calls\n\nThe status is the HTTP status that HTTP gives for it. The exit code is that of `ksi send`.\n\n"
        + table(("code", "status", "meaning", "more fields", "`ksi` exits with"), rows)
        + "\nThe client has two more of its own, for when there was no answer:\n\n"
        + table(("error of `ksi_client`", "code", "meaning", "`ksi` exits with"), own)
        + "\n"
    )


Error = TypeVar("Error")


def _subclasses(kind: type[Error]) -> list[type[Error]]:
    """All of them, those of subclasses too."""
    return [found for each in kind.__subclasses__() for found in (each, *_subclasses(each))]


def _starts() -> str:
    kinds = sorted(errors.StartError.__subclasses__(), key=lambda kind: kind.exit_code)
    rows = [
        ("0", "It was asked to stop."),
        (str(errors.StartError.exit_code), "Anything else, such as a port that is in use."),
        *((str(kind.exit_code), _first_line(kind)) for kind in kinds),
    ]
    return (
        "## Exit codes of the daemon\n\nOf `python -m ksi_daemon`, `ksi start --foreground` and `scripts/run`.\n\n"
        + table(("exit", "meaning"), rows)
        + "\n"
    )


def _exits() -> str:
    codes: dict[int, set[str]] = {}
    kinds: list[type[client.KsiError]] = [*client.KsiError.__subclasses__(), client.ConnectionLost]
    for kind in kinds:
        codes.setdefault(kind.exit_code, set()).add(kind.code)
    for name, number in vars(fault).items():
        if name.isupper() and isinstance(number, int):
            codes.setdefault(number, set())
    names = {number: name.lower().replace("_", " ") for name, number in vars(fault).items() if name.isupper()}
    rows = [("0", "ok", "")] + [
        (str(number), names.get(number, "denied"), ", ".join(code(word) for word in sorted(words)))
        for number, words in sorted(codes.items())
    ]
    return "## Exit codes of the `ksi` command\n\nErrors that have no exit code of their own end with 1.\n\n" + table(
        ("exit", "meaning", "error codes"), rows
    )


def _first_line(kind: type) -> str:
    return (kind.__doc__ or "").strip().splitlines()[0]
