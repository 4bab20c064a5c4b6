"""From a secret to its principal: an ordered list of resolvers, each for the secrets that begin with its prefix."""

from collections.abc import Callable

from ksi_daemon.errors import Unauthenticated
from ksi_daemon.gate.credentials import Credentials
from ksi_daemon.gate.tokens import PREFIX
from ksi_daemon.principal import Principal

Resolve = Callable[[str], Principal]  # raises `Unauthenticated`


class Resolvers:
    """Who a bearer token over HTTP belongs to. Agents' own tokens come first."""

    def __init__(self, credentials: Credentials) -> None:
        self._resolvers: list[tuple[str, Resolve]] = [
            (PREFIX["token"], lambda secret: credentials.principal(secret, transport="http"))
        ]

    def add(self, prefix: str, resolve: Resolve) -> None:
        """Ask `resolve` about secrets with this prefix, after those that are known already."""
        self._resolvers.append((prefix, resolve))

    def principal(self, secret: str) -> Principal:
        """Who a secret belongs to. Raises `Unauthenticated`, in the same words for every reason."""
        for prefix, resolve in self._resolvers:
            if secret.startswith(prefix):
                return resolve(secret)
        raise Unauthenticated(
            "this token is not valid here", hint="ask the operator for a new one: ksi tokens create AGENT"
        )
