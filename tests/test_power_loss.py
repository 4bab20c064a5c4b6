"""A power cut at any moment: acknowledged rows and values are there, and every database opens."""

import os
import random
import shutil
import sys
from pathlib import Path

import pytest

from ksi_daemon.audit import Filter, open_audit
from ksi_daemon.process.var_dir import prepare
from ksi_daemon.storage.migrations import MIGRATIONS
from ksi_daemon.storage.sqlite import open_database
from ksi_daemon.storage.state import SqliteState
from tests.audit.conftest import FakeLog
from tests.machine import needs_strace
from tests.power_loss import Step, cut_power, trace

ROUNDS = int(os.environ.get("KSI_POWER_CUTS", "40"))  # the long form: 500

WORK = """
import asyncio, os, sys
from pathlib import Path
from ksi_daemon.audit import open_audit
from ksi_daemon.storage.sqlite import open_database
from ksi_daemon.storage.state import SqliteState
from ksi_daemon.storage.migrations import MIGRATIONS
from tests.audit.conftest import FakeLog, intent, outcome

async def main(var_dir: Path) -> None:
    acks = os.open(var_dir.parent / "acks", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    async with open_audit(var_dir, log=FakeLog()) as audit, open_database(var_dir / "db" / "ksi.db", MIGRATIONS) as database:
        store = SqliteState(database)

        async def work(name: str) -> None:
            for number in range(15):
                call_id = f"{name}-{number}"
                await audit.append(intent(call_id))
                await store.set("global", call_id, value="x" * 3000, metadata={})
                await audit.append(outcome(call_id))
                os.write(acks, call_id.encode() + b"\\n")

        await asyncio.gather(*(work(name) for name in "abcd"))

asyncio.run(main(Path(sys.argv[1])))
"""


def _acknowledged(steps: list[Step], acks: Path) -> list[str]:
    shown = str(acks).encode().hex()
    found = []
    for step in steps:
        if step.name == "write" and shown in step.arguments.split(",")[0].replace("\\x", ""):
            text = step.arguments.split('"')[1]
            found.append(bytes.fromhex(text.replace("\\x", "")).decode().strip())
    return found


@needs_strace
@pytest.mark.timeout(300)
async def test_after_a_power_cut_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    """F02: what was not synced is dropped, wholly or in part, at moments all over a run."""
    var_dir = tmp_path / "var"
    prepare(var_dir)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "PYTHONDONTWRITEBYTECODE": "1"}
    steps = trace([sys.executable, "-c", WORK, str(var_dir)], tmp_path / "trace", environment)
    everything = _acknowledged(steps, tmp_path / "acks")
    assert len(everything) == 60, "the trace was not understood"
    chance = random.Random(3)
    first = next(number for number, step in enumerate(steps) if _acknowledged([step], tmp_path / "acks"))
    lost: list[tuple[int, str]] = []
    for number in range(ROUNDS):
        moment = chance.randrange(first, len(steps))
        acknowledged = _acknowledged(steps[: moment + 1], tmp_path / "acks")
        left = tmp_path / f"left-{number}"
        prepare(left)
        cut_power(steps[: moment + 1], var_dir, left, chance)
        async with open_audit(left, log=FakeLog()) as audit:
            verdict = await audit.verify(deep=True)
            assert verdict.ok, f"cut after step {moment}: {verdict.problem}"
            done = (await audit.query(Filter(status="ok", phase="outcome"), limit=10_000)).rows
            lost += [(moment, call_id) for call_id in acknowledged if call_id not in {row["call_id"] for row in done}]
            begun = {row["call_id"] for row in (await audit.query(Filter(phase="intent"), limit=10_000)).rows}
        async with open_database(left / "db" / "ksi.db", MIGRATIONS) as database:
            store = SqliteState(database)
            kept = {row.key for row in await store.list("global", "*", limit=1000)}
            lost += [(moment, call_id) for call_id in acknowledged if call_id not in kept]
            assert kept <= begun, "an effect without an intent"
        shutil.rmtree(left)
    assert lost == []
