"""Sessions: credentials with scopes that end by themselves."""

from typing import Any

import pytest

from tests.live.daemon_process import Connection, Daemon, Refused, until

LIBRARY = '''
@plugin.handles("librarian:query", reads=True, needs=[("librarian/read", "execute")])
async def query(ctx: Context, params: Nothing) -> Done:
    """Needs the scope read."""
    return Done()

@plugin.handles("librarian:bootstrap", needs=[("librarian/write", "execute")])
async def bootstrap(ctx: Context, params: Nothing) -> Done:
    """Needs the scope write."""
    return Done()

@plugin.handles("librarian:run_audit", needs=[("librarian/execute", "execute")])
async def run_audit(ctx: Context, params: Nothing) -> Done:
    """Needs the scope execute."""
    return Done()

@plugin.handles("librarian:fetch", needs=[("librarian/write", "execute"), ("librarian/network", "execute")])
async def fetch(ctx: Context, params: Nothing) -> Done:
    """Needs the scopes write and network."""
    return Done()
'''
VERBS = ("query", "bootstrap", "run_audit", "fetch")


@pytest.fixture
def hub(daemon: Daemon) -> Daemon:
    """A running daemon with a librarian of its own, without rate limits."""
    daemon.plugin("librarian", LIBRARY)
    daemon.settings["rate_limit"] = "off"
    return daemon.start()


def _code(connection: Connection, event: str, token: str) -> str:
    answer = connection.send(event, token=token)
    return "ok" if answer["ok"] else str(answer["error"]["code"])


def test_a_session_may_do_what_its_scopes_say_and_nothing_else(hub: Daemon) -> None:
    """L043 L044 L045 L046 L047 L048 L049"""
    expected = {
        ("read",): {"query"},
        ("write",): {"bootstrap"},
        ("execute",): {"run_audit"},
        ("read", "write"): {"query", "bootstrap"},
        ("write", "network"): {"bootstrap", "fetch"},
        ("network",): set(),
        ("admin",): set(VERBS),
    }
    seen = {}
    with hub.connect() as connection:
        for number, scopes in enumerate(expected):
            made = connection.call(
                "session:create",
                {"clientId": f"client{number}", "scopes": list(scopes), "metadata": {"from": "a test"}},
            )
            assert made["token"].startswith("ksi_s_")
            seen[scopes] = {verb for verb in VERBS if _code(connection, f"librarian:{verb}", made["token"]) == "ok"}
            assert _code(connection, "state:list", made["token"]) == "forbidden", "scopes are the librarian's alone"
            assert _code(connection, "session:create", made["token"]) == "forbidden"
        assert seen == expected
        listed = connection.call("session:list")["sessions"]
    assert {tuple(one["scopes"]) for one in listed} == {tuple(sorted(scopes)) for scopes in expected}
    assert all(one["metadata"] == {"from": "a test"} and one["state"] == "live" for one in listed)
    assert "ksi_s_" not in str(listed)
    rows = hub.audit_rows("session_id IS NOT NULL AND event = 'librarian:query'")
    assert {row["session_id"] for row in rows} == {one["sessionId"] for one in listed}


def test_scopes_are_the_sessions_not_the_clients(hub: Daemon) -> None:
    """L043 L049: another session of the same client, and the client's own token, have what they have"""
    token = hub.add_agent("alice", "restricted")
    wide = hub.call("session:create", {"clientId": "alice", "scopes": ["admin"]})["token"]
    narrow = hub.call("session:create", {"clientId": "alice", "scopes": ["read"]})["token"]
    with hub.connect() as connection:
        assert _code(connection, "librarian:bootstrap", wide) == "ok"
        assert _code(connection, "librarian:bootstrap", narrow) == "forbidden"
        assert _code(connection, "librarian:query", token) == "forbidden"


def test_a_session_of_few_scopes_is_no_more_than_these_even_for_a_client_that_may_do_all(hub: Daemon) -> None:
    """L043 L049"""
    hub.add_agent("boss", "trusted")
    session = hub.call("session:create", {"clientId": "boss", "scopes": ["read"]})["token"]
    with hub.connect() as connection:
        assert _code(connection, "librarian:query", session) == "ok"
        assert _code(connection, "librarian:bootstrap", session) == "forbidden"


def test_a_session_ends_at_its_time_for_idleness_and_when_revoked(hub: Daemon) -> None:
    """L043 L049"""
    with hub.connect() as connection:

        def made(**more: float) -> dict[str, str]:
            return connection.call("session:create", {"clientId": "c", "scopes": ["read"], **more})

        short, idle, revoked, lasting = made(ttl_s=0.6), made(idle_s=0.6), made(), made(idle_s=2)
        for one in (short, idle, revoked, lasting):
            assert _code(connection, "librarian:query", one["token"]) == "ok"
        connection.call("session:revoke", {"sessionId": revoked["sessionId"]})
        assert _code(connection, "librarian:query", revoked["token"]) == "unauthenticated"
        until(lambda: _code(connection, "librarian:query", short["token"]) == "unauthenticated", within_s=3)

        def states() -> dict[str, str]:
            return {one["sessionId"]: one["state"] for one in connection.call("session:list")["sessions"]}

        until(lambda: states()[idle["sessionId"]] == "idle too long", within_s=3)
        assert _code(connection, "librarian:query", idle["token"]) == "unauthenticated"
        assert _code(connection, "librarian:query", lasting["token"]) == "ok"
        assert states() == {
            short["sessionId"]: "expired",
            idle["sessionId"]: "idle too long",
            revoked["sessionId"]: "revoked",
            lasting["sessionId"]: "live",
        }


def test_a_client_has_ten_live_sessions_at_most_even_when_asked_for_at_once(hub: Daemon) -> None:
    """L043"""
    asked = {"clientId": "greedy", "scopes": ["read"]}
    with hub.connect() as connection:
        answers = [connection.answer(one) for one in [connection.post("session:create", asked) for _ in range(30)]]
        made = [answer["data"] for answer in answers if answer["ok"]]
        assert len(made) == 10
        assert {answer["error"]["code"] for answer in answers if not answer["ok"]} == {"conflict"}
        assert len([one for one in connection.call("agent:list")["agents"] if one["agent_id"] == "greedy"]) == 1
        connection.call("session:revoke", {"sessionId": made[0]["sessionId"]})
        assert connection.call("session:create", asked)["sessionId"]
        assert connection.send("session:create", {**asked, "clientId": "other"})["ok"], "the cap is each client's own"


def test_bad_scopes_and_names_are_refused(hub: Daemon) -> None:
    """L043"""
    bad: list[dict[str, Any]] = [
        {"scopes": []}, {"scopes": ["root"]}, {"scopes": ["read"], "ttl_s": 0}, {"scopes": ["read"], "idle_s": -1},
    ]  # fmt: skip
    for data in bad:
        with pytest.raises(Refused) as refused:
            hub.call("session:create", {"clientId": "c", **data})
        assert refused.value.code == "invalid"
    assert hub.call("session:list")["sessions"] == []
