"""nDCG and recall at 10, and a paired bootstrap interval of the mean difference between two methods."""

import math
from collections.abc import Sequence

import numpy as np

AT = 10
RESAMPLES = 5_000


def ndcg(found: Sequence[str], answers: frozenset[str]) -> float:
    """Gain 1 for each answer, discounted by its rank, over the best that was possible."""
    gain = sum(1 / math.log2(rank + 2) for rank, name in enumerate(found[:AT]) if name in answers)
    return gain / sum(1 / math.log2(rank + 2) for rank in range(min(AT, len(answers))))


def recall(found: Sequence[str], answers: frozenset[str]) -> float:
    """How many of the answers are among the first ten."""
    return len(answers & set(found[:AT])) / len(answers)


MEASURES = {"ndcg": ndcg, "recall": recall}


def interval(one: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """Mean of the differences question by question, with its 95% interval."""
    differences = np.asarray(one) - np.asarray(other)
    chance = np.random.default_rng(7)
    means = differences[chance.integers(0, len(differences), (RESAMPLES, len(differences)))].mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(differences.mean()), float(low), float(high)
