"""One search: candidates by words and by vectors, their fusion, and the rows that are shown.

While better vectors are being made there are two vector sides: a chunk is judged by the first side that has its vector.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ksi_daemon.retrieval.document import Hit, Parts
from ksi_daemon.retrieval.fusion import CANDIDATES, Scale, fused, scale_of
from ksi_daemon.retrieval.scope import Scope
from ksi_daemon.retrieval.text_index import TextIndex
from ksi_daemon.retrieval.vector_scan import Scored, VectorScan
from ksi_daemon.storage.sqlite import Row

if TYPE_CHECKING:
    from ksi_daemon.retrieval.embedder import Matrix as Vector
    from ksi_daemon.retrieval.vector_scan import Numbers

Order = Literal["fused", "vector", "lexical"]
WEIGHT_OF_ORDER = {"vector": 1.0, "lexical": 0.0}


@dataclass(frozen=True, slots=True)
class VectorSide:
    """The vectors of one embedder, and the query's vector by it."""

    scan: VectorScan
    query: Vector
    weights: Mapping[str, float]  # by kind of source


@dataclass(frozen=True, slots=True)
class _Judged:
    """What one side found: its candidates' scale, and the cosine of every candidate of any side that it has a vector of."""

    embedder: str
    weights: Mapping[str, float]
    scale: Scale
    found: tuple[Scored, ...]
    cosines: dict[int, float]


@dataclass(frozen=True, slots=True)
class _Ranked:
    value: float
    chunk: int
    row: Row
    score: float
    parts: Parts


async def hybrid_search(
    index: TextIndex, sides: Sequence[VectorSide], *, query: str, scope: Scope, limit: int, order: Order, parts: bool
) -> list[Hit]:
    """The hits, best first."""
    depth = max(CANDIDATES, limit)
    lexical, near = await _found(index, sides, query=None if order == "vector" else query, scope=scope, depth=depth)
    judged = await _judged(sides, near, lexical)
    chunks = {chunk for chunk, _ in lexical}
    if order != "lexical":
        chunks.update(chunk for side in judged for chunk, _ in side.found)
    rows = await index.rows(sorted(chunks), scope)
    relevance, lexical_scale = dict(lexical), scale_of(lexical)
    ranked: list[_Ranked] = []
    for chunk, row in rows.items():
        side = next((side for side in judged if chunk in side.cosines), None)
        cosine = side.cosines[chunk] if side else 0.0
        weight = WEIGHT_OF_ORDER.get(order, side.weights[row["source_kind"]] if side else 0.0)
        by_words = lexical_scale(relevance[chunk]) if chunk in relevance else 0.0
        by_vector = side.scale(cosine) if side else 0.0
        value = fused(by_words, by_vector, vector_weight=weight)
        shown = Parts(by_words, by_vector, weight, side.embedder if side else "")
        ranked.append(_Ranked(value, chunk, row, min(1.0, max(0.0, cosine)), shown))
    ranked.sort(key=lambda found: (-found.value, -found.score, found.chunk))
    return [_hit(found, parts=parts) for found in ranked[:limit]]


async def _found(
    index: TextIndex, sides: Sequence[VectorSide], *, query: str | None, scope: Scope, depth: int
) -> tuple[list[Scored], list[list[Scored]]]:
    """The candidates by words and by each side's vectors, both searched at the same time."""

    async def by_words() -> list[Scored]:
        return [] if query is None else await index.find(query, scope, limit=depth)

    lexical, near = await asyncio.gather(by_words(), _near(index, sides, scope, depth), return_exceptions=True)
    if isinstance(lexical, BaseException):
        raise lexical
    if isinstance(near, BaseException):
        raise near
    return lexical, near


async def _near(index: TextIndex, sides: Sequence[VectorSide], scope: Scope, depth: int) -> list[list[Scored]]:
    import numpy as np

    numbers = await index.allowed_documents(scope)
    allowed: Numbers | None = None if numbers is None else np.array(numbers, dtype=np.int64)
    return [await side.scan.search(side.query, allowed, limit=depth) for side in sides]


async def _judged(
    sides: Sequence[VectorSide], found: Sequence[Sequence[Scored]], lexical: Sequence[Scored]
) -> list[_Judged]:
    candidates = {chunk for several in (lexical, *found) for chunk, _ in several}
    judged: list[_Judged] = []
    for side, near in zip(sides, found, strict=True):
        cosines = dict(near)
        cosines |= await side.scan.cosines(side.query, sorted(candidates - cosines.keys()))
        judged.append(_Judged(side.scan.embedder, side.weights, scale_of(near), tuple(near), cosines))
    return judged


def _hit(ranked: _Ranked, *, parts: bool) -> Hit:
    row = ranked.row
    return Hit(
        chunk_id=row["id"],
        document_id=row["document_id"],
        namespace=row["namespace"],
        title=row["title"],
        heading=row["heading"],
        text=row["text"],
        start=row["start"],
        end=row["end"],
        score=ranked.score,
        parts=ranked.parts if parts else None,
    )
