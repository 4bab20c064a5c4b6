"""The figures of rights and record: what the audit costs a busy socket, how fast it verifies, what a permission check costs."""

from collections.abc import Callable

from scripts.benchmarks.figure import Figure
from scripts.benchmarks.rights import audit_cost, audit_verify, permit

PARTS: tuple[Callable[[bool], list[Figure]], ...] = (audit_cost.measure, audit_verify.measure, permit.measure)


def measure(*, quick: bool) -> list[Figure]:
    """Every figure, one part after the other."""
    return [figure for part in PARTS for figure in part(quick)]
