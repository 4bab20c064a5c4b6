"""Shell completion of names that the daemon knows. If the daemon is down or slow, nothing is completed and no error is shown."""

import os
from collections.abc import MutableMapping
from typing import Any

from ksi_client.errors import KsiError
from ksi_client.sync_client import SyncClient

_TIMEOUT_S = 0.5
_COLON_PREFIX = "_KSI_COMPLETE_AFTER"


def complete_events(incomplete: str) -> list[str]:
    """The events that start with the typed text."""
    return _for_shell(sorted(_ask("system:discover").get("events", {})), incomplete)


def complete_plugins(incomplete: str) -> list[str]:
    """The plugins that start with the typed text."""
    return _for_shell([plugin["name"] for plugin in _ask("plugin:list").get("plugins", ())], incomplete)


def complete_agents(incomplete: str) -> list[str]:
    """The agents that start with the typed text."""
    return _for_shell([agent["agent_id"] for agent in _ask("agent:list").get("agents", ())], incomplete)


def complete_profiles(incomplete: str) -> list[str]:
    """The profiles that start with the typed text."""
    return _for_shell([profile["name"] for profile in _ask("permission:list_profiles").get("profiles", ())], incomplete)


def complete_clients(incomplete: str) -> list[str]:
    """The MCP clients that start with the typed text."""
    from ksi_client.command.client_config import CLIENTS

    return _for_shell(list(CLIENTS), incomplete)


def complete_tools(incomplete: str) -> list[str]:
    """The tools that start with the typed text."""
    found = _ask("system:discover", {"detail": True, "format_style": "mcp"}).get("events", {})
    return _for_shell(sorted(event["name"] for event in found.values() if event.get("name")), incomplete)


def join_bash_words(environment: MutableMapping[str, str]) -> None:
    """Undo bash's splitting of words at colons, before typer counts the words.

    bash hands `system:ec` over as `system`, `:` and `ec`, and replaces only `ec`. So `system:` is stored, to be
    matched in names and removed from the completions.
    """
    if environment.get("_KSI_COMPLETE") != "complete_bash":
        return
    cut = environment.get("COMP_WORDS", "").split("\n")[: int(environment.get("COMP_CWORD", "0")) + 1]
    words: list[str] = []
    for word in cut:
        if words and (word == ":" or words[-1].endswith(":")):
            words[-1] += word
        else:
            words.append(word)
    if len(words) < len(cut):
        head, colon, words[-1] = words[-1].rpartition(":")
        environment[_COLON_PREFIX] = head + colon
        environment["COMP_WORDS"] = "\n".join(words)
        environment["COMP_CWORD"] = str(len(words) - 1)


def _for_shell(names: list[str], incomplete: str) -> list[str]:
    aside = os.environ.get(_COLON_PREFIX, "")
    return [name.removeprefix(aside) for name in names if name.startswith(aside + incomplete)]


def _ask(event: str, data: dict[str, Any] | None = None) -> dict[str, Any]:
    try:
        with SyncClient(timeout_s=_TIMEOUT_S) as client:
            answer = client.send(event, data)
    except (KsiError, OSError):
        return {}
    return answer if isinstance(answer, dict) else {}
