"""The figures of the search engine: indexing, searching, symbols, the graph, and how soon a watcher delivers."""

from scripts.benchmarks.figure import Figure
from scripts.benchmarks.retrieval import graph, searching, symbols, watching


def measure(*, quick: bool, chunks: int | None = None) -> list[Figure]:
    """Every figure, one part after the other."""
    return [
        *symbols.measure(quick),
        *graph.measure(quick),
        *watching.measure(quick),
        *searching.measure(chunks or (300 if quick else 5_000), queries=20 if quick else 100),
    ]
