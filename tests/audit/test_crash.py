"""`kill -9` at any moment: what was acknowledged is in the record, and the record is whole."""

import asyncio
import random
import signal
import subprocess
import sys
from pathlib import Path

from ksi_daemon.audit import verification
from ksi_daemon.audit.files import Files
from ksi_daemon.audit.reading import Filter
from tests.audit.conftest import Open

WRITER = """
import asyncio, sys
from pathlib import Path
from ksi_daemon.audit import open_audit
from tests.audit.conftest import FakeLog, intent, outcome

async def caller(audit, name):
    number = 0
    while True:
        number += 1
        call_id = f"{sys.argv[2]}-{name}-{number}"
        await audit.append(intent(call_id, arguments={"n": number}))
        print(call_id, "intent", flush=True)
        await audit.append(outcome(call_id))
        print(call_id, "outcome", flush=True)

async def main():
    async with open_audit(Path(sys.argv[1]), log=FakeLog()) as audit:
        await asyncio.gather(*(caller(audit, name) for name in range(20)))

asyncio.run(main())
"""


def write_and_die(var_dir: Path, round_number: int, lines: int) -> set[str]:
    """Let a process write until it has acknowledged so many rows, kill it, and return all that it acknowledged."""
    command = [sys.executable, "-c", WRITER, str(var_dir), str(round_number)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        acknowledged = {process.stdout.readline().strip() for _ in range(lines)}
        process.send_signal(signal.SIGKILL)
        return acknowledged | {line.strip() for line in process.stdout if line.endswith(("intent\n", "outcome\n"))}


async def test_killed_at_random_nothing_acknowledged_is_lost_and_the_chain_stays_whole(
    var_dir: Path, files: Files, opened: Open
) -> None:
    """F01, U05: ten rounds, each on what the last one left; every call that was cut short is `unknown` after the next start."""
    chance = random.Random(7)
    acknowledged: set[str] = set()
    for round_number in range(10):
        acknowledged |= await asyncio.to_thread(write_and_die, var_dir, round_number, chance.randrange(1, 400))
        assert verification.verify(files).ok
    async with opened() as audit:
        recorded: set[str] = set()
        ends: dict[str, list[str]] = {}
        after = 0
        while rows := (await audit.query(Filter(after=after), limit=10_000, order="oldest")).rows:
            for row in rows:
                if "call_id" in row:
                    recorded.add(f"{row['call_id']} {row['phase']}")
                    if row["phase"] == "outcome":
                        ends.setdefault(row["call_id"], []).append(row["status"])
            after = rows[-1]["seq"]
        assert len(acknowledged) > 300
        assert acknowledged - recorded == set()
        assert all(len(statuses) == 1 for statuses in ends.values())
        assert {entry.split()[0] for entry in recorded} == set(ends)
        assert any(statuses == ["unknown"] for statuses in ends.values())
        assert (await audit.verify()).ok
