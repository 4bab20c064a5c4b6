"""Who is calling: tokens that end, sockets for one user, no secret that two hubs share."""

import json
import secrets
import stat
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live.daemon_process import Connection, Daemon, Refused, short_folder, until
from tests.machine import needs_root

STRANGER_UID = 65534
WRONG_TOKENS = 3_000


def _code(connection: Connection, token: str, event: str = "system:echo") -> str:
    """How a call with this token is answered: ok, or the error's code."""
    answer = connection.send(event, {"text": "hello"}, token=token)
    return "ok" if answer["ok"] else str(answer["error"]["code"])


def _revoke(daemon: Daemon, credential_id: str) -> None:
    daemon.call("token:revoke", {"credential_id": credential_id})


def _rotate(daemon: Daemon, credential_id: str) -> None:
    fresh = daemon.call("token:rotate", {"credential_id": credential_id})["token"]
    with daemon.connect() as connection:
        assert _code(connection, fresh) == "ok", "the new one works at once"


def _remove_agent(daemon: Daemon, _credential_id: str) -> None:
    daemon.call("agent:remove", {"agent_id": "alice"})


@pytest.mark.parametrize("end", [_revoke, _rotate, _remove_agent])
def test_a_token_that_was_ended_is_nobodys_from_the_next_call_on(
    daemon: Daemon, end: Callable[[Daemon, str], None]
) -> None:
    """A05: also on a connection that used it before, and after a restart."""
    daemon.settings["rate_limit"] = "off"
    daemon.start()
    made = daemon.call("agent:register", {"agent_id": "alice", "profile": "trusted"})
    with daemon.connect() as connection:
        assert _code(connection, made["token"]) == "ok"
        end(daemon, made["credential_id"])
        served = [code for code in (_code(connection, made["token"]) for _ in range(200)) if code != "unauthenticated"]
        assert served == []
    daemon.kill()
    daemon.start()
    with daemon.connect() as connection:
        assert _code(connection, made["token"]) == "unauthenticated"


def test_a_token_expires_at_its_time(daemon: Daemon) -> None:
    """A05"""
    daemon.start()
    daemon.add_agent("alice")
    began = time.monotonic()
    token = daemon.call("token:create", {"agent_id": "alice", "expires_in_s": 0.5})["token"]
    with daemon.connect() as connection:
        assert _code(connection, token) == "ok"
        until(lambda: _code(connection, token) == "unauthenticated", within_s=3, what="it expires")
        assert time.monotonic() - began >= 0.4
    states = [one["state"] for one in daemon.call("token:list")["tokens"]]
    assert sorted(states) == ["expired", "live"]


def test_two_hubs_share_no_secret_and_know_not_each_others_tokens(daemon: Daemon) -> None:
    """A05 A11"""
    with short_folder() as folder:
        other = Daemon(folder)
        try:
            for one in (daemon, other):
                one.start()
            ours, theirs = daemon.add_agent("alice"), other.add_agent("alice")
            assert ours != theirs
            with daemon.connect() as connection:
                assert _code(connection, theirs) == "unauthenticated"
                assert _code(connection, ours) == "ok"
            keys = [(one.var / "run" / "audit.key").read_bytes() for one in (daemon, other)]
            assert keys[0] != keys[1]
            origins = {one.call("system:status")["pid"] for one in (daemon, other)}
            assert len(origins) == 2
            for one in (daemon, other):
                assert one.stop() == 0
            for one in (daemon, other):
                for path in one.var.rglob("*"):
                    mode = stat.S_IMODE(path.lstat().st_mode)
                    assert mode & 0o077 == 0, f"{path} has mode {mode:o}"
                assert stat.S_IMODE((one.var / "run" / "audit.key").stat().st_mode) in (0o400, 0o600)
        finally:
            other.end()


def test_a_token_is_nowhere_in_the_hubs_files(daemon: Daemon) -> None:
    """A05 A11: only digests are at rest"""
    daemon.start(KSI_LOG_LEVEL="debug")
    token = daemon.add_agent("alice")
    wrong = "ksi_" + secrets.token_urlsafe(32)
    with daemon.connect() as connection:
        assert _code(connection, token) == "ok"
        assert _code(connection, wrong) == "unauthenticated"
    assert daemon.stop() == 0
    kept = [path for path in daemon.var.rglob("*") if path.is_file()]
    assert [path for path in kept if token.encode() in path.read_bytes() or wrong.encode() in path.read_bytes()] == []


STRANGER = """
import os, socket, sys
os.setgroups([]); os.setgid({uid}); os.setuid({uid})
client = socket.socket(socket.AF_UNIX)
client.settimeout(5)
try:
    client.connect(sys.argv[1])
    client.sendall(b'{{"event":"state:set","data":{{"key":"k","value":1}},"id":1}}\\n')
    with client.makefile() as lines:
        print(lines.readline() or "closed")
except PermissionError:
    print("no permission")
except ConnectionError:
    print("closed")
"""


def _as_stranger(path: Path) -> str:
    words = [sys.executable, "-c", STRANGER.format(uid=STRANGER_UID), str(path)]
    return subprocess.run(words, capture_output=True, text=True, timeout=20, check=True, cwd="/").stdout


@needs_root
def test_another_user_is_stopped_by_the_files_mode_and_behind_it_by_the_peers_uid(daemon: Daemon) -> None:
    """A09"""
    daemon.start()
    assert _as_stranger(daemon.socket_path) == "no permission\n"
    for path in (daemon.folder, daemon.var, daemon.socket_path.parent):
        path.chmod(0o755)
    assert _as_stranger(daemon.socket_path) == "no permission\n", "the socket's own mode holds too"
    daemon.socket_path.chmod(0o777)
    told = _as_stranger(daemon.socket_path)
    assert told == "closed\n" or json.loads(told)["error"]["code"] == "forbidden"
    with pytest.raises(Refused) as missing:
        daemon.call("state:get", {"key": "k"})
    assert missing.value.code == "not_found", "what the stranger asked for did not happen"
    assert daemon.logged("another user was refused at the socket")[0]["uid"] == STRANGER_UID


def test_thousands_of_wrong_tokens_lock_nobody_out_and_are_all_counted(daemon: Daemon) -> None:
    """A12 U01"""
    daemon.start()
    token = daemon.add_agent("alice")
    with daemon.connect() as guesser, daemon.connect() as alice:
        ids = []
        waits = []
        for number in range(WRONG_TOKENS):
            ids.append(guesser.post("system:echo", {"text": "?"}, token="ksi_" + secrets.token_urlsafe(32)))
            if number % 100 == 99:
                assert all(guesser.answer(one)["error"]["code"] == "unauthenticated" for one in ids)
                ids.clear()
                began = time.monotonic()
                assert _code(alice, token) == "ok"
                waits.append(time.monotonic() - began)
        assert statistics.median(waits) < 0.25
        assert _code(guesser, token) == "ok", "not even on the guesser's connection"

    def counted() -> int:
        return sum(int(row["count"]) for row in daemon.audit_rows("status = 'unauthenticated'"))

    until(lambda: counted() == WRONG_TOKENS, within_s=5, what="every refusal is in the record, alone or counted")


NO_TOKENS = ("", "x", "ksi_", "operator", "ksi_" + "A" * 43, "ksi_s_" + "é" * 43, "ksi_" + "A" * 100_000, "\x00", " ")


def test_what_is_no_token_is_refused_and_never_the_operator(daemon: Daemon) -> None:
    """A05"""
    daemon.start()
    with daemon.connect() as connection:
        assert {token: _code(connection, token, "agent:list") for token in NO_TOKENS} == dict.fromkeys(
            NO_TOKENS, "unauthenticated"
        )
        for raw in (b'"\\ud800"', b"0", b"[]", b"{}", b"true"):
            answer = connection.ask(b'{"event":"agent:list","id":1,"token":%b}' % raw)
            assert answer["error"]["code"] in ("invalid", "unauthenticated"), raw
