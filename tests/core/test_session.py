"""session:create, list and revoke: credentials with scopes that end by themselves."""

import asyncio
from typing import Any

import pytest

from ksi_daemon.errors import ApprovalRequired, Conflict, Forbidden, Invalid, NotFound, Unauthenticated
from ksi_daemon.plugin import Context, Nothing, Plugin
from ksi_daemon.principal import Principal
from ksi_daemon.testing import TestHub, running
from tests.agents_at_work import WallClock, add_agent, call_as, rows
from tests.in_process import Said

SCOPES = ("read", "write", "execute", "network", "admin")


def librarian() -> Plugin:
    """Events as a librarian will have them: each needs the scope of its name."""
    plugin = Plugin("librarian")

    async def answer(ctx: Context, params: Nothing) -> Said:
        """Answer."""
        return Said()

    for scope in SCOPES:
        plugin.handles(f"librarian:{scope}", reads=scope == "read", needs=[(f"librarian/{scope}", "execute")])(answer)
    plugin.handles("librarian:purge", needs=[("librarian/write", "execute"), ("operation/librarian:purge", "execute")])(
        answer
    )
    return plugin


async def open_session(hub: TestHub, *scopes: str, client: str = "client", **options: Any) -> Principal:
    made = await hub.call("session:create", clientId=client, scopes=list(scopes), **options)
    return hub.hub.rights.credentials.principal(made["token"], transport="http")


async def test_a_session_is_a_token_with_an_id_shown_once() -> None:
    """L043, L055."""
    async with running() as hub:
        made = await hub.call("session:create", clientId="client", scopes=["read"], metadata={"app": "x"})
        assert made.keys() == {"sessionId", "token", "expires_at"}
        assert made["token"].startswith("ksi_s_")
        principal = hub.hub.rights.credentials.principal(made["token"], transport="http")
        assert (principal.agent_id, principal.session_id) == ("client", made["sessionId"])
        assert (await hub.call("agent:get", agent_id="client"))["profile"] == "restricted"
        (session,) = (await hub.call("session:list"))["sessions"]
        assert (session["clientId"], session["scopes"], session["metadata"], session["state"]) == (
            "client", ["read"], {"app": "x"}, "live",
        )  # fmt: skip
        found = await rows(hub, event="session:create")
        assert {row["type"] for row in found} == {"session"}
        assert made["token"] not in str(found)


@pytest.mark.parametrize("scope", SCOPES)
async def test_a_scope_opens_its_events_and_admin_all(scope: str) -> None:
    """L044, L045, L046, L047, L048, L049."""
    async with running(librarian()) as hub:
        session = await open_session(hub, scope)
        for event in SCOPES:
            opened = scope in (event, "admin") and not (scope == "network" == event)
            if opened:
                await call_as(hub, session, f"librarian:{event}")
            else:
                with pytest.raises(Forbidden):
                    await call_as(hub, session, f"librarian:{event}")
        with pytest.raises(Forbidden):
            await call_as(hub, session, "state:set", key="k", value=1)


async def test_network_beside_write_opens_what_calls_outside() -> None:
    """L047: by itself it gives no event, as it adds a provider to a call that writes."""
    async with running(librarian()) as hub:
        both = await open_session(hub, "write", "network")
        await call_as(hub, both, "librarian:network")


async def test_a_scope_is_one_sessions_and_not_the_clients() -> None:
    """L049, K041."""
    async with running(librarian()) as hub:
        reader, writer = await open_session(hub, "read"), await open_session(hub, "write")
        await call_as(hub, writer, "librarian:write")
        with pytest.raises(Forbidden):
            await call_as(hub, reader, "librarian:write")


async def test_a_dangerous_operation_needs_consent_beyond_any_scope() -> None:
    """L050, L051, E002: which no agent can give itself."""
    async with running(librarian()) as hub:
        session = await open_session(hub, "admin")
        with pytest.raises(ApprovalRequired):
            await call_as(hub, session, "librarian:purge")
        grant: dict[str, Any] = {"agent_id": "client", "resource": "operation/librarian:purge", "access": "execute"}
        with pytest.raises(Forbidden, match="no such tool"):
            await call_as(hub, session, "permission:grant", **grant)
        await hub.call("permission:grant", **grant)
        await call_as(hub, session, "librarian:purge")
        statuses = [row["status"] for row in await rows(hub, session_id=session.session_id, event="librarian:purge")]
        assert statuses == ["approval_required", "started", "ok"]


async def test_a_session_ends_by_its_time_however_busy() -> None:
    """L043, F05."""
    async with running() as hub:
        clock = WallClock(hub)
        made = await hub.call("session:create", clientId="client", scopes=["read"], ttl_s=100, idle_s=50)
        for _ in range(4):
            clock.now_s += 24
            await call_as(hub, hub.hub.rights.credentials.principal(made["token"], transport="http"), "system:health")
        clock.now_s += 24
        with pytest.raises(Unauthenticated):
            hub.hub.rights.credentials.principal(made["token"], transport="http")
        assert (await hub.call("session:list"))["sessions"][0]["state"] == "expired"


async def test_a_session_that_is_not_used_ends() -> None:
    """L043."""
    async with running() as hub:
        clock = WallClock(hub)
        session = await open_session(hub, "read", ttl_s=1000, idle_s=50)
        clock.now_s += 51
        with pytest.raises(Forbidden, match="not valid any more"):
            await call_as(hub, session, "system:health")
        assert (await hub.call("session:list"))["sessions"][0]["state"] == "idle too long"


async def test_a_client_has_so_many_sessions_and_ended_ones_make_room() -> None:
    """L043."""
    async with running() as hub:
        tries = [hub.call("session:create", clientId="client", scopes=["read"]) for _ in range(15)]
        made = await asyncio.gather(*tries, return_exceptions=True)
        assert sum(isinstance(one, dict) for one in made) == 10
        assert sum(isinstance(one, Conflict) for one in made) == 5
        await hub.call("session:create", clientId="another", scopes=["read"])
        live = next(one for one in made if isinstance(one, dict))
        await hub.call("session:revoke", sessionId=live["sessionId"])
        await hub.call("session:create", clientId="client", scopes=["read"])


async def test_a_revoked_session_is_over_at_the_next_call() -> None:
    """L043, K041."""
    async with running() as hub:
        session = await open_session(hub, "read")
        assert await hub.call("session:revoke", sessionId=session.session_id) == {
            "sessionId": session.session_id, "revoked": True,
        }  # fmt: skip
        with pytest.raises(Forbidden):
            await call_as(hub, session, "system:health")
        with pytest.raises(NotFound):
            await hub.call("session:revoke", sessionId="nothing")


@pytest.mark.parametrize(
    "data",
    [
        {"clientId": "client", "scopes": []},
        {"clientId": "client", "scopes": ["everything"]},
        {"clientId": "client"},
        {"clientId": "cli ent", "scopes": ["read"]},
        {"clientId": "clien\u0442", "scopes": ["read"]},
        {"clientId": "client", "scopes": ["read"], "ttl_s": 0},
        {"clientId": "client", "scopes": ["read"], "idle_s": -1},
        {"clientId": "client", "scopes": ["read"], "ttl_s": 1e9},
    ],
)
async def test_a_session_that_does_not_fit_is_refused_and_makes_no_agent(data: dict[str, Any]) -> None:
    """L043, P10."""
    async with running() as hub:
        with pytest.raises(Invalid):
            await hub.call("session:create", **data)
        assert (await hub.call("agent:list"))["agents"] == []


async def test_session_revoke_ends_sessions_and_token_list_shows_both() -> None:
    async with running() as hub:
        await add_agent(hub, "client")
        await open_session(hub, "read")
        assert [one["kind"] for one in (await hub.call("token:list"))["tokens"]] == ["token", "session"]
        assert len((await hub.call("session:list"))["sessions"]) == 1
