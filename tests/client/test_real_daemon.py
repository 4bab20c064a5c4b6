"""The clients and the command against the real daemon: what the fake one cannot promise."""

import asyncio
import json
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ksi_client import Client, SyncClient, errors
from ksi_client.command.lock import holder
from tests.client.conftest import Ksi

WAIT_S = 60


@pytest.mark.usefixtures("running")
def test_an_operators_round(ksi: Ksi, ksi_process: Ksi) -> None:
    assert json.loads(ksi_process("send", "system:echo", "text=5").stdout) == {"text": "5"}
    assert ksi("send", "state:set", "key=k", "value=v").returncode == 0
    assert json.loads(ksi("send", "state:get", "key=k").stdout)["value"] == "v"
    assert ksi("send", "state:get", "key=nope").returncode == 3
    assert ksi("send", "state:list", "limit=0").returncode == 2
    assert ksi("send", "no:such").returncode == 3
    for words in (("events", "ls"), ("events", "help", "state:set"), ("plugins", "ls"), ("plugins", "show", "state")):
        assert ksi(*words).returncode == 0
    doctor = ksi("doctor", "--json")
    assert [check for check in json.loads(doctor.stdout)["checks"] if check["status"] != "ok"] == []


@pytest.mark.usefixtures("running")
def test_a_new_plugin_is_loaded_called_and_repaired_while_the_daemon_runs(ksi: Ksi) -> None:
    assert "ksi plugins reload rain" in ksi("plugins", "new", "rain").stderr
    assert ksi("plugins", "reload", "rain").returncode == 0
    assert json.loads(ksi("send", "rain:greet", "who=Ada").stdout) == {"text": "Hello, Ada!"}
    with Path("plugins/rain/__init__.py").open("a") as file:
        file.write("def")
    assert ksi("plugins", "reload", "rain").returncode == 7
    assert ksi("send", "rain:greet", "who=Ada").returncode == 0


@pytest.mark.usefixtures("running")
def test_a_restart_is_not_noticed_by_clients(ksi_process: Ksi) -> None:
    with SyncClient() as client:
        before = client.send("system:status")["pid"]
        assert ksi_process("restart").returncode == 0
        assert client.send("system:status")["pid"] != before


@pytest.mark.usefixtures("running")
async def test_calls_and_notices_of_the_asyncio_client() -> None:
    async with Client() as client, client.subscribe("my:*") as notices, asyncio.timeout(WAIT_S):
        answers = await asyncio.gather(*(client.send("system:echo", {"text": str(n)}) for n in range(200)))
        assert answers == [{"text": str(n)} for n in range(200)]
        await client.send("message:publish", {"event": "my:thing", "data": {"n": 1}}, correlation_id="c-1")
        notice = await anext(notices)
        assert (notice.event, notice.data, notice.correlation_id) == ("my:thing", {"n": 1}, "c-1")
        with pytest.raises(errors.Invalid):
            await client.send("system:echo", {"txet": "hi"})
        with pytest.raises(errors.Invalid):
            await anext(client.subscribe("***"))


def test_of_many_starts_at_once_one_wins_and_the_others_name_it(
    var: Path, ksi_process: Ksi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KSI_PORT", "0")
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda _: ksi_process("start", "--wait"), range(8)))
    try:
        assert sorted(start.returncode for start in done) == [0] + [75] * 7
        winner = f"pid {holder(var)}"
        assert all(winner in (start.stdout or start.stderr) for start in done)
    finally:
        ksi_process("stop")


def test_the_test_of_a_new_plugin_passes(var: Path, ksi: Ksi) -> None:
    assert ksi("plugins", "new", "rain").returncode == 0
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "plugins/rain"],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


@pytest.mark.usefixtures("running")
def test_an_agents_life_from_its_first_token_to_its_removal(ksi: Ksi) -> None:
    made = json.loads(ksi("agents", "add", "ada", "--profile", "restricted", "--json").stdout)
    assert made["token"].startswith("ksi_")
    assert made["url"] == json.loads(ksi("status", "--json").stdout)["url"]
    assert made["url"].startswith("http://127.0.0.1:")
    assert made["url"].endswith("/mcp")
    assert ksi("agents", "add", "ada").returncode == 7
    assert ksi("agents", "add", "eve", "--profile", "none such").returncode in (2, 3)
    send = ("send", "system:echo", "text=hi", "--token-env", "T")
    assert json.loads(ksi(*send, T=made["token"]).stdout) == {"text": "hi"}
    assert ksi(*send, T="ksi_wrong").returncode == 4
    write = ("send", "state:set", "key=k", "value=v", "--as", "ada")
    assert ksi(*write).returncode == 4
    assert ksi("explain", "ada", "state:set").returncode == 4
    dry = ksi("permissions", "grant", "ada", "events/state:*", "--dry-run")
    assert "+ ksi_state_set" in dry.stdout
    assert ksi(*write).returncode == 4
    assert ksi("permissions", "grant", "ada", "events/state:*", "--for", "1h").returncode == 0
    assert ksi("explain", "ada", "ksi_state_set").returncode == 0
    for words in (("agents", "ls"), ("agents", "show", "ada"), ("permissions", "show", "ada"), ("tokens", "ls", "ada")):
        done = ksi(*words)
        assert (done.returncode, "ada" in done.stdout) == (0, True)
        assert made["token"] not in done.stdout
    assert "- ksi_state_set" in ksi("permissions", "revoke", "ada", "events/state:*").stdout
    assert ksi("permissions", "set", "ada", "standard").returncode == 0
    assert "standard" in ksi("permissions", "profiles").stdout
    assert ksi("permissions", "profiles", "standard").returncode == 0
    assert ksi("agents", "freeze", "--all").returncode == 0
    assert ksi(*send, T=made["token"]).returncode == 4
    assert ksi("agents", "unfreeze", "ada").returncode == 0
    rotated = json.loads(ksi("tokens", "rotate", made["credential_id"], "--json").stdout)
    assert ksi(*send, T=made["token"]).returncode == 4
    assert ksi(*send, T=rotated["token"]).returncode == 0
    extra = json.loads(ksi("tokens", "create", "ada", "--label", "ci", "--for", "1h", "--json").stdout)
    assert ksi("tokens", "revoke", extra["credential_id"]).returncode == 0
    session = json.loads(ksi("sessions", "create", "ada", "--scope", "read", "--json").stdout)
    assert session["sessionId"] in ksi("sessions", "ls").stdout
    assert ksi("sessions", "revoke", session["sessionId"]).returncode == 0
    assert ksi("agents", "rm", "ada").returncode == 2
    assert ksi("agents", "rm", "ada", "--force").returncode == 0
    assert ksi(*send, T=rotated["token"]).returncode == 4
    assert ksi("agents", "show", "ada").returncode == 3


def test_the_audit_is_read_counted_checked_and_carried_away(running: Path, ksi: Ksi, ksi_process: Ksi) -> None:
    ksi("agents", "add", "ada")
    ksi("send", "system:echo", "text=hi", "--as", "ada")
    found = json.loads(ksi("audit", "query", "--agent", "ada", "--since", "1h", "--json").stdout)
    assert {row["event"] for row in found["rows"]} == {"system:echo"}
    assert "system:echo" in ksi_process("audit", "tail", "--agent", "ada").stdout
    assert json.loads(ksi("audit", "stats", "--json").stdout)["totalEvents"] > 0
    verdict = json.loads(ksi("audit", "verify", "--deep", "--json").stdout)
    assert verdict["ok"] is True
    assert ksi("audit", "retain", "--keep-rows", "1", "--yes").returncode == 7  # nothing was exported yet
    assert ksi("audit", "export", "all.jsonl").stdout.strip() == str(running / "exports" / "all.jsonl")
    head = ksi("audit", "checkpoint").stdout.strip()
    assert json.loads(ksi("audit", "verify", "--against", head, "--json").stdout)["ok"]
    exported = str(running / "exports" / "all.jsonl")
    assert json.loads(ksi("audit", "verify", exported, "--json").stdout)["ok"]
    assert "not in the export" in ksi("audit", "verify", exported, "--against", head).stdout
    assert ksi("audit", "export", "all.jsonl").returncode == 7
    assert ksi("audit", "export", "all.csv", "--format", "csv").returncode == 0
    doctor = json.loads(ksi("doctor", "--json").stdout)
    assert [check for check in doctor["checks"] if check["status"] != "ok"] == []
    ksi_process("stop")
    offline = ksi("audit", "verify", "--json")
    assert (offline.returncode, json.loads(offline.stdout)["ok"]) == (0, True)
    assert {"ok"} == {
        check["status"]
        for check in json.loads(ksi("doctor", "--json").stdout)["checks"]
        if check["check"].startswith("audit")
    }
    with sqlite3.connect(running / "db" / "audit.db") as connection:
        connection.execute("UPDATE entries SET event = 'state:get' WHERE seq = 2")
    broken = ksi("audit", "verify", "--json")
    assert (broken.returncode, json.loads(broken.stdout)["first_bad_seq"]) == (1, 2)
    assert "broken from row 2 on" in ksi("audit", "verify").stdout


@pytest.mark.usefixtures("running")
def test_agents_are_spawned_asked_followed_and_ended_from_the_command_line(ksi: Ksi) -> None:
    """Section 3.3, Spawn and Completion: `ksi agents`, `ksi completions`, `ksi conversations`, `ksi usage`."""
    script = 'read p; echo said $p; echo \'{"input_tokens": 5, "output_tokens": 7}\' > $KSI_USAGE_FILE'
    spawned = ksi("agents", "spawn", "bot", "-o", "resumes=true", "--", "/bin/sh", "-c", script)
    assert "spawned bot" in spawned.stdout
    assert ksi("agents", "ask", "bot", "hello", "there").stdout == "said hello there\n"
    again = json.loads(ksi("agents", "ask", "bot", "--last", "again", "--json").stdout)
    assert (again["text"], again["resumed"]) == ("said again\n", True)
    assert ksi("agents", "logs", "bot").stdout == "said again\n"
    queued = ksi("agents", "ask", "bot", "--no-wait", "later").stdout.strip()
    assert ksi("completions", "wait", queued).stdout == "said later\n"
    assert "done" in ksi("completions", "show", queued).stdout
    conversations = json.loads(ksi("conversations", "ls", "--json").stdout)["conversations"]
    assert sorted(each["messages"] for each in conversations) == [2, 4]
    exported = ksi("conversations", "export", again["conversation_id"]).stdout
    assert exported.count("## ") == 4
    assert json.loads(ksi("usage", "--json").stdout)["usage"][0]["output_tokens"] == 21
    assert ksi("agents", "spawn", "kid", "--parent", "bot", "--", "/bin/sleep", "1000").returncode == 0
    sleeping = ksi("agents", "ask", "kid", "--no-wait", "go").stdout.strip()
    assert "  kid" in ksi("agents", "tree").stdout
    assert ksi("agents", "terminate", "bot", "--force").stdout == "terminated bot\nterminated kid\n"
    assert "cancelled" in ksi("completions", "show", sleeping).stdout
    refused = ksi("agents", "ask", "bot", "more")
    assert (refused.returncode, "ksi agents restart bot" in refused.stderr) == (7, True)
    assert ksi("agents", "attach", "bot").returncode == 3
    assert ksi("agents", "spawn", "x", "--provider", "nope").returncode == 2
    failing = ksi("agents", "spawn", "bad", "--", "/bin/sh", "-c", "echo why >&2; exit 3")
    assert failing.returncode == 0
    failed = ksi("agents", "ask", "bad", "go")
    assert (failed.returncode, "exited with 3: why" in failed.stderr) == (1, True)


FAILING_WORK = """
import contextlib

from ksi_daemon.plugin import HealthPart


@plugin.lifespan
@contextlib.asynccontextmanager
async def live(home):
    home.background("watch", work)
    yield


async def work():
    raise ValueError("no cloud")


@plugin.health
async def health(home):
    return [HealthPart(name="sensor", state="degraded", reason="it is old")]
"""


@pytest.mark.usefixtures("running")
def test_a_plugin_is_shown_with_its_health_and_the_traceback_of_its_last_error(ksi: Ksi) -> None:
    ksi("plugins", "new", "rain")
    with Path("plugins/rain/__init__.py").open("a") as file:
        file.write(FAILING_WORK)
    assert ksi("plugins", "reload", "rain").returncode == 0
    shown = ksi("plugins", "show", "rain").stdout
    for expected in ("degraded  it is old", "background watch: ValueError: no cloud", "Traceback", "in work"):
        assert expected in shown
