"""An index in a folder of its own, opened the way a plugin would have it."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from ksi_daemon.retrieval.document import EVERY_DOCUMENT, Document, Filter
from ksi_daemon.retrieval.retrieval import Retrieval, RetrievalSettings, open_retrieval
from ksi_daemon.storage.sqlite import Database, open_database
from tests.retrieval.embedders import WordEmbedder

Open = Callable[..., AbstractAsyncContextManager[Retrieval]]
ALL = Filter()


def plain_settings() -> RetrievalSettings:
    return RetrievalSettings(instant=WordEmbedder(), embedder=None)


def note(document_id: str, text: str = "", **facts: object) -> Document:
    return Document(id=document_id, text=text or f"The note {document_id}.", **facts)  # type: ignore[arg-type]


async def found(
    retrieval: Retrieval, query: str, *, agent: str | None = EVERY_DOCUMENT, limit: int = 10, filter: Filter = ALL
) -> list[str]:
    """The ids of the documents that a search finds, in order, each once."""
    hits = await retrieval.search(query, agent=agent, limit=limit, filter=filter)
    return list(dict.fromkeys(hit.document_id for hit in hits))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "notes.db"


@pytest.fixture
async def database(path: Path) -> AsyncIterator[Database]:
    async with open_database(path, ["CREATE TABLE of_the_plugin (number INTEGER)"]) as opened:
        yield opened


@pytest.fixture
def opened(path: Path) -> Open:
    @asynccontextmanager
    async def open_index(settings: RetrievalSettings | None = None) -> AsyncIterator[Retrieval]:
        async with open_database(path, []) as opened, open_retrieval(opened, settings or plain_settings()) as retrieval:
            yield retrieval

    return open_index


@pytest.fixture
async def retrieval(database: Database) -> AsyncIterator[Retrieval]:
    async with open_retrieval(database, plain_settings()) as index:
        yield index
