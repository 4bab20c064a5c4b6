"""What every verb of the `ksi` command has in common: streams, exit codes, JSON, colours, pipes, and never a traceback."""

import json
import os
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import typer

from ksi_client.command.app import VERBS, root
from tests.client.conftest import WAIT_S, Ksi, on_terminal, process_on_terminal
from tests.client.fake_daemon import FakeDaemon, fail

GROUPS = {
    "events": ("ls", "help", "tail"),
    "plugins": ("ls", "show", "reload", "new"),
    "config": ("show", "check", "reload"),
    "agents": (
        "add",
        "config",
        "ls",
        "show",
        "rm",
        "freeze",
        "unfreeze",
        "spawn",
        "ask",
        "tree",
        "logs",
        "attach",
        "terminate",
        "restart",
    ),
    "completions": ("ls", "show", "wait", "cancel"),
    "conversations": ("ls", "show", "export"),
    "tokens": ("create", "ls", "revoke", "rotate"),
    "permissions": ("show", "grant", "revoke", "set", "profiles"),
    "sessions": ("create", "ls", "revoke"),
    "tools": ("ls", "show", "call", "stats"),
    "mcp": ("stdio", "sessions"),
    "audit": ("query", "tail", "stats", "verify", "export", "retain", "new-chain", "checkpoint"),
}
PATHS = [(verb,) for verb in VERBS] + [(group, verb) for group, verbs in GROUPS.items() for verb in verbs]
ASKING = [
    ("status",),
    ("version",),
    ("send", "system:echo", "text=hi"),
    ("events", "ls"),
    ("events", "ls", "--namespace", "system"),
    ("events", "help", "system:echo"),
    ("plugins", "ls"),
    ("plugins", "show", "system"),
    ("plugins", "reload", "system"),
    ("config", "show"),
    ("config", "check"),
    ("config", "reload"),
    ("agents", "add", "ada"),
    ("agents", "config", "ada"),
    ("agents", "config", "ada", "--write"),
    ("connect", "generic", "--file", "generic.json"),
    ("agents", "ls"),
    ("agents", "show", "ada"),
    ("agents", "rm", "ada", "--force"),
    ("agents", "freeze", "--all"),
    ("agents", "unfreeze", "ada"),
    ("agents", "spawn", "bot", "--provider", "claude", "--option", "model=m"),
    ("agents", "ask", "ada", "do", "this"),
    ("agents", "ask", "ada", "--last", "--no-wait", "go on"),
    ("agents", "tree"),
    ("agents", "logs", "ada"),
    ("agents", "terminate", "ada", "--force"),
    ("agents", "restart", "ada"),
    ("completions", "ls"),
    ("completions", "show", "c1"),
    ("completions", "wait", "c1"),
    ("completions", "cancel", "c1"),
    ("conversations", "ls"),
    ("conversations", "show", "t1"),
    ("conversations", "export", "t1", "--format", "json"),
    ("usage", "--by", "day"),
    ("tokens", "create", "ada", "--for", "1h"),
    ("tokens", "ls", "ada"),
    ("tokens", "revoke", "t1"),
    ("tokens", "rotate", "t1"),
    ("permissions", "show", "ada"),
    ("permissions", "grant", "ada", "events/a:*", "--dry-run"),
    ("permissions", "revoke", "ada", "events/a:*"),
    ("permissions", "set", "ada", "trusted"),
    ("permissions", "profiles"),
    ("permissions", "profiles", "standard"),
    ("explain", "ada", "system:echo"),
    ("sessions", "create", "ada", "--scope", "read", "--scope", "write"),
    ("sessions", "ls"),
    ("sessions", "revoke", "s1"),
    ("tools", "ls", "--as", "ada"),
    ("tools", "show", "ksi_system_echo"),
    ("tools", "call", "system:echo", "text=hi"),
    ("tools", "stats"),
    ("mcp", "sessions", "ls"),
    ("mcp", "sessions", "ls", "ada"),
    ("mcp", "sessions", "show", "ada", "c1"),
    ("mcp", "sessions", "reset", "ada"),
    ("mcp", "sessions", "reset", "--all"),
    ("audit", "query", "--since", "1h"),
    ("audit", "stats"),
    ("audit", "export", "all.jsonl"),
    ("audit", "retain", "--keep-days", "90", "--yes"),
    ("doctor",),
]
BAD = [
    ("nonsense",),
    ("send",),
    ("send", "system:echo", "novalue"),
    ("send", "system:echo", "txet=hi"),
    ("send", "system:echo", "times=many"),
    ("send", "system:echo", "--timeout", "soon"),
    ("send", "system:echo", "--timeout", "0"),
    ("send", "system:echo", "--data", "{"),
    ("send", "system:echo", "--data", "[]"),
    ("send", "system:echo", "--data", "@/does/not/exist"),
    ("send", "system:echo", "--nonsense"),
    ("status", "extra"),
    ("events", "nonsense"),
    ("events", "help"),
    ("events", "tail", "-o", "xml"),
    ("events", "tail", "--since", "yesterday"),
    ("events", "tail", "--count", "0"),
    ("plugins", "new", "Bad-Name"),
    ("plugins", "new", "class"),
    ("plugins", "new", "../escape"),
    ("stop", "--timeout", "-1"),
    ("send", "system:echo", "--token-env", "NOT_SET"),
    ("send", "system:echo", "--as", "ada", "--token-env", "HOME"),
    ("agents", "rm", "ada"),
    ("agents", "freeze"),
    ("agents", "unfreeze", "ada", "--all"),
    ("tokens", "create", "ada", "--for", "soon"),
    ("tokens", "create", "ada", "--for", "0s"),
    ("permissions", "grant", "ada", "events/a:*", "--for", "1w"),
    ("sessions", "create", "ada"),
    ("explain", "ada"),
    ("mcp", "sessions", "reset"),
    ("mcp", "sessions", "reset", "ada", "--all"),
    ("agents", "config", "ada", "--client", "emacs"),
    ("agents", "config", "ada", "--type", "sse"),
    ("agents", "config", "ada", "--file", "x.json"),
    ("connect", "generic"),
    ("connect", "emacs"),
    ("tools", "call", "ksi_system_echo", "txet=hi"),
    ("audit", "query", "--since", "yesterday"),
    ("audit", "query", "--limit", "0"),
    ("audit", "tail", "-o", "xml"),
    ("audit", "retain"),
]


def test_every_verb_explains_itself(ksi: Ksi, ksi_process: Ksi) -> None:
    """E01"""
    assert ksi_process("send", "--help").stdout == ksi("send", "--help").stdout
    for path in PATHS:
        done = ksi(*path, "--help")
        assert (done.returncode, done.stderr) == (0, ""), path
        assert done.stdout.startswith(f"Usage: ksi {' '.join(path)}"), path
        assert "--json" in done.stdout, path


@pytest.mark.usefixtures("daemon", "installed")
def test_json_is_one_document_on_stdout(ksi: Ksi, ksi_process: Ksi) -> None:
    """E01"""
    for run, words in [
        (ksi_process, ("events", "ls")),
        (ksi_process, ("doctor",)),
        *((ksi, words) for words in ASKING),
    ]:
        after, before = run(*words, "--json"), run("--json", *words)
        assert isinstance(json.loads(after.stdout), dict | list), words
        assert after.stdout.count("\n") == 1, words
        assert isinstance(json.loads(before.stdout), dict | list), words
        expected = 1 if words == ("doctor",) else 0
        assert (before.returncode, after.returncode) == (expected, expected), (words, after.stderr)


@pytest.mark.usefixtures("daemon", "installed")
def test_into_a_pipe_and_with_no_color_no_escape_is_written(ksi: Ksi, ksi_process: Ksi) -> None:
    """E01"""
    colored = 0
    for words in ASKING:
        done = ksi(*words)
        assert "\x1b" not in done.stdout + done.stderr, words
        assert done.stdout, words
        for code, shown in (on_terminal(*words, NO_COLOR="1"), on_terminal(*words, TERM="dumb")):
            assert "\x1b" not in shown, words
            assert code == done.returncode, words
        assert "\x1b" not in on_terminal(*words, "--no-color")[1], words
        colored += "\x1b" in on_terminal(*words)[1]
    assert colored > 5  # without one of the three ways to refuse them, colours are there to be refused
    assert "\x1b" not in ksi_process("events", "ls").stdout
    assert "\x1b" not in process_on_terminal("events", "ls", NO_COLOR="1")[1]
    assert "\x1b" in process_on_terminal("events", "ls")[1]


@pytest.mark.usefixtures("installed")
def test_without_a_daemon_every_verb_says_so_or_does_without(ksi: Ksi, ksi_process: Ksi) -> None:
    """E01"""
    does_without = {("config", "show"): 0, ("config", "check"): 0, ("doctor",): 0, ("version",): 0}
    for run, words in [(ksi_process, ("status",)), (ksi_process, ASKING[2]), *((ksi, words) for words in ASKING)]:
        done = run(*words)
        assert done.returncode == does_without.get(words, 5), (words, done.stderr)
        assert "Traceback" not in done.stderr, words
        assert words in does_without or "ksi start" in done.stderr, words


@pytest.mark.usefixtures("daemon")
def test_bad_words_are_usage_errors_that_say_what_is_wrong(ksi: Ksi, ksi_process: Ksi) -> None:
    """E01"""
    for run, words in [(ksi_process, BAD[0]), (ksi_process, BAD[2]), *((ksi, words) for words in BAD)]:
        done = run(*words)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert done.stderr.startswith("ksi: "), words
        assert "Traceback" not in done.stderr, words


def test_a_group_without_a_verb_shows_its_help_on_stderr(ksi: Ksi) -> None:
    for words in ((), *((group,) for group in GROUPS)):
        done = ksi(*words)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert done.stderr.startswith("Usage: ksi"), words


def test_the_groups_of_this_file_are_the_verbs_of_the_command() -> None:
    """A verb that is added to the command must be added here too."""
    commands = typer.main.get_command(root).commands  # type: ignore[attr-defined]  # a group, by its class
    found = {name: tuple(group.commands) for name, group in commands.items() if hasattr(group, "commands")}
    assert {name: set(verbs) for name, verbs in found.items()} == {name: set(verbs) for name, verbs in GROUPS.items()}
    assert set(commands) == {*VERBS}


def test_the_version_is_shown_with_and_without_a_daemon(ksi: Ksi) -> None:
    assert ksi("--version").stdout.startswith("ksi ")
    assert json.loads(ksi("version", "--json").stdout)["daemon"] is None


CODES = {
    "invalid": 2,
    "not_found": 3,
    "unknown_event": 3,
    "forbidden": 4,
    "unauthenticated": 4,
    "approval_required": 4,
    "circuit_open": 1,
    "audit_unavailable": 1,
    "timed_out": 6,
    "conflict": 7,
    "internal": 1,
}


def test_an_error_of_the_daemon_becomes_its_exit_code(daemon: FakeDaemon, ksi: Ksi, ksi_process: Ksi) -> None:
    fields = [{"field": "te\x1bxt", "problem": "too long"}]
    for run, (code, exit_code) in [(ksi_process, ("forbidden", 4)), *((ksi, case) for case in CODES.items())]:
        daemon.answers["a:fails"] = fail(
            code=code, message="it \x1b[31mfailed", hint="try \u202eb", fields=fields, call_id="c9"
        )
        done = run("send", "a:fails", "-v")
        assert (done.returncode, done.stdout) == (exit_code, ""), code
        assert done.stderr.splitlines() == [
            "ksi: it \\x1b[31mfailed",
            "  te\\x1bxt: too long",
            "  next: try \\u202eb",
            "  call: c9",
        ], code
        error = json.loads(run("send", "a:fails", "--json").stderr)["error"]
        assert (error["code"], error["fields"]) == (code, fields)


def test_an_unexpected_failure_is_one_line_and_debug_shows_more(daemon: FakeDaemon, ksi_process: Ksi) -> None:
    daemon.answers["plugin:list"] = lambda _: ["not", "an", "object"]
    done = ksi_process("plugins", "ls")
    assert done.returncode == 1
    assert done.stderr.startswith("ksi: unexpected TypeError")
    assert "KSI_DEBUG=1" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Traceback" in ksi_process("plugins", "ls", KSI_DEBUG="1").stderr


def test_a_full_disk_behind_stdout_is_one_line(daemon: FakeDaemon) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ksi_client", "send", "system:echo", "text=hi"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("words", [("send", "a:long"), ("events", "tail", "*"), ("--help",), ("events", "ls")])
def test_a_reader_who_leaves_is_no_error(daemon: FakeDaemon, words: tuple[str, ...]) -> None:
    daemon.answers["a:long"] = lambda _: {"text": "x" * 500_000}
    reading, writing = os.pipe()
    os.close(reading)
    with subprocess.Popen([sys.executable, "-m", "ksi_client", *words], stdout=writing, stderr=subprocess.PIPE) as run:
        os.close(writing)
        if "tail" in words:
            assert daemon.subscribed.wait(WAIT_S)
            daemon.publish("a:one")
        assert run.stderr is not None
        errors = run.stderr.read().decode()
        assert run.wait(WAIT_S) == 0
    assert "Broken" not in errors
    assert "Traceback" not in errors


def test_an_interrupt_ends_a_tail_with_130_and_no_words(daemon: FakeDaemon) -> None:
    command = [sys.executable, "-m", "ksi_client", "events", "tail", "-q"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert daemon.subscribed.wait(WAIT_S)
        daemon.publish("a:one")
        assert run.stdout is not None
        assert b"a:one" in run.stdout.readline()
        run.send_signal(signal.SIGINT)
        assert run.wait(WAIT_S) == 130
        assert run.stderr is not None
        assert run.stderr.read() == b""


@pytest.mark.parametrize(
    ("words", "quiet"), list(product([("events", "ls"), ("stop",), ("plugins", "new", "weather")], [True, False]))
)
def test_quiet_leaves_only_the_data(daemon: FakeDaemon, ksi: Ksi, words: tuple[str, ...], quiet: bool) -> None:
    done = ksi(*words, *(["-q"] if quiet else []))
    assert done.returncode == 0
    assert (done.stderr == "") is quiet
