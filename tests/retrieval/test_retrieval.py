"""The index as a plugin uses it: what is put is found, by whom it may be found, and what is deleted is gone."""

import asyncio
from pathlib import Path

import pytest

from ksi_daemon.errors import BadData, Invalid
from ksi_daemon.retrieval.document import Filter
from ksi_daemon.retrieval.retrieval import Retrieval, RetrievalSettings, open_retrieval
from ksi_daemon.retrieval.word_search import WordSearch, deciding_words, search_words
from ksi_daemon.storage.sqlite import Database
from tests.cases import case
from tests.in_process import soon
from tests.retrieval.conftest import Open, found, note, plain_settings
from tests.retrieval.embedders import WordEmbedder


async def test_what_is_put_is_found_at_once_with_its_place_and_its_score(retrieval: Retrieval) -> None:
    text = "# Garden\n\nApples grow on trees.\n\n# Cellar\n\nWine is kept cool.\n"
    await retrieval.put([note("a", text, title="House", namespace="home"), note("b", "Nothing of the kind.")])
    hits = await retrieval.search("where do apples grow", agent="ada", parts=True)
    hit = hits[0]
    assert (hit.document_id, hit.namespace, hit.title, hit.heading) == ("a", "home", "House", "Garden")
    assert hit.text == text[hit.start : hit.end]
    assert 0 < hit.score <= 1
    assert hit.parts is not None
    assert (hit.parts.lexical, hit.parts.vector_weight, hit.parts.embedder) == (1.0, 0.3, "words")
    assert (await retrieval.search("apples", agent="ada"))[0].parts is None


async def test_putting_a_document_again_replaces_it_and_keeps_the_vectors_of_what_is_the_same(
    retrieval: Retrieval, database: Database
) -> None:
    await retrieval.put([note("a", "# One\n\nApples.\n\n# Two\n\nPears.\n")])
    before = {row["id"]: row["number"] for row in await database.fetch("SELECT id, number FROM retrieval_chunks")}
    await retrieval.put([note("a", "New start.\n\n# One\n\nApples.\n\n# Two\n\nPlums.\n")])
    after = {row["id"]: row["number"] for row in await database.fetch("SELECT id, number FROM retrieval_chunks")}
    assert len(before.items() & after.items()) == 1
    hits = await retrieval.search("apples", agent=None, limit=1)
    assert hits[0].text == "# One\n\nApples."
    assert hits[0].start == len("New start.\n\n")
    assert all("Pears" not in hit.text for hit in await retrieval.search("pears", agent=None))
    assert await retrieval.verify() == []


async def test_a_document_without_text_is_found_by_its_title_and_one_without_words_is_not_in_the_way(
    retrieval: Retrieval,
) -> None:
    await retrieval.put([note("a", " \n", title="Apples"), note("b", "\n")])
    assert await found(retrieval, "apples") == ["a"]
    await retrieval.put([note("a", "Now with text.", title="Apples")])
    assert [hit.text for hit in await retrieval.search("apples", agent=None)] == ["Now with text."]
    assert await retrieval.verify() == []


async def test_a_filtered_search_fills_its_limit(retrieval: Retrieval) -> None:
    """The filter applies before the cut: 300 better hits of another namespace do not use up the candidates."""
    await retrieval.put([note(f"loud-{n}", "apples apples apples", namespace="loud") for n in range(300)])
    await retrieval.put([note(f"quiet-{n}", f"apples among other things {n}", namespace="quiet") for n in range(7)])
    quiet = await found(retrieval, "apples", limit=5, filter=Filter(namespaces=frozenset({"quiet"})))
    assert len(quiet) == 5
    assert all(name.startswith("quiet") for name in quiet)


FILTERS: list[tuple[Filter, set[str]]] = [
    (Filter(), {"a", "b", "c"}),
    (Filter(namespaces=frozenset({"x"})), {"a", "b"}),
    (Filter(namespaces=frozenset()), set()),
    (Filter(documents=frozenset({"c", "gone"})), {"c"}),
    (Filter(source_kinds=frozenset({"code"})), {"c"}),
    (Filter(updated_after=10), {"b", "c"}),
    (Filter(attributes={"tag": frozenset({"RED"})}), {"a", "b"}),
    (Filter(attributes={"tag": frozenset({"red"}), "team": frozenset({"core", "docs"})}), {"b"}),
    (Filter(attributes={"tag": frozenset({"red') OR 1 --"})}), set()),
    (Filter(namespaces=frozenset({"x"}), updated_after=15), {"b"}),
]


async def test_a_filter_keeps_what_fits_every_field(retrieval: Retrieval) -> None:
    await retrieval.put(
        [
            note("a", "apples", namespace="x", updated_at=10, attributes={"tag": ("red", "Blue")}),
            note("b", "apples", namespace="x", updated_at=20, attributes={"tag": ("Red",), "team": ("Core",)}),
            note("c", "apples", namespace="y", updated_at=30, format="code"),
        ]
    )
    for filter, expected in FILTERS:
        with case(filter):
            assert set(await found(retrieval, "apples", filter=filter)) == expected


async def test_an_agent_finds_what_it_may_see_and_nothing_of_the_rest_changes_its_answer(retrieval: Retrieval) -> None:
    await retrieval.put([note(f"secret-{n}", "apples apples", visible_to=frozenset({"eve"})) for n in range(150)])
    await retrieval.put([note("shared", "apples for all"), note("none", "apples", visible_to=frozenset())])
    await retrieval.put([note("mine", "apples of ada", visible_to=frozenset({"ada", "bob"}))])
    assert set(await found(retrieval, "apples", agent="ada")) == {"shared", "mine"}
    assert await found(retrieval, "apples", agent=None) == ["shared"]
    assert len(await found(retrieval, "apples", agent="eve", limit=200)) == 151
    assert len(await found(retrieval, "apples", limit=200)) == 153
    assert await found(retrieval, "apples", agent="ada", filter=Filter(documents=frozenset({"secret-1"}))) == []


async def test_taking_the_right_to_see_a_document_takes_effect_with_the_next_search(retrieval: Retrieval) -> None:
    """N04: permission removed."""
    await retrieval.put([note("a", "apples", visible_to=frozenset({"ada"}))])
    assert await found(retrieval, "apples", agent="ada") == ["a"]
    await retrieval.put([note("a", "apples", visible_to=frozenset({"bob"}))])
    assert await found(retrieval, "apples", agent="ada") == []


async def test_a_deleted_document_is_gone_from_the_search_and_from_the_file(
    database: Database, path: Path, retrieval: Retrieval
) -> None:
    """N04: text, words and vectors are overwritten, not only unlinked."""
    await retrieval.put([note(f"n{n}", f"Ordinary words, number {n}.") for n in range(50)])
    await retrieval.put(
        [note("a", "The password is zanzibarquux.", title="Plumtitle", attributes={"tag": ("figtag",)})]
    )
    assert (await found(retrieval, "zanzibarquux"))[0] == "a"
    assert await retrieval.delete(["a", "unknown"]) == 1
    assert "a" not in await found(retrieval, "zanzibarquux password", limit=100)
    await soon(retrieval.idle())
    assert not (await retrieval.state()).purge_waiting
    files = b"".join(file.read_bytes() for file in path.parent.iterdir()).lower()
    for word in (b"zanzibarquux", b"zanzibar", b"plumtitl", b"figtag"):
        assert word not in files
    assert b"ordinary words" in files
    assert await retrieval.verify() == []


async def test_an_edit_leaves_nothing_of_the_old_text_in_the_index(retrieval: Retrieval, path: Path) -> None:
    await retrieval.put([note("a", "The old quibblefrotz.")])
    await retrieval.put([note("a", "Something else.")])
    await soon(retrieval.idle())
    assert b"quibblefrotz" not in b"".join(file.read_bytes() for file in path.parent.iterdir())


async def test_verify_finds_a_damaged_index_and_rebuild_mends_it(retrieval: Retrieval, database: Database) -> None:
    await retrieval.put([note("a", "apples"), note("b", "pears")])
    await soon(retrieval.idle())
    await database.execute("INSERT INTO retrieval_words (retrieval_words) VALUES ('delete-all')")
    await database.execute("UPDATE retrieval_vectors SET vector = x'00' WHERE chunk = 1")
    await database.execute("DELETE FROM retrieval_vectors WHERE chunk = 2")
    problems = await retrieval.verify()
    assert len(problems) == 3, problems
    await retrieval.rebuild()
    await soon(retrieval.idle())
    assert await retrieval.verify() == []
    assert (await found(retrieval, "pears"))[0] == "b"


@pytest.mark.parametrize(
    "query",
    [
        "",
        "   ",
        "?!",
        '"',
        "apples OR",
        "NEAR(apples",
        "title:apples",
        "apples*",
        "a" * 5_000,
        "\0",
        "-",
        "^a",
        "🍎 é",
        "the",
    ],
)
async def test_any_text_is_a_query_and_none_is_an_operator(retrieval: Retrieval, query: str) -> None:
    await retrieval.put([note("a", "apples and pears")])
    await retrieval.search(query, agent=None)


def test_stop_words_are_left_out_unless_there_is_nothing_else() -> None:
    assert search_words("what is the Weather, the weather") == ["weather"]
    assert search_words("to be or not to be") == ["to", "be", "or", "not"]
    assert search_words("?") == []


def test_the_rarest_words_decide_what_is_ranked() -> None:
    counts = {"in all": 501, "rare": 3, "often": 300, "some": 40}
    assert deciding_words(counts, 50, enough=2) == ["rare", "some"]
    assert deciding_words(counts, 50, enough=100) == ["rare", "some", "often"]
    assert deciding_words(counts, 50, enough=1_000) == ["rare", "some", "often", "in all"]
    assert deciding_words({"in all": 501}, 50, enough=1) == ["in all"]


async def test_a_large_index_ranks_fewer_chunks_with_the_same_best_ones_and_still_fills_a_filtered_search(
    retrieval: Retrieval, database: Database
) -> None:
    documents = [
        note(f"n{n}", "apples " + "pears " * (n % 3 == 0) + f"word{n % 50}", namespace="all") for n in range(300)
    ]
    await retrieval.put([*documents, note("few", "apples only", namespace="small")])
    query = "apples pears word7"
    small = ("SELECT number FROM retrieval_chunks WHERE text = ?", ("apples only",))
    every = await WordSearch(database).find(query, inside=None, limit=200)
    bounded = WordSearch(database, ranked_chunks=10)
    for _ in range(2):  # the second time from what is remembered
        found = await bounded.find(query, inside=None, limit=5)
        assert [chunk for chunk, _ in found] == [chunk for chunk, _ in every[:5]]
        assert len(await bounded.find(query, inside=small, limit=5)) == 1
    assert len(every) == 200
    assert len(await bounded.find(query, inside=None, limit=200)) == 200
    await retrieval.delete([f"n{n}" for n in range(300) if n % 50 == 7])
    bounded.changed(6)
    await retrieval.put([note(f"m{n}", "plums word7") for n in range(30)])
    bounded.changed(30)
    assert len(await bounded.find("word7 apples", inside=None, limit=20)) == 20


@pytest.mark.parametrize("bad", [note("", "x"), note("a", "\ud800"), note("a", "x", attributes={"t": ("\ud800",)})])
async def test_a_document_that_cannot_be_stored_is_refused_and_nothing_of_its_company_is_kept(
    retrieval: Retrieval, bad: object
) -> None:
    with pytest.raises(Invalid):
        await retrieval.put([note("good", "apples"), bad])  # type: ignore[list-item]
    assert await found(retrieval, "apples") == []


async def test_many_documents_in_one_put_are_each_added_replaced_or_kept_and_of_equal_ids_the_last_counts(
    retrieval: Retrieval,
) -> None:
    await retrieval.put([note("kept", "apples"), note("edited", "pears", attributes={"tag": ("old",)})])
    before = {hit.document_id: hit.chunk_id for hit in await retrieval.search("apples pears", agent=None)}
    many = [note(f"n{n}", f"plums {n}") for n in range(1_200)]
    await retrieval.put(
        [note("kept", "apples"), note("twice", "figs"), note("edited", "quinces"), *many, note("twice", "dates")]
    )
    after = {hit.document_id: hit.chunk_id for hit in await retrieval.search("apples quinces dates", agent=None)}
    assert after["kept"] == before["kept"]
    assert after["edited"] != before["edited"]
    assert await found(retrieval, "quinces", filter=Filter(attributes={"tag": frozenset({"old"})})) == []
    assert [hit.text for hit in await retrieval.search("figs dates", agent=None) if hit.document_id == "twice"] == [
        "dates"
    ]
    assert (await retrieval.state()).documents == 1_203
    assert await retrieval.delete([document.id for document in many]) == 1_200
    assert (await retrieval.state()).documents == 3
    assert await retrieval.verify() == []


async def test_the_orders_by_vector_and_by_words_keep_the_score_a_cosine(retrieval: Retrieval) -> None:
    await retrieval.put([note(f"n{n}", f"apples number {n} and {'pears ' * n}") for n in range(12)])
    by_vector = await retrieval.search("apples pears", agent=None, order="vector")
    assert [hit.score for hit in by_vector] == sorted((hit.score for hit in by_vector), reverse=True)
    by_words = await retrieval.search("number 7", agent=None, order="lexical")
    assert by_words[0].document_id == "n7"
    assert {hit.chunk_id: hit.score for hit in by_words}.items() <= {
        hit.chunk_id: hit.score for hit in await retrieval.search("number 7", agent=None, limit=100, order="vector")
    }.items()


async def test_the_index_of_a_newer_program_is_refused(database: Database) -> None:
    async with open_retrieval(database, plain_settings()):
        pass
    await database.execute("UPDATE retrieval_facts SET value = '99' WHERE name = 'version'")
    with pytest.raises(BadData, match="newer KSI"):
        async with open_retrieval(database, plain_settings()):
            pass


async def test_vectors_above_the_bound_are_read_from_the_file_with_the_same_answer(opened: Open) -> None:
    documents = [note(f"n{n}", f"apples number {n} and {'pears ' * (n % 9)}") for n in range(60)]
    answers: list[list[str]] = []
    for limit_bytes in (512_000_000, 1_000):
        settings = RetrievalSettings(instant=WordEmbedder(), embedder=None, resident_limit_bytes=limit_bytes)
        async with opened(settings) as retrieval:
            await retrieval.put(documents)
            await retrieval.delete(["n3"])
            hits = await retrieval.search("pears", agent=None, limit=20, order="vector")
            answers.append([hit.document_id for hit in hits])
    assert answers[0] == answers[1]


async def test_puts_and_searches_at_once_end_with_an_index_that_is_whole(retrieval: Retrieval) -> None:
    async def write(name: str) -> None:
        for version in range(3):
            await retrieval.put([note(name, f"apples of {name}, version {version}")])
        if name.endswith("0"):
            await retrieval.delete([name])

    await soon(asyncio.gather(*(write(f"n{n}") for n in range(20)), *(found(retrieval, "apples") for _ in range(10))))
    assert len(await found(retrieval, "apples version", limit=100)) == 18
    assert all("version 2" in hit.text for hit in await retrieval.search("apples", agent=None, limit=100))
    assert await retrieval.verify() == []


async def test_a_put_that_is_cancelled_at_any_moment_is_whole_or_absent(retrieval: Retrieval) -> None:
    for turns in range(0, 60, 3):
        name = f"n{turns}"
        task = asyncio.create_task(retrieval.put([note(name, f"cancelled apples {turns}\n\n# More\n\nthings")]))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=5)
        hits = [
            hit
            for hit in await retrieval.search(f"apples {turns} things", agent=None, limit=100)
            if hit.document_id == name
        ]
        assert len(hits) in (0, 2)
    assert await retrieval.verify() == []
