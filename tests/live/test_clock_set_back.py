"""The wall clock is set back: what has expired once stays expired, whether the daemon runs or is killed meanwhile."""

import json
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from tests.live.daemon_process import Connection, Daemon, until

DAY_S = 86_400


def _code(connection: Connection, token: str, event: str) -> str:
    answer = connection.send(event, token=token)
    return "ok" if answer["ok"] else str(answer["error"]["code"])


def _stored(daemon: Daemon, query: str) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(f"file:{daemon.database}?mode=ro", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(query)]


def _set_back_by_a_day(daemon: Daemon) -> None:
    """What a stopped daemon has stored, as it looks to one whose clock is a day behind."""
    with closing(sqlite3.connect(daemon.database)) as connection, connection:
        connection.execute("UPDATE grants SET expires_at = expires_at + ?", (DAY_S,))
        for credential_id, text in connection.execute("SELECT credential_id, record FROM credentials").fetchall():
            record = json.loads(text)
            record |= {name: record[name] + DAY_S for name in ("created_at", "expires_at") if record.get(name)}
            connection.execute(
                "UPDATE credentials SET record = ? WHERE credential_id = ?", (json.dumps(record), credential_id)
            )


@pytest.mark.parametrize("killed", [True, False])
def test_nothing_that_has_expired_revives_when_the_clock_is_set_back_over_a_restart(
    daemon: Daemon, killed: bool
) -> None:
    """F05 A05 L043"""
    daemon.start()
    lasting = daemon.add_agent("scout", "restricted")
    token = daemon.call("token:create", {"agent_id": "scout", "expires_in_s": 2})["token"]
    session = daemon.call("session:create", {"clientId": "client", "scopes": ["read"], "ttl_s": 2})["token"]
    daemon.call("permission:grant", {"agent_id": "scout", "resource": "events/state:list", "for_s": 2})
    with daemon.connect() as connection:
        assert [_code(connection, known, "system:health") for known in (token, session, lasting)] == ["ok"] * 3
        assert _code(connection, lasting, "state:list") == "ok"
        until(lambda: _code(connection, lasting, "state:list") == "forbidden", what="the grant ends")
        until(lambda: _code(connection, token, "system:health") == "unauthenticated", what="the token ends")
        until(lambda: _code(connection, session, "system:health") == "unauthenticated", what="the session ends")
    if killed:
        until(lambda: _stored(daemon, "SELECT * FROM grants WHERE expired_at IS NOT NULL"), within_s=5)
        ended = 'SELECT record FROM credentials WHERE record LIKE \'%"ended_as":"expired"%\''
        until(lambda: len(_stored(daemon, ended)) == 2, within_s=5, what="the ends are stored")
        daemon.kill()
    else:
        assert daemon.stop() == 0
    _set_back_by_a_day(daemon)
    daemon.start()
    with daemon.connect() as connection:
        assert _code(connection, lasting, "system:health") == "ok"
        assert _code(connection, lasting, "state:list") == "forbidden"
        assert _code(connection, token, "system:health") == "unauthenticated"
        assert _code(connection, session, "system:health") == "unauthenticated"
    sessions = daemon.call("session:list")["sessions"]
    assert [known["state"] for known in sessions] == ["expired"]
