"""Writes the rows of many documents inside a transaction: the number of statements does not grow with that of the documents."""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TypeVar

from ksi_daemon.retrieval.document import Document
from ksi_daemon.storage.sqlite import Transaction

MARKS_LIMIT = 1_000  # in one statement
GRAPH_COLUMNS = {"retrieval_nodes": ("id", "kind", "title"), "retrieval_edges": ("source", "type", "target")}
GraphRow = tuple[int, str, str, str]
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Stored:
    """Documents that were written: their numbers by id, and the numbers of those that were there before."""

    numbers: Mapping[str, int]
    replaced: tuple[int, ...]


def marks(values: Sequence[object]) -> str:
    """One mark for each value."""
    return ", ".join("?" * len(values))


def slices(values: Sequence[Value]) -> Iterator[Sequence[Value]]:
    """Short enough for the marks of one statement."""
    for start in range(0, len(values), MARKS_LIMIT):
        yield values[start : start + MARKS_LIMIT]


async def document_numbers(transaction: Transaction, ids: Sequence[str]) -> dict[str, int]:
    """The numbers of those documents that are stored."""
    numbers: dict[str, int] = {}
    for some in slices(ids):
        rows = await transaction.fetch(
            f"SELECT id, number FROM retrieval_documents WHERE id IN ({marks(some)})",  # noqa: S608 - only marks
            *some,
        )
        numbers |= {row["id"]: row["number"] for row in rows}
    return numbers


async def write_documents(transaction: Transaction, documents: Sequence[Document]) -> Stored:
    """Add documents of different ids, or replace what is stored of them but their chunks and their graph."""
    replaced = await document_numbers(transaction, [document.id for document in documents])
    rows = await transaction.fetch("SELECT coalesce(max(number), 0) AS number FROM retrieval_documents")
    added = [document.id for document in documents if document.id not in replaced]
    numbers = replaced | {document_id: number for number, document_id in enumerate(added, start=rows[0]["number"] + 1)}
    written = [
        (
            document.namespace,
            document.title,
            document.source_kind,
            document.updated_at,
            document.visible_to is not None,
            document.id,
            numbers[document.id],
        )
        for document in documents
    ]
    columns = ("namespace", "title", "source_kind", "updated_at", "restricted")
    await transaction.execute_many(
        f"UPDATE retrieval_documents SET {', '.join(f'{column} = ?' for column in columns)} WHERE id = ? AND number = ?",  # noqa: S608 - names from here
        [row for row in written if row[5] in replaced],
    )
    await transaction.execute_many(
        f"INSERT INTO retrieval_documents ({', '.join(columns)}, id, number) VALUES (?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - names from here
        [row for row in written if row[5] not in replaced],
    )
    for table in ("retrieval_readers", "retrieval_attributes"):
        await transaction.execute_many(
            f"DELETE FROM {table} WHERE document = ?",  # noqa: S608 - one of two names
            [(number,) for number in replaced.values()],
        )
    await transaction.execute_many(
        "INSERT INTO retrieval_readers (document, agent) VALUES (?, ?)",
        [(numbers[document.id], agent) for document in documents for agent in sorted(document.visible_to or ())],
    )
    attributes = {
        (numbers[document.id], name, value.casefold())
        for document in documents
        for name, values in document.attributes.items()
        for value in values
    }
    await transaction.execute_many(
        "INSERT INTO retrieval_attributes (document, name, value) VALUES (?, ?, ?)", sorted(attributes)
    )
    return Stored(numbers, tuple(replaced.values()))


async def remove_chunks(
    transaction: Transaction, kept: Mapping[int, AbstractSet[str]], *, documents: Sequence[int]
) -> list[int]:
    """Delete the chunks of documents but the kept ones. The lexical index is given the old words first: it stores no copy."""
    gone: list[int] = []
    for some in slices(documents):
        rows = await transaction.fetch(
            f"SELECT number, document, id FROM retrieval_chunks WHERE document IN ({marks(some)}) ORDER BY number",  # noqa: S608 - only marks
            *some,
        )
        gone += [row["number"] for row in rows if row["id"] not in kept.get(row["document"], ())]
    numbers = [(number,) for number in gone]
    await transaction.execute_many(
        "INSERT INTO retrieval_words (retrieval_words, rowid, title, heading, text)"
        " SELECT 'delete', number, title, heading, text FROM retrieval_chunks WHERE number = ?",
        numbers,
    )
    await transaction.execute_many("DELETE FROM retrieval_chunks WHERE number = ?", numbers)
    return gone


async def write_graph(transaction: Transaction, stored: Stored, documents: Sequence[Document]) -> None:
    """Only what differs is written: a graph that stays the same keeps its version."""
    old: dict[str, set[GraphRow]] = {table: set() for table in GRAPH_COLUMNS}
    for table, columns in GRAPH_COLUMNS.items():
        for some in slices(stored.replaced):
            rows = await transaction.fetch(
                f"SELECT document, {', '.join(columns)} FROM {table} WHERE document IN ({marks(some)})",  # noqa: S608 - names from here
                *some,
            )
            old[table] |= {tuple(row) for row in rows}
    wanted: dict[str, set[GraphRow]] = {table: set() for table in GRAPH_COLUMNS}
    for document in documents:
        number = stored.numbers[document.id]
        nodes = {node.id: (number, node.id, node.kind, node.title) for node in reversed(document.nodes)}
        wanted["retrieval_nodes"].update(nodes.values())
        wanted["retrieval_edges"].update((number, edge.source, edge.type, edge.target) for edge in document.edges)
    for table, columns in GRAPH_COLUMNS.items():
        condition = " AND ".join(f"{column} = ?" for column in ("document", *columns))
        await transaction.execute_many(f"DELETE FROM {table} WHERE {condition}", sorted(old[table] - wanted[table]))  # noqa: S608 - names from here
    for table in GRAPH_COLUMNS:
        await transaction.execute_many(
            f"INSERT INTO {table} VALUES (?, ?, ?, ?)",  # noqa: S608 - one of two names
            sorted(wanted[table] - old[table]),
        )
