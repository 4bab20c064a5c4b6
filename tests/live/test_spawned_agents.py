"""Agents that a real daemon runs: over its death, its restart and its stop, with a real MCP client as their program."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ksi_daemon.agents.runner_process import MARK, kill, marked_processes
from tests.live.daemon_process import ROOT, WAIT_S, Daemon, until
from tests.machine import needs_curl, needs_git

PROGRAM = Path(__file__).with_name("agent_program.py")
ECHO = {"call": "ksi_system_echo", "arguments": {"text": "hi"}}


@pytest.fixture(autouse=True)
def no_process_is_left(daemon: Daemon) -> Iterator[None]:
    yield
    daemon.end()
    for pid in processes(daemon):
        kill(pid)


def processes(daemon: Daemon) -> list[int]:
    """Every process of an agent of this daemon: found by its folder in the environment."""
    wanted = f"KSI_MCP_CONFIG={daemon.var}/".encode()
    found = []
    for pid, _ in marked_processes(""):
        try:
            if wanted in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found


def spawn(daemon: Daemon, command: list[str], name: str = "bot", **more: Any) -> dict[str, Any]:
    options = {"command": command, **more.pop("options", {})}
    return daemon.call("agent:spawn", {"agent_id": name, "provider": "command", "options": options, **more})


def ask(daemon: Daemon, prompt: Any, name: str = "bot", **more: Any) -> str:
    text = prompt if isinstance(prompt, str) else json.dumps(prompt)
    return str(daemon.call("completion:async", {"agent_id": name, "prompt": text, **more})["completion_id"])


def end_of(daemon: Daemon, completion_id: str) -> dict[str, Any]:
    return daemon.call("completion:wait", {"completion_id": completion_id, "timeout_s": WAIT_S})


def state_of(daemon: Daemon, completion_id: str) -> str:
    return str(daemon.call("completion:status", {"completion_id": completion_id})["state"])


def seen_by(completion: dict[str, Any]) -> dict[str, Any]:
    assert completion["state"] == "done", completion
    seen: dict[str, Any] = json.loads(completion["text"].splitlines()[-1])
    return seen


@needs_curl
def test_full_then_thin_over_a_restart_then_refused_then_gone(daemon: Daemon) -> None:
    """K011 K012 K013 K014 K015 K017 K024 S03: the proof of the specification's flow, with an SDK client as the agent."""
    daemon.start()
    program = [sys.executable, str(PROGRAM)]
    spawn(daemon, program, options={"resumes": True, "environment": {"PYTHONPATH": str(ROOT)}})
    first = seen_by(end_of(daemon, ask(daemon, ECHO, conversation_id="talk")))
    assert (first["thin"], first["answer"]) == (False, {"text": "hi"})
    assert daemon.call("agent:get", {"agent_id": "bot"})["last_used_at"] is not None, (
        "its token has ended, but it was seen"
    )
    daemon.kill()
    daemon.start()
    second = seen_by(end_of(daemon, ask(daemon, ECHO, conversation_id="talk")))
    assert (second["thin"], second["tools"], second["answer"]) == (True, first["tools"], {"text": "hi"})
    waits = ask(daemon, ECHO | {"sleep_s": 1}, conversation_id="talk")
    until(lambda: daemon.call("agent:logs", {"agent_id": "bot", "completion_id": waits})["text"])
    daemon.call("permission:grant", {"agent_id": "bot", "resource": "events/system:echo", "access": "none"})
    assert "no such tool" in seen_by(end_of(daemon, waits))["refused"]
    shown = daemon.call("mcp:get_session", {"agent_id": "bot", "conversation_id": "talk"})["completions"]
    assert [each["kind"] for each in shown] == ["thin", "thin", "full"]
    last = ask(daemon, {"sleep_s": 1000}, conversation_id="talk")
    until(lambda: daemon.call("agent:logs", {"agent_id": "bot", "completion_id": last})["text"])
    config = daemon.var / "agents" / "bot" / last / "mcp.json"
    secret = json.loads(config.read_text())["mcpServers"]["ksi"]["headers"]["Authorization"]
    assert processes(daemon)
    daemon.call("agent:terminate", {"agent_id": "bot"})
    assert not config.exists()
    assert processes(daemon) == []
    url = f"http://127.0.0.1:{(daemon.var / 'run' / 'http_port').read_text()}/mcp"
    ping = ["-d", '{"jsonrpc":"2.0","id":1,"method":"tools/list"}', "-H", "Content-Type: application/json"]
    refused = subprocess.run(
        ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", url, *ping, "-H", f"Authorization: {secret}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert refused.stdout == "401"
    assert secret.removeprefix("Bearer ") not in "".join(
        path.read_text(errors="replace") for path in (daemon.var / "log").iterdir()
    )


@needs_git
def test_git_does_not_take_the_configs_of_a_var_folder_in_a_work_tree(daemon: Daemon) -> None:
    """S07"""
    daemon.start()
    spawn(daemon, ["/bin/sleep", "1000"], prompt="go")
    until(lambda: list((daemon.var / "agents").rglob("mcp.json")))
    git = ["git", "-C", str(daemon.folder)]
    subprocess.run([*git, "init", "-q"], check=True)
    taken = subprocess.run([*git, "status", "--porcelain", "-uall"], check=True, capture_output=True, text=True).stdout
    assert "var/" not in taken


def test_usage_is_logged_as_specified(daemon: Daemon) -> None:
    """K017: the event and its fields, beside our own."""
    daemon.start()
    usage = '{"input_tokens":17,"cache_creation_tokens":3314,"cache_read_tokens":45662,"output_tokens":306}'
    spawn(daemon, ["/bin/sh", "-c", f"echo '{usage}' > $KSI_USAGE_FILE"], prompt="go")
    until(lambda: daemon.call("completion:token_usage")["usage"])
    daemon.stop()
    lines = [json.loads(line) for line in (daemon.var / "log" / "ksi.jsonl").read_text().splitlines()]
    logged = [line for line in lines if line["event"] == "Completion token usage"]
    fields = ("has_mcp", "input_tokens", "cache_creation_tokens", "cache_read_tokens", "output_tokens", "handshake")
    assert [{name: line[name] for name in fields if name in line} for line in logged] == [
        {"has_mcp": False, "input_tokens": 17, "cache_creation_tokens": 3314, "cache_read_tokens": 45662,
         "output_tokens": 306, "handshake": None}
    ]  # fmt: skip


def test_programs_outlive_a_crash_and_are_taken_over(daemon: Daemon, tmp_path: Path) -> None:
    """S04: live ones go on and finish, one that ended meanwhile is read, dead ones' files and tokens are swept, nothing runs twice."""
    daemon.start()
    counted = f"read p; echo $p >> {tmp_path}/begun; "
    spawn(daemon, ["/bin/sh", "-c", counted + f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; echo late"], "late")
    spawn(daemon, ["/bin/sh", "-c", counted + "sleep 0.5; echo early"], "early")
    spawn(daemon, ["/bin/sh", "-c", counted + "exec sleep 1000"], "dead")
    late, early, dead = (ask(daemon, f"{name}\n", name) for name in ("late", "early", "dead"))
    queued = ask(
        daemon,
        "queued\n",
        "late",
        conversation_id=daemon.call("completion:status", {"completion_id": late})["conversation_id"],
    )
    until(lambda: (tmp_path / "begun").exists() and len((tmp_path / "begun").read_text().split()) == 3)
    until(lambda: all(state_of(daemon, each) == "running" for each in (late, early, dead)))
    runner = daemon.call("completion:status", {"completion_id": dead})["pid"]
    daemon.kill()
    kill(runner)
    until((daemon.var / "agents" / "early" / early / "ended.json").exists)
    daemon.start()
    assert end_of(daemon, early)["text"] == "early\n"
    assert state_of(daemon, late) == "running"
    interrupted = end_of(daemon, dead)
    assert (interrupted["state"], interrupted["error"]["code"]) == ("interrupted", "interrupted")
    assert not (daemon.var / "agents" / "dead" / dead / "mcp.json").exists()
    live = {each["completion_id"] for each in daemon.call("token:list")["tokens"] if each["state"] == "live"}
    assert live == {late}
    (tmp_path / "go").touch()
    assert end_of(daemon, late)["text"] == "late\n"
    assert end_of(daemon, queued)["text"] == "late\n"
    assert sorted((tmp_path / "begun").read_text().split()) == ["dead", "early", "late", "queued"]
    rows = daemon.audit_rows("event IN ('completion:started', 'completion:ended')")
    assert [row["agent_id"] for row in rows if row["event"] == "completion:started"].count("late") == 2
    assert len(rows) == 8  # a start and an end of each, on record
    assert processes(daemon) == []


def test_a_restart_keeps_programs_and_a_stop_ends_them(daemon: Daemon, tmp_path: Path) -> None:
    """Agents outlive `ksi restart`; `ksi stop` ends them, and what was queued goes on at the next start."""
    daemon.start()
    spawn(daemon, ["/bin/sh", "-c", f"echo run >> {tmp_path}/begun; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done"])
    first = ask(daemon, "go", conversation_id="talk")
    second = ask(daemon, "go", conversation_id="talk")
    until((tmp_path / "begun").exists)
    runner = daemon.call("completion:status", {"completion_id": first})["pid"]
    daemon.signal(signal.SIGUSR1)
    assert daemon.wait() == 0
    assert processes(daemon)
    assert Path(f"/proc/{runner}").exists()
    daemon.start()
    assert state_of(daemon, first) == "running"
    daemon.stop()
    assert processes(daemon) == []
    daemon.start()
    assert state_of(daemon, first) == "interrupted"
    (tmp_path / "go").touch()
    assert end_of(daemon, second)["state"] == "done"
    assert (tmp_path / "begun").read_text().split() == ["run", "run"]


def test_what_never_began_is_started_after_a_crash_and_what_nobody_knows_is_ended(
    daemon: Daemon, tmp_path: Path
) -> None:
    """A crash between the record and the program's start; a process of a completion that has ended."""
    daemon.start()
    spawn(daemon, ["/bin/sh", "-c", f"echo run >> {tmp_path}/begun"])
    done = ask(daemon, "go")
    assert end_of(daemon, done)["state"] == "done"
    mark = daemon.call("agent:get", {"agent_id": "bot"})["daemon_id"]
    assert mark
    daemon.kill()
    with closing(sqlite3.connect(daemon.var / "db" / "completions.db")) as database:
        text = database.execute("SELECT record FROM completions").fetchone()[0]
        record = json.loads(text) | {"state": "running", "attempt": 1}
        database.execute("UPDATE completions SET state = 'running', record = ?", (json.dumps(record),))
        database.commit()
    for name in ("began", "ended.json"):
        (daemon.var / "agents" / "bot" / done / name).unlink()
    import hashlib

    prefix = hashlib.sha256(os.fsencode(daemon.var.resolve())).hexdigest()[:16]
    stray = subprocess.Popen(
        ["/bin/sleep", "1000"], env={MARK: f"{prefix}/bot/unknown", "KSI_MCP_CONFIG": f"{daemon.var}/x"}
    )
    daemon.start()
    assert stray.wait(WAIT_S) == -9
    assert end_of(daemon, done)["state"] == "done"
    assert (tmp_path / "begun").read_text().split() == ["run", "run"]
    messages = daemon.call("conversation:list", {})["conversations"][0]["messages"]
    assert messages == 2


def test_fifty_agents_at_once_are_all_served_and_none_is_left(daemon: Daemon) -> None:
    """Step 6: 50 agents spawned at once; configs are 0600 at every observation under umask 0. S01."""
    daemon.umask = 0
    daemon.settings["completions_at_once"] = "50"
    daemon.start()
    stop, wrong = threading.Event(), []

    def observe() -> None:
        while not stop.is_set():
            for path in (daemon.var / "agents").rglob("mcp.json"):
                try:
                    modes = path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777
                except OSError:
                    continue
                if modes != (0o600, 0o700):
                    wrong.append((path, modes))

    watcher = threading.Thread(target=observe)
    watcher.start()
    try:
        script = "grep -c X-KSI-Agent-ID $KSI_MCP_CONFIG"
        with daemon.connect(wait_s=60) as connection:
            posted = [
                connection.post(
                    "agent:spawn",
                    {
                        "agent_id": f"bot{n}",
                        "provider": "command",
                        "prompt": "go",
                        "options": {"command": ["/bin/sh", "-c", script]},
                    },
                )
                for n in range(50)
            ]
            spawned = [connection.answer(each)["data"] for each in posted]
            ends = [connection.call("completion:wait", {"completion_id": each["completion_id"]}) for each in spawned]
    finally:
        stop.set()
        watcher.join()
    assert [each["text"] for each in ends] == ["1\n"] * 50
    assert wrong == []
    assert processes(daemon) == []
