"""The graph: what documents state is there when `put` returns, answers have one order, and nobody sees more than their documents."""

import asyncio
import random

import pytest

from ksi_daemon.errors import Invalid
from ksi_daemon.retrieval.document import EVERY_DOCUMENT, Document, Edge, Filter, Node
from ksi_daemon.retrieval.graph import Graph, GraphNode
from ksi_daemon.retrieval.retrieval import Retrieval, open_retrieval
from ksi_daemon.retrieval.schema import CREATE_INDEX
from ksi_daemon.storage.sqlite import Database
from tests.cases import case
from tests.retrieval.conftest import plain_settings

ALL = EVERY_DOCUMENT


def page(name: str, *targets: str, type: str = "links", **facts: object) -> Document:
    edges = tuple(Edge(name, target, type) for target in targets)
    node = Node(name, kind="note", title=name.upper())
    return Document(id=name, text=f"Page {name}.", nodes=(node,), edges=edges, **facts)  # type: ignore[arg-type]


async def test_paths_are_shortest_bounded_and_of_equal_ones_the_first(retrieval: Retrieval) -> None:
    await retrieval.put(
        [page("a", "c", "b"), page("b", "d"), page("c", "d"), page("d", "e"), page("e", "lost"), page("z")]
    )
    path = retrieval.graph.shortest_path
    assert await path("a", "e", agent=ALL) == ("a", "b", "d", "e")
    assert await path("a", "a", agent=ALL) == ("a",)
    assert await path("a", "lost", agent=ALL) == ("a", "b", "d", "e", "lost")
    assert await path("e", "a", agent=ALL) is None
    assert await path("e", "a", agent=ALL, direction="both") == ("e", "d", "b", "a")
    assert await path("e", "a", agent=ALL, direction="in") == ("e", "d", "b", "a")
    assert await path("a", "e", agent=ALL, limit=2) is None
    assert await path("a", "e", agent=ALL, limit=3) is not None
    for source, target in (("a", "z"), ("a", "nowhere"), ("nowhere", "a"), ("nowhere", "nowhere")):
        with case(source, target):
            assert await path(source, target, agent=ALL, direction="both") is None


async def test_only_edges_of_the_wanted_types_are_followed(retrieval: Retrieval) -> None:
    call, link = Edge("a", "b", "calls"), Edge("b", "c", "links")
    await retrieval.put([Document(id="x", text="", nodes=(Node("a"), Node("b"), Node("c")), edges=(call, link))])
    graph = retrieval.graph
    assert await graph.shortest_path("a", "c", agent=ALL) == ("a", "b", "c")
    assert await graph.shortest_path("a", "c", agent=ALL, types=frozenset({"calls"})) is None
    assert await graph.components(agent=ALL, types=frozenset({"calls"})) == [("a", "b"), ("c",)]


async def test_neighbours_come_by_distance_with_the_edges_that_lead_to_them(retrieval: Retrieval) -> None:
    await retrieval.put([page("a", "b", "c"), page("b", "a", "d", type="cites"), page("d", "ghost")])
    near = await retrieval.graph.neighbours("a", agent=ALL, depth=2)
    assert [(neighbour.node.id, neighbour.distance) for neighbour in near] == [("b", 1), ("c", 1), ("d", 2)]
    assert near[0].edges == (Edge("a", "b", "links"), Edge("b", "a", "cites"))
    assert near[0].node == GraphNode("b", "note", "B", exists=True)
    assert near[1].node == GraphNode("c", exists=False)
    assert [found.node.id for found in await retrieval.graph.neighbours("a", agent=ALL, direction="in")] == ["b"]
    assert [found.node.id for found in await retrieval.graph.neighbours("ghost", agent=ALL, direction="out")] == []
    assert await retrieval.graph.neighbours("nowhere", agent=ALL) == []
    with pytest.raises(Invalid):
        await retrieval.graph.neighbours("a", agent=ALL, depth=0)


async def test_hubs_are_ranked_by_edges_or_pagerank_and_equal_ones_by_id(retrieval: Retrieval) -> None:
    await retrieval.put([page("a", "hub", "ghost"), page("b", "hub", "ghost"), page("hub", "c"), page("c", "hub")])
    graph = retrieval.graph
    assert [(hub.node.id, hub.score) for hub in await graph.hubs("in", agent=ALL)] == [
        ("hub", 3), ("ghost", 2), ("c", 1), ("a", 0), ("b", 0)
    ]  # fmt: skip
    assert [hub.node.id for hub in await graph.hubs("out", agent=ALL, limit=3)] == ["a", "b", "c"]
    assert [hub.node.id for hub in await graph.hubs("degree", agent=ALL, missing=False, limit=2)] == ["hub", "a"]
    ranked = await graph.hubs(agent=ALL)
    assert [hub.node.id for hub in ranked] == ["hub", "c", "ghost", "a", "b"]
    assert sum(hub.score for hub in ranked) == pytest.approx(1.0)
    assert await graph.hubs(agent=ALL, kinds=frozenset({"song"})) == []


async def test_an_empty_graph_answers_every_question(retrieval: Retrieval) -> None:
    graph = retrieval.graph
    assert await graph.hubs(agent=ALL) == []
    assert await graph.components(agent=ALL) == []
    assert await graph.dangling(agent=ALL) == []
    assert await graph.node("a", agent=ALL) is None


async def test_edges_to_missing_nodes_are_kept_listed_and_resolved_when_the_node_comes(retrieval: Retrieval) -> None:
    await retrieval.put([page("a", "later", "never")])
    assert await retrieval.graph.dangling(agent=ALL) == [Edge("a", "later", "links"), Edge("a", "never", "links")]
    await retrieval.put([page("later")])
    assert await retrieval.graph.dangling(agent=ALL) == [Edge("a", "never", "links")]
    await retrieval.delete(["later"])
    assert len(await retrieval.graph.dangling(agent=ALL)) == 2
    await retrieval.delete(["a"])
    assert await retrieval.graph.dangling(agent=ALL) == []


async def test_a_node_that_two_documents_state_lives_as_long_as_one_of_them(retrieval: Retrieval) -> None:
    shared = (Node("team", kind="group"),)
    await retrieval.put([Document(id="x", text="", nodes=shared), Document(id="y", text="", nodes=(Node("team"),))])
    assert await retrieval.graph.node("team", agent=ALL) == GraphNode("team", "group", exists=True)
    await retrieval.delete(["x"])
    assert await retrieval.graph.node("team", agent=ALL) == GraphNode("team", exists=True)
    await retrieval.delete(["y"])
    assert await retrieval.graph.node("team", agent=ALL) is None


async def test_what_a_hidden_document_states_is_not_in_the_graph_of_others(retrieval: Retrieval) -> None:
    """And taking the right takes effect with the next question, in every namespace."""
    bridge = page("bridge", "b", visible_to=frozenset({"ada"}), namespace="secret")
    await retrieval.put([page("a", "bridge"), bridge, page("b")])
    path = retrieval.graph.shortest_path
    assert await path("a", "b", agent="ada") == ("a", "bridge", "b")
    assert await path("a", "b", agent="bob") is None
    assert await path("a", "b", agent=None) is None
    assert await retrieval.graph.node("bridge", agent="bob") == GraphNode("bridge", exists=False)
    open_ones = Filter(namespaces=frozenset({""}))
    assert await path("a", "b", agent="ada", filter=open_ones) is None
    assert await retrieval.graph.dangling(agent="ada", filter=open_ones) == [Edge("a", "bridge", "links")]
    await retrieval.put([page("bridge", "b", visible_to=frozenset({"bob"}))])
    assert await path("a", "b", agent="ada") is None
    assert await path("a", "b", agent="bob") == ("a", "bridge", "b")


async def test_the_version_changes_with_the_graph_and_only_then(retrieval: Retrieval) -> None:
    versions: list[int] = []
    steps = [page("a", "b"), page("a", "b", updated_at=5.0), page("a", "c"), page("a", "c", type="cites"), page("a")]
    for step in steps:
        await retrieval.put([step])
        versions.append(await retrieval.graph.version())
    assert versions[0] == versions[1]
    assert sorted(set(versions[1:])) == versions[1:]
    with pytest.raises(Invalid):
        await retrieval.put([page("b", "")])
    assert await retrieval.graph.version() == versions[-1]


async def test_a_database_of_before_the_graph_gets_its_tables(database: Database) -> None:
    async with database.transaction() as transaction:
        await transaction.execute(
            "CREATE TABLE retrieval_facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"
        )
        await transaction.execute("INSERT INTO retrieval_facts VALUES ('version', '1')")
        for statement in CREATE_INDEX:
            await transaction.execute(statement)
    async with open_retrieval(database, plain_settings()) as retrieval:
        await retrieval.put([page("a", "b")])
        assert await retrieval.graph.version() == 2
        assert await retrieval.verify() == []


async def test_questions_beside_writes_see_whole_versions(retrieval: Retrieval) -> None:
    """Every version is one cycle through all nodes; half a version would have no path round."""
    names = [f"n{number}" for number in range(8)]
    chance = random.Random(3)

    def cycle() -> list[Document]:
        order = chance.sample(names, len(names))
        return [page(name, following) for name, following in zip(order, order[1:] + order[:1], strict=True)]

    async def write() -> None:
        for _ in range(20):
            await retrieval.put(cycle())

    await retrieval.put(cycle())
    writing = asyncio.create_task(write())
    graph: Graph = retrieval.graph
    asked = 0
    while not writing.done() or not asked:
        assert [hub.score for hub in await graph.hubs("out", agent=ALL)] == [1.0] * len(names)
        assert await graph.shortest_path("n0", "n1", agent=ALL) is not None
        asked += 1
    await writing
