"""What every backend of the handshake store must do. A new backend adds one line to BACKENDS."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ksi_daemon.storage.mcp_sessions import MIGRATIONS, Completion, HandshakeStore, SqliteHandshakes
from ksi_daemon.storage.sqlite import open_database


@asynccontextmanager
async def sqlite(folder: Path) -> AsyncIterator[HandshakeStore]:
    async with open_database(folder / "mcp_sessions.db", MIGRATIONS) as database:
        yield SqliteHandshakes(database)


Backend = Callable[[Path], AbstractAsyncContextManager[HandshakeStore]]  # opens the store that lives in a folder
BACKENDS: list[Backend] = [sqlite]


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.__name__)
def backend(request: pytest.FixtureRequest) -> Backend:
    found: Backend = request.param
    return found


def completion(number: int, **changes: Any) -> Completion:
    fields: dict[str, Any] = {
        "agent_id": "a",
        "conversation_id": "c",
        "completion_id": f"completion-{number}",
        "kind": "full",
        "fingerprint": "f",
        "listings": 1,
        "bytes": 100,
        "tokens": 25,
        "client": "test 1",
        "started_at": float(number),
        "listed_at": float(number),
    }
    return Completion(**{**fields, **changes})


async def test_what_was_saved_is_there_after_a_restart(backend: Backend, tmp_path: Path) -> None:
    """K013"""
    async with backend(tmp_path) as store:
        assert await store.get("a", "c", "completion-1") is None
        await store.save(completion(1))
        await store.save(completion(1, kind="thin"))
    async with backend(tmp_path) as store:
        assert await store.get("a", "c", "completion-1") == completion(1, kind="thin")


async def test_the_last_full_list_is_the_last_one_that_was_delivered(backend: Backend, tmp_path: Path) -> None:
    async with backend(tmp_path) as store:
        for number in (1, 2, 3):
            await store.save(completion(number))
        assert await store.last_full("a", "c") is None
        await store.mark_delivered(completion(1))
        await store.mark_delivered(completion(2))
        await store.save(completion(4, kind="thin", delivered=True))
        last = await store.last_full("a", "c")
        assert last == completion(2, delivered=True)
        assert await store.last_full("a", "other") is None
        assert await store.last_full("other", "c") is None


async def test_delivery_counts_only_for_the_list_that_is_stored(backend: Backend, tmp_path: Path) -> None:
    async with backend(tmp_path) as store:
        await store.save(completion(1, fingerprint="new"))
        await store.mark_delivered(completion(1, fingerprint="old"))
        assert await store.last_full("a", "c") is None


async def test_conversations_are_summed_up_newest_first(backend: Backend, tmp_path: Path) -> None:
    async with backend(tmp_path) as store:
        await store.save(completion(1, listings=2))
        await store.save(completion(2, kind="thin", bytes=10, tokens=3, client="test 2"))
        await store.save(completion(3, agent_id="b"))
        second, first = await store.conversations(None, limit=10)
        assert (second.agent_id, first.agent_id) == ("b", "a")
        assert (first.completions, first.full, first.thin, first.last_kind) == (2, 1, 1, "thin")
        assert (first.bytes, first.tokens, first.client) == (210, 53, "test 2")
        assert (first.started_at, first.listed_at) == (1.0, 2.0)
        assert [found.agent_id for found in await store.conversations("a", limit=10)] == ["a"]
        assert len(await store.conversations(None, limit=1)) == 1
        assert [found.completion_id for found in await store.completions("a", "c", limit=10)] == [
            "completion-2",
            "completion-1",
        ]


async def test_clearing_forgets_what_is_named(backend: Backend, tmp_path: Path) -> None:
    async with backend(tmp_path) as store:
        for agent in ("a", "b"):
            for conversation in ("c", "d"):
                await store.save(completion(1, agent_id=agent, conversation_id=conversation))
        assert await store.clear("a", "c") == 1
        assert await store.clear("a", "c") == 0
        assert await store.clear("a", None) == 1
        assert await store.clear(None, None) == 2
        assert await store.conversations(None, limit=10) == []


async def test_idle_conversations_and_surplus_thin_completions_are_dropped(backend: Backend, tmp_path: Path) -> None:
    async with backend(tmp_path) as store:
        await store.save(completion(1, conversation_id="idle"))
        await store.save(completion(2))
        for number in range(3, 8):
            await store.save(completion(number, kind="thin"))
        assert await store.drop_old(before=2.0, keep=2) == 4
        assert [found.completion_id for found in await store.completions("a", "c", limit=10)] == [
            "completion-7",
            "completion-6",
            "completion-2",
        ]
        assert await store.completions("a", "idle", limit=10) == []
