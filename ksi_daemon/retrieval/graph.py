"""The graph that documents state: nodes, typed directed edges, and questions about them.

The rows are written with their documents by `text_index.py`; this module only reads. It keeps them in memory, by the version that
the database counts up with every change, and a few views of them: one for each set of documents that a caller may see.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from ksi_daemon.errors import Invalid
from ksi_daemon.retrieval.document import Edge, Filter
from ksi_daemon.retrieval.scope import Scope, scope_of
from ksi_daemon.storage.sqlite import Database, Row

if TYPE_CHECKING:
    import rustworkx

VIEWS_LIMIT = 4
PAGERANK_DAMPING = 0.85
PAGERANK_TOLERANCE = 1e-9
SCORE_DIGITS = 12  # scores that differ less are equal, and the id decides
NO_FILTER = Filter()

Direction = Literal["out", "in", "both"]
HubMeasure = Literal["pagerank", "degree", "in", "out"]
Allowed = Callable[[Scope], Awaitable[list[int] | None]]
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A node. One that edges lead to but no visible document states does not exist, and has only its id."""

    id: str
    kind: str = ""
    title: str = ""
    exists: bool = False


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A node near another one. `edges` are those between it and the nodes that are one step nearer."""

    node: GraphNode
    distance: int
    edges: tuple[Edge, ...]


@dataclass(frozen=True, slots=True)
class Hub:
    """A node and how central it is: its PageRank, or a number of edges."""

    node: GraphNode
    score: float


@dataclass(frozen=True, slots=True)
class _Stored:
    """All rows of one version."""

    version: int
    nodes: Sequence[Row]
    edges: Sequence[Row]


class _View:
    """The part of the graph that some documents state, with some types of edges. Nodes are numbered in the order of their ids."""

    def __init__(self, stored: _Stored, documents: frozenset[int] | None, types: frozenset[str] | None) -> None:
        import rustworkx

        stated = [row for row in stored.nodes if documents is None or row["document"] in documents]
        self.stated = {
            row["id"]: GraphNode(row["id"], row["kind"], row["title"], exists=True) for row in reversed(stated)
        }
        edges = sorted(
            {
                (row["source"], row["type"], row["target"])
                for row in stored.edges
                if (documents is None or row["document"] in documents) and (types is None or row["type"] in types)
            }
        )
        self.ids = sorted(self.stated.keys() | {edge[0] for edge in edges} | {edge[2] for edge in edges})
        self.numbers = {node_id: number for number, node_id in enumerate(self.ids)}
        self.graph: rustworkx.PyDiGraph[str, str] = rustworkx.PyDiGraph()
        self.graph.add_nodes_from(self.ids)
        self.graph.add_edges_from(
            [(self.numbers[source], self.numbers[target], type) for source, type, target in edges]
        )

    def node(self, node_id: str) -> GraphNode:
        return self.stated.get(node_id) or GraphNode(node_id)

    def steps(self, number: int, direction: Direction) -> list[tuple[int, tuple[int, int, str]]]:
        """The nodes one step away, each with the edge that leads there, in the order of their ids."""
        steps: list[tuple[int, tuple[int, int, str]]] = []
        if direction != "in":
            steps += [(edge[1], edge) for edge in self.graph.out_edges(number)]
        if direction != "out":
            steps += [(edge[0], edge) for edge in self.graph.in_edges(number)]
        return sorted(steps)

    def path(self, source: str, target: str, *, direction: Direction, limit: int | None) -> tuple[str, ...] | None:
        """Layer by layer in the order of ids: the first of all shortest paths."""
        if source not in self.numbers or target not in self.numbers:
            return None
        start, goal = self.numbers[source], self.numbers[target]
        came_from: dict[int, int] = {start: start}
        layer, length = [start], 0
        while layer and goal not in came_from and (limit is None or length < limit):
            length += 1
            following: list[int] = []
            for number in layer:
                for reached, _ in self.steps(number, direction):
                    if reached not in came_from:
                        came_from[reached] = number
                        following.append(reached)
            layer = following
        if goal not in came_from:
            return None
        way = [goal]
        while way[-1] != start:
            way.append(came_from[way[-1]])
        return tuple(self.ids[number] for number in reversed(way))

    def neighbours(self, node_id: str, *, direction: Direction, depth: int) -> list[Neighbour]:
        if node_id not in self.numbers:
            return []
        start = self.numbers[node_id]
        done, layer = {start}, [start]
        found: list[Neighbour] = []
        for distance in range(1, depth + 1):
            reached: dict[int, set[tuple[int, int, str]]] = {}
            for number in layer:
                for following, edge in self.steps(number, direction):
                    if following not in done:
                        reached.setdefault(following, set()).add(edge)
            layer = sorted(reached)
            done.update(layer)
            found += [
                Neighbour(
                    self.node(self.ids[number]), distance, tuple(self.edge(*edge) for edge in sorted(reached[number]))
                )
                for number in layer
            ]
        return found

    def edge(self, source: int, target: int, type: str) -> Edge:
        return Edge(self.ids[source], self.ids[target], type)

    def hubs(self, measure: HubMeasure, *, limit: int, kinds: frozenset[str] | None, missing: bool) -> list[Hub]:
        wanted = [
            number
            for number, node_id in enumerate(self.ids)
            if (missing or node_id in self.stated) and (kinds is None or self.node(node_id).kind in kinds)
        ]
        scores = self._scores(measure)
        best = sorted(wanted, key=lambda number: (-round(scores[number], SCORE_DIGITS), self.ids[number]))[:limit]
        return [Hub(self.node(self.ids[number]), scores[number]) for number in best]

    def _scores(self, measure: HubMeasure) -> Mapping[int, float]:
        import rustworkx

        if not self.ids:
            return {}
        if measure == "pagerank":
            return rustworkx.pagerank(self.graph, alpha=PAGERANK_DAMPING, tol=PAGERANK_TOLERANCE, max_iter=1_000)
        degrees: dict[int, float] = {}
        for number in range(len(self.ids)):
            coming = 0 if measure == "out" else self.graph.in_degree(number)
            going = 0 if measure == "in" else self.graph.out_degree(number)
            degrees[number] = float(coming + going)
        return degrees

    def components(self) -> list[tuple[str, ...]]:
        import rustworkx

        parts = [
            tuple(self.ids[number] for number in sorted(part))
            for part in rustworkx.weakly_connected_components(self.graph)
        ]
        return sorted(parts, key=lambda part: (-len(part), part[0]))

    def dangling(self) -> list[Edge]:
        edges = [
            Edge(self.ids[source], self.ids[target], type) for source, target, type in self.graph.weighted_edge_list()
        ]
        lost = [edge for edge in edges if edge.source not in self.stated or edge.target not in self.stated]
        return sorted(lost, key=lambda edge: (edge.source, edge.type, edge.target))


class Graph:
    """Questions about the graph of one database.

    Every question is asked for an agent and a filter, as a search is, and sees what the documents inside state. `types` keeps
    those edges only. Answers come in an order that depends on nothing but the graph.
    """

    def __init__(self, database: Database, allowed_documents: Allowed) -> None:
        self._database = database
        self._allowed_documents = allowed_documents
        self._stored: _Stored | None = None
        self._views: dict[tuple[bytes | None, frozenset[str] | None], _View] = {}
        self._loading = asyncio.Lock()

    async def node(self, node_id: str, *, agent: str | None, filter: Filter = NO_FILTER) -> GraphNode | None:
        """A node that exists or that an edge leads to; None for any other id."""
        view = await self._view(agent, filter, None)
        return view.node(node_id) if node_id in view.numbers else None

    async def shortest_path(
        self,
        source: str,
        target: str,
        *,
        agent: str | None,
        filter: Filter = NO_FILTER,
        types: frozenset[str] | None = None,
        direction: Direction = "out",
        limit: int | None = None,
    ) -> tuple[str, ...] | None:
        """The ids from source to target, of several shortest paths the first by ids; None when there is none.

        `direction="both"` goes along edges either way. `limit` is the number of steps at most.
        """
        view = await self._view(agent, filter, types)
        return await asyncio.to_thread(view.path, source, target, direction=direction, limit=limit)

    async def neighbours(
        self,
        node_id: str,
        *,
        agent: str | None,
        filter: Filter = NO_FILTER,
        types: frozenset[str] | None = None,
        direction: Direction = "both",
        depth: int = 1,
    ) -> list[Neighbour]:
        """The nodes at most `depth` steps away, the nearest first, then by id. None for an unknown node."""
        if depth < 1:
            raise Invalid("the depth of neighbours is at least 1")
        view = await self._view(agent, filter, types)
        return await asyncio.to_thread(view.neighbours, node_id, direction=direction, depth=depth)

    async def hubs(
        self,
        measure: HubMeasure = "pagerank",
        *,
        agent: str | None,
        limit: int = 10,
        filter: Filter = NO_FILTER,
        types: frozenset[str] | None = None,
        kinds: frozenset[str] | None = None,
        missing: bool = True,
    ) -> list[Hub]:
        """The most central nodes, equal ones by id; `missing=False` leaves out those that do not exist."""
        view = await self._view(agent, filter, types)
        return await asyncio.to_thread(view.hubs, measure, limit=limit, kinds=kinds, missing=missing)

    async def components(
        self, *, agent: str | None, filter: Filter = NO_FILTER, types: frozenset[str] | None = None
    ) -> list[tuple[str, ...]]:
        """The ids of the nodes that are connected, whatever the direction; the largest component first."""
        view = await self._view(agent, filter, types)
        return await asyncio.to_thread(view.components)

    async def dangling(
        self, *, agent: str | None, filter: Filter = NO_FILTER, types: frozenset[str] | None = None
    ) -> list[Edge]:
        """The edges with an end that no visible document states."""
        view = await self._view(agent, filter, types)
        return await asyncio.to_thread(view.dangling)

    async def version(self) -> int:
        """Grows with every change of nodes and edges."""
        row = await self._database.fetch_one("SELECT value FROM retrieval_facts WHERE name = 'graph'")
        return int(row["value"]) if row is not None else 0

    async def _view(self, agent: str | None, filter: Filter, types: frozenset[str] | None) -> _View:
        allowed = await self._allowed_documents(scope_of(agent, filter))
        async with self._loading:
            stored = await self._load()
            key = (None if allowed is None else array("q", sorted(allowed)).tobytes(), types)
            view = self._views.pop(key, None)
            if view is None:
                documents = None if allowed is None else frozenset(allowed)
                view = await asyncio.to_thread(_View, stored, documents, types)
            self._views[key] = view
            if len(self._views) > VIEWS_LIMIT:
                del self._views[next(iter(self._views))]
            return view

    async def _load(self) -> _Stored:
        version = await self.version()
        while self._stored is None or self._stored.version != version:
            nodes = await self._database.fetch(
                "SELECT document, id, kind, title FROM retrieval_nodes ORDER BY id, document"
            )
            edges = await self._database.fetch("SELECT document, source, type, target FROM retrieval_edges")
            read, version = version, await self.version()
            if read == version:  # else a writer came between
                self._stored, self._views = _Stored(version, nodes, edges), {}
        return self._stored
