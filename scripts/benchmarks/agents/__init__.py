"""The figures of agents that the daemon runs: how soon their program starts, what a config and a token cost, how fast a queue drains."""

from collections.abc import Callable

from scripts.benchmarks.agents import credentials, queue, spawning
from scripts.benchmarks.figure import Figure

PARTS: tuple[Callable[[bool], list[Figure]], ...] = (spawning.measure, credentials.measure, queue.measure)


def measure(*, quick: bool) -> list[Figure]:
    """Every figure, one part after the other."""
    return [figure for part in PARTS for figure in part(quick)]
