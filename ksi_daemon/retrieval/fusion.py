"""One ranking out of two: each side scaled to 0..1 over its own candidates, then weighted by the kind of source."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CANDIDATES = 100  # of each side
# By kind of source, chosen on development data (docs/retrieval.md). Instant vectors are weaker, so words count for more.
VECTOR_WEIGHTS: Mapping[str, float] = {"prose": 0.4, "code": 0.9}
INSTANT_WEIGHTS: Mapping[str, float] = {"prose": 0.3, "code": 0.4}


@dataclass(frozen=True, slots=True)
class Scale:
    """From the lowest and the highest of the candidates to 0..1; what lies outside is clamped."""

    lowest: float
    highest: float

    def __call__(self, value: float) -> float:
        if self.highest <= self.lowest:
            return 1.0 if value >= self.highest else 0.0
        return min(1.0, max(0.0, (value - self.lowest) / (self.highest - self.lowest)))


def scale_of(candidates: Sequence[tuple[int, float]]) -> Scale:
    """The scale of one side's candidates."""
    values = [value for _, value in candidates]
    return Scale(min(values, default=0.0), max(values, default=0.0))


def fused(lexical: float, vector: float, *, vector_weight: float) -> float:
    """The value that orders the hits."""
    return vector_weight * vector + (1 - vector_weight) * lexical
