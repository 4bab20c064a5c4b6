"""Validates search texts from callers: `sanitize_query` normalizes the text and reports what is not allowed instead of removing it.

Values must still be passed as bound parameters; this is only an additional check.
"""

import re
import unicodedata
from typing import Literal

from ksi_daemon.hygiene.verdict import Sanitized, result_of

QUERY_LIMIT = 5_000
Use = Literal["text", "sql", "fts"]

BLANKS = re.compile(r"\s+")
# Change the reading direction or hide text; joiners are allowed, because several scripts and emoji need them.
HIDING = re.compile("[\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\U000e0000-\U000e007f]")
SQL_MARKS = {
    ";": "a semicolon, which ends a statement",
    "--": "a comment mark",
    "/*": "a comment mark",
    "*/": "a comment mark",
    "'": "a quotation mark",
    '"': "a quotation mark",
}
SQL_WORDS = re.compile(
    r"\b(?:union(?: all)? select|insert into|delete from|drop (?:table|index|view)|update \w{1,64} set"
    r"|alter table|create (?:table|view|trigger)|attach|pragma|load_extension|(?:or|and) \S{1,64} ?= ?\S)",
    re.IGNORECASE,
)
FTS_WORDS = re.compile(r"\b(?:AND|OR|NOT|NEAR)\b")
FTS_MARKS = re.compile(r'["^*:(){}+\-]')


def sanitize_query(text: str, limit: int = QUERY_LIMIT, *, used_for: Use = "text") -> Sanitized:
    """The text in NFC with single blanks, or the problems. `used_for` says how the text will be used."""
    if len(text) > limit * 4:
        return result_of("", {"too_long": f"the query has {len(text):,} characters, more than {limit:,}"})
    value = BLANKS.sub(" ", unicodedata.normalize("NFC", text)).strip()
    problems: dict[str, str] = {}
    if not value:
        problems["empty"] = "the query is empty"
    if len(value) > limit:
        problems["too_long"] = f"the query has {len(value):,} characters, more than {limit:,}"
    if "\0" in value:
        problems["nul"] = "the query has a NUL character in it"
    kinds = {unicodedata.category(char) for char in value.replace("\0", "")}
    if "Cc" in kinds:
        problems["control"] = "the query has control characters in it"
    if "Cs" in kinds:
        problems["not_unicode"] = "the query has half of a surrogate pair in it"
    if HIDING.search(value):
        problems["invisible"] = "the query has characters in it that hide text or turn its direction"
    if used_for == "sql" and (found := _sql(value)):
        problems["injection"] = f"the query has {found} in it, and would be read as SQL"
    if used_for == "fts" and (FTS_MARKS.search(value) or FTS_WORDS.search(value)):
        problems["injection"] = (
            "the query has search operators in it; put each word in double quotes to search for it literally"
        )
    return result_of(value, problems)


def _sql(value: str) -> str | None:
    found = next((meaning for mark, meaning in SQL_MARKS.items() if mark in value), None)
    return found or ("SQL words" if SQL_WORDS.search(value) else None)
