"""Cuts a text into chunks along its structure: sections of markdown, definitions or blocks of code, paragraphs.

A chunk is a span of the source. Its core belongs to it alone; before the core it repeats the end of the chunk before it in the
same section, so that a sentence cut in two is whole in one of them. An id depends on the document, the headings and the core,
not on the position: an edit changes the ids of what was edited and no others.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ksi_daemon.errors import TimedOut, TooLarge
from ksi_daemon.retrieval.document import Format
from ksi_daemon.retrieval.front_matter import BadFrontMatter, read_front_matter
from ksi_daemon.retrieval.symbols import Symbol, language_of, symbols_of

CHUNK_LIMIT_CHARACTERS = 1_200
OVERLAP_LIMIT_CHARACTERS = 160
HEADING_LIMIT_CHARACTERS = 400

PARAGRAPH_END = re.compile(r"\n[ \t]*\n\s*")
HEADING_MARK = re.compile(r"(?:^|[\r\n]) {0,3}(?:#{1,6}(?:[ \t\r\n]|$)|(?:=+|-+)[ \t]*(?:[\r\n]|$))")
CODE_BLOCK_START = re.compile(r"\n(?=[^\s)\]}#/*])")
ABOVE_A_DEFINITION = ("#", "//", "/*", "*", "@")  # comments, attributes and decorators
BREAKS = (re.compile(r"(?<=[.!?])\s+|\n"), re.compile(r"\s+"))  # sentences and lines, then words
FRAGMENT_START = re.compile(r"(?<=[.!?])\s+|\n\s*|\s+")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A span of a document's text with the headings above it."""

    id: str
    heading: str
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Section:
    heading: str
    start: int
    end: int


def chunk_text(document_id: str, text: str, *, format: Format = "markdown") -> list[Chunk]:
    """The chunks of a text in order; none for a text of blanks."""
    chunks: list[Chunk] = []
    seen: dict[str, int] = {}
    for section in _sections(document_id, text, format):
        previous_start = section.start
        for number, (start, end) in enumerate(_cores(text, section, format)):
            shown = _overlap_start(text, previous_start, start) if number else start
            core = " ".join(text[start:end].split())
            digest = hashlib.sha256(f"{document_id}\0{section.heading}\0{core}".encode("utf-8", "surrogatepass"))
            name = digest.hexdigest()[:24]
            seen[name] = seen.get(name, 0) + 1
            chunk_id = name if seen[name] == 1 else f"{name}-{seen[name]}"
            chunks.append(Chunk(chunk_id, section.heading, text[shown:end], shown, end))
            previous_start = start
    return chunks


def _sections(document_id: str, text: str, format: Format) -> Iterator[_Section]:
    language = language_of(document_id) if format == "code" else None
    if language is not None:
        yield from _code_sections(text, language)
        return
    if format != "markdown":
        yield _Section("", 0, len(text))
        return
    try:
        position = read_front_matter(text).body_start
    except BadFrontMatter:  # what is not front matter is content
        position = 0
    headings: list[tuple[int, str]] = []
    for level, title, start in _markdown_headings(text, position):
        yield _Section(_path(headings), position, start)
        position = start
        headings = [known for known in headings if known[0] < level] + [(level, title)]
    yield _Section(_path(headings), position, len(text))


def _code_sections(text: str, language: str) -> Iterator[_Section]:
    """One section for each definition, and what is between them; a definition that is too long for a chunk is cut further."""
    content = text.encode("utf-8", "surrogatepass")
    try:
        symbols = symbols_of(content, language).symbols
    except (TooLarge, TimedOut):  # then it is cut between its blocks
        symbols = ()
    around: list[_Section] = []  # the definitions that the position is in
    position = 0
    for symbol, start, end in _with_characters(content, text, symbols):
        while around and around[-1].end <= start:
            yield _Section(around[-1].heading, position, around[-1].end)
            position = around.pop().end
        outer = around[-1] if around else None
        if start < position or (outer and (end > outer.end or outer.end - outer.start <= CHUNK_LIMIT_CHARACTERS)):
            continue
        yield _Section(outer.heading if outer else "", position, start)
        position = start
        around.append(_Section(symbol.qualified_name[:HEADING_LIMIT_CHARACTERS], start, end))
    while around:
        yield _Section(around[-1].heading, position, around[-1].end)
        position = around.pop().end
    yield _Section("", position, len(text))


def _with_characters(content: bytes, text: str, symbols: Sequence[Symbol]) -> Iterator[tuple[Symbol, int, int]]:
    """The definitions that are sections, with the characters of their whole lines and of the comments directly above."""
    positions = sorted({position for symbol in symbols for position in (symbol.start_byte, symbol.end_byte)})
    characters: dict[int, int] = {}
    before = count = 0
    for position in positions:
        count += len(content[before:position].decode("utf-8", "surrogatepass"))
        characters[position], before = count, position
    for symbol in symbols:
        if symbol.kind in ("constant", "variable"):
            continue
        start = text.rfind("\n", 0, characters[symbol.start_byte]) + 1
        while start and text[text.rfind("\n", 0, start - 1) + 1 : start].lstrip().startswith(ABOVE_A_DEFINITION):
            start = text.rfind("\n", 0, start - 1) + 1
        line_end = text.find("\n", characters[symbol.end_byte])
        yield symbol, start, len(text) if line_end < 0 else line_end + 1


def _path(headings: list[tuple[int, str]]) -> str:
    return " > ".join(title for _, title in headings)[:HEADING_LIMIT_CHARACTERS]


def _markdown_headings(text: str, body_start: int) -> Iterator[tuple[int, str, int]]:
    """Level, words and offset of each top-level heading; a `#` inside fenced code is none."""
    body = text[body_start:]
    if not HEADING_MARK.search(body):  # then parsing would find none
        return
    from markdown_it import MarkdownIt

    # Offsets of lines as the parser counts them: it takes \r\n and \r for \n.
    starts = [0, *(match.end() for match in re.finditer(r"\r\n|\n|\r", body))]
    tokens = MarkdownIt("commonmark").disable("inline").parse(body)
    for number, token in enumerate(tokens):
        if token.type == "heading_open" and token.level == 0 and token.map is not None:
            title = " ".join(tokens[number + 1].content.split())
            yield int(token.tag[1:]), title, body_start + starts[token.map[0]]


def _cores(text: str, section: _Section, format: Format) -> Iterator[tuple[int, int]]:
    """Spans that together hold every character of the section that is not blank, each within the limit."""
    start = end = section.start
    for block_start, block_end in _blocks(text, section, format):
        for piece_start, piece_end in _pieces(text, block_start, block_end):
            if piece_end - start > CHUNK_LIMIT_CHARACTERS and end > start:
                yield from _stripped(text, start, end)
                start = piece_start
            end = piece_end
    yield from _stripped(text, start, end)


def _blocks(text: str, section: _Section, format: Format) -> Iterator[tuple[int, int]]:
    boundary = CODE_BLOCK_START if format == "code" else PARAGRAPH_END
    start = section.start
    for match in boundary.finditer(text, section.start, section.end):
        yield start, match.end()
        start = match.end()
    yield start, section.end


def _pieces(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """A block as it is, or cut at the best place before the limit, or at the limit where it has no blank at all."""
    while end - start > CHUNK_LIMIT_CHARACTERS:
        cut = start + CHUNK_LIMIT_CHARACTERS
        for pattern in BREAKS:
            places = [match.end() for match in pattern.finditer(text, start, cut) if match.end() > start]
            if places and places[-1] - start > CHUNK_LIMIT_CHARACTERS // 2:
                cut = places[-1]
                break
        yield start, cut
        start = cut
    yield start, end


def _stripped(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    inside = text[start:end]
    left = len(inside) - len(inside.lstrip())
    if left < len(inside):
        yield start + left, start + len(inside.rstrip())


def _overlap_start(text: str, previous_start: int, start: int) -> int:
    """Where to begin so that the end of the chunk before is repeated from the start of a sentence, a line or a word."""
    earliest = max(previous_start, start - OVERLAP_LIMIT_CHARACTERS)
    matches = FRAGMENT_START.finditer(text, earliest, start)
    return next((match.end() for match in matches), start)
