"""Exact vector search by one embedder's vectors: resident up to a bound, read from the database in blocks above it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ksi_daemon.retrieval.embedder import loaded
from ksi_daemon.storage.sqlite import Database, Row

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ksi_daemon.retrieval.embedder import Matrix

    Numbers = npt.NDArray[np.int64]

BLOCK_ROWS = 8_192
SELECT_BLOCK = (
    "SELECT v.chunk, c.document, v.vector FROM retrieval_vectors v JOIN retrieval_chunks c ON c.number = v.chunk"
    " WHERE v.embedder = ? AND v.chunk > ? ORDER BY v.chunk LIMIT ?"
)
Scored = tuple[int, float]


class _Block:
    """Vectors by ascending chunk, with the document each belongs to. A removed row has document 0, which no document has."""

    def __init__(self, chunks: Numbers, documents: Numbers, matrix: Matrix) -> None:
        self.chunks = chunks
        self.documents = documents
        self.matrix = matrix

    def rows(self, chunks: Numbers) -> Numbers:
        """The rows of those of the chunks that are here."""
        import numpy as np

        rows = np.searchsorted(self.chunks, chunks)
        rows[rows == len(self.chunks)] = 0
        found: Numbers = rows[(self.chunks[rows] == chunks) & (self.documents[rows] > 0)]
        return found

    def best(self, query: Matrix, allowed: Numbers | None, limit: int) -> list[Scored]:
        import numpy as np

        inside = self.documents > 0 if allowed is None else np.isin(self.documents, allowed)
        scores = np.where(inside, self.matrix @ query, -np.inf)
        top = np.argpartition(scores, -limit)[-limit:] if limit < len(scores) else np.arange(len(scores))
        top = top[np.isfinite(scores[top])]
        return list(zip(self.chunks[top].tolist(), scores[top].tolist(), strict=True))

    def cosines(self, query: Matrix, chunks: Sequence[int]) -> list[Scored]:
        """The cosine of each of these chunks that is here."""
        import numpy as np

        rows = self.rows(np.array(chunks, dtype=np.int64))
        return list(zip(self.chunks[rows].tolist(), (self.matrix[rows] @ query).tolist(), strict=True))


class VectorScan:
    """All vectors of one embedder. Changes are applied after their transaction; a doubt drops what is resident."""

    def __init__(self, database: Database, embedder: str, *, dimensions: int, resident_limit_bytes: int) -> None:
        self.embedder = embedder
        self._database = database
        self._dimensions = dimensions
        self._limit_rows = resident_limit_bytes // (dimensions * 4)
        self._blocks: list[_Block] | None = None
        self._version = 0
        self._loading = asyncio.Lock()

    def add(self, chunks: Sequence[tuple[int, int]], matrix: Matrix) -> None:
        """Take over vectors of (chunk, document) that have become durable."""
        import numpy as np

        self._version += 1
        if self._blocks is None or not chunks:
            return
        if sum(len(block.chunks) for block in self._blocks) + len(chunks) > self._limit_rows:
            self._blocks = None
            return
        numbers = np.array(chunks, dtype=np.int64).reshape(-1, 2)
        block = _Block(numbers[:, 0].copy(), numbers[:, 1].copy(), matrix)
        while self._blocks and len(self._blocks[-1].chunks) < 2 * len(block.chunks):
            block = _joined(self._blocks.pop(), block)  # blocks at least double: each row is copied a few times only
        self._blocks.append(block)

    def remove(self, chunks: Sequence[int]) -> None:
        """Forget the vectors of chunks that have been deleted."""
        import numpy as np

        self._version += 1
        for block in self._blocks or ():
            block.documents[block.rows(np.array(chunks, dtype=np.int64))] = 0

    def forget(self) -> None:
        """Drop what is resident; the next search reads it again."""
        self._version += 1
        self._blocks = None

    async def search(self, query: Matrix, allowed: Numbers | None, *, limit: int) -> list[Scored]:
        """The nearest chunks of the allowed documents (None: all): (chunk, cosine), best first, ties by number."""
        found: list[Scored] = []
        if await self._load():
            found = await asyncio.to_thread(_best_of_all, list(self._blocks or ()), query, allowed, limit)
        else:
            after = 0
            while rows := await self._read(after):
                block = await asyncio.to_thread(self._block, rows)
                found = _best(found + await asyncio.to_thread(block.best, query, allowed, limit), limit)
                after = int(rows[-1]["chunk"])
        return _best(found, limit)

    async def cosines(self, query: Matrix, chunks: Sequence[int]) -> dict[int, float]:
        """The cosine of each of these chunks that has a vector."""
        if self._blocks is not None:
            return {chunk: cosine for block in self._blocks for chunk, cosine in block.cosines(query, chunks)}
        marks = ", ".join("?" * len(chunks))
        rows = await self._database.fetch(
            f"SELECT chunk, vector FROM retrieval_vectors WHERE embedder = ? AND chunk IN ({marks})",  # noqa: S608 - only marks
            self.embedder,
            *chunks,
        )
        if not rows:
            return {}
        scores = loaded([row["vector"] for row in rows], self._dimensions) @ query
        return {int(row["chunk"]): float(score) for row, score in zip(rows, scores, strict=True)}

    async def _load(self) -> bool:
        """Make the vectors resident; False when they are more than the bound allows."""
        async with self._loading:
            while self._blocks is None:
                version = self._version
                row = await self._database.fetch_one(
                    "SELECT count(*) AS count FROM retrieval_vectors WHERE embedder = ?", self.embedder
                )
                if row is not None and row["count"] > self._limit_rows:
                    return False
                blocks: list[_Block] = []
                after = 0
                while rows := await self._read(after):
                    blocks.append(await asyncio.to_thread(self._block, rows))
                    after = int(rows[-1]["chunk"])
                whole = [await asyncio.to_thread(_joined, *blocks)] if blocks else []
                if version == self._version:
                    self._blocks = whole
            return True

    async def _read(self, after: int) -> list[Row]:
        return await self._database.fetch(SELECT_BLOCK, self.embedder, after, BLOCK_ROWS)

    def _block(self, rows: Sequence[Row]) -> _Block:
        import numpy as np

        return _Block(
            np.array([row["chunk"] for row in rows], dtype=np.int64),
            np.array([row["document"] for row in rows], dtype=np.int64),
            loaded([row["vector"] for row in rows], self._dimensions),
        )


def _joined(*blocks: _Block) -> _Block:
    """One block of the rows that are still there."""
    import numpy as np

    chunks = np.concatenate([block.chunks for block in blocks])
    documents = np.concatenate([block.documents for block in blocks])
    matrix = np.concatenate([block.matrix for block in blocks])
    if (documents > 0).all() and (np.diff(chunks) > 0).all():
        return _Block(chunks, documents, matrix)
    rows = np.argsort(chunks)
    rows = rows[documents[rows] > 0]
    return _Block(chunks[rows], documents[rows], matrix[rows])


def _best_of_all(blocks: Sequence[_Block], query: Matrix, allowed: Numbers | None, limit: int) -> list[Scored]:
    return [scored for block in blocks for scored in block.best(query, allowed, limit)]


def _best(found: Sequence[Scored], limit: int) -> list[Scored]:
    return sorted(found, key=lambda scored: (-scored[1], scored[0]))[:limit]
