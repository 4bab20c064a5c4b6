"""token:create, list, revoke and rotate: a secret is shown once, kept as a digest, and ends when it should."""

from pathlib import Path

import pytest

from ksi_daemon.errors import Conflict, Forbidden, Invalid, NotFound, Unauthenticated
from ksi_daemon.gate.tokens import SHAPE, digest
from ksi_daemon.testing import running
from tests.agents_at_work import WallClock, add_agent, call_as, rows


async def test_a_token_names_its_agent_and_what_it_is_bound_to() -> None:
    """A05, K033."""
    async with running() as hub:
        await add_agent(hub)
        made = await hub.call(
            "token:create", agent_id="bot", label="ci", conversation_id="conv-1", completion_id="comp.2"
        )
        assert made.keys() == {"credential_id", "agent_id", "token", "expires_at"}
        assert SHAPE.fullmatch(made["token"])
        assert made["expires_at"] is None
        principal = hub.hub.rights.credentials.principal(made["token"], transport="http")
        assert (principal.conversation_id, principal.completion_id) == ("conv-1", "comp.2")
        await call_as(hub, principal, "system:health")
        (row,) = await rows(hub, agent="bot")
        assert (row["conversation_id"], row["credential_id"]) == ("conv-1", made["credential_id"])


async def test_a_secret_is_shown_once_and_is_nowhere_in_the_folder() -> None:
    """A11, S05: its digest is, in one place."""
    async with running() as hub:
        first = (await hub.call("agent:register", agent_id="bot"))["token"]
        made = await hub.call("token:create", agent_id="bot")
        rotated = await hub.call("token:rotate", credential_id=made["credential_id"])
        session = await hub.call("session:create", clientId="client", scopes=["read"])
        secrets = [first, made["token"], rotated["token"], session["token"]]
        shown = str([await hub.call(event) for event in ("token:list", "session:list", "agent:list", "audit:query")])
        shown += str([await hub.call("agent:get", agent_id="bot"), await hub.call("monitor:get_events")])
        var_dir = Path((await hub.call("system:status"))["var_dir"])
        on_disk = b"".join(file.read_bytes() for file in var_dir.rglob("*") if file.is_file())
        for secret in secrets:
            assert secret not in shown
            assert secret.encode() not in on_disk
            assert digest(secret).encode() in on_disk
            assert digest(secret) not in shown


async def test_list_shows_states_and_uses_and_can_be_narrowed() -> None:
    async with running() as hub:
        await add_agent(hub)
        await add_agent(hub, "other")
        made = await hub.call("token:create", agent_id="bot", label="ci")
        await hub.call("token:revoke", credential_id=made["credential_id"])
        everything = (await hub.call("token:list"))["tokens"]
        assert sorted(one["agent_id"] for one in everything) == ["bot", "bot", "other"]
        first, second = (await hub.call("token:list", agent_id="bot"))["tokens"]
        assert (first["label"], first["state"], second["label"], second["state"]) == ("first", "live", "ci", "revoked")
        assert first["last_used_at"].endswith("Z")
        assert second["last_used_at"] is None
        assert (await hub.call("token:list", agent_id="nobody"))["tokens"] == []


async def test_a_token_ends_by_the_clock() -> None:
    """A05, F05."""
    async with running() as hub:
        clock = WallClock(hub)
        await add_agent(hub)
        made = await hub.call("token:create", agent_id="bot", expires_in_s=60)
        assert made["expires_at"].endswith("Z")
        principal = hub.hub.rights.credentials.principal(made["token"], transport="socket")
        await call_as(hub, principal, "system:health")
        clock.now_s += 61
        with pytest.raises(Forbidden, match="not valid any more"):
            await call_as(hub, principal, "system:health")
        with pytest.raises(Unauthenticated):
            hub.hub.rights.credentials.principal(made["token"], transport="socket")
        assert (await hub.call("token:list", agent_id="bot"))["tokens"][1]["state"] == "expired"


async def test_a_revoked_token_is_nobodys_from_the_next_call_on() -> None:
    """A05, K041."""
    async with running() as hub:
        bot = await add_agent(hub)
        other = await hub.call("token:create", agent_id="bot")
        hub.subscribe("token:revoked")
        assert await hub.call("token:revoke", credential_id=bot.credential_id) == {
            "credential_id": bot.credential_id, "agent_id": "bot", "revoked": True,
        }  # fmt: skip
        assert (await hub.next_notice()).data == {"credential_id": bot.credential_id, "agent_id": "bot"}
        with pytest.raises(Forbidden):
            await call_as(hub, bot, "system:health")
        await call_as(hub, hub.hub.rights.credentials.principal(other["token"], transport="socket"), "system:health")
        assert (await hub.call("token:revoke", credential_id=bot.credential_id))["revoked"]


async def test_rotation_swaps_the_secret_and_keeps_the_rest() -> None:
    """A05."""
    async with running() as hub:
        await add_agent(hub)
        old = await hub.call("token:create", agent_id="bot", label="ci", expires_in_s=600, conversation_id="conv")
        new = await hub.call("token:rotate", credential_id=old["credential_id"])
        assert new["credential_id"] != old["credential_id"]
        assert new["token"] != old["token"]
        with pytest.raises(Unauthenticated):
            hub.hub.rights.credentials.principal(old["token"], transport="socket")
        principal = hub.hub.rights.credentials.principal(new["token"], transport="socket")
        assert (principal.agent_id, principal.conversation_id) == ("bot", "conv")
        kept = (await hub.call("token:list", agent_id="bot"))["tokens"][-1]
        assert (kept["label"], kept["state"], kept["expires_at"]) == ("ci", "live", new["expires_at"])


async def test_rotation_revives_nothing() -> None:
    """A05."""
    async with running() as hub:
        bot = await add_agent(hub)
        await hub.call("token:revoke", credential_id=bot.credential_id)
        with pytest.raises(Conflict, match="revoked"):
            await hub.call("token:rotate", credential_id=bot.credential_id)


async def test_a_token_for_nobody_or_without_end_in_sight_is_refused() -> None:
    async with running() as hub:
        with pytest.raises(NotFound):
            await hub.call("token:create", agent_id="nobody")
        await add_agent(hub)
        for bad in ({"expires_in_s": 0}, {"expires_in_s": -1}, {"expires_in_s": 1e12}, {"conversation_id": "a b"}):
            with pytest.raises(Invalid):
                await hub.call("token:create", agent_id="bot", **bad)
        for event in ("token:revoke", "token:rotate"):
            with pytest.raises(NotFound):
                await hub.call(event, credential_id="nothing")


async def test_token_calls_are_on_record_by_name() -> None:
    """K042, E003: the word token in an event's name is no secret."""
    async with running() as hub:
        bot = await add_agent(hub)
        await hub.call("token:list")
        await hub.call("token:revoke", credential_id=bot.credential_id)
        assert len(await rows(hub, event="token:list")) == 1
        assert [row["type"] for row in await rows(hub, event="token:revoke")] == ["admin", "admin"]
        assert len(await rows(hub, event="ksi_token_revoke")) == 2
