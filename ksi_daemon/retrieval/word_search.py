"""Search by words in the lexical index, with a bound on how many chunks are ranked.

Ranking a chunk costs far more than finding it. In a large index the rarest words of a query decide which chunks are ranked; the
frequent ones still count in their rank. A word that more than half of all chunks have adds nothing to a rank and is left out.
"""

import re
from collections.abc import Mapping, Sequence

from ksi_daemon.storage.sqlite import Database

RANKED_CHUNKS = 10_000  # a hundred times the candidates; an index of fewer chunks is always searched with every word
WORD = re.compile(r"\w+")
QUERY_WORDS_LIMIT = 200
REMEMBERED_WORDS = 10_000
STOP_WORDS = frozenset(
    """a about after all also an and any are as at be because been but by can could did do does for from had has have he
    her him his how i if in into is it its may me more most my no nor not of on or our she should so some such than that
    the their them then there these they this those to up us was we were what when where which who why will with would
    you your""".split()  # noqa: SIM905 - a list of words is read more easily
)
Inside = tuple[str, tuple[str | float, ...]]  # a SELECT of chunk numbers and its parameters


class WordSearch:
    """The words of one index. Remembers in how many chunks a word is, until one in twenty chunks has changed."""

    def __init__(self, database: Database, *, ranked_chunks: int = RANKED_CHUNKS) -> None:
        self._database = database
        self._ranked_chunks = ranked_chunks
        self._every: int | None = None  # chunks, when they were counted
        self._counts: dict[str, int] = {}
        self._changed = 0

    def changed(self, chunks: int) -> None:
        """So many chunks came or went."""
        self._changed += chunks
        if self._changed * 20 > (self._every or 0):
            self._every, self._counts, self._changed = None, {}, 0

    async def find(self, query: str, *, inside: Inside | None, limit: int) -> list[tuple[int, float]]:
        """The best chunks: (number, relevance), best first. Only those `inside` count."""
        words = search_words(query)
        if not words:
            return []
        every, counts = await self._counted(words)
        deciding = deciding_words(counts, self._ranked_chunks, enough=limit) if counts else words
        if len(deciding) < len(words):
            counted = [word for word in words if counts[word] <= every // 2 or word in deciding]
            found = await self._ranked(counted, deciding=deciding, inside=inside, limit=limit)
            if inside is None or len(found) == limit:
                return found
        return await self._ranked(words, deciding=(), inside=inside, limit=limit)

    async def _counted(self, words: Sequence[str]) -> tuple[int, dict[str, int]]:
        """How many chunks there are, and how many have each word, counted to just above half; of a small index, no words."""
        counts = self._counts
        if self._every is None:
            self._changed = 0
            row = await self._database.fetch_one("SELECT count(*) AS count FROM retrieval_chunks")
            self._every = int(row["count"]) if row is not None else 0
        every = self._every
        if every <= self._ranked_chunks:
            return every, {}
        if new := [word for word in words if word not in counts]:
            count = "(SELECT count(*) FROM (SELECT 1 FROM retrieval_words WHERE retrieval_words MATCH ? LIMIT ?))"
            params = [param for word in new for param in (_quoted(word), every // 2 + 1)]
            row = await self._database.fetch_one(f"SELECT {', '.join([count] * len(new))}", *params)
            assert row is not None  # a SELECT of counts always has its row
            if len(counts) > REMEMBERED_WORDS:
                counts = self._counts = {word: counts[word] for word in words if word in counts}
            counts.update(zip(new, row, strict=True))
        return every, {word: counts[word] for word in words}

    async def _ranked(
        self, words: Sequence[str], *, deciding: Sequence[str], inside: Inside | None, limit: int
    ) -> list[tuple[int, float]]:
        conditions = ["retrieval_words MATCH ?"]
        params: list[str | float] = [_any_of(words)]
        if deciding:
            conditions.append("+rowid IN (SELECT rowid FROM retrieval_words WHERE retrieval_words MATCH ?)")
            params.append(_any_of(deciding))
        if inside is not None:
            conditions.append(f"+rowid IN ({inside[0]})")
            params += inside[1]
        rows = await self._database.fetch(
            "SELECT rowid, bm25(retrieval_words) AS relevance FROM retrieval_words"  # noqa: S608 - only marks
            f" WHERE {' AND '.join(conditions)} ORDER BY relevance, rowid LIMIT ?",
            *params,
            limit,
        )
        return [(row["rowid"], -float(row["relevance"])) for row in rows]


def search_words(query: str) -> list[str]:
    """The words of a text, each once; stop words only when there is nothing else."""
    words = list(dict.fromkeys(word.casefold() for word in WORD.findall(query)))
    return ([word for word in words if word not in STOP_WORDS] or words)[:QUERY_WORDS_LIMIT]


def deciding_words(counts: Mapping[str, int], ranked_chunks: int, *, enough: int) -> list[str]:
    """The rarest words, until they are in so many chunks together; of too few chunks the next word may bring too many."""
    deciding: list[str] = []
    total = 0
    for word, count in sorted(counts.items(), key=lambda pair: pair[1]):
        if total >= enough and total + count > ranked_chunks:
            break
        deciding.append(word)
        total += count
    return deciding


def _any_of(words: Sequence[str]) -> str:
    return " OR ".join(_quoted(word) for word in words)


def _quoted(word: str) -> str:
    """Each word as itself: none is an operator."""
    return f'"{word}"'
