"""Talk to a KSI daemon from Python: `Client` (async) and `SyncClient` (blocking), with typed errors.

Names are loaded on first use, so that `from ksi_client import SyncClient` never pays for asyncio.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ksi_client import errors as errors
    from ksi_client.client import Client as Client
    from ksi_client.errors import KsiError as KsiError
    from ksi_client.errors import Unreachable as Unreachable
    from ksi_client.notice import Notice as Notice
    from ksi_client.notice_stream import NoticeStream as NoticeStream
    from ksi_client.sync_client import SyncClient as SyncClient

_MODULES = {
    "Client": "ksi_client.client",
    "NoticeStream": "ksi_client.notice_stream",
    "SyncClient": "ksi_client.sync_client",
    "Notice": "ksi_client.notice",
    "KsiError": "ksi_client.errors",
    "Unreachable": "ksi_client.errors",
}

__all__ = ["Client", "KsiError", "Notice", "NoticeStream", "SyncClient", "Unreachable", "errors"]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("ksi_client.errors")
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'ksi_client' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
