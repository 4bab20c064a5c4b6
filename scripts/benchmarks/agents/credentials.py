"""Making and revoking a token when there are none, beside the same after thousands have ended."""

import asyncio
import tempfile
import time
from pathlib import Path
from statistics import median

from ksi_daemon.gate.profiles import read_profiles
from ksi_daemon.gate.rights import Rights
from ksi_daemon.identifiers import new_id
from ksi_daemon.storage.agents import Credential, SqliteAgents
from ksi_daemon.storage.migrations import MIGRATIONS
from ksi_daemon.storage.sqlite import open_database
from scripts.benchmarks.figure import Figure


def measure(quick: bool) -> list[Figure]:
    """The ratio of the last ones to the first ones."""
    first, last, total = asyncio.run(_measure(60 if quick else 10_000))
    detail = f"median {first:.2f} ms of the first 50, {last:.2f} ms of the last 50 of {total:,}"
    return [Figure("last mint and revoke / first", last / first, "×", 2.0, detail=detail)]


async def _measure(total: int) -> tuple[float, float, int]:
    times = []
    with tempfile.TemporaryDirectory() as folder:
        async with open_database(Path(folder) / "ksi.db", MIGRATIONS) as database:
            rights = Rights(SqliteAgents(database), read_profiles(core=("system",)))
            await rights.load()
            await rights.add_agent("bot", "standard", parent_id=None, note="", by="bench")
            for _ in range(total):
                began = time.perf_counter()
                template = Credential(
                    credential_id=new_id(), agent_id="bot", digest="", created_at=time.time(), created_by="bench"
                )
                made, _ = await rights.credentials.add(template)
                await rights.credentials.end(made.credential_id)
                times.append((time.perf_counter() - began) * 1e3)
    return median(times[:50]), median(times[-50:]), total
