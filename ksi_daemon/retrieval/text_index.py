"""Documents, their chunks and the lexical index, changed together in one transaction. Vectors are only carried along."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ksi_daemon.errors import Invalid
from ksi_daemon.retrieval.chunking import Chunk, chunk_text
from ksi_daemon.retrieval.document import Document
from ksi_daemon.retrieval.schema import set_fact
from ksi_daemon.retrieval.scope import Scope
from ksi_daemon.storage.sqlite import Database, DatabaseError, Row, Transaction

JOINED = "FROM retrieval_documents d JOIN retrieval_chunks c ON c.document = d.number"
PURGE = "purge"  # the fact that deleted words may still be in the file
WORD = re.compile(r"\w+")
QUERY_WORDS_LIMIT = 200
STOP_WORDS = frozenset(
    """a about after all also an and any are as at be because been but by can could did do does for from had has have he
    her him his how i if in into is it its may me more most my no nor not of on or our she should so some such than that
    the their them then there these they this those to up us was we were what when where which who why will with would
    you your""".split()  # noqa: SIM905 - a list of words is read more easily
)


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


def search_words(query: str) -> str:
    """A query for FTS5: the words of the text joined by OR, each as itself; stop words only when there is nothing else."""
    words = list(dict.fromkeys(word.casefold() for word in WORD.findall(query)))
    telling = [word for word in words if word not in STOP_WORDS] or words
    return " OR ".join(f'"{word}"' for word in telling[:QUERY_WORDS_LIMIT])


class TextIndex:
    """The lexical half of the index."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def changes(self, documents: Sequence[Document]) -> list[Change]:
        """Cut the documents into chunks and compare with what is stored. Reads only."""
        for document in documents:
            _check(document)
        known = [await self._known(document.id) for document in documents]
        return await asyncio.to_thread(_compare, documents, known)

    async def _known(self, document_id: str) -> dict[str, Known]:
        rows = await self._database.fetch(
            "SELECT c.id, c.title, c.heading, c.text FROM retrieval_chunks c"
            " JOIN retrieval_documents d ON d.number = c.document WHERE d.id = ?",
            document_id,
        )
        return {row["id"]: Known(row["title"], row["heading"], row["text"]) for row in rows}

    async def apply(self, changes: Sequence[Change], *, embedder: str, vectors: Sequence[bytes]) -> Applied:
        """Content, lexical index and the vectors of the new chunks: all, or nothing."""
        gone: list[int] = []
        new: list[tuple[int, int]] = []
        async with self._database.transaction() as transaction:
            rows = await transaction.fetch("SELECT seq FROM sqlite_sequence WHERE name = 'retrieval_chunks'")
            number = int(rows[0]["seq"]) if rows else 0
            inserted: list[tuple[int, int, str, str, str, str, int, int]] = []
            for change in changes:
                document = await _write_document(transaction, change.document)
                await _write_graph(transaction, document, change.document)
                gone += await _remove_chunks(transaction, document, kept=[chunk.id for chunk in change.kept])
                await transaction.execute_many(
                    'UPDATE retrieval_chunks SET start = ?, "end" = ? WHERE document = ? AND id = ?',
                    [(chunk.start, chunk.end, document, chunk.id) for chunk in change.kept],
                )
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
        return Applied(tuple(gone), tuple(new))

    async def delete(self, document_ids: Sequence[str]) -> tuple[int, Applied]:
        """Delete documents with everything derived from them; how many there were."""
        gone: list[int] = []
        deleted = 0
        async with self._database.transaction() as transaction:
            for document_id in document_ids:
                rows = await transaction.fetch("SELECT number FROM retrieval_documents WHERE id = ?", document_id)
                for row in rows:
                    gone += await _remove_chunks(transaction, row["number"], kept=())
                    await transaction.execute("DELETE FROM retrieval_documents WHERE number = ?", row["number"])
                deleted += len(rows)
        if gone:
            await set_fact(self._database, PURGE, "yes")
        return deleted, Applied(tuple(gone), ())

    async def find(self, query: str, scope: Scope, *, limit: int) -> list[tuple[int, float]]:
        """The best chunks by their words: (number, relevance), best first. The scope applies before the limit."""
        words = search_words(query)
        if not words:
            return []
        inside = ""
        params: tuple[str | float, ...] = ()
        if not scope.is_open or (scope.condition != "1" and await self._has_restricted()):
            inside = f" AND +rowid IN (SELECT c.number {JOINED} WHERE {scope.condition})"
            params = scope.params
        statement = (
            f"SELECT rowid, rank FROM retrieval_words WHERE retrieval_words MATCH ?{inside} ORDER BY rank LIMIT ?"  # noqa: S608 - only marks
        )
        rows = await self._database.fetch(statement, words, *params, limit)
        return [(row["rowid"], -float(row["rank"])) for row in rows]

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
        marks = ", ".join("?" * len(numbers))
        rows = await self._database.fetch(
            "SELECT c.*, d.id AS document_id, d.namespace, d.source_kind FROM retrieval_chunks c"  # noqa: S608 - only marks
            f" JOIN retrieval_documents d ON d.number = c.document WHERE c.number IN ({marks}) AND {scope.condition}",
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


def _compare(documents: Sequence[Document], known: Sequence[Mapping[str, Known]]) -> list[Change]:
    changes: list[Change] = []
    for document, stored in zip(documents, known, strict=True):
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


async def _write_document(transaction: Transaction, document: Document) -> int:
    rows = await transaction.fetch(
        "INSERT INTO retrieval_documents (id, namespace, title, source_kind, updated_at, restricted)"
        " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET namespace = excluded.namespace, title = excluded.title,"
        " source_kind = excluded.source_kind, updated_at = excluded.updated_at, restricted = excluded.restricted"
        " RETURNING number",
        document.id,
        document.namespace,
        document.title,
        document.source_kind,
        document.updated_at,
        document.visible_to is not None,
    )
    number = int(rows[0]["number"])
    await transaction.execute("DELETE FROM retrieval_readers WHERE document = ?", number)
    await transaction.execute("DELETE FROM retrieval_attributes WHERE document = ?", number)
    if document.visible_to:
        await transaction.execute_many(
            "INSERT INTO retrieval_readers (document, agent) VALUES (?, ?)",
            [(number, agent) for agent in sorted(document.visible_to)],
        )
    attributes = {(name, value.casefold()) for name, values in document.attributes.items() for value in values}
    if attributes:
        await transaction.execute_many(
            "INSERT INTO retrieval_attributes (document, name, value) VALUES (?, ?, ?)",
            [(number, name, value) for name, value in sorted(attributes)],
        )
    return number


async def _write_graph(transaction: Transaction, number: int, document: Document) -> None:
    """Only what differs is written: a graph that stays the same keeps its version."""
    rows = await transaction.fetch(
        "SELECT 'retrieval_nodes' AS place, id, kind, title FROM retrieval_nodes WHERE document = ?1"
        " UNION ALL SELECT 'retrieval_edges', source, type, target FROM retrieval_edges WHERE document = ?1",
        number,
    )
    stored = {tuple(row) for row in rows}
    nodes = {node.id: ("retrieval_nodes", node.id, node.kind, node.title) for node in reversed(document.nodes)}
    wanted = {*nodes.values(), *(("retrieval_edges", edge.source, edge.type, edge.target) for edge in document.edges)}
    for row in sorted(stored - wanted):
        columns = (
            "id = ? AND kind = ? AND title = ?"
            if row[0] == "retrieval_nodes"
            else "source = ? AND type = ? AND target = ?"
        )
        await transaction.execute(f"DELETE FROM {row[0]} WHERE document = ? AND {columns}", number, *row[1:])  # noqa: S608 - names from here
    for table in ("retrieval_nodes", "retrieval_edges"):
        new = [(number, *row[1:]) for row in sorted(wanted - stored) if row[0] == table]
        if new:
            await transaction.execute_many(f"INSERT INTO {table} VALUES (?, ?, ?, ?)", new)  # noqa: S608 - one of two names


async def _remove_chunks(transaction: Transaction, document: int, *, kept: Sequence[str]) -> list[int]:
    """Delete a document's chunks but the kept ones. The lexical index is given the old words first: it stores no copy."""
    rows = await transaction.fetch("SELECT number, id FROM retrieval_chunks WHERE document = ?", document)
    gone = [int(row["number"]) for row in rows if row["id"] not in set(kept)]
    if gone:
        numbers = [(number,) for number in gone]
        await transaction.execute_many(
            "INSERT INTO retrieval_words (retrieval_words, rowid, title, heading, text)"
            " SELECT 'delete', number, title, heading, text FROM retrieval_chunks WHERE number = ?",
            numbers,
        )
        await transaction.execute_many("DELETE FROM retrieval_chunks WHERE number = ?", numbers)
    return gone
