"""Better vectors come in the background: nothing waits for them, a restart loses nothing, and what fails is named."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from ksi_daemon.errors import Unavailable
from ksi_daemon.retrieval.embedder import Embedder
from ksi_daemon.retrieval.index_state import IndexState
from ksi_daemon.retrieval.retrieval import RetrievalSettings
from tests.in_process import soon, until
from tests.retrieval.conftest import Open, found, note
from tests.retrieval.embedders import GatedEmbedder, RefusingEmbedder, WordEmbedder

NOTES = [note(f"n{n}", f"apples number {n}") for n in range(20)]


def settings(embedder: Embedder, *previous: Embedder) -> RetrievalSettings:
    return RetrievalSettings(instant=WordEmbedder("instant"), embedder=embedder, previous=previous)


async def test_text_is_found_while_its_better_vector_is_still_being_made(opened: Open) -> None:
    better = GatedEmbedder()
    async with opened(settings(better)) as retrieval:
        try:
            await soon(retrieval.put(NOTES))
            await until(better.asked.is_set)
            hits = await soon(retrieval.search("apples number 7", agent=None, parts=True))
            assert hits[0].document_id == "n7"
            assert hits[0].parts is not None
            assert hits[0].parts.embedder == "instant"
            assert hits[0].score > 0.5
            state = await retrieval.state()
            assert (state.state, state.waiting, state.chunks) == ("running", 20, 20)
        finally:
            better.opened.set()
        await soon(retrieval.idle())
        state = await retrieval.state()
        assert (state.state, state.waiting, state.failed, state.serving) == ("done", 0, 0, "gated")
        hits = await retrieval.search("apples number 7", agent=None, parts=True)
        assert hits[0].parts is not None
        assert hits[0].parts.embedder == "gated"


async def test_a_chunk_deleted_while_its_vector_is_made_gets_none(opened: Open) -> None:
    better = GatedEmbedder()
    async with opened(settings(better)) as retrieval:
        try:
            await soon(retrieval.put(NOTES[:1]))
            await until(better.asked.is_set)
            await soon(retrieval.delete(["n0"]))
            await soon(retrieval.put([note("other", "pears")]))
        finally:
            better.opened.set()
        await soon(retrieval.idle())
        assert await found(retrieval, "apples pears") == ["other"]
        assert await retrieval.verify() == []


async def test_what_is_left_to_do_survives_a_restart_and_nothing_is_made_twice(opened: Open) -> None:
    held = GatedEmbedder("better")
    async with opened(settings(held)) as retrieval:
        await soon(retrieval.put(NOTES))
        await until(held.asked.is_set)
    held.opened.set()
    first = WordEmbedder("better")
    async with opened(settings(first)) as retrieval:
        await soon(retrieval.idle())
        assert (await retrieval.state()).waiting == 0
        assert sorted(first.embedded) == sorted(document.text for document in NOTES)
    second = WordEmbedder("better")
    async with opened(settings(second)) as retrieval:
        await soon(retrieval.idle())
        assert second.embedded == []


async def test_old_vectors_serve_until_those_of_a_new_embedder_are_complete(opened: Open) -> None:
    old = WordEmbedder("old")
    async with opened(settings(old)) as retrieval:
        await soon(retrieval.put(NOTES))
        await soon(retrieval.idle())
    new = GatedEmbedder("new")
    async with opened(settings(new, old)) as retrieval:
        try:
            await until(new.asked.is_set)
            state = await retrieval.state()
            assert (state.embedder, state.serving, state.waiting) == ("new", "old", 20)
            hits = await soon(retrieval.search("apples number 3", agent=None, parts=True))
            assert hits[0].parts is not None
            assert (hits[0].document_id, hits[0].parts.embedder) == ("n3", "old")
        finally:
            new.opened.set()
        await soon(retrieval.idle())
        assert (await retrieval.state()).serving == "new"
        hits = await soon(retrieval.search("apples number 3", agent=None, parts=True))
        assert hits[0].parts is not None
        assert (hits[0].document_id, hits[0].parts.embedder) == ("n3", "new")
        assert await retrieval.verify() == []


async def test_a_text_that_cannot_be_embedded_is_counted_and_the_rest_goes_on(opened: Open) -> None:
    async with opened(settings(RefusingEmbedder())) as retrieval:
        await soon(retrieval.put([*NOTES, note("bad", "poison apples")]))
        await soon(retrieval.idle())
        state = await retrieval.state()
        assert (state.state, state.waiting, state.failed, state.is_degraded) == ("done", 0, 1, False)
        assert state.last_error == "ValueError: this text cannot be embedded"
        assert (await found(retrieval, "deadly poison"))[0] == "bad"
    async with opened(settings(WordEmbedder("refusing"))) as retrieval:
        await soon(retrieval.retry())
        await soon(retrieval.idle())
        assert (await retrieval.state()).failed == 0


async def test_an_embedder_that_cannot_work_at_all_leaves_the_search_to_the_instant_vectors(opened: Open) -> None:
    """The failure is in the state; nothing is recorded against single texts, and the next try may succeed."""

    class Absent(WordEmbedder):
        def embed(self, texts: Sequence[str]) -> Any:
            raise Unavailable("the package is not installed")

    async with opened(settings(Absent("better"))) as retrieval:
        await soon(retrieval.put(NOTES))
        await soon(retrieval.idle())
        state = await retrieval.state()
        assert (state.state, state.waiting, state.failed) == ("failed", 20, 0)
        assert state.last_error is not None
        assert "not installed" in state.last_error
        assert state.is_degraded
        hits = await retrieval.search("apples number 3", agent=None, parts=True)
        assert hits[0].parts is not None
        assert (hits[0].document_id, hits[0].parts.embedder) == ("n3", "instant")


async def next_with(changes: AsyncIterator[IndexState], state: str) -> IndexState:
    return await anext(found async for found in changes if found.state == state)


async def test_a_change_of_state_is_awaited_from_queued_to_done(opened: Open) -> None:
    better = GatedEmbedder()
    async with opened(settings(better)) as retrieval:
        await soon(retrieval.idle())
        changes = retrieval.state_changes()
        try:
            assert (await soon(anext(changes))).state == "done"
            await soon(retrieval.put(NOTES))
            await until(better.asked.is_set)
            running = await soon(next_with(changes, "running"))
            assert running.waiting == 20
        finally:
            better.opened.set()
        done = await soon(next_with(changes, "done"))
        assert (done.waiting, done.is_degraded) == (0, False)
        await changes.aclose()


async def test_a_search_that_had_to_do_without_the_better_embedder_says_so_until_one_succeeds(opened: Open) -> None:
    class Unsteady(WordEmbedder):
        broken = False

        def embed(self, texts: Sequence[str]) -> Any:
            if self.broken:
                raise Unavailable("the model is gone")
            return super().embed(texts)

    better = Unsteady("better")
    async with opened(settings(better)) as retrieval:
        await soon(retrieval.put(NOTES))
        await soon(retrieval.idle())
        changes = retrieval.state_changes()
        assert not (await soon(anext(changes))).is_degraded
        better.broken = True
        hits = await retrieval.search("apples number 3", agent=None, parts=True)
        assert hits[0].parts is not None
        assert hits[0].parts.embedder == "instant"
        state = await soon(anext(changes))
        assert (state.state, state.is_degraded, state.last_error) == ("done", True, "Unavailable: the model is gone")
        better.broken = False
        await retrieval.search("apples number 3", agent=None)
        assert not (await soon(anext(changes))).is_degraded
        await changes.aclose()


async def test_the_worker_ends_with_the_index(opened: Open) -> None:
    better = GatedEmbedder()
    async with opened(settings(better)) as retrieval:
        await soon(retrieval.put(NOTES))
        await until(better.asked.is_set)
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("search index")]
    better.opened.set()
