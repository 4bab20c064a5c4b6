"""What every backend of the completion store must do. A new backend adds one line to BACKENDS."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ksi_daemon.storage.completions import (
    MIGRATIONS,
    CompletionStore,
    SqliteCompletions,
    StoredCompletion,
    StoredProcess,
    TokenUsage,
    Used,
)
from ksi_daemon.storage.sqlite import open_database


@asynccontextmanager
async def sqlite(folder: Path) -> AsyncIterator[CompletionStore]:
    async with open_database(folder / "completions.db", MIGRATIONS) as database:
        yield SqliteCompletions(database)


Backend = Callable[[Path], AbstractAsyncContextManager[CompletionStore]]
BACKENDS: list[Backend] = [sqlite]


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.__name__)
def backend(request: pytest.FixtureRequest) -> Backend:
    found: Backend = request.param
    return found


def completion(completion_id: str = "c1", agent_id: str = "bot", **facts: Any) -> StoredCompletion:
    made: dict[str, Any] = {
        "conversation_id": "talk",
        "state": "queued",
        "prompt": "what is ümlaut?",
        "requested_by": "operator",
        "created_at": 10.0,
    }
    return StoredCompletion(completion_id=completion_id, agent_id=agent_id, **(made | facts))


async def test_a_completion_comes_back_as_it_was_also_after_a_restart(backend: Backend, tmp_path: Path) -> None:
    full = completion(
        state="running", process=StoredProcess(7, 8, "boot"), error={"code": "x"}, usage=TokenUsage(cost_usd=0.5)
    )
    async with backend(tmp_path) as store:
        await store.add(full)
    async with backend(tmp_path) as store:
        assert await store.get("c1") == full
        assert await store.get("c2") is None
        assert await store.unfinished() == [full]


async def test_only_what_waits_or_is_under_way_is_unfinished_in_the_order_of_arrival(
    backend: Backend, tmp_path: Path
) -> None:
    async with backend(tmp_path) as store:
        states = ["queued", "starting", "running", "done", "failed", "cancelled", "interrupted"]
        for number, state in enumerate(states):
            await store.add(completion(f"c{number}", state=state))
        assert [one.completion_id for one in await store.unfinished()] == ["c0", "c1", "c2"]


async def test_prompt_and_answer_become_messages_in_order_and_the_session_is_kept(
    backend: Backend, tmp_path: Path
) -> None:
    async with backend(tmp_path) as store:
        one = completion()
        await store.add(one)
        assert await store.messages("bot", "talk", after=0, limit=10) == []
        for _ in range(2):  # begun again after a crash
            await store.begin(msgspec.structs.replace(one, state="starting", started_at=11.0))
        await store.finish(
            msgspec.structs.replace(one, state="done", ended_at=12.0, text="two dots"), session="session-1"
        )
        found = await store.messages("bot", "talk", after=0, limit=10)
        assert [(each.seq, each.role, each.text) for each in found] == [
            (1, "user", "what is ümlaut?"),
            (2, "assistant", "two dots"),
        ]
        assert await store.messages("bot", "talk", after=1, limit=10) == found[1:]
        known = await store.conversation("bot", "talk")
        assert known is not None
        assert (known.session, known.messages, known.updated_at) == ("session-1", 2, 12.0)
        await store.forget_session("bot", "talk")
        known = await store.conversation("bot", "talk")
        assert known is not None
        assert known.session is None


async def test_a_completion_that_failed_keeps_the_session_and_adds_no_answer(backend: Backend, tmp_path: Path) -> None:
    async with backend(tmp_path) as store:
        await store.add(completion("c1"))
        await store.finish(completion("c1", state="done", text="yes"), session="session-1")
        await store.add(completion("c2"))
        await store.finish(completion("c2", state="failed"))
        known = await store.conversation("bot", "talk")
        assert known is not None
        assert (known.session, known.messages) == ("session-1", 1)


async def test_conversations_of_two_agents_with_one_id_are_two(backend: Backend, tmp_path: Path) -> None:
    """A08."""
    async with backend(tmp_path) as store:
        await store.add(completion("c1", "bot"))
        await store.add(completion("c2", "other", created_at=20.0))
        await store.finish(completion("c1", "bot", state="done", text="mine"), session="s")
        assert [one.agent_id for one in await store.conversations(None, limit=10)] == ["other", "bot"]
        assert [one.agent_id for one in await store.conversations(["bot"], limit=10)] == ["bot"]
        assert await store.conversations([], limit=10) == []
        assert await store.messages("other", "talk", after=0, limit=10) == []
        assert [one.completion_id for one in await store.find(["other"], None, None, limit=10)] == ["c2"]
        assert [one.completion_id for one in await store.find(None, "talk", "done", limit=10)] == ["c1"]
        last = await store.last_of("other")
        assert last is not None
        assert last.completion_id == "c2"


async def test_usage_is_added_up_by_each_group_and_outlives_its_agent(backend: Backend, tmp_path: Path) -> None:
    async with backend(tmp_path) as store:
        for number, (agent, handshake) in enumerate([("bot", "full"), ("bot", "thin"), ("other", None)]):
            one = completion(f"c{number}", agent, ended_at=86_400.0 * number)
            await store.add(one)
            used = TokenUsage(input_tokens=1, cache_creation_tokens=10, cache_read_tokens=100, output_tokens=1_000)
            await store.finish(one, used=Used(usage=used, handshake=handshake, listing_bytes=5))
        again = TokenUsage(input_tokens=1, cost_usd=0.25)
        second = Used(usage=again, handshake="full", listing_bytes=5)
        await store.finish(completion("c0", ended_at=0.0), used=second)
        by_agent = await store.usage("agent", None, since_day=None)
        assert [(sum_.group, sum_.completions, sum_.input_tokens, sum_.cost_usd) for sum_ in by_agent] == [
            ("bot", 2, 3, 0.25),
            ("other", 1, 1, None),
        ]
        assert [sum_.group for sum_ in await store.usage("handshake", None, since_day=None)] == ["full", "none", "thin"]
        assert [sum_.group for sum_ in await store.usage("day", ["bot"], since_day="1970-01-02")] == ["1970-01-02"]
        await store.delete_agent("bot")
        assert await store.get("c0") is None
        assert await store.messages("bot", "talk", after=0, limit=10) == []
        assert len(await store.usage("agent", None, since_day=None)) == 2
