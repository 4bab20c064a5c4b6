"""The tables of the index inside a plugin's database. They have a version of their own, apart from the plugin's migrations."""

from ksi_daemon.errors import BadData
from ksi_daemon.storage.sqlite import Database

CREATE_INDEX = (
    """
    CREATE TABLE retrieval_documents (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        namespace TEXT NOT NULL,
        title TEXT NOT NULL,
        source_kind TEXT NOT NULL,
        updated_at REAL NOT NULL,
        restricted INTEGER NOT NULL
    )
    """,
    "CREATE INDEX retrieval_documents_restricted ON retrieval_documents (number) WHERE restricted",
    """
    CREATE TABLE retrieval_readers (
        document INTEGER NOT NULL REFERENCES retrieval_documents (number) ON DELETE CASCADE,
        agent TEXT NOT NULL,
        PRIMARY KEY (document, agent)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE retrieval_attributes (
        document INTEGER NOT NULL REFERENCES retrieval_documents (number) ON DELETE CASCADE,
        name TEXT NOT NULL,
        value TEXT NOT NULL,
        PRIMARY KEY (document, name, value)
    ) WITHOUT ROWID
    """,
    # AUTOINCREMENT: a number is never used twice, so a vector that comes late cannot land on another text.
    """
    CREATE TABLE retrieval_chunks (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        document INTEGER NOT NULL REFERENCES retrieval_documents (number) ON DELETE CASCADE,
        id TEXT NOT NULL,
        title TEXT NOT NULL,
        heading TEXT NOT NULL,
        text TEXT NOT NULL,
        start INTEGER NOT NULL,
        "end" INTEGER NOT NULL,
        UNIQUE (document, id)
    )
    """,
    # The columns are read from retrieval_chunks, so the index holds words only. detail=full: anything less makes bm25() 0.
    """
    CREATE VIRTUAL TABLE retrieval_words USING fts5 (
        title, heading, text, content = 'retrieval_chunks', content_rowid = 'number', tokenize = 'porter unicode61'
    )
    """,
    """
    CREATE TABLE retrieval_vectors (
        embedder TEXT NOT NULL,
        chunk INTEGER NOT NULL REFERENCES retrieval_chunks (number) ON DELETE CASCADE,
        vector BLOB NOT NULL,
        PRIMARY KEY (embedder, chunk)
    ) WITHOUT ROWID
    """,
    "CREATE INDEX retrieval_vectors_chunk ON retrieval_vectors (chunk)",
    """
    CREATE TABLE retrieval_failures (
        embedder TEXT NOT NULL,
        chunk INTEGER NOT NULL REFERENCES retrieval_chunks (number) ON DELETE CASCADE,
        error TEXT NOT NULL,
        PRIMARY KEY (embedder, chunk)
    ) WITHOUT ROWID
    """,
    "CREATE INDEX retrieval_failures_chunk ON retrieval_failures (chunk)",
)
# The count of changes is kept by triggers: no way to change the graph, a cascade included, can miss it.
ADD_GRAPH = (
    """
    CREATE TABLE retrieval_nodes (
        document INTEGER NOT NULL REFERENCES retrieval_documents (number) ON DELETE CASCADE,
        id TEXT NOT NULL,
        kind TEXT NOT NULL,
        title TEXT NOT NULL,
        PRIMARY KEY (document, id)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE retrieval_edges (
        document INTEGER NOT NULL REFERENCES retrieval_documents (number) ON DELETE CASCADE,
        source TEXT NOT NULL,
        type TEXT NOT NULL,
        target TEXT NOT NULL,
        PRIMARY KEY (document, source, type, target)
    ) WITHOUT ROWID
    """,
    "INSERT INTO retrieval_facts (name, value) VALUES ('graph', '0')",
    *(
        f"CREATE TRIGGER {table}_{change} AFTER {change} ON {table} BEGIN"  # noqa: S608 - names from this file
        " UPDATE retrieval_facts SET value = CAST(CAST(value AS INTEGER) + 1 AS TEXT) WHERE name = 'graph'; END"
        for table in ("retrieval_nodes", "retrieval_edges")
        for change in ("insert", "delete")
    ),
)
VERSIONS = (CREATE_INDEX, ADD_GRAPH)  # new ones are only ever added at the end


async def create_tables(database: Database) -> None:
    """Make the tables, or bring them up to date, in one transaction."""
    async with database.transaction() as transaction:
        await transaction.execute(
            "CREATE TABLE IF NOT EXISTS retrieval_facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"
        )
        rows = await transaction.fetch("SELECT value FROM retrieval_facts WHERE name = 'version'")
        version = int(rows[0]["value"]) if rows else 0
        if version > len(VERSIONS):
            raise BadData(
                f"the search index in {database.path.name} has version {version}, this program knows {len(VERSIONS)}: "
                "a newer KSI wrote it. Run that version, or restore an older backup."
            )
        for statements in VERSIONS[version:]:
            for statement in statements:
                await transaction.execute(statement)
        await transaction.execute(
            "INSERT INTO retrieval_facts (name, value) VALUES ('version', ?)"
            " ON CONFLICT DO UPDATE SET value = excluded.value",
            str(len(VERSIONS)),
        )


async def fact(database: Database, name: str) -> str | None:
    """A remembered fact about the index, or None."""
    row = await database.fetch_one("SELECT value FROM retrieval_facts WHERE name = ?", name)
    return None if row is None else str(row["value"])


async def set_fact(database: Database, name: str, value: str) -> None:
    """Remember a fact about the index."""
    await database.execute(
        "INSERT INTO retrieval_facts (name, value) VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value",
        name,
        value,
    )
