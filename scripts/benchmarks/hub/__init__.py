"""The daemon's figures: a call, the socket, notices, and what the processes cost. One module measures each."""

from collections.abc import Callable

from scripts.benchmarks.figure import Figure
from scripts.benchmarks.hub import notices, processes, router_call, socket_rate

PARTS: tuple[Callable[[bool], list[Figure]], ...] = (
    router_call.measure,
    socket_rate.measure,
    notices.measure,
    processes.measure,
)


def measure(*, quick: bool) -> list[Figure]:
    """Every figure, one part after the other."""
    return [figure for part in PARTS for figure in part(quick)]
