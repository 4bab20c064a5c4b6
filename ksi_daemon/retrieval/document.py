"""What goes into the index and what comes out of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

SourceKind = Literal["prose", "code"]
Format = Literal["markdown", "text", "code"]

EVERY_DOCUMENT = "*"  # as the agent of a search: no check of visibility, for the plugin's own work


@dataclass(frozen=True, slots=True)
class Node:
    """A node that a document states. Several documents may state the same one; the first gives its kind and title."""

    id: str
    kind: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Edge:
    """A directed edge between two nodes, whether they exist or not."""

    source: str
    target: str
    type: str


@dataclass(frozen=True, slots=True)
class Document:
    """One text with all that it can be filtered by. Putting a document replaces the one with the same id."""

    id: str
    text: str
    format: Format = "markdown"
    namespace: str = ""
    title: str = ""
    updated_at: float = 0.0  # seconds since the epoch
    attributes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # e.g. {"tag": ("draft", "plan")}
    visible_to: frozenset[str] | None = None  # the agents that may find it; None: all
    nodes: tuple[Node, ...] = ()  # what it states of the graph: seen by those who may find it, deleted with it
    edges: tuple[Edge, ...] = ()

    @property
    def source_kind(self) -> SourceKind:
        """Which weights a fused ranking uses for it."""
        return "code" if self.format == "code" else "prose"


@dataclass(frozen=True, slots=True)
class Filter:
    """What a hit must be. Fields and attribute names are joined by AND, the values of one of them by OR.

    Attribute values are compared without regard to case, namespaces exactly.
    """

    namespaces: frozenset[str] | None = None
    documents: frozenset[str] | None = None
    source_kinds: frozenset[SourceKind] | None = None
    updated_after: float | None = None
    attributes: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Parts:
    """How a hit came to its place: the two sides before fusion, each scaled to 0..1 within this search."""

    lexical: float
    vector: float
    vector_weight: float
    embedder: str


@dataclass(frozen=True, slots=True)
class Hit:
    """One chunk of the answer. Hits come in the order of their fused rank; `score` is the cosine similarity, 0 to 1."""

    chunk_id: str
    document_id: str
    namespace: str
    title: str
    heading: str
    text: str
    start: int  # character offsets in the document's text
    end: int
    score: float
    parts: Parts | None = None
