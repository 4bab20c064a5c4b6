"""What every backend of the agent store must do. A new backend adds one line to BACKENDS."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ksi_daemon.storage.agents import Agent, AgentStore, Credential, Grant, SqliteAgents
from ksi_daemon.storage.migrations import MIGRATIONS
from ksi_daemon.storage.sqlite import open_database
from tests.in_process import soon


@asynccontextmanager
async def sqlite(folder: Path) -> AsyncIterator[AgentStore]:
    async with open_database(folder / "ksi.db", MIGRATIONS) as database:
        yield SqliteAgents(database)


Backend = Callable[[Path], AbstractAsyncContextManager[AgentStore]]  # opens the store that lives in a folder
BACKENDS: list[Backend] = [sqlite]


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.__name__)
def backend(request: pytest.FixtureRequest) -> Backend:
    found: Backend = request.param
    return found


def agent(agent_id: str = "bot", **facts: Any) -> Agent:
    made: dict[str, Any] = {
        "profile": "standard",
        "parent_id": None,
        "frozen": False,
        "note": "ümlaut",
        "created_at": 1.5,
    }
    return Agent(agent_id=agent_id, created_by="test", **(made | facts))


def credential(credential_id: str = "c1", agent_id: str = "bot", **facts: Any) -> Credential:
    made: dict[str, Any] = {"digest": f"digest of {credential_id}", "created_at": 2.5, "created_by": "test"}
    return Credential(credential_id=credential_id, agent_id=agent_id, **(made | facts))


def grant(grant_id: str = "g1", subject: str = "bot", resource: str = "events/notes:*", **facts: Any) -> Grant:
    made: dict[str, Any] = {"access": "write", "expires_at": None, "created_at": 3.5, "created_by": "test"}
    return Grant(grant_id=grant_id, subject=subject, resource=resource, **(made | facts))


async def test_a_new_store_is_empty(backend: Backend, tmp_path: Path) -> None:
    async with backend(tmp_path) as store:
        assert await store.load() == ([], [], [])


async def test_everything_that_was_kept_comes_back_as_it_was(backend: Backend, tmp_path: Path) -> None:
    """A05: also after a restart."""
    agents = [agent(), agent("child", parent_id="bot", frozen=True, created_at=2.0)]
    agents.append(
        agent(
            "spawned",
            created_at=3.0,
            provider="command",
            workspace="/somewhere",
            options={"command": ["run", "ü"]},
            daemon_id="d1",
            terminated_at=4.5,
        )
    )
    credentials = [
        credential("c1"),
        credential(
            "c2",
            "child",
            kind="session",
            client_id="child",
            scopes=("read", "write"),
            metadata={"deep": [1, None, {"x": "é"}]},
            expires_at=9.25,
            idle_limit_s=7.5,
            last_used_at=4.5,
            revoked_at=5.5,
            conversation_id="conv",
            completion_id="comp",
            user_id="u",
            label="first",
        ),
    ]
    grants = [grant(), grant("g2", "child", "tables/meals", access="none", expires_at=12.125)]
    async with backend(tmp_path) as store:
        for one in agents:
            await store.save_agent(one)
        for kept in credentials:
            await store.save_credential(kept)
        for given in grants:
            await store.save_grant(given)
        assert await store.load() == (agents, credentials, grants)
    async with backend(tmp_path) as store:
        assert await store.load() == (agents, credentials, grants)


async def test_saving_again_replaces_what_may_change(backend: Backend, tmp_path: Path) -> None:
    async with backend(tmp_path) as store:
        await store.save_agent(agent())
        await store.save_agent(agent(profile="trusted", frozen=True))
        await store.save_credential(credential())
        await store.save_credential(credential(revoked_at=8.0))
        agents, credentials, _ = await store.load()
        assert agents == [agent(profile="trusted", frozen=True)]
        assert credentials == [credential(revoked_at=8.0)]


async def test_one_grant_a_resource_and_agent(backend: Backend, tmp_path: Path) -> None:
    async with backend(tmp_path) as store:
        await store.save_agent(agent())
        await store.save_agent(agent("other"))
        await store.save_grant(grant("g1", access="write"))
        await store.save_grant(grant("g2", access="none"))
        await store.save_grant(grant("g3", "other"))
        _, _, grants = await store.load()
        assert grants == [grant("g2", access="none"), grant("g3", "other")]
        assert await store.delete_grant("bot", "events/notes:*")
        assert not await store.delete_grant("bot", "events/notes:*")
        assert (await store.load())[2] == [grant("g3", "other")]


async def test_an_agent_goes_with_what_it_held_and_nobody_elses(backend: Backend, tmp_path: Path) -> None:
    async with backend(tmp_path) as store:
        for name in ("bot", "other"):
            await store.save_agent(agent(name))
            await store.save_credential(credential(f"c-{name}", name))
            await store.save_grant(grant(f"g-{name}", name))
        await store.delete_agent("bot")
        await store.delete_agent("bot")
        agents, credentials, grants = await store.load()
        assert ([one.agent_id for one in agents], [one.agent_id for one in credentials]) == (["other"], ["other"])
        assert [one.subject for one in grants] == ["other"]


async def test_nothing_is_kept_for_agents_that_are_not_there(backend: Backend, tmp_path: Path) -> None:
    """A credential or a grant without its agent would come to life with the next agent of that name."""
    async with backend(tmp_path) as store:
        with pytest.raises(Exception, match=r"(?i)constraint|foreign|agent"):
            await store.save_credential(credential())
        with pytest.raises(Exception, match=r"(?i)constraint|foreign|agent"):
            await store.save_grant(grant())
        assert await store.load() == ([], [], [])


async def test_two_credentials_never_share_a_digest(backend: Backend, tmp_path: Path) -> None:
    async with backend(tmp_path) as store:
        await store.save_agent(agent())
        await store.save_credential(credential("c1", digest="same"))
        with pytest.raises(Exception, match=r"(?i)constraint|unique"):
            await store.save_credential(credential("c2", digest="same"))
        assert len((await store.load())[1]) == 1


async def test_many_changes_at_once_are_all_kept(backend: Backend, tmp_path: Path) -> None:
    async with backend(tmp_path) as store:
        await store.save_agent(agent())
        await soon(
            asyncio.gather(
                *(store.save_grant(grant(f"g{number}", resource=f"tables/t{number}")) for number in range(50)),
                *(store.save_credential(credential(f"c{number}")) for number in range(50)),
            )
        )
        _, credentials, grants = await store.load()
        assert (len(credentials), len(grants)) == (50, 50)


def test_a_credential_has_no_place_for_a_secret() -> None:
    """A11: what is not in the record cannot get onto the disk."""
    names = set(msgspec.structs.asdict(credential()))
    assert not names & {"secret", "token", "password"}
    assert "digest" in names
