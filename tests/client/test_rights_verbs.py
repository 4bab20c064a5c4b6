"""Agents, tokens, sessions, permissions and explanations, as an operator handles them."""

import json
import os
import pty
import subprocess
import sys
from typing import Any

import pytest

from ksi_client import Client, SyncClient, errors
from ksi_client.command.durations import moment, seconds
from ksi_client.command.fault import Fault
from tests.cases import case
from tests.client.conftest import WAIT_S, Ksi, on_terminal
from tests.client.fake_daemon import FakeDaemon, fail


def asked(daemon: FakeDaemon) -> dict[str, Any]:
    """The data of the last request."""
    return dict(daemon.requests[-1]["data"])


def test_lengths_of_time_are_read() -> None:
    cases = [("30s", 30), ("5m", 300), ("1h", 3600), ("2d", 172_800), ("1.5h", 5400), ("7", 7)]
    for text, expected in cases:
        with case(text, expected):
            assert seconds(text, "--for") == expected
            assert moment(text, "--since") == expected


def test_what_is_no_length_of_time_is_refused_by_the_options_name() -> None:
    for text in ["", "0s", "-1h", "1w", "h", "1 h", "٣h", "1e9", "inf", "1h30m"]:
        with case(text), pytest.raises(Fault, match="--for takes"):
            seconds(text, "--for")


def test_a_moment_may_be_an_iso_time_which_gets_a_zone() -> None:
    assert moment("2026-11-18T07:00:00+00:00", "--since")
    assert str(moment("2026-11-18", "--since")).startswith("2026-11-18T00:00:00")
    with pytest.raises(Fault, match="--until takes"):
        moment("0001-01-01x", "--until")


def test_a_new_agent_is_printed_with_its_token_and_that_it_is_shown_once(daemon: FakeDaemon, ksi: Ksi) -> None:
    done = ksi("agents", "add", "ada", "--profile", "trusted", "--parent", "eve", "--note", "tries things")
    assert asked(daemon) == {"agent_id": "ada", "profile": "trusted", "parent_id": "eve", "note": "tries things"}
    assert "ksi_secret" in done.stdout
    assert "once" in done.stderr
    made = json.loads(ksi("agents", "add", "ada", "--json").stdout)
    assert (made["agent_id"], made["token"], made["url"]) == ("ada", "ksi_secret", "http://127.0.0.1:1/mcp")
    assert "shown only once" in on_terminal("agents", "add", "ada")[1]


@pytest.mark.usefixtures("daemon")
def test_hostile_notes_names_and_texts_are_harmless(ksi: Ksi) -> None:
    for words in (
        ("agents", "ls"),
        ("permissions", "grant", "ada", "x"),
        ("explain", "ada", "x"),
        ("audit", "query"),
        ("mcp", "sessions", "ls"),
    ):
        assert "\\x1b" in ksi(*words).stdout
        assert "\x1b[2J" not in on_terminal(*words)[1]


def remove_on_terminal(answer: bytes) -> tuple[int, str]:
    """`ksi agents rm` with a person at the keyboard."""
    master, slave = pty.openpty()
    os.write(master, answer)
    done = subprocess.run(
        [sys.executable, "-m", "ksi_client", "agents", "rm", "ada"],
        stdin=slave,
        stdout=subprocess.PIPE,
        stderr=slave,
        timeout=WAIT_S,
        check=False,
    )
    os.close(slave)
    shown = os.read(master, 65536).decode()
    os.close(master)
    assert "remove the agent ada with its 2 tokens and 1 grants? [y/N]" in shown
    return done.returncode, done.stdout.decode()


def test_removing_asks_a_person_and_wants_force_of_a_script(daemon: FakeDaemon, ksi: Ksi) -> None:
    done = ksi("agents", "rm", "ada")
    assert done.returncode == 2
    assert "--force" in done.stderr
    assert remove_on_terminal(b"n\n") == (1, "")
    assert remove_on_terminal(b"\x04") == (1, "")
    assert "agent:remove" not in {request["event"] for request in daemon.requests}
    assert remove_on_terminal(b"y\n") == (0, "removed ada\n")
    assert ksi("agents", "rm", "ada", "--force").stdout == "removed ada\n"


def test_freezing_takes_one_agent_or_all(daemon: FakeDaemon, ksi: Ksi) -> None:
    assert ksi("agents", "freeze", "ada").stdout == "frozen ada\n"
    assert asked(daemon) == {"agent_id": "ada"}
    assert ksi("agents", "unfreeze", "--all").stdout == "unfrozen ada\n"
    assert asked(daemon) == {"all": True}


def test_tokens_are_made_with_a_life_and_a_binding(daemon: FakeDaemon, ksi: Ksi) -> None:
    words = ("--label", "ci", "--for", "2d", "--conversation", "c1", "--completion", "k1")
    assert "ksi_secret" in ksi("tokens", "create", "ada", *words).stdout
    assert asked(daemon) == {
        "agent_id": "ada",
        "label": "ci",
        "expires_in_s": 172_800,
        "conversation_id": "c1",
        "completion_id": "k1",
    }
    assert ksi("tokens", "revoke", "t1").stdout == "revoked t1 of ada\n"
    rotated = ksi("tokens", "rotate", "t1", "-q")
    assert ("ksi_secret" in rotated.stdout, rotated.stderr) == (True, "")
    assert "ksi_secret" not in ksi("tokens", "ls").stdout


def test_sessions_carry_scopes(daemon: FakeDaemon, ksi: Ksi) -> None:
    assert ksi("sessions", "create", "ada", "--scope", "read", "--scope", "network", "--for", "5m").returncode == 0
    assert asked(daemon) == {"clientId": "ada", "scopes": ["read", "network"], "ttl_s": 300, "idle_s": 1800}
    assert "ada" in ksi("sessions", "ls").stdout
    assert ksi("sessions", "revoke", "s1").stdout == "ended s1\n"


def test_a_grant_shows_the_tools_it_opens_and_closes(daemon: FakeDaemon, ksi: Ksi) -> None:
    done = ksi("permissions", "grant", "ada", "events/a:*", "--access", "read", "--for", "1h", "--dry-run")
    assert done.stdout.splitlines() == ["would grant read on events/a:* to ada", "+ ksi_a", "- ksi_\\x1bb"]
    wanted = {"agent_id": "ada", "resource": "events/a:*", "dry_run": True, "access": "read", "for_s": 3600}
    assert asked(daemon) == wanted
    assert ksi("permissions", "grant", "ada", "events/a:*").stdout.startswith("granted read on")
    assert asked(daemon) == {"agent_id": "ada", "resource": "events/a:*", "dry_run": False}
    assert ksi("permissions", "revoke", "ada", "events/a:*").stdout.startswith("revoked events/a:* from ada\n")
    assert ksi("permissions", "revoke", "ada", "x", "--dry-run").stdout.startswith("would revoke")
    done = ksi("permissions", "set", "ada", "trusted")
    assert done.stdout.splitlines() == ["ada has the profile trusted", "+ ksi_b", "- ksi_a"]


def test_a_grant_that_changes_no_tool_says_so(daemon: FakeDaemon, ksi: Ksi) -> None:
    change = {"agent_id": "ada", "resource": "x", "applied": True, "access": "none", "expires_at": "2026-11-18T07:00Z"}
    daemon.answers["permission:grant"] = lambda _: change
    done = ksi("permissions", "grant", "ada", "x", "--utc")
    assert done.stdout == "granted none on x to ada until 2026-11-18T07:00:00.000+00:00\n"
    assert "no tool gained or lost" in done.stderr


@pytest.mark.usefixtures("daemon")
def test_explain_ends_with_0_when_allowed_and_4_when_not(ksi: Ksi) -> None:
    allowed = ksi("explain", "ada", "system:echo")
    assert (allowed.returncode, allowed.stdout) == (0, "ada may\n  rule \\x1b[31m\n")
    denied = ksi("explain", "ada", "state:set", "--json")
    assert denied.returncode == 4
    assert json.loads(denied.stdout)["allowed"] is False


def test_send_acts_as_an_agent_or_with_a_token_of_the_environment(daemon: FakeDaemon, ksi: Ksi) -> None:
    assert ksi("send", "system:echo", "text=hi", "--as", "ada").returncode == 0
    assert daemon.requests[-1]["as"] == "ada"
    assert "as" not in daemon.requests[-2]  # the schema is the operator's question
    assert ksi("send", "system:echo", "--token-env", "T", T="ksi_secret\n").returncode == 0
    assert daemon.requests[-1]["token"] == "ksi_secret"
    assert "as" not in daemon.requests[-1]


async def test_both_clients_act_for_others(daemon: FakeDaemon) -> None:
    async with Client() as client:
        await client.send("system:echo", as_agent="ada")
        assert daemon.requests[-1]["as"] == "ada"
        await client.send("system:echo", token="t")
        assert daemon.requests[-1]["token"] == "t"
        await client.send("system:echo")
        assert daemon.requests[-1].keys().isdisjoint({"as", "token"})


def test_the_new_failures_are_typed(daemon: FakeDaemon) -> None:
    cases = [
        ("unauthenticated", errors.Unauthenticated),
        ("approval_required", errors.ApprovalRequired),
        ("circuit_open", errors.CircuitOpen),
        ("audit_unavailable", errors.AuditUnavailable),
    ]
    for code, kind in cases:
        with case(code, kind):
            daemon.answers["a:fails"] = fail(code=code, message="no", retry_after_s=3)
            with SyncClient() as client, pytest.raises(kind, match=r"^no$") as failure:
                client.send("a:fails", as_agent="ada")
            assert failure.value.retry_after_s == 3


@pytest.mark.usefixtures("daemon")
def test_agents_and_profiles_are_completed(ksi: Ksi) -> None:
    cases = [
        ("ksi agents show a", "ada"),
        ("ksi permissions set ada s", "standard"),
        ("ksi send system:echo --as a", "ada"),
        ("ksi sessions create ada --scope ne", "network"),
        ("ksi connect cl", "claude-code"),
        ("ksi agents config ada --client co", "codex"),
        ("ksi tools show ksi_", "ksi_system_echo"),
    ]
    for words, offered in cases:
        with case(words, offered):
            cut = words.split(" ")
            done = ksi(_KSI_COMPLETE="complete_bash", COMP_WORDS="\n".join(cut), COMP_CWORD=str(len(cut) - 1))
            assert done.stdout.split() == [offered]
