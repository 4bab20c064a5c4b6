"""Indexing and hybrid search at a number of chunks, with instant vectors, beside a plain FTS5 table of the same texts.

The texts are made of words drawn by Zipf's law, one chunk each.
"""

import asyncio
import random
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import quantiles

from ksi_daemon.retrieval.document import Document
from ksi_daemon.retrieval.retrieval import RetrievalSettings, open_retrieval
from ksi_daemon.storage.sqlite import open_database
from scripts.benchmarks.figure import Figure

BATCH_DOCUMENTS = 200
VOCABULARY = 20_000
TEXT_WORDS = 100
QUERY_WORDS = 6
SYLLABLES = (
    "ba",
    "co",
    "di",
    "fu",
    "ge",
    "ho",
    "ji",
    "ka",
    "lu",
    "me",
    "no",
    "pi",
    "ra",
    "su",
    "te",
    "vo",
    "wi",
    "xa",
    "yu",
    "ze",
)


def measure(chunks: int, *, queries: int) -> list[Figure]:
    """One index of so many chunks."""
    return asyncio.run(_measure(chunks, queries))


async def _measure(chunks: int, queries: int) -> list[Figure]:
    chance = random.Random(2)  # noqa: S311 - the same texts in every run
    words = ["".join(chance.choices(SYLLABLES, k=3)) + str(number % 10) for number in range(VOCABULARY)]
    sums = _zipf(VOCABULARY)
    asked = [" ".join(chance.choices(words, cum_weights=sums, k=QUERY_WORDS)) for _ in range(queries)]
    resident_before = _resident_mb()
    indexing_s = plain_s = 0.0
    with tempfile.TemporaryDirectory() as folder:
        plain = sqlite3.connect(Path(folder) / "plain.db")
        plain.execute("PRAGMA journal_mode = WAL")
        plain.execute("CREATE VIRTUAL TABLE words USING fts5 (text, tokenize = 'porter unicode61')")
        async with (
            open_database(Path(folder) / "index.db", []) as database,
            open_retrieval(database, RetrievalSettings(embedder=None)) as retrieval,
        ):
            await retrieval.search("load the embedder", agent=None)
            for number in range(0, chunks, BATCH_DOCUMENTS):
                texts = [
                    " ".join(chance.choices(words, cum_weights=sums, k=TEXT_WORDS))
                    for _ in range(min(BATCH_DOCUMENTS, chunks - number))
                ]
                start = time.perf_counter()
                await retrieval.put(
                    [Document(id=f"{number}-{n}", text=text, format="text") for n, text in enumerate(texts)]
                )
                middle = time.perf_counter()
                with plain:
                    plain.executemany("INSERT INTO words VALUES (?)", [(text,) for text in texts])
                indexing_s += middle - start
                plain_s += time.perf_counter() - middle
            await retrieval.idle()
            await retrieval.search(asked[0], agent=None)
            hybrid: list[float] = []
            alone: list[float] = []
            for query in asked:
                start = time.perf_counter()
                await retrieval.search(query, agent=None)
                middle = time.perf_counter()
                match = " OR ".join(f'"{word}"' for word in query.split())
                plain.execute(
                    "SELECT rowid FROM words WHERE words MATCH ? ORDER BY rank LIMIT 100", (match,)
                ).fetchall()
                hybrid.append((middle - start) * 1_000)
                alone.append((time.perf_counter() - middle) * 1_000)
            count = (await retrieval.state()).chunks
            resident = _resident_mb() - resident_before
            size = sum(path.stat().st_size for path in Path(folder).glob("index.db*")) / 1e6
        plain.close()
    at = f"at {count:,} chunks"
    return [
        Figure("indexing", count / indexing_s, "chunks/s", detail=f"searchable by words and instant vectors; {at}"),
        Figure("indexing / plain FTS5", indexing_s / plain_s, "×", detail=f"plain {count / plain_s:,.0f} chunks/s"),
        Figure("hybrid query p50", _percentile(hybrid, 50), "ms", detail=at),
        Figure(
            "hybrid query p95", _percentile(hybrid, 95), "ms", detail=f"{at}; {queries} queries of {QUERY_WORDS} words"
        ),
        Figure("hybrid / plain FTS5 query p50", _percentile(hybrid, 50) / _percentile(alone, 50), "×", detail=at),
        Figure(
            "memory", max(resident, 0.1), "MB", detail=f"more than before indexing; {at}; the files have {size:,.0f} MB"
        ),
    ]


def _zipf(count: int) -> list[float]:
    total = 0.0
    sums: list[float] = []
    for rank in range(1, count + 1):
        total += 1 / rank
        sums.append(total)
    return sums


def _percentile(values: Sequence[float], percent: int) -> float:
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def _resident_mb() -> float:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1_024
    raise RuntimeError("the kernel does not tell the resident memory")
