"""Names for shell completion, asked of the daemon. A daemon that is down or slow completes nothing, silently."""

import os
import re
from collections.abc import MutableMapping
from typing import Any

from ksi_client.errors import KsiError
from ksi_client.sync_client import SyncClient

_PATIENCE_S = 0.5


def complete_events(incomplete: str) -> list[str]:
    """The events that begin so."""
    return _for_shell(sorted(_ask("system:discover").get("events", {})), incomplete)


def complete_plugins(incomplete: str) -> list[str]:
    """The plugins that begin so."""
    return _for_shell([plugin["name"] for plugin in _ask("plugin:list").get("plugins", ())], incomplete)


def join_bash_words(environment: MutableMapping[str, str]) -> None:
    """Undo bash's cutting of words at colons, so that `system:ec` is one word again.

    bash hands `system`, `:` and `ec` over as three words, joined here before typer counts them.
    """
    if environment.get("_KSI_COMPLETE") != "complete_bash" or "COMP_WORDS" not in environment:
        return
    words = environment["COMP_WORDS"].splitlines() if "\n" in environment["COMP_WORDS"] else None
    text = environment["COMP_WORDS"] if words is None else " ".join(words)
    cuts = len(re.findall(r" : ?", text))
    joined = re.sub(r" : ?", ":", text)
    if cuts:
        environment["COMP_WORDS"] = joined
        environment["COMP_CWORD"] = str(len(joined.split(" ")) - 1)


def _for_shell(names: list[str], incomplete: str) -> list[str]:
    """What to offer. bash replaces only what follows the last colon, so it gets only that."""
    matching = [name for name in names if name.startswith(incomplete)]
    if os.environ.get("_KSI_COMPLETE") == "complete_bash" and ":" in incomplete:
        return [name.rpartition(":")[2] for name in matching]
    return matching


def _ask(event: str) -> dict[str, Any]:
    try:
        with SyncClient(timeout_s=_PATIENCE_S) as client:
            answer = client.send(event)
    except (KsiError, OSError):
        return {}
    return answer if isinstance(answer, dict) else {}
