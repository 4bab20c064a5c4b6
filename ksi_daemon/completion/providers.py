"""The providers there are."""

from collections.abc import Mapping
from types import MappingProxyType

from ksi_daemon.completion.command_provider import CommandProvider
from ksi_daemon.completion.provider import Provider
from ksi_daemon.errors import Invalid

PROVIDERS: Mapping[str, Provider] = MappingProxyType({provider.name: provider for provider in (CommandProvider(),)})


def find_provider(name: str) -> Provider:
    """A provider by its name, or `Invalid` with the names there are."""
    provider = PROVIDERS.get(name)
    if provider is None:
        raise Invalid(f"{name!r} is not a provider", hint="the providers are " + ", ".join(PROVIDERS))
    return provider
