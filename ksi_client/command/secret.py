"""Shows a secret that the daemon has just made. It keeps only a digest, so this is the one time."""

from collections.abc import Mapping
from typing import Any

from ksi_client.command.screen import Screen


def show_secret(screen: Screen, made: Mapping[str, Any]) -> None:
    """Print what was made, and say that its token cannot be shown again."""
    if screen.json:
        screen.document(dict(made))
        return
    facts = {name: value for name, value in made.items() if value is not None}
    if "expires_at" in facts:
        facts["expires_at"] = screen.moment(facts["expires_at"])
    screen.facts(facts)
    screen.note("the token is shown this once: keep it now")
