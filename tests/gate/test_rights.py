"""The gate's memory: one snapshot with a version, changed durably first, effective at once, right under concurrency."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ksi_daemon.core import CORE
from ksi_daemon.errors import BadSettings, Conflict, Invalid, NotFound, Unauthenticated
from ksi_daemon.gate.credentials import CREDENTIALS_LIMIT, ENDED_KEPT_S, SESSIONS_LIMIT, USED_EVERY_S
from ksi_daemon.gate.profiles import read_profiles
from ksi_daemon.gate.rights import RESERVED_NAMES, Rights, scope_rules
from ksi_daemon.gate.tokens import SHAPE, digest, new_secret
from ksi_daemon.principal import Principal
from ksi_daemon.storage.agents import Agent, Credential, SqliteAgents
from ksi_daemon.storage.migrations import MIGRATIONS
from ksi_daemon.storage.sqlite import Database, open_database
from tests.gate.conftest import FakeClock
from tests.in_process import until

CORE_NAMESPACES = frozenset(plugin.name for plugin, _ in CORE)


class SlowStore(SqliteAgents):
    """A disk that can be held up, and that can fail."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.waiting = 0
        self.failing = False

    async def _disk(self) -> None:
        if self.failing:
            raise OSError("no space left")
        self.waiting += 1
        await self.go_on.wait()
        self.waiting -= 1

    async def save_agent(self, agent: Agent) -> None:
        await self._disk()
        await super().save_agent(agent)

    async def save_credential(self, credential: Credential) -> None:
        await self._disk()
        await super().save_credential(credential)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    async with open_database(tmp_path / "ksi.db", MIGRATIONS) as opened:
        yield opened


@pytest.fixture
def store(database: Database) -> SlowStore:
    return SlowStore(database)


@pytest.fixture
def rights(store: SlowStore, clock: FakeClock) -> Rights:
    return Rights(store, read_profiles(core=CORE_NAMESPACES), clock=clock)


async def again(store: SlowStore, clock: FakeClock) -> Rights:
    """What a restart would know."""
    fresh = Rights(store, read_profiles(core=CORE_NAMESPACES), clock=clock)
    await fresh.load()
    return fresh


async def add(rights: Rights, agent_id: str = "bot", profile: str = "standard", parent_id: str | None = None) -> Agent:
    return await rights.add_agent(agent_id, profile, parent_id=parent_id, note="", by="test")


async def token(rights: Rights, agent_id: str = "bot", **facts: Any) -> tuple[Credential, str]:
    made: dict[str, Any] = {"credential_id": f"c{len(rights.credentials.all())}", "created_at": rights.clock()}
    template = Credential(agent_id=agent_id, digest="", created_by="test", **(made | facts))
    return await rights.credentials.add(template)


def may(rights: Rights, agent_id: str, event: str, need: Any = "write") -> bool:
    principal = Principal(kind="agent", name=agent_id, agent_id=agent_id)
    return rights.decide(principal, f"events/{event}", need).allowed


async def test_every_change_has_a_new_version_and_tells_whom_it_is_about(rights: Rights) -> None:
    """K021, K041."""
    heard: list[set[str]] = []
    rights.on_change = heard.append
    versions = [rights.version]
    await add(rights)
    await add(rights, "child", parent_id="bot")
    await rights.grant("bot", "events/notes:*", "write", expires_at=None, by="test")
    await rights.revoke("bot", "events/notes:*")
    await rights.set_profile("child", "trusted")
    await rights.freeze(["bot"], frozen=True)
    credential, _ = await token(rights, "child")
    await rights.credentials.end(credential.credential_id)  # a token that ends changes nothing an agent may do
    await rights.remove_agent("child")
    assert [sorted(agents) for agents in heard[:5]] == [
        ["bot"],
        ["child"],
        ["bot", "child"],
        ["bot", "child"],
        ["child"],
    ]
    assert {"bot", "child"} in heard[5:]
    assert heard[-1] == {"child"}
    assert rights.version == versions[0] + len(heard)


async def test_what_the_disk_refuses_never_holds(rights: Rights, store: SlowStore) -> None:
    """F03: durable first, then in force."""
    await add(rights)
    store.failing = True
    version = rights.version
    for change in (add(rights, "other"), rights.set_profile("bot", "trusted"), token(rights)):
        with pytest.raises(OSError, match="no space"):
            await change
    assert set(rights.agents) == {"bot"}
    assert rights.agents["bot"].profile == "standard"
    assert rights.credentials.all() == []
    assert rights.version == version


async def test_freezing_is_in_force_before_it_is_on_disk(rights: Rights, store: SlowStore) -> None:
    """P09."""
    await add(rights)
    store.go_on.clear()
    freezing = asyncio.create_task(rights.freeze(["bot"], frozen=True))
    await asyncio.sleep(0)
    assert rights.inactive_reason(Principal(kind="agent", name="bot", agent_id="bot")) is not None
    store.go_on.set()
    await freezing
    assert rights.agents["bot"].frozen


async def test_a_brake_during_another_change_is_not_undone_by_it(
    rights: Rights, store: SlowStore, clock: FakeClock
) -> None:
    """P09."""
    await add(rights)
    store.go_on.clear()
    changing = asyncio.create_task(rights.set_profile("bot", "researcher"))
    await until(lambda: store.waiting)
    freezing = asyncio.create_task(rights.freeze(["bot"], frozen=True))
    await asyncio.sleep(0)
    store.go_on.set()
    await asyncio.gather(changing, freezing)
    for known in (rights, await again(store, clock)):
        assert (known.agents["bot"].frozen, known.agents["bot"].profile) == (True, "researcher")


async def test_a_revocation_is_not_undone_by_writing_down_the_last_use(
    rights: Rights, store: SlowStore, clock: FakeClock
) -> None:
    """A05: in whichever order they begin."""
    await add(rights)
    for first in ("keep", "revoke"):
        credential, secret = await token(rights, credential_id=f"token-{first}")
        clock.pass_s(USED_EVERY_S + 1)
        rights.credentials.principal(secret, transport="socket")
        changes = [rights.credentials.keep_last_uses(), rights.credentials.end(credential.credential_id)]
        await asyncio.gather(*(changes if first == "keep" else reversed(changes)))
        for known in (rights, await again(store, clock)):
            with pytest.raises(Unauthenticated):
                known.credentials.principal(secret, transport="socket")


async def test_of_many_agents_of_one_name_exactly_one_is_made(rights: Rights) -> None:
    """P10: names that differ only in case are one name."""
    tries = [add(rights, name) for name in ("bot", "Bot", "BOT", "bot", "bOt") * 4]
    made = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(one, Agent) for one in made) == 1
    assert all(isinstance(one, Agent | Conflict) for one in made)
    assert len(rights.agents) == 1


@pytest.mark.parametrize("kind", ["token", "session"])
async def test_caps_hold_when_many_come_at_once(rights: Rights, kind: str) -> None:
    """L043."""
    most = {"token": CREDENTIALS_LIMIT, "session": SESSIONS_LIMIT}[kind]
    await add(rights)
    tries = [token(rights, credential_id=f"c{number}", kind=kind) for number in range(most + 20)]
    made = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(one, tuple) for one in made) == most
    assert sum(isinstance(one, Conflict) for one in made) == 20


@pytest.mark.parametrize(
    "name",
    [
        "",
        " bot",
        "bot ",
        "bot\n",
        "b" * 65,
        "böt",
        "b\u043et",
        "bot\u200b",
        "a/b",
        "a:b",
        "*",
        "ﬁle",
        "bot\x00",
        "e\u0301",
        "..",
        ".bot",
        "-bot",
        "--all",
        "_bot",
    ],
)
async def test_look_alike_and_odd_names_are_refused(rights: Rights, name: str) -> None:
    """P10: a homoglyph, a combining accent, a blank, a zero-width space; a path, an option."""
    with pytest.raises(Invalid, match="not a valid agent name"):
        await add(rights, name)
    assert rights.agents == {}


async def test_a_name_that_means_another_caller_is_refused(rights: Rights) -> None:
    """P10: the operator, the daemon, a plugin, in any case."""
    rights.plugin_names = lambda: {"notes"}
    for name in (*RESERVED_NAMES, "Operator", "DAEMON", "notes", "Notes"):
        with pytest.raises(Invalid, match="means another caller"):
            await add(rights, name)
    assert rights.agents == {}
    await add(rights, "notes-2")


async def test_ended_credentials_are_deleted_after_a_day_and_live_ones_are_kept(
    rights: Rights, store: SlowStore, clock: FakeClock
) -> None:
    """L05: looking and minting must not grow with what has ended."""
    await add(rights)
    lasting, secret = await token(rights, credential_id="lasting")
    revoked, _ = await token(rights, credential_id="revoked")
    await token(rights, credential_id="expiring", expires_at=clock() + 60)
    await token(rights, credential_id="idle", idle_limit_s=60.0)
    await rights.credentials.end(revoked.credential_id)
    clock.pass_s(61)
    assert [credential.credential_id for credential in rights.credentials.live("bot")] == ["lasting"]
    assert await rights.credentials.delete_ended() == 0
    clock.pass_s(ENDED_KEPT_S - 60)
    assert await rights.credentials.delete_ended() == 1, "revoked a minute earlier than the others ended"
    clock.pass_s(60)
    assert await rights.credentials.delete_ended() == 2
    for known in (rights, await again(store, clock)):
        assert [credential.credential_id for credential in known.credentials.all()] == ["lasting"]
        assert known.credentials.principal(secret, transport="socket").credential_id == lasting.credential_id
    with pytest.raises(NotFound):
        rights.credentials.get("revoked")


async def test_a_change_drops_the_decisions_of_the_agents_it_is_about_and_no_others(rights: Rights) -> None:
    """L05: minting a token for one agent must not make every other agent decide anew."""
    await add(rights)
    await add(rights, "child", parent_id="bot")
    await add(rights, "other")
    before = {agent_id: rights.chain(agent_id) for agent_id in rights.agents}
    credential, _ = await token(rights, "other")
    session = rights.chain("other", credential.credential_id)
    await rights.credentials.end(credential.credential_id)
    assert rights.chain("other", credential.credential_id) is not session
    assert {agent_id: rights.chain(agent_id) for agent_id in rights.agents} == before
    await rights.grant("bot", "events/notes:*", "write", expires_at=None, by="test")
    assert rights.chain("other") is before["other"]
    assert rights.chain("bot") is not before["bot"]
    assert rights.chain("child") is not before["child"]


async def test_only_a_digest_is_remembered_and_it_finds_its_owner(rights: Rights, store: SlowStore) -> None:
    """A05, A11, A12: lookup by digest, one word of refusal for every reason."""
    await add(rights)
    credential, secret = await token(rights, conversation_id="conv", completion_id="comp")
    assert SHAPE.fullmatch(secret)
    assert credential.digest == digest(secret)
    assert secret not in repr(rights.credentials)
    principal = rights.credentials.principal(secret, transport="http", mailbox="box")
    assert (principal.kind, principal.agent_id, principal.transport, principal.mailbox) == (
        "agent",
        "bot",
        "http",
        "box",
    )
    assert (principal.conversation_id, principal.completion_id) == ("conv", "comp")
    assert (principal.credential_id, principal.session_id) == (credential.credential_id, None)
    said = set()
    for wrong in (
        "",
        "x",
        new_secret("token"),
        secret[:-1],
        secret + "A",
        secret.swapcase(),
        "\ud800",
        "ksi_" + "é" * 43,
    ):
        with pytest.raises(Unauthenticated) as caught:
            rights.credentials.principal(wrong, transport="http")
        said.add(str(caught.value.as_dict()))
    await rights.credentials.end(credential.credential_id)
    with pytest.raises(Unauthenticated) as caught:
        rights.credentials.principal(secret, transport="http")
    assert said == {str(caught.value.as_dict())}


async def test_two_secrets_are_never_alike() -> None:
    """A11."""
    assert len({new_secret("token") for _ in range(1000)}) == 1000
    assert new_secret("session").startswith("ksi_s_")


async def test_a_credential_ends_by_the_clock(rights: Rights, clock: FakeClock) -> None:
    """A05, F05: tokens fail closed."""
    await add(rights)
    credential, secret = await token(rights, expires_at=clock() + 100)
    principal = rights.credentials.principal(secret, transport="socket")
    clock.pass_s(99.9)
    assert rights.inactive_reason(principal) is None
    clock.pass_s(0.1)
    assert rights.credentials.ended_reason(credential) == "expired"
    assert rights.inactive_reason(principal) is not None
    with pytest.raises(Unauthenticated):
        rights.credentials.principal(secret, transport="socket")


async def test_an_unused_session_ends_and_a_used_one_goes_on(
    rights: Rights, store: SlowStore, clock: FakeClock
) -> None:
    """L043: the idle limit, also over a restart."""
    await add(rights)
    credential, secret = await token(rights, kind="session", idle_limit_s=100.0)
    for _ in range(5):
        clock.pass_s(90)
        rights.credentials.principal(secret, transport="socket")
    await rights.credentials.keep_last_uses()
    clock.pass_s(90)
    fresh = await again(store, clock)
    fresh.credentials.principal(secret, transport="socket")
    clock.pass_s(101)
    assert rights.credentials.ended_reason(credential) == "idle too long"
    with pytest.raises(Unauthenticated):
        fresh.credentials.principal(secret, transport="socket")


async def test_a_clock_set_back_revives_no_revoked_token(rights: Rights, clock: FakeClock) -> None:
    """F05."""
    await add(rights)
    credential, secret = await token(rights)
    await rights.credentials.end(credential.credential_id)
    for step in (-3600, -10 * 365 * 86_400, 50 * 365 * 86_400):
        clock.pass_s(step)
        with pytest.raises(Unauthenticated):
            rights.credentials.principal(secret, transport="socket")


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(
    ("limits", "reason"), [({"expires_at": 1_100.0}, "expired"), ({"idle_limit_s": 100.0}, "idle too long")]
)
async def test_a_clock_set_back_revives_no_credential_that_has_ended_by_itself(
    rights: Rights, store: SlowStore, clock: FakeClock, limits: dict[str, Any], reason: str, restarted: bool
) -> None:
    """F05 A05: whether its end was noticed by a use of it or by the upkeep, and over a restart."""
    await add(rights)
    used, secret = await token(rights, kind="session", **limits)
    unused, other_secret = await token(rights, kind="session", **limits)
    principal = rights.credentials.principal(secret, transport="socket")
    clock.pass_s(101)
    assert rights.inactive_reason(principal) is not None
    await rights.store_expired()
    for step in (-90, -50_000, -90_000_000):
        clock.pass_s(step)
        now = await again(store, clock) if restarted else rights
        await now.store_expired()
        assert now.inactive_reason(principal) is not None
        for credential, known in ((used, secret), (unused, other_secret)):
            assert now.credentials.ended_reason(credential) == reason
            with pytest.raises(Unauthenticated):
                now.credentials.principal(known, transport="socket")
        assert now.credentials.live("bot") == []
    with pytest.raises(Conflict, match=reason):
        await now.credentials.rotate(used.credential_id, by="test")


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_clock_set_back_revives_no_grant_that_has_expired(
    rights: Rights, store: SlowStore, clock: FakeClock, restarted: bool
) -> None:
    """F05: not for the agent, not for its children; a new grant on the same resource counts."""
    await add(rights)
    await add(rights, "child", parent_id="bot")
    await rights.grant("child", "events/notes:write", "write", expires_at=None, by="test")
    await rights.grant("bot", "events/notes:write", "write", expires_at=clock() + 100, by="test")
    assert may(rights, "bot", "notes:write")
    assert may(rights, "child", "notes:write")
    clock.pass_s(101)
    await rights.store_expired()
    for step in (-50, -50_000):
        clock.pass_s(step)
        now = await again(store, clock) if restarted else rights
        assert not may(now, "bot", "notes:write")
        assert not may(now, "child", "notes:write")
        await now.store_expired()
        assert not may(now, "bot", "notes:write")
    await now.grant("bot", "events/notes:write", "write", expires_at=clock() + 100, by="test")
    assert may(now, "bot", "notes:write")


async def test_a_grant_revoked_or_renewed_while_its_end_is_written_is_not_touched(
    rights: Rights, store: SlowStore, clock: FakeClock
) -> None:
    """F05"""
    await add(rights)
    for resource in ("events/notes:write", "events/notes:read"):
        await rights.grant("bot", resource, "write", expires_at=clock() + 100, by="test")
    clock.pass_s(101)
    store.go_on.clear()
    changing = asyncio.create_task(rights.set_profile("bot", "researcher"))
    await until(lambda: store.waiting)
    revoking = asyncio.create_task(rights.revoke("bot", "events/notes:read"))
    renewing = asyncio.create_task(
        rights.grant("bot", "events/notes:write", "write", expires_at=clock() + 100, by="test")
    )
    storing = asyncio.create_task(rights.store_expired())
    await asyncio.sleep(0)
    store.go_on.set()
    await asyncio.gather(changing, revoking, renewing, storing)
    fresh = await again(store, clock)
    assert may(rights, "bot", "notes:write")
    assert may(fresh, "bot", "notes:write")
    assert fresh.grants["bot"].keys() == {"events/notes:write"}


async def test_a_grant_takes_the_place_of_a_profiles_rule_on_the_same_resource(rights: Rights) -> None:
    """K020: also of one that forbids; revoking it brings the profile's back."""
    await add(rights)
    assert not may(rights, "bot", "monitor:get_stats", "read")
    await rights.grant("bot", "events/monitor:*", "read", expires_at=None, by="test")
    assert may(rights, "bot", "monitor:get_stats", "read")
    await rights.grant("bot", "events/state:*", "none", expires_at=None, by="test")
    assert not may(rights, "bot", "state:get", "read")
    await rights.revoke("bot", "events/state:*")
    await rights.revoke("bot", "events/monitor:*")
    assert may(rights, "bot", "state:set")
    assert not may(rights, "bot", "monitor:get_stats", "read")


async def test_a_grant_ends_by_the_clock_and_the_profile_decides_again(rights: Rights, clock: FakeClock) -> None:
    """P05."""
    await add(rights)
    await rights.grant("bot", "events/notes:add", "write", expires_at=clock() + 60, by="test")
    assert may(rights, "bot", "notes:add")
    clock.pass_s(59.9)
    assert may(rights, "bot", "notes:add")
    clock.pass_s(0.2)
    assert not may(rights, "bot", "notes:add")


async def test_a_child_never_has_more_than_any_agent_above_it(rights: Rights) -> None:
    """K021: as of now, whatever was granted to it."""
    await add(rights, "top", "researcher")
    await add(rights, "middle", "trusted", "top")
    await add(rights, "low", "trusted", "middle")
    assert [agent.agent_id for agent in rights.lineage("low")] == ["low", "middle", "top"]
    assert rights.children("top") == {"middle", "low"}
    assert may(rights, "low", "notes:add")
    await rights.grant("low", "events/notes:add", "write", expires_at=None, by="test")
    await rights.set_profile("top", "standard")
    assert not may(rights, "low", "notes:add")
    await rights.grant("top", "events/notes:add", "write", expires_at=None, by="test")
    assert may(rights, "low", "notes:add")
    await rights.grant("middle", "events/notes:add", "none", expires_at=None, by="test")
    assert not may(rights, "low", "notes:add")
    assert may(rights, "top", "notes:add")


async def test_an_agent_goes_with_its_credentials_and_grants_but_not_before_its_children(
    rights: Rights, store: SlowStore, clock: FakeClock
) -> None:
    await add(rights)
    await add(rights, "child", parent_id="bot")
    _, secret = await token(rights)
    await rights.grant("bot", "events/notes:*", "write", expires_at=None, by="test")
    with pytest.raises(Conflict, match="child"):
        await rights.remove_agent("bot")
    await rights.remove_agent("child")
    await rights.remove_agent("bot")
    with pytest.raises(Unauthenticated):
        rights.credentials.principal(secret, transport="socket")
    await add(rights)
    for known in (rights, await again(store, clock)):
        assert known.grants.get("bot", {}) == {}
        assert known.credentials.all() == []
        with pytest.raises(Unauthenticated):
            known.credentials.principal(secret, transport="socket")


async def test_a_restart_knows_everything(rights: Rights, store: SlowStore, clock: FakeClock) -> None:
    """A05."""
    await add(rights, "top")
    await add(rights, parent_id="top")
    await rights.grant("bot", "events/notes:*", "write", expires_at=clock() + 60, by="test")
    await rights.freeze(["top"], frozen=True)
    _, secret = await token(rights)
    fresh = await again(store, clock)
    assert (fresh.agents, fresh.grants) == (rights.agents, rights.grants)
    assert fresh.credentials.all() == rights.credentials.all()
    assert fresh.credentials.principal(secret, transport="socket").agent_id == "bot"


async def test_an_agent_whose_profile_is_gone_stops_the_start_with_the_way_out(store: SlowStore) -> None:
    await store.save_agent(Agent("bot", "mine", None, False, "", 1.0, "test"))
    with pytest.raises(BadSettings, match=r"'bot'.*'mine'.*mine\.toml"):
        await Rights(store, read_profiles(core=CORE_NAMESPACES)).load()


async def test_what_is_not_there_is_not_found_in_words_without_what_was_sent(rights: Rights) -> None:
    await add(rights)
    for missing in (
        rights.grant("nobody\x1b[2J", "events/*", "read", expires_at=None, by="test"),
        rights.revoke("bot", "events/*"),
        rights.remove_agent("nobody"),
        rights.credentials.end("c\x1b"),
        rights.freeze(["nobody"], frozen=True),
        token(rights, "nobody"),
        add(rights, "new", parent_id="nobody"),
    ):
        with pytest.raises(NotFound) as caught:
            await missing
        assert "\x1b" not in caught.value.message
    with pytest.raises(Invalid, match="standard"):
        await rights.set_profile("bot", "standart")
    with pytest.raises(Invalid, match="not a valid resource"):
        await rights.grant("bot", "events/n\u043etes:*", "read", expires_at=None, by="test")


@pytest.mark.parametrize(
    ("scopes", "held", "events"),
    [
        (("read",), {"read"}, "read"),
        (("write",), {"write"}, "write"),
        (("execute",), {"execute"}, "write"),
        (("network",), {"network"}, "read"),
        (("read", "write"), {"read", "write"}, "write"),
        (("admin",), {"read", "write", "execute", "network", "admin"}, "write"),
    ],
)
def test_scopes_become_rules_about_the_librarian_and_nothing_else(
    scopes: tuple[str, ...], held: set[str], events: str
) -> None:
    """L044, L045, L046, L047, L048."""
    session = Credential(
        credential_id="s", agent_id="a", digest="", kind="session", scopes=scopes, created_at=0.0, created_by="test"
    )
    rules = scope_rules(session)
    assert {(rule.resource, rule.access) for rule in rules} == {
        *((f"librarian/{scope}", "execute") for scope in held),
        ("events/librarian:*", events),
    }
    assert all(rule.source == "session s" for rule in rules)


async def test_scopes_are_the_sessions_and_not_the_agents(rights: Rights) -> None:
    """L049, K041."""
    await add(rights, profile="restricted")
    _, with_scope = await token(rights, credential_id="s1", kind="session", scopes=("read",))
    _, plain = await token(rights, credential_id="t1")
    session, other = (rights.credentials.principal(secret, transport="http") for secret in (with_scope, plain))
    assert session.session_id == "s1"
    assert rights.decide(session, "librarian/read", "execute").allowed
    assert not rights.decide(session, "librarian/write", "execute").allowed
    assert not rights.decide(other, "librarian/read", "execute").allowed
    await rights.credentials.end("s1")
    assert rights.inactive_reason(session) is not None
