"""state:get, set, delete and list through the router: what is refused, what is announced, what survives."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ksi_daemon.config import Settings, SettingsRead
from ksi_daemon.core.state import STARS_LIMIT, VALUE_LIMIT_BYTES
from ksi_daemon.daemon import open_hub
from ksi_daemon.errors import Invalid, NotFound, TooLarge
from ksi_daemon.logs.log import Log
from ksi_daemon.process.var_dir import prepare
from ksi_daemon.testing import running
from tests.in_process import call
from tests.storage.test_state_contract import JSON


async def test_what_is_set_can_be_read_listed_and_deleted() -> None:
    """K043, K045."""
    async with running() as hub:
        assert await hub.call("state:set", key="k", value={"a": [1, None]}, metadata={"by": "me"}) == {
            "namespace": "global",
            "key": "k",
            "created": True,
        }
        read = await hub.call("state:get", key="k")
        assert (read["value"], read["metadata"], read["namespace"]) == ({"a": [1, None]}, {"by": "me"}, "global")
        assert read["updated_at"].endswith("Z")
        listed = await hub.call("state:list")
        assert [(entry["key"], entry["bytes"]) for entry in listed["entries"]] == [("k", len('{"a":[1,null]}'))]
        assert not listed["more"]
        assert not (await hub.call("state:set", key="k", value=2))["created"]
        assert (await hub.call("state:delete", key="k"))["deleted"]
        assert not (await hub.call("state:delete", key="k"))["deleted"]
        with pytest.raises(NotFound, match="'k'"):
            await hub.call("state:get", key="k")


async def test_a_namespace_keeps_its_keys_to_itself() -> None:
    async with running() as hub:
        await hub.call("state:set", key="k", value=1, namespace="mine")
        with pytest.raises(NotFound):
            await hub.call("state:get", key="k")
        assert (await hub.call("state:list", namespace="mine"))["entries"][0]["key"] == "k"
        assert (await hub.call("state:list", namespace="yours"))["entries"] == []


async def test_every_change_is_announced_and_nothing_else_is() -> None:
    async with running() as hub:
        hub.subscribe("state:*")
        await hub.call("state:delete", key="k")
        await hub.call("state:set", key="k", value="not in the notice")
        await hub.call("state:set", key="k", value=2)
        await hub.call("state:delete", key="k")
        told = [(await hub.next_notice()).data for _ in range(3)]
        assert [notice["change"] for notice in told] == ["created", "replaced", "deleted"]
        assert all(notice.keys() == {"namespace", "key", "change"} for notice in told)


async def test_pages_follow_each_other_without_gap_or_repetition() -> None:
    async with running() as hub:
        for number in range(25):
            await hub.call("state:set", key=f"key-{number:02}", value=number)
        walked: list[str] = []
        after: list[str] | None = None
        more = True
        while more:
            page = await hub.call("state:list", limit=10, **({"after": after} if after else {}))
            walked += [entry["key"] for entry in page["entries"]]
            after = [page["entries"][-1]["namespace"], page["entries"][-1]["key"]]
            more = page["more"]
        assert walked == [f"key-{number:02}" for number in range(25)]


async def test_a_glob_chooses_keys() -> None:
    async with running() as hub:
        for key in ("build-1", "build-2", "test-1"):
            await hub.call("state:set", key=key, value=0)
        page = await hub.call("state:list", pattern="build-*")
        assert [entry["key"] for entry in page["entries"]] == ["build-1", "build-2"]
        assert len((await hub.call("state:list", pattern="*" * STARS_LIMIT))["entries"]) == 3
        with pytest.raises(Invalid, match="stars"):
            await hub.call("state:list", pattern="*" * (STARS_LIMIT + 1))


@pytest.mark.parametrize(
    "data",
    [
        {"key": "", "value": 1},
        {"key": "k" * 257, "value": 1},
        {"key": "k\n", "value": 1},
        {"key": "k\x00", "value": 1},
        {"key": "\x1b[2J", "value": 1},
        {"key": 5, "value": 1},
        {"key": "k"},
        {"key": "k", "value": 1, "namespace": ""},
        {"key": "k", "value": 1, "namespace": None},
        {"key": "k", "value": 1, "metadata": []},
        {"key": "k", "value": 1, "metadata": {str(number): 1 for number in range(51)}},
        {"key": "k", "value": {1: 2}},
        {"key": "k", "value": {"x": object()}},
        {"key": "k", "value": "\ud800"},
        {"key": "k", "value": float("nan")},
        {"key": "k", "value": float("inf")},
        {"key": "k", "value": 1, "extra": 1},
    ],
    ids=lambda data: str(data)[:40],
)
async def test_a_key_or_value_that_does_not_fit_is_refused_and_nothing_is_kept(data: dict[str, Any]) -> None:
    async with running() as hub:
        with pytest.raises(Invalid):
            await call(hub.hub.router, "state:set", data)
        assert (await hub.call("state:list"))["entries"] == []


async def test_a_value_over_the_limit_is_too_large_and_the_largest_can_be_read_back() -> None:
    """L062: what can be set can be read, also by the socket, whose lines have a limit of their own."""
    async with running() as hub:
        room = VALUE_LIMIT_BYTES - len('""') - len("{}")
        with pytest.raises(TooLarge, match=f"{VALUE_LIMIT_BYTES:,}"):
            await hub.call("state:set", key="k", value="x" * (room + 1))
        await hub.call("state:set", key="k" * 256, namespace="é" * 128, value="x" * room)
        read = await hub.call("state:get", key="k" * 256, namespace="é" * 128)
        assert len(read["value"]) == room


async def test_what_was_set_survives_the_hub(tmp_path: Path) -> None:
    """K045: state belongs to the daemon and outlives it."""
    var_dir = tmp_path / "var"
    prepare(var_dir)
    read = SettingsRead(settings=Settings(var_dir=var_dir), config_file=tmp_path / "ksi.toml", sources={})
    for number in range(3):
        log = Log(var_dir / "log" / "ksi.jsonl", "info")
        async with open_hub(read, log, shipped=False) as hub:
            if number:
                assert (await call(hub.router, "state:get", {"key": "count"}))["value"] == number
            await call(hub.router, "state:set", {"key": "count", "value": number + 1})
        log.file.close()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(JSON, min_size=1, max_size=5))
def test_any_json_value_comes_back_as_it_was(values: list[Any]) -> None:
    """J05, K045."""
    import asyncio

    async def walk() -> None:
        async with running() as hub:
            for number, value in enumerate(values):
                await hub.call("state:set", key=str(number), value=value)
            for number, value in enumerate(values):
                assert repr((await hub.call("state:get", key=str(number)))["value"]) == repr(value)

    asyncio.run(walk())
