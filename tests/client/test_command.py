"""The `ksi` command's manners: streams, exit codes, JSON, colours, pipes, and never a traceback."""

import json
import os
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from ksi_client.command.app import VERBS
from tests.client.conftest import WAIT_S, Ksi, on_terminal
from tests.client.fake_daemon import FakeDaemon, fail

GROUPS = {
    "events": ("ls", "help", "tail"),
    "plugins": ("ls", "show", "reload", "new"),
    "config": ("show", "check", "reload"),
    "agents": ("add", "ls", "show", "rm", "freeze", "unfreeze"),
    "tokens": ("create", "ls", "revoke", "rotate"),
    "permissions": ("show", "grant", "revoke", "set", "profiles"),
    "sessions": ("create", "ls", "revoke"),
    "audit": ("query", "tail", "stats", "verify", "export", "retain"),
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
    ("agents", "ls"),
    ("agents", "show", "ada"),
    ("agents", "rm", "ada", "--force"),
    ("agents", "freeze", "--all"),
    ("agents", "unfreeze", "ada"),
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
    ("audit", "query", "--since", "1h"),
    ("audit", "stats"),
    ("audit", "export", "all.jsonl"),
    ("audit", "retain", "--keep-days", "90"),
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
    ("audit", "query", "--since", "yesterday"),
    ("audit", "query", "--limit", "0"),
    ("audit", "tail", "-o", "xml"),
    ("audit", "retain"),
]


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_every_verb_explains_itself(ksi: Ksi, path: tuple[str, ...]) -> None:
    """E01"""
    done = ksi(*path, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: ksi {' '.join(path)}")
    assert "--json" in done.stdout


@pytest.mark.usefixtures("daemon", "installed")
@pytest.mark.parametrize("words", ASKING, ids=" ".join)
def test_json_is_one_document_on_stdout(ksi: Ksi, words: tuple[str, ...]) -> None:
    """E01"""
    after, before = ksi(*words, "--json"), ksi("--json", *words)
    assert isinstance(json.loads(after.stdout), dict)
    assert after.stdout.count("\n") == 1
    assert before.returncode == after.returncode == (1 if words == ("doctor",) else 0), after.stderr


@pytest.mark.usefixtures("daemon", "installed")
@pytest.mark.parametrize("words", ASKING, ids=" ".join)
def test_into_a_pipe_and_with_no_color_no_escape_is_written(words: tuple[str, ...], ksi: Ksi) -> None:
    """E01"""
    done = ksi(*words)
    assert "\x1b" not in done.stdout + done.stderr
    assert done.stdout
    for code, shown in (on_terminal(*words, NO_COLOR="1"), on_terminal(*words, TERM="dumb")):
        assert "\x1b" not in shown
        assert code == done.returncode
    assert "\x1b" not in on_terminal(*words, "--no-color")[1]


@pytest.mark.parametrize("words", [words for words in ASKING if words != ("version",)], ids=" ".join)
@pytest.mark.usefixtures("installed")
def test_without_a_daemon_every_verb_says_so_or_does_without(ksi: Ksi, words: tuple[str, ...]) -> None:
    """E01"""
    done = ksi(*words)
    does_without = {("config", "show"): 0, ("config", "check"): 0, ("doctor",): 0}
    assert done.returncode == does_without.get(words, 5)
    assert "Traceback" not in done.stderr
    if words not in does_without:
        assert "ksi start" in done.stderr


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("words", BAD, ids=" ".join)
def test_bad_words_are_usage_errors_that_say_what_is_wrong(ksi: Ksi, words: tuple[str, ...]) -> None:
    """E01"""
    done = ksi(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("ksi: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [(), ("events",), ("plugins",)])
def test_a_group_without_a_verb_shows_its_help_as_talk(ksi: Ksi, words: tuple[str, ...]) -> None:
    done = ksi(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Usage: ksi")


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


@pytest.mark.parametrize("code", CODES)
def test_an_error_of_the_daemon_becomes_its_exit_code(daemon: FakeDaemon, ksi: Ksi, code: str) -> None:
    fields = [{"field": "te\x1bxt", "problem": "too long"}]
    daemon.answers["a:fails"] = fail(
        code=code, message="it \x1b[31mfailed", hint="try \u202eb", fields=fields, call_id="c9"
    )
    done = ksi("send", "a:fails", "-v")
    assert done.returncode == CODES[code]
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "ksi: it \\x1b[31mfailed",
        "  te\\x1bxt: too long",
        "  next: try \\u202eb",
        "  call: c9",
    ]
    told = json.loads(ksi("send", "a:fails", "--json").stderr)
    assert told["error"]["code"] == code
    assert told["error"]["fields"] == fields


def test_a_failure_nobody_foresaw_is_one_line_and_debug_shows_more(daemon: FakeDaemon, ksi: Ksi) -> None:
    daemon.answers["plugin:list"] = lambda _: ["not", "an", "object"]
    done = ksi("plugins", "ls")
    assert done.returncode == 1
    assert done.stderr.startswith("ksi: unexpected TypeError")
    assert "KSI_DEBUG=1" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Traceback" in ksi("plugins", "ls", KSI_DEBUG="1").stderr


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
        said = run.stderr.read().decode()
        assert run.wait(WAIT_S) == 0
    assert "Broken" not in said
    assert "Traceback" not in said


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
