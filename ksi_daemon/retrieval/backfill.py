"""The background worker that makes better vectors. What is to do is what the database lacks, so a restart loses nothing.

It embeds on one thread of low priority, a few texts at a time, and never holds the database while it computes.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ksi_daemon.errors import bounded
from ksi_daemon.retrieval.embedder import Embedder, stored
from ksi_daemon.storage.sqlite import Database, Row

if TYPE_CHECKING:
    from ksi_daemon.retrieval.embedder import Matrix

STEP_TEXTS = 4
LOW_PRIORITY = 10
MISSING = (
    " FROM retrieval_chunks c WHERE NOT EXISTS (SELECT 1 FROM retrieval_vectors v WHERE v.embedder = ?1 AND v.chunk = c.number)"
    " AND NOT EXISTS (SELECT 1 FROM retrieval_failures f WHERE f.embedder = ?1 AND f.chunk = c.number)"
)

Added = Callable[[str, Sequence[tuple[int, int]], "Matrix"], None]


def embedded_text(title: str, heading: str, text: str) -> str:
    """What a vector is made of: a chunk knows what it is part of."""
    return "\n".join(part for part in (title, heading, text) if part)


class Backfill:
    """Fills in the vectors of one embedder until none is missing."""

    def __init__(self, database: Database, added: Added) -> None:
        self._database = database
        self._added = added
        self._filled: dict[str, int] = {}  # by embedder: no chunk up to this number lacks its vector
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="ksi-embedding", initializer=_lower_priority)

    def close(self) -> None:
        """Let the step under way end by itself; start no other."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def forget(self) -> None:
        """Look at every chunk again: vectors or failures were deleted."""
        self._filled = {}  # a new one: what is being filled does not count

    async def waiting(self, embedder: str) -> int:
        """How many chunks lack a vector and have not been refused."""
        row = await self._database.fetch_one(
            "SELECT count(*) AS count" + MISSING + " AND c.number > ?2", embedder, self._filled.get(embedder, 0)
        )
        return int(row["count"]) if row is not None else 0

    async def fill(self, embedder: Embedder) -> None:
        """Make every missing vector. An embedder that cannot work at all raises; a text that it refuses is recorded."""
        newest = await self._database.fetch_one("SELECT seq FROM sqlite_sequence WHERE name = 'retrieval_chunks'")
        filled = self._filled
        after = filled.get(embedder.fingerprint, 0)
        while rows := await self._missing(embedder.fingerprint, after):
            after = int(rows[-1]["number"])
            texts = [embedded_text(row["title"], row["heading"], row["text"]) for row in rows]
            try:
                await self._keep(embedder, rows, texts)
            except Exception:  # noqa: BLE001 - which text it is comes out below, and so does an embedder that is down
                await self._keep_one_by_one(embedder, rows, texts)
        if newest is not None and filled is self._filled:
            filled[embedder.fingerprint] = newest["seq"]

    async def _missing(self, embedder: str, after: int) -> list[Row]:
        return await self._database.fetch(
            "SELECT c.number, c.document, c.title, c.heading, c.text"
            + MISSING
            + " AND c.number > ?2 ORDER BY c.number LIMIT ?3",
            embedder,
            after,
            STEP_TEXTS,
        )

    async def _keep_one_by_one(self, embedder: Embedder, rows: Sequence[Row], texts: Sequence[str]) -> None:
        await self._embed(embedder, ["a text that every embedder can embed"])
        for row, text in zip(rows, texts, strict=True):
            try:
                await self._keep(embedder, [row], [text])
            except Exception as error:  # noqa: BLE001 - recorded, and counted in the state
                await self._database.execute(
                    "INSERT OR REPLACE INTO retrieval_failures (embedder, chunk, error)"
                    " SELECT ?, number, ? FROM retrieval_chunks WHERE number = ?",
                    embedder.fingerprint,
                    bounded(f"{type(error).__name__}: {error}"),
                    row["number"],
                )

    async def _keep(self, embedder: Embedder, rows: Sequence[Row], texts: Sequence[str]) -> None:
        matrix = await self._embed(embedder, texts)
        vectors = stored(matrix)
        # A chunk may have been deleted meanwhile.
        kept: list[int] = []
        async with self._database.transaction() as transaction:
            for number, (row, vector) in enumerate(zip(rows, vectors, strict=True)):
                if await transaction.execute(
                    "INSERT OR REPLACE INTO retrieval_vectors (embedder, chunk, vector)"
                    " SELECT ?, number, ? FROM retrieval_chunks WHERE number = ?",
                    embedder.fingerprint,
                    vector,
                    row["number"],
                ):
                    kept.append(number)
        self._added(embedder.fingerprint, [(rows[n]["number"], rows[n]["document"]) for n in kept], matrix[kept])

    async def _embed(self, embedder: Embedder, texts: Sequence[str]) -> Matrix:
        return await asyncio.get_running_loop().run_in_executor(self._executor, embedder.embed, texts)


def _lower_priority() -> None:
    """Calls go before: this thread takes what they leave."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOW_PRIORITY)
