"""The capability `Retrieval`: search over a plugin's texts, kept in the plugin's own database.

async with open_retrieval(database, RetrievalSettings()) as retrieval:
    await retrieval.put([Document(id="plan.md", text="# Plan …", attributes={"tag": ("draft",)})])
    hits = await retrieval.search("what is planned", agent="ada", limit=10)
    await retrieval.delete(["plan.md"])

put, delete      change content, lexical index and instant vectors in one transaction; searchable when they return
search           hits in the order of their fused rank; the filter and the agent's visibility apply before the limit
state            counts, the state of the background worker, its last error
state_changes    the state now, and each time it changes: for a plugin that announces it
verify, rebuild  compare the index with the content; make it anew
idle             wait until the background worker has nothing to do
purge            remove at once what deleted texts left in the file; the worker does it by itself
graph            paths, neighbours, hubs and components of the nodes and edges that documents state; see `graph.py`
symbols          what a source file defines, imports and calls; see `symbols.py`
git_facts        what git knows of a folder; see `git_facts.py`
watch            deliver what becomes of the files below a folder; see `watch.py`
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ksi_daemon.errors import bounded
from ksi_daemon.retrieval.backfill import Backfill, embedded_text
from ksi_daemon.retrieval.document import Document, Filter, Hit
from ksi_daemon.retrieval.embedder import Embedder, loaded, stored
from ksi_daemon.retrieval.fusion import INSTANT_WEIGHTS, VECTOR_WEIGHTS
from ksi_daemon.retrieval.git_facts import COMMITS_LIMIT, GitFacts, NoGitFacts, git_facts
from ksi_daemon.retrieval.graph import Graph
from ksi_daemon.retrieval.hybrid_search import Order, VectorSide, hybrid_search
from ksi_daemon.retrieval.index_state import IndexState
from ksi_daemon.retrieval.minilm_embedder import MiniLmEmbedder
from ksi_daemon.retrieval.schema import create_tables, fact, set_fact
from ksi_daemon.retrieval.scope import scope_of
from ksi_daemon.retrieval.static_embedder import StaticEmbedder
from ksi_daemon.retrieval.symbols import FileSymbols, language_of, symbols_of
from ksi_daemon.retrieval.text_index import PURGE, TextIndex
from ksi_daemon.retrieval.vector_scan import VectorScan
from ksi_daemon.retrieval.watch import Changed, Known, Notify, Watcher, WatchSettings, watch_files
from ksi_daemon.storage.sqlite import Database

if TYPE_CHECKING:
    from ksi_daemon.retrieval.embedder import Matrix

SERVING = "serving"  # the fact which embedder's vectors answer
NO_FILTER = Filter()


@dataclass(frozen=True, slots=True)
class RetrievalSettings:
    """`previous` are embedders whose vectors may still answer while those of a new `embedder` are being made."""

    instant: Embedder = field(default_factory=StaticEmbedder)
    embedder: Embedder | None = field(default_factory=MiniLmEmbedder)
    previous: tuple[Embedder, ...] = ()
    resident_limit_bytes: int = 512_000_000  # of each embedder; above it vectors are read from the file for each search
    secure_delete: bool = True  # deleted text is overwritten in the file, not only unlinked


class Retrieval:
    """One index. Made by `open_retrieval`; the only one that writes the index of its database."""

    def __init__(self, database: Database, settings: RetrievalSettings, *, serving: str) -> None:
        self._database = database
        self._settings = settings
        self._index = TextIndex(database)
        self.graph = Graph(database, self._index.allowed_documents)
        self._writing = asyncio.Lock()
        self._instant = self._scan(settings.instant)
        self._wanted = settings.embedder or settings.instant
        known = (self._wanted, settings.instant, *settings.previous)
        self._serving = next((embedder for embedder in known if embedder.fingerprint == serving), settings.instant)
        self._better = self._instant if self._serving is settings.instant else self._scan(self._serving)
        self._backfill = Backfill(database, self._take_over)
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._state: Literal["queued", "running", "done", "failed"] = "queued"
        self._state_changed = asyncio.Event()  # a new one after each change
        self._worker_error: str | None = None  # until its work succeeds
        self._query_error: str | None = None  # of the embedder that serves; None when the last search could ask it
        self._complete = False  # every chunk has a vector of the embedder that serves
        self._others_deleted = False  # the vectors of embedders that are not needed any more
        self._work.set()

    def _scan(self, embedder: Embedder) -> VectorScan:
        return VectorScan(
            self._database,
            embedder.fingerprint,
            dimensions=embedder.dimensions,
            resident_limit_bytes=self._settings.resident_limit_bytes,
        )

    # --- changing

    async def put(self, documents: Sequence[Document]) -> None:
        """Add documents, or replace those with the same id: all or none. What did not change keeps its vectors."""
        async with self._writing:
            changes = await self._index.changes(documents)
            texts = [
                embedded_text(change.document.title, chunk.heading, chunk.text)
                for change in changes
                for chunk in change.new
            ]
            vectors = await asyncio.to_thread(lambda: stored(self._settings.instant.embed(texts)))
            try:
                applied = await self._index.apply(changes, embedder=self._settings.instant.fingerprint, vectors=vectors)
            except BaseException:  # it may have become durable all the same
                self._forget()
                raise
            self._remove(applied.gone)
            self._instant.add(applied.new, loaded(vectors, self._settings.instant.dimensions))
        self._wake()

    async def delete(self, document_ids: Sequence[str]) -> int:
        """Delete documents with all that was derived from them; how many there were."""
        async with self._writing:
            try:
                deleted, applied = await self._index.delete(document_ids)
            except BaseException:
                self._forget()
                raise
            self._remove(applied.gone)
        self._wake()
        return deleted

    def _scans(self) -> list[VectorScan]:
        return [self._instant] if self._better is self._instant else [self._instant, self._better]

    def _remove(self, chunks: Sequence[int]) -> None:
        for scan in self._scans():
            scan.remove(chunks)

    def _forget(self) -> None:
        for scan in self._scans():
            scan.forget()
        self._wake()

    # --- searching

    async def search(
        self,
        query: str,
        *,
        agent: str | None,
        limit: int = 10,
        filter: Filter = NO_FILTER,
        order: Order = "fused",
        parts: bool = False,
    ) -> list[Hit]:
        """The best chunks that `agent` may find. `agent=None` finds what everybody may; EVERY_DOCUMENT finds all."""
        return await hybrid_search(
            self._index,
            await self._sides(query),
            query=query,
            scope=scope_of(agent, filter),
            limit=limit,
            order=order,
            parts=parts,
        )

    async def _sides(self, query: str) -> list[VectorSide]:
        """The vectors that answer: those of the serving embedder, and the instant ones while others are missing or it fails."""
        sides: list[VectorSide] = []
        if self._better is not self._instant:
            scan, serving = self._better, self._serving
            try:
                vectors = await asyncio.to_thread(serving.embed, [query])
            except Exception as error:  # noqa: BLE001 - shown in the state, and every hit names the embedder that judged it
                self._query_failed(bounded(f"{type(error).__name__}: {error}"))
            else:
                self._query_failed(None)
                sides.append(VectorSide(scan, vectors[0], VECTOR_WEIGHTS))
        if not sides or not self._complete:
            vectors = await asyncio.to_thread(self._settings.instant.embed, [query])
            sides.append(VectorSide(self._instant, vectors[0], INSTANT_WEIGHTS))
        return sides

    def _query_failed(self, error: str | None) -> None:
        if error != self._query_error:
            self._query_error = error
            self._announce()

    # --- how it is

    async def state(self) -> IndexState:
        """Counts and the state of the background worker."""
        counts = await self._database.fetch_one(
            "SELECT (SELECT count(*) FROM retrieval_documents) AS documents, (SELECT count(*) FROM retrieval_chunks) AS chunks,"
            " (SELECT count(*) FROM retrieval_failures WHERE embedder = ?1) AS failed,"
            " (SELECT error FROM retrieval_failures WHERE embedder = ?1 ORDER BY chunk DESC LIMIT 1) AS refused",
            self._wanted.fingerprint,
        )
        assert counts is not None  # a SELECT of counts always has its row
        return IndexState(
            state=self._state,
            documents=counts["documents"],
            chunks=counts["chunks"],
            waiting=await self._backfill.waiting(self._wanted.fingerprint),
            failed=counts["failed"],
            embedder=self._wanted.fingerprint,
            serving=self._serving.fingerprint,
            is_degraded=self.problem is not None,
            last_error=self.problem or counts["refused"],
            purge_waiting=await fact(self._database, PURGE) is not None,
        )

    @property
    def problem(self) -> str | None:
        """Why better vectors are not made or not used at present; None when nothing fails."""
        return self._worker_error or self._query_error

    async def state_changes(self) -> AsyncGenerator[IndexState, None]:
        """The state now, and then each time that more than its numbers has changed; a caller who is slow gets the newest."""
        shown: IndexState | None = None
        while True:
            changed = self._state_changed
            state = await self.state()
            if shown is None or state.differs(shown):
                shown = state
                yield state
            await changed.wait()

    def _announce(self) -> None:
        self._state_changed.set()
        self._state_changed = asyncio.Event()

    async def idle(self) -> None:
        """Return when the background worker has done, or given up, what there was to do."""
        await self._idle.wait()

    async def retry(self) -> None:
        """Try again what failed."""
        await self._database.execute("DELETE FROM retrieval_failures")
        self._backfill.forget()
        self._wake()

    async def verify(self) -> list[str]:
        """What is wrong with the index, compared with the content; empty when all is well."""
        problems = await self._index.problems()
        for embedder in dict.fromkeys((self._settings.instant, self._serving, self._wanted)):
            row = await self._database.fetch_one(
                "SELECT count(*) AS count FROM retrieval_vectors WHERE embedder = ? AND length(vector) <> ?",
                embedder.fingerprint,
                embedder.dimensions * 2,
            )
            if row is not None and row["count"]:
                problems.append(f"{row['count']} vectors of {embedder.fingerprint} do not have its length")
        self._backfill.forget()
        if lacking := await self._backfill.waiting(self._settings.instant.fingerprint):
            problems.append(f"{lacking} chunks have no instant vector")
        return problems

    async def rebuild(self) -> None:
        """Make the lexical index and all vectors anew from the content; the vectors in the background."""
        async with self._writing:
            await self._index.rebuild()
            await self._database.execute("DELETE FROM retrieval_vectors")
            await self._database.execute("DELETE FROM retrieval_failures")
            self._backfill.forget()
            self._forget()

    async def purge(self) -> bool:
        """Overwrite what deleted texts left in the file; False when a reader still holds on to it."""
        async with self._writing:
            return await self._index.purge()

    # --- what a plugin reads besides

    @staticmethod
    async def symbols(path: str, source: str | bytes, *, calls: bool = False) -> FileSymbols | None:
        """What a source file defines; None for a language that is not parsed, which the end of its name tells."""
        language = language_of(path)
        return None if language is None else await asyncio.to_thread(symbols_of, source, language, calls=calls)

    @staticmethod
    async def git_facts(folder: Path, *, commits_limit: int = COMMITS_LIMIT) -> GitFacts | NoGitFacts:
        """Head, branch, last commit of each file and co-changes of a folder, or why git knows nothing."""
        return await git_facts(folder, commits_limit=commits_limit)

    @staticmethod
    def watch(
        root: Path,
        *,
        known: Known,
        changed: Changed,
        notify: Notify | None = None,
        settings: WatchSettings | None = None,
    ) -> AbstractAsyncContextManager[Watcher]:
        """Watch the files below a folder for as long as the scope lasts."""
        return watch_files(root, known=known, changed=changed, notify=notify, settings=settings)

    # --- the background worker

    def _wake(self) -> None:
        self._complete = False
        if self._state != "running":
            self._state = "queued"
            self._announce()
        self._idle.clear()
        self._work.set()

    async def work_forever(self) -> None:
        """Fill in vectors and purge whenever there is something to do. `open_retrieval` runs this."""
        while True:
            await self._work.wait()
            self._work.clear()
            self._state = "running"
            self._announce()
            try:
                await self._work_once()
            except Exception as error:  # noqa: BLE001 - shown in the state; the lexical index goes on without it
                self._state, self._worker_error = "failed", bounded(f"{type(error).__name__}: {error}")
            else:
                self._state, self._worker_error = "done", None
            if self._work.is_set():
                self._state = "queued"
            else:
                self._idle.set()
            self._announce()

    async def _work_once(self) -> None:
        if self._settings.secure_delete and await fact(self._database, PURGE) is not None:
            await self.purge()
        await self._backfill.fill(self._settings.instant)
        await self._backfill.fill(self._wanted)
        await self._serve_wanted()
        if not self._work.is_set() and not await self._failures():
            self._complete = True

    async def _failures(self) -> bool:
        row = await self._database.fetch_one(
            "SELECT 1 FROM retrieval_failures WHERE embedder = ? LIMIT 1", self._wanted.fingerprint
        )
        return row is not None

    async def _serve_wanted(self) -> None:
        """Let the wanted embedder answer from now on, and delete the vectors of those that are not needed any more."""
        if self._serving is not self._wanted:
            self._better = self._instant if self._wanted is self._settings.instant else self._scan(self._wanted)
            self._serving = self._wanted
            await set_fact(self._database, SERVING, self._wanted.fingerprint)
        if self._others_deleted:
            return
        for table in ("retrieval_vectors", "retrieval_failures"):
            await self._database.execute(
                f"DELETE FROM {table} WHERE embedder NOT IN (?, ?)",  # noqa: S608 - one of two names
                self._wanted.fingerprint,
                self._settings.instant.fingerprint,
            )
        self._others_deleted = True

    def _take_over(self, embedder: str, chunks: Sequence[tuple[int, int]], matrix: Matrix) -> None:
        for scan in self._scans():
            if scan.embedder == embedder:
                scan.add(chunks, matrix)

    def close(self) -> None:
        """Stop the thread of the background worker."""
        self._backfill.close()


@asynccontextmanager
async def open_retrieval(database: Database, settings: RetrievalSettings | None = None) -> AsyncIterator[Retrieval]:
    """The index inside a database, its tables made or brought up to date, with its background worker."""
    settings = settings or RetrievalSettings()
    await create_tables(database)
    await database.execute(f"PRAGMA secure_delete = {'ON' if settings.secure_delete else 'OFF'}")
    wanted = settings.embedder or settings.instant
    serving = await fact(database, SERVING)
    if serving is None:
        serving = wanted.fingerprint
        await set_fact(database, SERVING, serving)
    retrieval = Retrieval(database, settings, serving=serving)
    working = asyncio.create_task(retrieval.work_forever(), name=f"search index of {database.path.name}")
    try:
        yield retrieval
    finally:
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working
        retrieval.close()
