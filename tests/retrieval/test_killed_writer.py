"""`kill -9` while the index is written: what was acknowledged is found, nothing is there by half, and the index verifies."""

import asyncio
import random
import signal
import subprocess
import sys
from pathlib import Path

from ksi_daemon.storage.sqlite import open_database
from tests.in_process import soon
from tests.retrieval.conftest import Open, found

WRITER = """
import asyncio, sys
from pathlib import Path
from ksi_daemon.retrieval.retrieval import open_retrieval
from ksi_daemon.storage.sqlite import open_database
from tests.retrieval.conftest import note, plain_settings

async def main():
    async with open_database(Path(sys.argv[1]), []) as database, open_retrieval(database, plain_settings()) as retrieval:
        number = 0
        while True:
            number += 1
            name = f"r{sys.argv[2]}n{number}"
            await retrieval.put([note(name, f"# First\\n\\nUnique {name}.\\n\\n# Second\\n\\nMore of it.\\n")])
            print("put", name, flush=True)
            if number % 3 == 0:
                await retrieval.delete([name])
                print("deleted", name, flush=True)

asyncio.run(main())
"""


def write_and_die(path: Path, round_number: int, lines: int) -> list[str]:
    """Let a process write until it has acknowledged so many changes, kill it, and return all that it acknowledged."""
    command = [sys.executable, "-c", WRITER, str(path), str(round_number)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        acknowledged = [process.stdout.readline() for _ in range(lines)]
        process.send_signal(signal.SIGKILL)
        return [line.strip() for line in (*acknowledged, *process.stdout) if line.endswith("\n")]


async def test_a_writer_killed_at_random_leaves_an_index_that_is_whole(path: Path, opened: Open) -> None:
    """F01: rounds on what the last one left; content, words and vectors agree, and acknowledged changes hold."""
    chance = random.Random(5)
    acknowledged: list[str] = []
    for round_number in range(4):
        acknowledged += await asyncio.to_thread(write_and_die, path, round_number, chance.randrange(20, 60))
        async with opened() as retrieval:
            await soon(retrieval.idle())
            assert await retrieval.verify() == []
            state = await retrieval.state()
            assert state.chunks == 2 * state.documents
    deleted = {line.split()[1] for line in acknowledged if line.startswith("deleted")}
    put = {line.split()[1] for line in acknowledged if line.startswith("put")}
    assert len(put) > 30
    async with open_database(path, []) as database:
        stored = {row["id"] for row in await database.fetch("SELECT id FROM retrieval_documents")}
    # The last of a round may have been under way when the kill came.
    assert not stored & deleted
    under_way = {name for name in put - deleted if int(name.split("n")[1]) % 3 == 0}
    assert put - deleted - under_way <= stored
    async with opened() as retrieval:
        name = min(stored)
        assert (await found(retrieval, f"unique {name}"))[0] == name
        await retrieval.rebuild()
        await soon(retrieval.idle())
        assert await retrieval.verify() == []
