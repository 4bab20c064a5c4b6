"""The quota of an agent on the state: how many keys and bytes it may store, and what frees them."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ksi_daemon.errors import TooLarge
from ksi_daemon.testing import TestHub, running


async def _as(hub: TestHub, agent: str, called: str, /, **data: Any) -> Any:
    rights = hub.hub.rights
    if agent not in rights.agents:
        await rights.add_agent(agent, "trusted", parent_id=None, note="", by="test")
    return msgspec.json.decode(await hub.hub.router.call(called, data, principal=rights.impersonate(agent)))


async def test_an_agent_may_store_so_many_keys_and_deleting_one_makes_room_for_another() -> None:
    """L062"""
    async with running(agent_state_keys=3, rate_limit="off") as hub:
        for number in range(3):
            await _as(hub, "scout", "state:set", key=f"k{number}", value=number)
        with pytest.raises(
            TooLarge, match=r"scout has stored 3 keys with [0-9,]+ bytes; an agent may store 3 keys"
        ) as refused:
            await _as(hub, "scout", "state:set", key="k3", value=3)
        assert "state:delete" in (refused.value.hint or "")
        assert "agent_state_keys" in (refused.value.hint or "")
        await _as(hub, "scout", "state:set", key="k2", value=1)
        await _as(hub, "other", "state:set", key="k3", value="another agent has a quota of its own")
        await hub.call("state:set", key="k4", value="the operator has none")
        await _as(hub, "scout", "state:delete", key="k0")
        await _as(hub, "scout", "state:set", key="k5", value=3)


async def test_bytes_are_counted_with_names_and_metadata_and_shrinking_frees_them() -> None:
    """L062"""
    async with running(agent_state_bytes=10_000, rate_limit="off") as hub:
        await _as(hub, "scout", "state:set", key="a", value="x" * 6_000)
        for data in ({"value": "x" * 6_000}, {"value": 1, "metadata": {"m": "x" * 6_000}}):
            with pytest.raises(TooLarge, match="10,000 bytes"):
                await _as(hub, "scout", "state:set", key="b", **data)
        with pytest.raises(TooLarge):
            await _as(hub, "scout", "state:set", key="a", value="x" * 10_001)
        await _as(hub, "scout", "state:set", key="a", value="x" * 9_900)
        await _as(hub, "scout", "state:set", key="a", value="x" * 3_000)
        await _as(hub, "scout", "state:set", key="b", value="x" * 6_000)


async def test_a_key_counts_for_whoever_set_it_last() -> None:
    """L062"""
    async with running(agent_state_keys=1, rate_limit="off") as hub:
        await _as(hub, "scout", "state:set", key="a", value=1)
        await _as(hub, "other", "state:set", key="a", value=2)
        await _as(hub, "scout", "state:set", key="b", value=1)
        with pytest.raises(TooLarge):
            await _as(hub, "scout", "state:set", key="a", value=3)
        await hub.call("state:set", key="b", value="the operator's now")
        await _as(hub, "scout", "state:set", key="c", value=1)
        with pytest.raises(TooLarge):
            await _as(hub, "scout", "state:set", key="b", value=3)


async def test_the_quota_holds_over_restarts_and_what_is_over_a_smaller_one_may_shrink(tmp_path: Path) -> None:
    """L062 K045"""
    async with running(var_dir=tmp_path / "var", rate_limit="off") as hub:
        for number in range(5):
            await _as(hub, "scout", "state:set", key=f"k{number}", value="xx")
    async with running(var_dir=tmp_path / "var", agent_state_keys=3, rate_limit="off") as hub:
        with pytest.raises(TooLarge, match="scout has stored 5 keys"):
            await _as(hub, "scout", "state:set", key="k5", value=1)
        with pytest.raises(TooLarge):
            await _as(hub, "scout", "state:set", key="k4", value="xxx")
        await _as(hub, "scout", "state:set", key="k4", value="x")
        for number in range(3):
            await _as(hub, "scout", "state:delete", key=f"k{number}")
        await _as(hub, "scout", "state:set", key="k5", value=1)


async def test_many_writes_at_once_do_not_exceed_it() -> None:
    """L062"""
    async with running(agent_state_keys=10, rate_limit="off") as hub:
        await _as(hub, "scout", "state:set", key="first", value=0)
        writes = [_as(hub, "scout", "state:set", key=f"k{number}", value=number) for number in range(15)]
        ended = await asyncio.gather(*writes, return_exceptions=True)
        refused = [error for error in ended if isinstance(error, BaseException)]
        assert len(refused) == 6
        assert all(isinstance(error, TooLarge) for error in refused), refused
        assert len((await hub.call("state:list"))["entries"]) == 10
