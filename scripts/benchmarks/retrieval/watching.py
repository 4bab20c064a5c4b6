"""How long after a file is written its change is delivered, beside the quiet time that ends a batch."""

import asyncio
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from ksi_daemon.retrieval.file_scan import FileStamp
from ksi_daemon.retrieval.watch import Changes, WatchSettings, watch_files
from scripts.benchmarks.figure import Figure, spread


def measure(quick: bool) -> list[Figure]:
    """One file after the other, each waited for."""
    return asyncio.run(_measure(3 if quick else 15))


async def _measure(rounds: int) -> list[Figure]:
    delivered: asyncio.Queue[Changes] = asyncio.Queue()
    delays: list[float] = []

    async def known() -> Mapping[str, FileStamp]:
        return {}

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "first").write_text("first", encoding="utf-8")
        async with watch_files(root, known=known, changed=delivered.put):
            await delivered.get()  # the first comparison, after which it listens
            for number in range(rounds):
                start = time.perf_counter()
                (root / f"file-{number}").write_text("words", encoding="utf-8")
                await delivered.get()
                delays.append((time.perf_counter() - start) * 1_000)
    quiet_ms = WatchSettings().quiet_ms
    return [
        Figure("watcher: written to delivered", sorted(delays)[len(delays) // 2], "ms", detail=spread(delays)),
        Figure(
            "watcher: delay / quiet time",
            sorted(delays)[len(delays) // 2] / quiet_ms,
            "×",
            detail=f"quiet {quiet_ms} ms",
        ),
    ]
