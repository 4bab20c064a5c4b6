"""The long form of the property tests: `pytest tests/gate --hypothesis-profile=long`. And a clock that only tests move."""

from dataclasses import dataclass

import pytest
from hypothesis import settings

settings.register_profile("long", max_examples=20_000, deadline=None)


@dataclass
class FakeClock:
    """Seconds that pass only when told to."""

    now_s: float = 1_000.0

    def __call__(self) -> float:
        return self.now_s

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()
