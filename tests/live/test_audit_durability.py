"""Intent before effect, outcome before reply, on the disk: seen from outside, and by killing."""

import json
import random
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tests.live.daemon_process import ROOT, Daemon, Refused, until
from tests.live.storms import Ledger, kill_under_load
from tests.machine import needs_strace

ROUNDS = 5

EFFECTS = '''
@plugin.handles("effects:hang")
async def hang(ctx: Context, params: Nothing) -> Done:
    """Do something, and never come back."""
    with open(os.environ["EFFECTS"], "a") as file:
        file.write(f"{ctx.call_id}\\n")
    await asyncio.Event().wait()
    return Done()
'''


@needs_strace
def test_the_disk_has_the_intent_before_the_effect_and_the_outcome_before_the_reply(daemon: Daemon) -> None:
    """U04: the system calls of one state:set, in the order in which they returned"""
    daemon.start()
    trace = daemon.folder / "trace"
    tracing = subprocess.Popen(
        ["strace", "-f", "-y", "-s", "400", "-o", str(trace), "-p", str(daemon.pid),
         "-e", "trace=fsync,fdatasync,pwrite64,write,writev,sendto,sendmsg"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert tracing.stderr is not None
        first = tracing.stderr.readline()
        assert "attached" in first, first
        with daemon.connect() as connection:
            connection.call("system:echo", {"text": "it is watched now"})
            connection.call("state:set", {"key": "watched", "value": 1})
    finally:
        tracing.send_signal(signal.SIGINT)
        tracing.communicate(timeout=10)
    steps = _steps(trace.read_text())
    steps = steps[max(index for index, step in enumerate(steps) if "it is watched" in step) + 1 :]
    reply = next(index for index, step in enumerate(steps) if '\\"created\\":true' in step)
    effect = next(index for index, step in enumerate(steps) if "pwrite64" in step and "/ksi.db-wal" in step)
    synced = [index for index, step in enumerate(steps) if re.search(r"f(data)?sync\(\d+<[^>]*/audit\.db-wal>", step)]
    kept = next(
        index for index, step in enumerate(steps) if index > effect and re.search(r"sync\(\d+<[^>]*/ksi\.db-wal>", step)
    )
    assert min(synced) < effect < kept < reply
    assert any(kept < index < reply for index in synced), "the outcome was not on the disk when the reply left"
    written = [index for index, step in enumerate(steps) if "pwrite64" in step and "/audit.db-wal" in step]
    assert min(written) < min(synced)


def _steps(trace: str) -> list[str]:
    """Calls in the order of their return: strace cuts those in two that others overtook."""
    begun: dict[str, str] = {}
    steps = []
    for line in trace.splitlines():
        thread, _, text = line.partition(" ")
        if text.rstrip().endswith("<unfinished ...>"):
            begun[thread] = text.strip()
        elif "resumed>" in text:
            steps.append(begun.pop(thread, "") + text.strip())
        else:
            steps.append(text.strip())
    return steps


def test_calls_that_a_kill_cut_short_are_known_to_be_unknown(daemon: Daemon) -> None:
    """U05"""
    daemon.plugin("effects", EFFECTS)
    effects = daemon.folder / "effects"
    daemon.start(EFFECTS=str(effects))
    token = daemon.add_agent("alice")
    with daemon.connect() as connection:
        for _ in range(5):
            connection.post("effects:hang", token=token)
        until(lambda: effects.exists() and len(effects.read_text().split()) == 5, what="all have begun")
        daemon.kill()
    daemon.start(EFFECTS=str(effects))
    unknown = daemon.audit_rows("status = 'unknown'")
    assert {row["call_id"] for row in unknown} == set(effects.read_text().split())
    assert {(row["event"], row["agent_id"], row["phase"]) for row in unknown} == {("effects:hang", "alice", "outcome")}
    assert daemon.call("audit:query", {"status": "unknown"})["rows"]
    assert daemon.call("audit:verify")["ok"] is True
    daemon.kill()
    daemon.start(EFFECTS=str(effects))
    assert len(daemon.audit_rows("status = 'unknown'")) == 5, "told once"


def test_no_kill_loses_what_was_acknowledged_or_leaves_an_effect_without_a_record(daemon: Daemon) -> None:
    """F01 K045: the long form is `scripts/chaos`"""
    chance = random.Random(3)
    ledger = Ledger()
    daemon.start()
    rounds = [kill_under_load(daemon, ledger, chance) for _ in range(ROUNDS)]
    assert [loss for one in rounds for loss in one.lost] == []
    assert [gap for one in rounds for gap in one.unrecorded] == []
    assert [one.audit for one in rounds] == ["ok"] * ROUNDS
    assert ledger.count > 20 * ROUNDS, "the load must have been real"


def dropped_if_exported(daemon: Daemon) -> dict[str, Any] | None:
    """All rows but the last thousand dropped; None if that was refused because some are in no export."""
    try:
        return daemon.call("audit:retain", {"keep_rows": 1_000})
    except Refused as refused:
        if refused.code != "conflict":
            raise
        return None


def test_the_record_is_exported_and_thinned_under_load_and_stays_whole(daemon: Daemon) -> None:
    """U08"""
    daemon.start()
    over = threading.Event()
    failures: list[str] = []

    def load() -> None:
        with daemon.connect() as connection:
            number = 0
            while not over.is_set():
                ids = [connection.post("state:set", {"key": f"k{number}", "value": n}) for n in range(20)]
                number += 1
                failures.extend(str(answer) for answer in map(connection.answer, ids) if not answer["ok"])

    threads = [threading.Thread(target=load) for _ in range(2)]
    for thread in threads:
        thread.start()
    exports: list[dict[str, Any]] = []
    try:
        for _ in range(4):
            until(lambda: len(daemon.audit_rows("1")) > 1_300, what="there is something to export")
            left = None
            while left is None:  # again when more rows than are kept were written after the export
                exports.append(daemon.call("audit:export", {"name": f"part{len(exports)}.jsonl"}))
                left = dropped_if_exported(daemon)
            assert left["dropped"] > 0
            assert daemon.call("audit:verify")["ok"] is True
        daemon.call("audit:export", {"name": "sheet.csv", "format": "csv"})
        refused = daemon.connect()
        with refused:
            assert refused.send("audit:export", {"name": "part0.jsonl"})["error"]["code"] == "conflict"
            assert refused.send("audit:export", {"name": "../x"})["error"]["code"] == "invalid"
    finally:
        over.set()
        for thread in threads:
            thread.join(20)
    assert failures == []
    assert daemon.stop() == 0
    assert daemon.verify_audit()["exit_code"] == 0
    last = 0
    for export in exports:
        words = [str(export["path"]), str(daemon.var)]
        assert _verify_export(words)["ok"] is True
        assert _verify_export(words[:1])["ok"] is True, "also alone, without the key"
        seqs = [line["seq"] for line in map(json.loads, Path(export["path"]).read_text().splitlines()) if "seq" in line]
        assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))
        assert seqs[0] <= last + 1, "a row is in no export"
        last = seqs[-1]
    spoilt = Path(exports[0]["path"])
    spoilt.write_text(spoilt.read_text().replace('"ok"', '"no"', 1))
    assert _verify_export([str(spoilt)])["ok"] is False


def _verify_export(words: list[str]) -> dict[str, object]:
    command = [sys.executable, "-m", "ksi_daemon.audit", "verify-export", *words]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    verdict: dict[str, object] = json.loads(ended.stdout)
    assert ended.returncode == (0 if verdict["ok"] else 1)
    return verdict
