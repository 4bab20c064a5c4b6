"""What every backend of the state store must do. A new backend adds one line to BACKENDS."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ksi_daemon.storage.migrations import MIGRATIONS
from ksi_daemon.storage.sqlite import open_database
from ksi_daemon.storage.state import Quota, QuotaUsed, SqliteState, StateStore
from tests.in_process import soon


@asynccontextmanager
async def sqlite(folder: Path) -> AsyncIterator[StateStore]:
    async with open_database(folder / "ksi.db", MIGRATIONS) as database:
        yield SqliteState(database)


Backend = Callable[[Path], AbstractAsyncContextManager[StateStore]]  # opens the store that lives in a folder
BACKENDS: list[Backend] = [sqlite]

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=12,
)
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=30)


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.__name__)
def backend(request: pytest.FixtureRequest) -> Backend:
    found: Backend = request.param
    return found


async def keys(
    store: StateStore, namespace: str | None = None, pattern: str = "*", **options: Any
) -> list[tuple[str, str]]:
    return [(row.namespace, row.key) for row in await store.list(namespace, pattern, **{"limit": 100, **options})]


async def test_a_key_that_was_never_set_is_nothing(backend: Backend, tmp_path: Path) -> None:
    async with backend(tmp_path) as store:
        assert await store.get("global", "nothing") is None
        assert not await store.delete("global", "nothing")
        assert await keys(store) == []


async def test_setting_tells_whether_the_key_is_new_and_replaces_everything_of_the_old(
    backend: Backend, tmp_path: Path
) -> None:
    async with backend(tmp_path) as store:
        assert await store.set("global", "k", value={"a": 1}, metadata={"by": "x"})
        first = await store.get("global", "k")
        assert not await store.set("global", "k", value=[2], metadata={})
        second = await store.get("global", "k")
        assert first is not None
        assert second is not None
        assert (first.value, first.metadata) == ({"a": 1}, {"by": "x"})
        assert (second.namespace, second.key, second.value, second.metadata) == ("global", "k", [2], {})
        assert second.updated_at >= first.updated_at


async def test_deleting_forgets_the_key_and_the_next_set_makes_it_new(backend: Backend, tmp_path: Path) -> None:
    async with backend(tmp_path) as store:
        await store.set("global", "k", value=1, metadata={})
        assert await store.delete("global", "k")
        assert not await store.delete("global", "k")
        assert await store.get("global", "k") is None
        assert await store.set("global", "k", value=2, metadata={})


async def test_keys_of_different_namespaces_never_meet(backend: Backend, tmp_path: Path) -> None:
    async with backend(tmp_path) as store:
        await store.set("a", "k", value=1, metadata={})
        await store.set("b", "k", value=2, metadata={})
        await store.delete("a", "k")
        entry = await store.get("b", "k")
        assert entry is not None
        assert entry.value == 2
        assert await keys(store, "a") == []


async def test_a_list_is_ordered_bounded_filtered_and_goes_on_where_it_ended(backend: Backend, tmp_path: Path) -> None:
    async with backend(tmp_path) as store:
        names = [
            (namespace, key) for namespace in ("a", "b") for key in ("build-1", "build-2", "Build-3", "other", "ümlaut")
        ]
        for namespace, key in reversed(names):
            await store.set(namespace, key, value=key, metadata={})
        everything = await keys(store)
        assert sorted(names) == sorted(everything)
        assert [namespace for namespace, _ in everything] == ["a"] * 5 + ["b"] * 5
        assert await keys(store, "b", "build-*") == [("b", "build-1"), ("b", "build-2")]
        assert await keys(store, None, "*er") == [("a", "other"), ("b", "other")]
        walked: list[tuple[str, str]] = []
        while page := await keys(store, limit=3, after=walked[-1] if walked else None):
            walked += page
        assert walked == everything


async def test_a_list_tells_the_size_of_a_value_in_bytes(backend: Backend, tmp_path: Path) -> None:
    async with backend(tmp_path) as store:
        await store.set("global", "k", value="é" * 10, metadata={})
        (row,) = await store.list(None, "*", limit=10)
        assert row.value_bytes == len(('"' + "é" * 10 + '"').encode())


async def test_what_was_set_is_there_when_the_store_is_opened_again(backend: Backend, tmp_path: Path) -> None:
    """K045."""
    async with backend(tmp_path) as store:
        await store.set("global", "k", value={"deep": [1, None, "x"]}, metadata={"m": 1})
        before = await store.get("global", "k")
    async with backend(tmp_path) as store:
        assert await store.get("global", "k") == before


async def test_of_many_who_set_one_key_at_once_exactly_one_made_it(backend: Backend, tmp_path: Path) -> None:
    async with backend(tmp_path) as store:
        made = await soon(
            asyncio.gather(*(store.set("global", "k", value=number, metadata={}) for number in range(50)))
        )
        assert sum(made) == 1
        gone = await soon(asyncio.gather(*(store.delete("global", "k") for _ in range(50))))
        assert sum(gone) == 1


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(NAMES, NAMES, JSON), min_size=1, max_size=5))
def test_any_json_under_any_name_comes_back_as_it_was(entries: list[tuple[str, str, Any]]) -> None:
    """K045, J05."""

    async def walk(backend: Backend) -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with backend(Path(folder)) as store:
                kept: dict[tuple[str, str], Any] = {}
                for namespace, key, value in entries:
                    assert await store.set(namespace, key, value=value, metadata={"v": value}) == (
                        (namespace, key) not in kept
                    )
                    kept[namespace, key] = value
                for (namespace, key), value in kept.items():
                    entry = await store.get(namespace, key)
                    assert entry is not None
                    assert repr(entry.value) == repr(value)  # repr tells 1 from 1.0 and from True
                    assert repr(entry.metadata) == repr({"v": value})
                assert sorted(await keys(store)) == sorted(kept)

    for backend in BACKENDS:
        asyncio.run(walk(backend))


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from("klm"), st.text("x", max_size=9) | st.none()),
        max_size=40,
    )
)
def test_what_owners_may_store_is_always_what_the_rows_say(
    steps: list[tuple[str | None, str, str | None]],
) -> None:
    """L062: compared with a small oracle after every step; no text means delete."""

    async def walk() -> None:
        owned: dict[str, tuple[str | None, int]] = {}
        with tempfile.TemporaryDirectory() as folder:
            async with sqlite(Path(folder)) as store:
                for owner, key, text in steps:
                    if text is None:
                        assert await store.delete("n", key) == (owned.pop(key, None) is not None)
                        continue
                    size = len("n" + key + f'"{text}"' + "{}")
                    old = owned.get(key, (None, 0))
                    own = old[1] if old[0] == owner else 0
                    mine = [bytes_ for other, (who, bytes_) in owned.items() if who == owner]
                    fits = len(mine) + (own == 0) <= 2 and sum(mine) - own + size <= 20
                    allowed = owner is None or fits or size <= own
                    quota = None if owner is None else Quota(owner, 2, 20)
                    if allowed:
                        await store.set("n", key, value=text, metadata={}, quota=quota)
                        owned[key] = (owner, size)
                        continue
                    with pytest.raises(QuotaUsed) as refused:
                        await store.set("n", key, value=text, metadata={}, quota=quota)
                    assert (refused.value.keys, refused.value.stored_bytes) == (len(mine), sum(mine))

    asyncio.run(walk())


async def test_keys_of_before_the_quota_belong_to_nobody_and_stay(tmp_path: Path) -> None:
    """L062 F10"""
    async with open_database(tmp_path / "ksi.db", MIGRATIONS[:3]) as database:
        insert = (
            "INSERT INTO state (namespace, key, value, metadata, updated_at, revision) VALUES ('n', ?, '1', '{}', 1, 1)"
        )
        await database.execute_many(insert, [("k",), ("l",)])
    async with sqlite(tmp_path) as store:
        quota = Quota("scout", 1, 100)
        assert not await store.set("n", "k", value=2, metadata={}, quota=quota)
        with pytest.raises(QuotaUsed):
            await store.set("n", "l", value=2, metadata={}, quota=quota)
        assert await store.delete("n", "l")
        assert [row.key for row in await store.list("n", "*", limit=9)] == ["k"]
