"""HTTP is tested on the event loop that the daemon runs."""

import asyncio
from collections.abc import Callable

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """uvloop instead of the standard loop."""
    return {"uvloop": uvloop.new_event_loop}
