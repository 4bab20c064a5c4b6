"""What the endpoint hands requests to once the SDK is imported."""

from collections.abc import Callable

import msgspec
from starlette.types import ASGIApp


class Transports(msgspec.Struct, frozen=True):
    """All serve the same tools. `sessions` is behind the sessions of ours; it serves what names none of them, and the revision of 2026."""

    sessions: ASGIApp
    stateless: ASGIApp
    decoded_header: Callable[[str | None], str | None]  # the SDK's reading of a routing header
