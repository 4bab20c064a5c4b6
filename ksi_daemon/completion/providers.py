"""The providers by name, and which of their programs are installed."""

import difflib
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from ksi_daemon.completion.claude_cli_litellm_provider import ClaudeProvider
from ksi_daemon.completion.codex_cli_provider import CodexProvider
from ksi_daemon.completion.command_provider import CommandProvider
from ksi_daemon.completion.provider import Provider
from ksi_daemon.errors import Invalid, Unavailable

_ALL: tuple[Provider, ...] = (CommandProvider(), ClaudeProvider(), CodexProvider())
PROVIDERS: Mapping[str, Provider] = MappingProxyType({provider.name: provider for provider in _ALL})


class Installed(msgspec.Struct, frozen=True, kw_only=True):
    """A provider's program: where it is, or how to install it. `command` has none of its own."""

    name: str
    program: str | None = None
    hint: str | None = None


def find_provider(name: str) -> Provider:
    """A provider by its name. Raises `Invalid` with the nearest one."""
    provider = PROVIDERS.get(name)
    if provider is None:
        close = difflib.get_close_matches(name[:50], list(PROVIDERS), n=1)
        nearest = f"; did you mean {close[0]!r}?" if close else ""
        raise Invalid(
            f"{ascii(name)[:50]} is not a provider{nearest}", hint=f"the providers are {', '.join(PROVIDERS)}"
        )
    return provider


def installed() -> list[Installed]:
    """Which programs are found, by the PATH of this process."""
    found: list[Installed] = []
    for name, provider in PROVIDERS.items():
        if name == CommandProvider.name:
            found.append(Installed(name=name, hint="runs any program: the agent's option `command` names it"))
            continue
        try:
            found.append(Installed(name=name, program=provider.program({})))
        except Unavailable as error:
            found.append(Installed(name=name, hint=error.hint))
    return found
