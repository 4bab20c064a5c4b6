"""What the in-process tests share: bounded waiting, a clock that is moved by hand, and the smallest params and results."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ksi_daemon.logs.journal import Journal
from ksi_daemon.logs.log import Log
from ksi_daemon.plugin import Field, Params, Result
from ksi_daemon.principal import Principal
from ksi_daemon.routing.bus import Bus
from ksi_daemon.routing.deadlines import Deadlines
from ksi_daemon.routing.route import Limits
from ksi_daemon.routing.router import Router
from ksi_daemon.testing import TestHub

WAIT_S = 5.0
OPERATOR = Principal(kind="operator", name="test")

Answer = TypeVar("Answer")


class Text(Params):
    """Params of handlers whose params do not matter."""

    text: str = Field("", description="Any text.")


class Said(Result):
    """Results of handlers whose results hardly matter."""

    text: str = ""


class Clock:
    """Time that passes only when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


async def soon(awaitable: Awaitable[Answer]) -> Answer:
    """Wait, but not for ever."""
    return await asyncio.wait_for(awaitable, WAIT_S)


async def until(condition: Callable[[], object]) -> None:
    """Let others run until the condition holds."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event to wait on
            await asyncio.sleep(0)


async def call(router: Router, event: str, data: Any = None, **options: Any) -> Any:
    """`router.call` as the operator, decoded: for options that `TestHub.call` has no place for."""
    answer = await router.call(event, {} if data is None else data, **{"principal": OPERATOR, **options})
    return msgspec.json.decode(answer)


def take_clock(hub: TestHub) -> Clock:
    """From now on the hub's deadlines pass only by `expire`."""
    clock = Clock()
    hub.hub.router.deadlines.clock = clock
    return clock


def log_lines(path: Path) -> list[dict[str, Any]]:
    """Everything that was logged so far, without a line that is being written just now."""
    whole, _, _ = path.read_bytes().rpartition(b"\n") if path.exists() else (b"", b"", b"")
    return [msgspec.json.decode(line) for line in whole.splitlines()]


def bare_router(log: Log, **limits: Any) -> Router:
    """A router on its own, without store and core events."""
    return Router(
        bus=Bus(10), journal=Journal(100), limits=Limits(**limits), deadlines=Deadlines(), origin="here", log=log.logger
    )
