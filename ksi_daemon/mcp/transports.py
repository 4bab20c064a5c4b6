"""What the endpoint hands requests to once the SDK is imported."""

from collections.abc import Callable

import msgspec
from starlette.types import ASGIApp


class Transports(msgspec.Struct, frozen=True):
    """Both serve the same tools; `sessions` also serves the stateless revision of 2026, by its version header."""

    sessions: ASGIApp
    stateless: ASGIApp
    decoded_header: Callable[[str | None], str | None]  # the SDK's reading of a routing header
