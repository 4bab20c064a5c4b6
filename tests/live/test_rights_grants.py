"""What an agent may do, as it stands at this moment, seen from outside through the socket of a real daemon."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.live.daemon_process import Connection, Daemon, Refused

NOTES = '''
class Text(Params):
    text: str = Field("", description="What to keep.")

@plugin.handles("notes:read", reads=True)
async def read(ctx: Context, params: Nothing) -> Done:
    """Read."""
    return Done()

@plugin.handles("notes:write")
async def write(ctx: Context, params: Text) -> Done:
    """Write."""
    return Done()

@plugin.handles("notes:publish", needs=[("operation/notes:publish", "execute")])
async def publish(ctx: Context, params: Nothing) -> Done:
    """Do what a person must agree to."""
    return Done()

@plugin.handles("notes:through")
async def through(ctx: Context, params: Nothing) -> Done:
    """Do for the caller what the caller may not do."""
    await ctx.call("notes:write", {"text": "for somebody"})
    return Done()

@plugin.handles("notes:secretly", operator_only=True)
async def secretly(ctx: Context, params: Nothing) -> Done:
    """For the operator alone."""
    return Done()
'''


@pytest.fixture
def hub(daemon: Daemon) -> Daemon:
    """A running daemon with a plugin of notes and without rate limits."""
    daemon.plugin("notes", NOTES)
    daemon.settings["rate_limit"] = "off"
    return daemon.start()


def _code(connection: Connection, event: str, token: str, data: dict[str, Any] | None = None) -> str:
    answer = connection.send(event, data, token=token)
    return "ok" if answer["ok"] else str(answer["error"]["code"])


def test_a_grant_and_its_end_count_from_the_very_next_call(hub: Daemon) -> None:
    """K018 K021 K041: a hundred times over, on one connection that stays open"""
    token = hub.add_agent("alice", "standard")
    grant = {"agent_id": "alice", "resource": "events/notes:write"}
    with hub.connect() as operator, hub.connect() as alice:
        seen = []
        for _ in range(100):
            seen.append(_code(alice, "notes:write", token))
            operator.call("permission:grant", grant)
            seen.append(_code(alice, "notes:write", token))
            operator.call("permission:revoke", grant)
        assert seen == ["forbidden", "ok"] * 100


def test_a_grant_ends_at_its_time(hub: Daemon) -> None:
    """K021"""
    token = hub.add_agent("alice", "standard")
    hub.call("permission:grant", {"agent_id": "alice", "resource": "events/notes:write", "for_s": 0.4})
    with hub.connect() as alice:
        codes = [_code(alice, "notes:write", token) for _ in range(3)]
        assert codes == ["ok"] * 3
        while _code(alice, "notes:write", token) == "ok":
            pass
        assert _code(alice, "notes:write", token) == "forbidden"


def test_each_agent_may_do_what_its_profile_says_and_get_agent_tells_the_same(hub: Daemon) -> None:
    """K018 K019 K020 K040: what is listed as allowed is not refused, what is not is refused as unknown"""
    events = {
        "restricted": {"system:health"},
        "standard": {"system:health", "notes:read", "state:set"},
        "researcher": {"system:health", "notes:read", "state:set", "notes:write"},
        "trusted": {"system:health", "notes:read", "state:set", "notes:write", "plugin:list"},
    }
    asked: dict[str, dict[str, Any]] = {"state:set": {"key": "k", "value": 1}, "agent:register": {"agent_id": "eve"}}
    every = sorted(events["trusted"] | {"agent:register", "notes:secretly", "audit:query", "permission:get_agent"})
    with hub.connect() as connection:
        for profile, allowed in events.items():
            token = hub.add_agent(profile, profile)
            told = hub.call("permission:get_agent", {"agent_id": profile})
            assert told["profile"] == profile
            served = {event for event in every if _code(connection, event, token, asked.get(event)) == "ok"}
            assert served == allowed
            listed = {event for event in every if f"ksi_{event.replace(':', '_')}" in told["allowed_tools"]}
            assert listed == allowed


def test_unknown_and_forbidden_are_the_same_in_every_byte(hub: Daemon) -> None:
    """K040 P03"""
    token = hub.add_agent("alice", "restricted")
    with hub.connect() as alice:
        bodies = set()
        for event in ("notes:write", "notes:absent", "notes:secretly", "token:create", "nobody:knows"):
            error = alice.send(event, {}, token=token)["error"]
            bodies.add(json.dumps(error).replace(event, "EVENT"))
        assert len(bodies) == 1, bodies
        assert "forbidden" in bodies.pop()


def test_an_agent_is_told_only_of_what_it_may_do(hub: Daemon) -> None:
    """K018 K040 P04: discovery, help and validation ask the same question as a call"""
    token = hub.add_agent("alice", "restricted")
    with hub.connect() as alice:
        discovered = alice.call("system:discover", {}, token=token)
        assert set(discovered["events"]) <= {
            *(f"system:{verb}" for verb in ("echo", "health", "help", "discover", "validate")),
            *(f"mcp:{verb}" for verb in ("help", "find_tools", "call_tool", "batch_call")),  # of every agent
        }
        shown = json.dumps(discovered)
        assert "notes:" not in shown
        assert "agent:register" not in shown
        extras: dict[str, dict[str, Any]] = {"system:help": {}, "system:validate": {"data": {}}}
        for event, extra in extras.items():
            bodies = set()
            for asked in ("notes:write", "token:create", "nobody:knows"):
                answer = alice.send(event, {"event": asked, **extra}, token=token)
                bodies.add(json.dumps({**answer, "id": 0}).replace(asked, "EVENT"))
            assert len(bodies) == 1, bodies


def test_a_subscription_of_an_agent_hears_nothing_of_other_agents_rights(hub: Daemon) -> None:
    """K040 P04"""
    token = hub.add_agent("alice", "standard")
    with hub.connect() as alice:
        answer = alice.send("message:subscribe", {"patterns": ["*"]}, token=token)
        hub.add_agent("bob")
        hub.call("permission:grant", {"agent_id": "bob", "resource": "events/notes:write"})
        alice.send("system:echo", {"text": "x"}, token=token)
        heard = {notice["event"] for notice in alice.notices}
        assert not heard & {"agent:registered", "permission:changed", "token:revoked"}, (answer, heard)


def test_a_plugin_cannot_do_for_an_agent_what_the_agent_may_not(hub: Daemon) -> None:
    """K018 K040"""
    token = hub.add_agent("alice", "standard")
    hub.call("permission:grant", {"agent_id": "alice", "resource": "events/notes:through"})
    with hub.connect() as alice:
        assert _code(alice, "notes:through", token) == "forbidden"
        hub.call("permission:grant", {"agent_id": "alice", "resource": "events/notes:write"})
        assert _code(alice, "notes:through", token) == "ok"


def test_consent_is_a_grant_that_only_the_operator_gives(hub: Daemon) -> None:
    """L050 L051"""
    token = hub.add_agent("alice", "researcher")
    consent = {"agent_id": "alice", "resource": "operation/notes:publish"}
    with hub.connect() as alice:
        answer = alice.send("notes:publish", token=token)
        assert answer["error"]["code"] == "approval_required"
        assert "operation/notes:publish" in answer["error"]["message"]
        assert _code(alice, "permission:grant", token, consent) == "forbidden"
        hub.call("permission:grant", consent)
        assert _code(alice, "notes:publish", token) == "ok"
        hub.call("permission:revoke", consent)
        assert _code(alice, "notes:publish", token) == "approval_required"


def test_a_child_never_exceeds_its_parent(hub: Daemon) -> None:
    """K040"""
    hub.add_agent("parent", "standard")
    token = hub.add_agent("child", "trusted", parent_id="parent")
    with hub.connect() as child:
        assert _code(child, "notes:read", token) == "ok"
        assert _code(child, "notes:write", token) == "forbidden"
        hub.call("permission:grant", {"agent_id": "parent", "resource": "events/notes:write"})
        assert _code(child, "notes:write", token) == "ok"
        hub.call("agent:freeze", {"agent_id": "parent"})
        assert _code(child, "notes:read", token) == "forbidden"


def test_the_operator_in_an_agents_shoes_has_that_agents_rights_and_the_record_tells(hub: Daemon) -> None:
    """K042"""
    hub.add_agent("alice", "restricted")
    with pytest.raises(Refused) as refused:
        hub.call("state:set", {"key": "k", "value": 1}, **{"as": "alice"})
    assert refused.value.code == "forbidden"
    [row] = hub.audit_rows("event = 'state:set'")
    assert (row["agent_id"], row["status"], row["details"]) == ("alice", "forbidden", '{"impersonated_by":"operator"}')
    with pytest.raises(Refused) as nobody:
        hub.call("state:set", {"key": "k", "value": 1}, **{"as": "nobody"})
    assert nobody.value.code == "not_found"
    assert len(hub.audit_rows("event = 'state:set'")) == 2, "also a call as somebody who is not there is recorded"


LOOK_ALIKES = (
    "\u0430lice", "alice ", " alice", "ALICE", "Alice", "alice\u200b", "ali\u0441e", "e\u0301ve", "\u00e9v\u00e9", "alice\n",
    "al/ice", "*", "", "a" * 65, "\u202eecila", "\uff41lice",
)  # fmt: skip


def test_names_that_look_like_another_are_refused(hub: Daemon) -> None:
    """P10: as an agent, as a client of a session, and inside a rule"""
    hub.add_agent("alice")
    taken = []
    for name in LOOK_ALIKES:
        tries: list[tuple[str, dict[str, Any]]] = [
            ("agent:register", {"agent_id": name}),
            ("session:create", {"clientId": name, "scopes": ["read"]}),
        ]
        if not name.isascii() or name != name.strip():
            tries.append(("permission:grant", {"agent_id": "alice", "resource": f"tables/{name}"}))
        for event, data in tries:
            with hub.connect() as connection:
                answer = connection.send(event, data)
            if answer["ok"] or answer["error"]["code"] not in ("invalid", "conflict"):
                taken.append((event, ascii(name), answer))
    assert taken == []
    assert [one["agent_id"] for one in hub.call("agent:list")["agents"]] == ["alice"]


def _together(hub: Daemon, requests: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """Send each on a connection of its own, all at once; their codes."""
    connections = [hub.connect() for _ in requests]
    try:
        with ThreadPoolExecutor(len(requests)) as pool:
            answers = pool.map(lambda pair: pair[0].send(*pair[1]), zip(connections, requests, strict=True))
            return ["ok" if answer["ok"] else str(answer["error"]["code"]) for answer in answers]
    finally:
        for connection in connections:
            connection.close()


def test_changes_made_at_the_same_moment_do_not_undo_each_other(hub: Daemon) -> None:
    """P02: two operators at once; nothing breaks, one of two equal ones wins, and a brake stays pulled"""
    hub.add_agent("alice", "standard")
    for number in range(15):
        name = f"twin{number}"
        codes = _together(
            hub, [("agent:register", {"agent_id": name}), ("agent:register", {"agent_id": name.upper()})] * 2
        )
        assert sorted(codes) == ["conflict"] * 3 + ["ok"]
        there = [one["agent_id"] for one in hub.call("agent:list")["agents"] if one["agent_id"].lower() == name]
        assert len(there) == 1
        codes = _together(hub, [("agent:remove", {"agent_id": there[0]})] * 4)
        assert sorted(codes) == ["not_found"] * 3 + ["ok"]
        grant = {"agent_id": "alice", "resource": "events/notes:write"}
        hub.call("permission:grant", grant)
        assert sorted(_together(hub, [("permission:revoke", grant)] * 4)) == ["not_found"] * 3 + ["ok"]
        profiles = [("permission:set_agent", {"agent_id": "alice", "profile": p}) for p in ("trusted", "standard")] * 2
        assert set(_together(hub, [*profiles, ("agent:freeze", {"agent_id": "alice"})])) == {"ok"}
        assert hub.call("agent:get", {"agent_id": "alice"})["frozen"] is True, "the brake was undone"
        hub.call("agent:unfreeze", {"agent_id": "alice"})


def test_rights_are_the_same_after_a_kill(hub: Daemon) -> None:
    """K021 F01: every change was durable when it was answered"""
    token = hub.add_agent("alice", "standard")
    frozen = hub.add_agent("bob", "standard")
    hub.call("permission:grant", {"agent_id": "alice", "resource": "events/notes:write"})
    hub.call("agent:freeze", {"agent_id": "bob"})
    before = hub.call("permission:get_agent", {"agent_id": "alice"})
    hub.kill()
    hub.start()
    after = hub.call("permission:get_agent", {"agent_id": "alice"})
    assert {**after, "version": 0} == {**before, "version": 0}
    with hub.connect() as connection:
        assert _code(connection, "notes:write", token) == "ok"
        assert _code(connection, "notes:read", frozen) == "forbidden"
