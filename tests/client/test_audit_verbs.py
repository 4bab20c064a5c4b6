"""`ksi audit` and the doctor's look at the audit."""

import json
import os
import pty
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.client.conftest import WAIT_S, Ksi, mark_var
from tests.client.fake_daemon import FakeDaemon

AT = "2026-11-18T07:00:00.123456Z"


def row(seq: int, **facts: Any) -> str:
    """A line of the mirror."""
    usual = {"seq": seq, "time": AT, "type": "tool_call", "phase": "event", "status": "ok", "principal": "operator"}
    return json.dumps(usual | facts) + "\n"


@pytest.fixture
def mirror(var: Path) -> Path:
    """A mirror of 30 rows."""
    path = var / "log" / "audit.jsonl"
    path.parent.mkdir(mode=0o700, parents=True)
    path.write_text("".join(row(seq, agent_id="ada" if seq % 10 == 0 else "eve") for seq in range(1, 31)))
    return path


def seqs(text: str) -> list[int]:
    """The rows that JSON lines are of."""
    return [json.loads(line)["seq"] for line in text.splitlines()]


def test_query_asks_for_what_the_options_say(daemon: FakeDaemon, ksi: Ksi) -> None:
    words = ("--agent", "ada", "--event", "a:b", "--type", "tool_call", "--status", "ok", "--since", "1h")
    done = ksi("audit", "query", *words, "--until", "5m", "--limit", "7")
    assert daemon.requests[-1]["data"] == {
        "agent_id": "ada",
        "event": "a:b",
        "type": "tool_call",
        "status": "ok",
        "since": 3600,
        "until": 300,
        "limit": 7,
    }
    assert "system:\\x1becho" in done.stdout
    assert "there are more rows" in done.stderr


def test_tail_shows_the_last_rows_without_a_daemon(mirror: Path, ksi_process: Ksi) -> None:
    done = ksi_process("audit", "tail", "-o", "jsonl")
    assert (done.returncode, seqs(done.stdout)) == (0, list(range(11, 31)))
    assert seqs(ksi_process("audit", "tail", "--json", "-n", "3").stdout) == [28, 29, 30]
    assert seqs(ksi_process("audit", "tail", "-o", "jsonl", "--agent", "ada").stdout) == [10, 20, 30]
    assert ksi_process("audit", "tail", "--status", "forbidden").stdout == ""
    assert len(ksi_process("audit", "tail", "-n", "5").stdout.splitlines()) == 5


def test_tail_goes_back_into_the_file_before_and_leaves_out_cut_lines(mirror: Path, ksi_process: Ksi) -> None:
    mirror.rename(mirror.with_name("audit.jsonl.1"))
    gap = '{"gap":{"first_seq":31,"last_seq":32,"rows":2}}\n'
    hostile = row(33, event="a\x1b[31m", reason="x" * 200_000)
    mirror.write_text(gap + hostile + '{"cut\n\n' + row(34) + '{"half')
    done = ksi_process("audit", "tail", "-n", "5")
    lines = done.stdout.splitlines()
    assert len(lines) == 5
    assert "rows 31 to 32 are not in this file" in lines[2]
    assert "a\\x1b[31m" in lines[3]
    assert "\x1b" not in done.stdout


def test_tail_without_a_file_is_not_found(var: Path, ksi: Ksi) -> None:
    done = ksi("audit", "tail")
    assert done.returncode == 3
    assert "ksi start" in done.stderr


@contextmanager
def following(*words: str) -> Iterator[Iterator[int]]:
    """The rows that `ksi audit tail -f` prints."""
    command = [sys.executable, "-m", "ksi_client", "audit", "tail", "-f", "-o", "jsonl", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        yield (json.loads(line)["seq"] for line in run.stdout)
        run.send_signal(signal.SIGINT)
        assert run.wait(WAIT_S) == 130
        assert run.stderr is not None
        assert "Traceback" not in run.stderr.read()


def test_following_goes_through_a_rotation_and_waits_for_whole_lines(mirror: Path) -> None:
    whole = row(31)
    with mirror.open("a") as file:
        file.write(whole[:20])
    with following("-n", "1") as rows:
        assert next(rows) == 30
        with mirror.open("a") as file:
            file.write(whole[20:])
        assert next(rows) == 31
        with mirror.open("a") as file:
            file.write(row(32))
            mirror.rename(mirror.with_name("audit.jsonl.1"))
            file.write(row(33))
        mirror.write_text(row(34))
        assert [next(rows) for _ in range(3)] == [32, 33, 34]


def test_following_waits_for_a_file_and_takes_only_what_fits(var: Path) -> None:
    (var / "log").mkdir(mode=0o700, parents=True)
    with following("--agent", "ada") as rows:
        (var / "log" / "audit.jsonl").write_text(row(1) + row(2, agent_id="ada") + row(3, agent_id="ada"))
        assert [next(rows), next(rows)] == [2, 3]


def test_verify_tells_by_its_exit_code(daemon: FakeDaemon, ksi: Ksi) -> None:
    done = ksi("audit", "verify", "--json")
    assert (done.returncode, json.loads(done.stdout)["rows"]) == (0, 42)
    assert ksi("audit", "verify", "--deep").stdout == "ok: 42 rows, the chain is intact\n"
    assert daemon.requests[-1]["data"] == {"deep": True}
    daemon.answers["audit:verify"] = lambda _: {"ok": False, "rows": 6, "first_bad_seq": 7, "problem": "\x1bhash"}
    done = ksi("audit", "verify")
    assert (done.returncode, done.stdout) == (1, "broken from row 7 on: \\x1bhash\n")
    assert ksi("audit", "verify", "--json").returncode == 1


def test_a_head_is_printed_and_compared_with_later(daemon: FakeDaemon, ksi: Ksi, tmp_path: Path) -> None:
    done = ksi("audit", "checkpoint")
    assert done.stdout == "ksi-audit-head:aa:7:bb:cc\n"
    assert ksi("audit", "verify", "--against", done.stdout.strip()).returncode == 0
    assert daemon.requests[-1]["data"] == {"deep": False, "against": "ksi-audit-head:aa:7:bb:cc"}
    assert ksi("audit", "verify", str(tmp_path / "none.jsonl")).returncode == 3


def test_verify_says_what_it_cannot_cover(daemon: FakeDaemon, ksi: Ksi) -> None:
    daemon.answers["audit:verify"] = lambda _: {
        "ok": True,
        "rows": 6,
        "dropped": 1200,
        "dropped_at": AT,
        "without_mac": 3,
    }
    done = ksi("audit", "verify")
    assert "1,200 older rows were dropped by retention, last at 2026-11-18" in done.stderr
    assert "3 rows are of a version without MACs" in done.stderr


def test_a_new_chain_needs_a_reason_and_no_daemon(var: Path, ksi: Ksi) -> None:
    assert ksi("audit", "new-chain").returncode == 2
    assert ksi("audit", "new-chain", "--reason", " ").returncode == 2


def test_verify_without_daemon_and_audit_is_not_found(var: Path, ksi: Ksi) -> None:
    assert ksi("audit", "verify").returncode == 3
    assert not var.exists()


def test_verify_without_a_daemon_that_could_be_run_says_so(var: Path, installed: Path, ksi: Ksi) -> None:
    (var / "db").mkdir(mode=0o700, parents=True)
    (var / "db" / "audit.db").touch(mode=0o600)
    done = ksi("audit", "verify")  # the pretended package has no audit
    assert done.returncode == 1
    assert "could not be verified" in done.stderr


def test_export_and_retain(daemon: FakeDaemon, ksi: Ksi) -> None:
    assert ksi("audit", "export", "all.csv", "--format", "csv").stdout == "/var/exports/all.csv\n"
    assert daemon.requests[-1]["data"] == {"name": "all.csv", "format": "csv"}
    done = ksi("audit", "retain", "--keep-rows", "1000", "--yes")
    assert done.stdout == "dropped 7 rows; the first remaining row is 8\n"
    measure = {"keep_days": None, "keep_rows": 1000}
    assert daemon.requests[-2]["data"] == {**measure, "dry_run": True}
    assert daemon.requests[-1]["data"] == {**measure, "through": 7, "unexported": False}


def retain_on_terminal(*answers: str) -> tuple[int, str, str]:
    """`ksi audit retain` with a person at the keyboard: exit code, output, and what was shown."""
    master, slave = pty.openpty()
    os.write(master, "".join(f"{answer}\n" for answer in answers).encode())
    done = subprocess.run(
        [sys.executable, "-m", "ksi_client", "audit", "retain", "--keep-rows", "9"],
        stdin=slave,
        stdout=subprocess.PIPE,
        stderr=slave,
        timeout=WAIT_S,
        check=False,
    )
    os.close(slave)
    shown = os.read(master, 65536).decode()
    os.close(master)
    return done.returncode, done.stdout.decode(), shown


def sent(daemon: FakeDaemon) -> list[str]:
    """The events since the last look; a retention that only asks is left out."""
    names = [one["event"] for one in daemon.requests if not (one.get("data") or {}).get("dry_run")]
    daemon.requests.clear()
    return names


def test_retain_asks_before_rows_are_dropped(daemon: FakeDaemon, ksi: Ksi) -> None:
    """U08: a person confirms on a terminal, a script with --yes; without either nothing is dropped."""
    done = ksi("audit", "retain", "--keep-rows", "9")
    assert (done.returncode, sent(daemon)) == (2, [])
    assert "--yes" in done.stderr
    code, output, shown = retain_on_terminal("n")
    assert (code, output, sent(daemon)) == (1, "", [])
    assert "Drop 7 rows, up to row 7, for good? [y/N]" in shown
    assert retain_on_terminal("y")[0] == 0
    assert sent(daemon) == ["audit:retain"]


def test_retain_offers_an_export_of_rows_that_were_never_exported(daemon: FakeDaemon, ksi: Ksi) -> None:
    """U08: without an export they are dropped only when that is asked for again, or with --unexported."""
    daemon.answers["audit:retain"] = lambda _: {"dropped": 7, "first_seq": 8, "unexported": 3}
    done = ksi("audit", "retain", "--keep-rows", "9", "--yes")
    assert (done.returncode, sent(daemon)) == (7, [])
    assert "3 of the 7 rows to drop were never exported" in done.stderr
    assert ksi("audit", "retain", "--keep-rows", "9", "--yes", "--unexported").returncode == 0
    assert daemon.requests[-1]["data"]["unexported"] is True
    sent(daemon)
    code, _, shown = retain_on_terminal("y", "y")
    assert "exported 42 rows to /var/exports/audit-" in shown
    assert (code, daemon.requests[-1]["data"]["unexported"], sent(daemon)) == (
        0,
        False,
        ["audit:export", "audit:retain"],
    )
    code, _, shown = retain_on_terminal("n", "n")
    assert "They cannot be recovered" in shown
    assert (code, sent(daemon)) == (1, [])
    assert retain_on_terminal("n", "y", "y")[0] == 0
    assert daemon.requests[-1]["data"]["unexported"] is True


def doctors(ksi: Ksi, check: str) -> list[dict[str, Any]]:
    """What the doctor found in one check; the var folder is marked as a daemon would have done."""
    mark_var()
    return [found for found in json.loads(ksi("doctor", "--json").stdout)["checks"] if found["check"] == check]


@pytest.mark.usefixtures("installed")
def test_the_doctor_sees_frozen_agents(daemon: FakeDaemon, ksi: Ksi) -> None:
    daemon.answers["agent:list"] = lambda _: {"agents": [{"agent_id": "ada", "frozen": True}]}
    (agents,) = doctors(ksi, "agents")
    assert agents["status"] == "warn"
    assert "ada" in agents["seen"]


@pytest.mark.usefixtures("installed")
def test_the_doctor_counts_unknown_and_missing_outcomes_exactly(var: Path, ksi: Ksi) -> None:
    """U05: more of them than a page of a query holds, and also while no daemon answers."""
    (var / "db").mkdir(mode=0o700, parents=True)
    assert doctors(ksi, "audit outcomes")[0]["seen"] == "none yet"
    now = datetime.now(UTC).isoformat()
    calls: list[tuple[str, str, str | None]] = [(f"ended-{number}", now, "ok") for number in range(50)]
    calls += [(f"unknown-{number}", now, "unknown") for number in range(1_234)]
    calls += [(f"open-{number}", now, None) for number in range(321)]
    calls += [("long ago", "2020-01-01T00:00:00Z", "unknown"), ("long ago, open", "2020-01-01T00:00:00Z", None)]
    with closing(sqlite3.connect(var / "db" / "audit.db")) as audit, audit:
        audit.execute("CREATE TABLE entries (call_id, time, phase, status, event)")
        for call_id, at, status in calls:
            audit.execute("INSERT INTO entries VALUES (?, ?, 'intent', 'started', 'state:set')", (call_id, at))
            if status is not None:
                audit.execute("INSERT INTO entries VALUES (?, ?, 'outcome', ?, 'state:set')", (call_id, at, status))
    unknown, missing = doctors(ksi, "audit outcomes")
    assert (unknown["status"], missing["status"]) == ("warn", "warn")
    assert unknown["seen"] == "1,234 calls of the last week have an unknown outcome: state:set"
    assert missing["seen"].startswith("321 calls were begun and have no outcome, 0 are under way")


@pytest.mark.usefixtures("installed")
def test_the_doctor_misses_an_audits_key_and_sees_an_open_anchor(var: Path, ksi: Ksi) -> None:
    for name in ("db", "log", "run"):
        (var / name).mkdir(mode=0o700, parents=True)
    (var / "db" / "audit.db").touch(mode=0o600)
    (var / "log" / "audit.anchor.jsonl").touch()
    (var / "log" / "audit.anchor.jsonl").chmod(0o644)
    seen = {found["seen"] for found in doctors(ksi, "audit files") if found["status"] == "fail"}
    assert seen == {"run/audit.key is missing", "log/audit.anchor.jsonl has mode 0644"}
    assert doctors(ksi, "audit chain")[0]["status"] == "fail"
