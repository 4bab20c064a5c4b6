"""What every backend of the store of MCP sessions must do. A new backend adds one line to BACKENDS."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from ksi_daemon.storage.mcp_sessions import MIGRATIONS
from ksi_daemon.storage.protocol_sessions import SessionStore, SqliteSessions, StoredSession
from ksi_daemon.storage.sqlite import open_database


@asynccontextmanager
async def sqlite(folder: Path) -> AsyncIterator[SessionStore]:
    async with open_database(folder / "mcp_sessions.db", MIGRATIONS) as database:
        yield SqliteSessions(database)


Backend = Callable[[Path], AbstractAsyncContextManager[SessionStore]]  # opens the store that lives in a folder
BACKENDS: list[Backend] = [sqlite]


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.__name__)
def backend(request: pytest.FixtureRequest) -> Backend:
    found: Backend = request.param
    return found


def session(number: int, agent_id: str = "a") -> StoredSession:
    return StoredSession(f"s{number}", agent_id, b'{"capabilities":{}}', None, 1.0, float(number))


async def left(store: SessionStore, *numbers: int) -> list[int]:
    return [number for number in numbers if await store.get(f"s{number}") is not None]


async def test_a_session_is_there_after_a_restart_with_what_its_client_saw(backend: Backend, tmp_path: Path) -> None:
    """D03"""
    async with backend(tmp_path) as store:
        assert await store.get("s1") is None
        await store.add(session(1), keep=10)
        await store.set_seen("s1", "fingerprint")
        await store.set_log_level("s1", "info")
        await store.touch(["s1", "unknown"], 7.0)
    async with backend(tmp_path) as store:
        found = await store.get("s1")
        assert found == StoredSession("s1", "a", b'{"capabilities":{}}', "fingerprint", 1.0, 7.0, "info")
        await store.delete("s1")
        assert await store.get("s1") is None


async def test_an_agent_keeps_its_last_used_sessions(backend: Backend, tmp_path: Path) -> None:
    async with backend(tmp_path) as store:
        await store.add(session(1, "b"), keep=2)
        for number in (2, 3, 4):
            await store.add(session(number), keep=2)
        assert await left(store, 1, 2, 3, 4) == [1, 3, 4]


async def test_idle_and_surplus_sessions_are_forgotten(backend: Backend, tmp_path: Path) -> None:
    async with backend(tmp_path) as store:
        for number in (1, 2, 3, 4):
            await store.add(session(number), keep=10)
        assert await store.count() == 4
        assert await store.drop_idle(before=2.0, keep=2) == 2
        assert await left(store, 1, 2, 3, 4) == [3, 4]
