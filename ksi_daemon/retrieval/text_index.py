"""Documents, their chunks and the lexical index, changed together in one transaction. Vectors are only carried along."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ksi_daemon.errors import Invalid
from ksi_daemon.retrieval.chunking import Chunk, chunk_text
from ksi_daemon.retrieval.document import Document
from ksi_daemon.retrieval.document_rows import (
    document_numbers,
    marks,
    remove_chunks,
    slices,
    write_documents,
    write_graph,
)
from ksi_daemon.retrieval.schema import set_fact
from ksi_daemon.retrieval.scope import Scope
from ksi_daemon.retrieval.word_search import Inside, WordSearch
from ksi_daemon.storage.sqlite import Database, DatabaseError, Row

JOINED = "FROM retrieval_documents d JOIN retrieval_chunks c ON c.document = d.number"
PURGE = "purge"  # the fact that deleted words may still be in the file


@dataclass(frozen=True, slots=True)
class Change:
    """What putting one document does to its chunks."""

    document: Document
    kept: tuple[Chunk, ...]
    new: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Applied:
    """Which chunk numbers went and came, and to which document number the new ones belong."""

    gone: tuple[int, ...]
    new: tuple[tuple[int, int], ...]  # (chunk, document)


@dataclass(frozen=True, slots=True)
class Known:
    """A chunk that is stored."""

    title: str
    heading: str
    text: str


class TextIndex:
    """The lexical half of the index."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._words = WordSearch(database)

    async def changes(self, documents: Sequence[Document]) -> list[Change]:
        """Cut the documents into chunks and compare with what is stored. Of several with one id the last counts. Reads only."""
        for document in documents:
            _check(document)
        last = {document.id: document for document in documents}
        known: dict[str, dict[str, Known]] = {}
        for ids in slices(list(last)):
            rows = await self._database.fetch(
                "SELECT d.id AS document, c.id, c.title, c.heading, c.text FROM retrieval_documents d"  # noqa: S608 - only marks
                f" JOIN retrieval_chunks c ON c.document = d.number WHERE d.id IN ({marks(ids)})",
                *ids,
            )
            for row in rows:
                known.setdefault(row["document"], {})[row["id"]] = Known(row["title"], row["heading"], row["text"])
        return await asyncio.to_thread(_compare, list(last.values()), known)

    async def apply(self, changes: Sequence[Change], *, embedder: str, vectors: Sequence[bytes]) -> Applied:
        """Content, lexical index and the vectors of the new chunks: all, or nothing."""
        new: list[tuple[int, int]] = []
        async with self._database.transaction() as transaction:
            rows = await transaction.fetch("SELECT seq FROM sqlite_sequence WHERE name = 'retrieval_chunks'")
            number = int(rows[0]["seq"]) if rows else 0
            stored = await write_documents(transaction, [change.document for change in changes])
            await write_graph(transaction, stored, [change.document for change in changes])
            gone = await remove_chunks(
                transaction,
                {stored.numbers[change.document.id]: {chunk.id for chunk in change.kept} for change in changes},
                documents=stored.replaced,
            )
            await transaction.execute_many(
                'UPDATE retrieval_chunks SET start = ?, "end" = ? WHERE document = ? AND id = ?',
                [
                    (chunk.start, chunk.end, stored.numbers[change.document.id], chunk.id)
                    for change in changes
                    for chunk in change.kept
                ],
            )
            inserted: list[tuple[int, int, str, str, str, str, int, int]] = []
            for change in changes:
                document = stored.numbers[change.document.id]
                for chunk in change.new:
                    number += 1
                    new.append((number, document))
                    texts = (change.document.title, chunk.heading, chunk.text)
                    inserted.append((number, document, chunk.id, *texts, chunk.start, chunk.end))
            await transaction.execute_many("INSERT INTO retrieval_chunks VALUES (?, ?, ?, ?, ?, ?, ?, ?)", inserted)
            await transaction.execute_many(
                "INSERT INTO retrieval_words (rowid, title, heading, text) VALUES (?, ?, ?, ?)",
                [(row[0], row[3], row[4], row[5]) for row in inserted],
            )
            await transaction.execute_many(
                "INSERT INTO retrieval_vectors (embedder, chunk, vector) VALUES (?, ?, ?)",
                [(embedder, chunk, vector) for (chunk, _), vector in zip(new, vectors, strict=True)],
            )
        if gone:
            await set_fact(self._database, PURGE, "yes")
        self._words.changed(len(gone) + len(new))
        return Applied(tuple(gone), tuple(new))

    async def delete(self, document_ids: Sequence[str]) -> tuple[int, Applied]:
        """Delete documents with everything derived from them; how many there were."""
        async with self._database.transaction() as transaction:
            numbers = list((await document_numbers(transaction, list(dict.fromkeys(document_ids)))).values())
            gone = await remove_chunks(transaction, {}, documents=numbers)
            await transaction.execute_many(
                "DELETE FROM retrieval_documents WHERE number = ?", [(number,) for number in numbers]
            )
        if gone:
            await set_fact(self._database, PURGE, "yes")
        self._words.changed(len(gone))
        return len(numbers), Applied(tuple(gone), ())

    async def find(self, query: str, scope: Scope, *, limit: int) -> list[tuple[int, float]]:
        """The best chunks by their words: (number, relevance), best first. The scope applies before the limit."""
        inside: Inside | None = None
        if not scope.is_open or (scope.condition != "1" and await self._has_restricted()):
            inside = (f"SELECT c.number {JOINED} WHERE {scope.condition}", scope.params)
        return await self._words.find(query, inside=inside, limit=limit)

    async def _has_restricted(self) -> bool:
        return await self._database.fetch_one("SELECT 1 FROM retrieval_documents WHERE restricted LIMIT 1") is not None

    async def allowed_documents(self, scope: Scope) -> list[int] | None:
        """The numbers of the documents inside a scope; None when that is all of them."""
        if scope.condition == "1" or (scope.is_open and not await self._has_restricted()):
            return None
        documents = f"SELECT number FROM retrieval_documents d WHERE {scope.condition}"  # noqa: S608 - only marks
        rows = await self._database.fetch(documents, *scope.params)
        return [row["number"] for row in rows]

    async def rows(self, numbers: Sequence[int], scope: Scope) -> dict[int, Row]:
        """What the hits show. The scope is applied again: a document may have been deleted or closed meanwhile."""
        rows = await self._database.fetch(
            "SELECT c.*, d.id AS document_id, d.namespace, d.source_kind FROM retrieval_chunks c"  # noqa: S608 - only marks
            f" JOIN retrieval_documents d ON d.number = c.document WHERE c.number IN ({marks(numbers)}) AND {scope.condition}",
            *numbers,
            *scope.params,
        )
        return {row["number"]: row for row in rows}

    async def problems(self) -> list[str]:
        """What is wrong with the lexical index, compared word by word with the content."""
        found: list[str] = []
        try:
            await self._database.execute(
                "INSERT INTO retrieval_words (retrieval_words, rank) VALUES ('integrity-check', 1)"
            )
        except DatabaseError as error:
            found.append(f"the lexical index does not match the content: {error}")
        rows = await self._database.fetch("PRAGMA foreign_key_check")
        orphans = [row for row in rows if str(row["table"]).startswith("retrieval_")]
        return found + [f"{row['table']} has a row without its {row['parent']}" for row in orphans]

    async def rebuild(self) -> None:
        """Make the lexical index anew from the content."""
        await self._database.execute("INSERT INTO retrieval_words (retrieval_words) VALUES ('rebuild')")

    async def purge(self) -> bool:
        """Remove what deleted texts left behind in the file: their words in old segments, their bytes in the log.

        False when a reader still needs the log; the fact stays, and the next purge tries again.
        """
        await self._database.execute("INSERT INTO retrieval_words (retrieval_words) VALUES ('optimize')")
        outcome = await self._database.fetch("PRAGMA wal_checkpoint(TRUNCATE)")
        if outcome[0]["busy"]:
            return False
        await self._database.execute("DELETE FROM retrieval_facts WHERE name = ?", PURGE)
        return True


def _check(document: Document) -> None:
    texts = (document.id, document.text, document.namespace, document.title, *document.attributes)
    values = (value for several in document.attributes.values() for value in several)
    nodes = (text for node in document.nodes for text in (node.id, node.kind, node.title))
    edges = (text for edge in document.edges for text in (edge.source, edge.target, edge.type))
    for text in (*texts, *values, *(document.visible_to or ()), *nodes, *edges):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise Invalid(f"the document {document.id!a} has text that is not valid Unicode: {error.reason}") from error
    if not document.id:
        raise Invalid("a document needs an id")
    ends = (end for edge in document.edges for end in (edge.source, edge.target))
    if not all((*(node.id for node in document.nodes), *ends)):
        raise Invalid(f"a node or edge of the document {document.id!a} has an empty id")


def _compare(documents: Sequence[Document], known: Mapping[str, Mapping[str, Known]]) -> list[Change]:
    changes: list[Change] = []
    for document in documents:
        stored = known.get(document.id, {})
        kept: list[Chunk] = []
        new: list[Chunk] = []
        for chunk in chunk_text(document.id, document.text, format=document.format) or _title_alone(document):
            same = stored.get(chunk.id) == Known(document.title, chunk.heading, chunk.text)
            (kept if same else new).append(chunk)
        changes.append(Change(document, tuple(kept), tuple(new)))
    return changes


def _title_alone(document: Document) -> list[Chunk]:
    """A document without words is found by its title."""
    return [Chunk("title", "", "", 0, 0)] if document.title.strip() else []
