"""Finds tools by words: BM25 over their names, titles, descriptions and parameter names, for inflected and partial words too."""

import math
import re
from collections import Counter
from collections.abc import Sequence

import msgspec

from ksi_daemon.mcp.tools import OfferedTool

SATURATION, LENGTH_SHARE = 1.2, 0.5  # BM25's k1 and b
PARTIAL = 0.5  # what a word that only begins with the asked one is worth
PARTIAL_LENGTH = 3
WEIGHTS = {"name": 4.0, "title": 2.0, "description": 1.0, "parameters": 1.5}
IGNORED = re.compile(
    r"\b(?:a|an|and|are|as|be|by|can|do|for|from|how|i|in|is|it|its|me|my|of|on|or|that|the|this|to|what|which|with)\b"
)
SUFFIXES = ("ations", "ation", "ings", "ing", "ions", "ion", "ies", "ed", "es", "s", "e", "y")
STEM_LENGTH = 3
WORD = re.compile(r"[a-z0-9]+")


def stem(word: str) -> str:
    """A word without its ending, so that `subscriptions` and `subscribe` begin alike."""
    for suffix in SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= STEM_LENGTH:
            return word.removesuffix(suffix)
    return word


def words(text: str) -> list[str]:
    """The stems of a text's words."""
    return [stem(word) for word in WORD.findall(IGNORED.sub(" ", text.lower()))]


class _Document(msgspec.Struct, frozen=True):
    tool: OfferedTool
    weights: dict[str, float]  # of each stem
    length: float


class ToolSearch:
    """Searches lists of tools; what was read of a tool is kept as long as the tool stays the same."""

    def __init__(self) -> None:
        self._documents: dict[str, _Document] = {}

    def find(self, query: str, tools: Sequence[OfferedTool], limit: int) -> list[OfferedTool]:
        """The tools that fit the query best, the best first; of equals the first by name. Empty when no word occurs."""
        documents = [self._document(tool) for tool in tools]
        asked = list(dict.fromkeys(words(query)))
        mean = sum(document.length for document in documents) / max(1, len(documents))
        scores: Counter[int] = Counter()
        for word in asked:
            found = {number: _weight(word, document) for number, document in enumerate(documents)}
            having = {number: weight for number, weight in found.items() if weight > 0}
            rarity = math.log(1 + (len(documents) - len(having) + 0.5) / (len(having) + 0.5))
            for number, weight in having.items():
                size = 1 - LENGTH_SHARE + LENGTH_SHARE * documents[number].length / mean
                scores[number] += rarity * weight * (SATURATION + 1) / (weight + SATURATION * size)  # type: ignore[assignment]
        best = sorted(scores, key=lambda number: (-scores[number], documents[number].tool.name))
        return [documents[number].tool for number in best[:limit]]

    def _document(self, tool: OfferedTool) -> _Document:
        known = self._documents.get(tool.name)
        if known is None or known.tool is not tool:
            known = self._documents[tool.name] = _read(tool)
        return known


def _read(tool: OfferedTool) -> _Document:
    wire = tool.full.wire
    properties = wire["inputSchema"].get("properties", {})
    texts = {
        "name": tool.name,
        "title": str(wire.get("title") or ""),
        "description": wire["description"],
        "parameters": " ".join(properties),
    }
    weights: dict[str, float] = {}
    length = 0.0
    for field, text in texts.items():
        for word in words(text.replace("_", " ")):
            weights[word] = weights.get(word, 0.0) + WEIGHTS[field]
            length += 1
    return _Document(tool, weights, length)


def _weight(asked: str, document: _Document) -> float:
    """How much a word weighs in a tool: the word itself, or words that begin like it."""
    exact = document.weights.get(asked, 0.0)
    if exact or len(asked) < PARTIAL_LENGTH:
        return exact
    return PARTIAL * max((weight for word, weight in document.weights.items() if _begin_alike(asked, word)), default=0)


def _begin_alike(asked: str, word: str) -> bool:
    return word.startswith(asked) or (len(word) >= PARTIAL_LENGTH + 1 and asked.startswith(word))
