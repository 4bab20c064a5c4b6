"""Chunking: every word is in a chunk, a chunk stays inside its section, and an edit changes only what it touches."""

from itertools import pairwise
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from ksi_daemon.retrieval.chunking import (
    CHUNK_LIMIT_CHARACTERS,
    OVERLAP_LIMIT_CHARACTERS,
    Chunk,
    chunk_text,
)
from ksi_daemon.retrieval.document import Format

SENTENCES = " ".join(f"Sentence number {number} says something about the weather." for number in range(100))
PLAN = """---
title: The plan
---
Before any heading.

# Build

Intro.

## Walls

Bricks and mortar.

```sh
# not a heading
```

## Roof

Tiles.

Summary
=======

Done.
"""


def headings(chunks: list[Chunk]) -> list[str]:
    return [chunk.heading for chunk in chunks]


def test_a_markdown_text_is_cut_at_its_headings_and_front_matter_is_left_out() -> None:
    chunks = chunk_text("a", PLAN)
    assert headings(chunks) == ["", "Build", "Build > Walls", "Build > Roof", "Summary"]
    assert chunks[0].text == "Before any heading."
    assert "# not a heading" in chunks[2].text
    assert all(PLAN[chunk.start : chunk.end] == chunk.text for chunk in chunks)


def test_front_matter_that_is_refused_is_content() -> None:
    chunks = chunk_text("a", "---\na: 1\na: 2\n---\nBody.")
    assert any("a: 1" in chunk.text for chunk in chunks)


def test_a_long_section_is_cut_at_sentences_and_the_end_of_one_chunk_starts_the_next() -> None:
    chunks = chunk_text("a", SENTENCES, format="text")
    assert len(chunks) > 4
    for before, after in pairwise(chunks):
        assert after.text.startswith("Sentence number")
        assert 0 < before.end - after.start <= OVERLAP_LIMIT_CHARACTERS + 1


def test_code_is_cut_between_its_top_level_blocks() -> None:
    source = "\n".join(f"def function_{number}():\n    return {'x' * 300!r}\n" for number in range(12))
    chunks = chunk_text("a", source, format="code")
    assert len(chunks) > 2
    assert all("def function_" in chunk.text for chunk in chunks)


def test_equal_sections_have_ids_of_their_own() -> None:
    chunks = chunk_text("a", "# Same\n\nWords.\n\n# Same\n\nWords.\n")
    assert len({chunk.id for chunk in chunks}) == 2
    assert {chunk.id for chunk in chunks}.isdisjoint(chunk.id for chunk in chunk_text("b", "# Same\n\nWords.\n"))


def test_an_edit_changes_the_ids_of_what_was_edited_and_no_others() -> None:
    before = chunk_text("a", PLAN)
    after = chunk_text("a", PLAN.replace("Bricks", "Much more than a few bricks"))
    assert [old.id == new.id for old, new in zip(before, after, strict=True)] == [True, True, False, True, True]
    moved = chunk_text("a", PLAN.replace("---\nBefore", "author: Ada\n---\nBefore"))
    assert [chunk.id for chunk in moved] == [chunk.id for chunk in before]


TEXTS = st.text(alphabet=st.sampled_from("ab# \n\r.-`*>=é"), max_size=4_000) | st.text(max_size=300)


@given(text=TEXTS, repeat=st.integers(1, 8), format=st.sampled_from(get_args(Format)))
def test_every_word_is_in_a_chunk_and_no_chunk_is_too_long(text: str, repeat: int, format: Format) -> None:
    text *= repeat
    chunks = chunk_text("a", text, format=format)
    covered = bytearray(len(text))
    for chunk in chunks:
        assert text[chunk.start : chunk.end] == chunk.text
        assert chunk.text.strip()
        assert len(chunk.text) <= CHUNK_LIMIT_CHARACTERS + OVERLAP_LIMIT_CHARACTERS + 1
        covered[chunk.start : chunk.end] = b"\1" * (chunk.end - chunk.start)
    missed = {text[position] for position, done in enumerate(covered) if not done}
    if not text.startswith("---"):
        assert not "".join(missed).strip(), missed
    assert len({chunk.id for chunk in chunks}) == len(chunks)
