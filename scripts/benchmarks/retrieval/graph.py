"""The graph at 10,000 nodes: the first question, which reads the rows, and those after it."""

import asyncio
import random
import tempfile
import time
from pathlib import Path

from ksi_daemon.retrieval.document import EVERY_DOCUMENT, Document, Edge, Node
from ksi_daemon.retrieval.retrieval import RetrievalSettings, open_retrieval
from ksi_daemon.storage.sqlite import open_database
from scripts.benchmarks.figure import Figure, spread

EDGES_PER_NODE = 5
BATCH_DOCUMENTS = 500


def measure(quick: bool) -> list[Figure]:
    """Each question several times over."""
    return asyncio.run(_measure(500 if quick else 10_000, rounds=3 if quick else 11))


async def _measure(nodes: int, rounds: int) -> list[Figure]:
    chance = random.Random(1)  # noqa: S311 - the same graph in every run
    names = [f"n{number}" for number in range(nodes)]
    documents = [
        Document(
            id=name,
            text="",
            nodes=(Node(name),),
            edges=tuple(Edge(name, target, "links") for target in chance.choices(names, k=EDGES_PER_NODE)),
        )
        for name in names
    ]
    with tempfile.TemporaryDirectory() as folder:
        async with (
            open_database(Path(folder) / "graph.db", []) as database,
            open_retrieval(database, RetrievalSettings(embedder=None)) as retrieval,
        ):
            for number in range(0, nodes, BATCH_DOCUMENTS):
                await retrieval.put(documents[number : number + BATCH_DOCUMENTS])
            graph = retrieval.graph
            start = time.perf_counter()
            await graph.node("n0", agent=EVERY_DOCUMENT)
            load_ms = (time.perf_counter() - start) * 1_000
            ranks: list[float] = []
            paths: list[float] = []
            for _ in range(rounds):
                start = time.perf_counter()
                await graph.hubs("pagerank", agent=EVERY_DOCUMENT)
                middle = time.perf_counter()
                source, target = chance.sample(names, 2)
                await graph.shortest_path(source, target, agent=EVERY_DOCUMENT)
                ranks.append((middle - start) * 1_000)
                paths.append((time.perf_counter() - middle) * 1_000)
    shown = f"{nodes:,} nodes, {nodes * EDGES_PER_NODE:,} edges"
    return [
        Figure("graph: first question", load_ms, "ms", detail=shown),
        Figure("graph: PageRank hubs", min(ranks), "ms", detail=spread(ranks, 1)),
        Figure("graph: shortest path", min(paths), "ms", detail=spread(paths, 1)),
    ]
