"""The long form of the property tests: `pytest tests/gate --hypothesis-profile=long`. And a clock that only tests move."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings

from ksi_daemon.access import Need
from ksi_daemon.handler import Handler, Traits

settings.register_profile("long", max_examples=20_000, deadline=None)


@dataclass
class FakeClock:
    """Seconds that pass only when a test says so."""

    now_s: float = 1_000.0

    def __call__(self) -> float:
        return self.now_s

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


async def _invoke(context: Any, params: Any) -> None:
    """Handlers that are judged are not called."""


def handler(
    event: str, *, needs: Sequence[tuple[str, Need]] = (), reads: bool = False, operator_only: bool = False
) -> Handler:
    """A handler to be judged."""
    traits = Traits(reads=reads, needs=tuple(needs), operator_only=operator_only)
    return Handler(
        event,
        event.split(":", maxsplit=1)[0],
        "",
        "",
        {},
        {},
        parse=lambda raw: raw,
        invoke=_invoke,
        encode=bytes,
        traits=traits,
    )
