"""Prints newly created tokens. The daemon keeps only its digest, so it cannot be shown again."""

import sys
from collections.abc import Mapping
from typing import Any

from ksi_client.command.screen import Screen


def show_secret(screen: Screen, answer: Mapping[str, Any]) -> None:
    """Print the answer and a note that its token cannot be shown again."""
    if screen.json:
        screen.document(dict(answer))
        return
    facts = {name: value for name, value in answer.items() if value is not None}
    if "expires_at" in facts:
        facts["expires_at"] = screen.moment(facts["expires_at"])
    screen.facts(facts)
    screen.note("the token is shown only once: store it now")


def show_outside_token(answer: Mapping[str, Any]) -> None:
    """Print the token that is not in the config to stderr, also with --quiet: stdout holds the config."""
    if answer.get("token_input") is not None:
        print(f"token: {answer['token']}", file=sys.stderr)
        print("  the client asks for it when it first starts the server; it is shown only once", file=sys.stderr)
        return
    print(f"export {answer['token_variable']}={answer['token']}", file=sys.stderr)
    print("  the client needs this variable; the token is shown only once: store it now", file=sys.stderr)
