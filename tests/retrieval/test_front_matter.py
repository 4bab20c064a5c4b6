"""Front matter: a plain mapping is read, everything that YAML can do beyond that is refused."""

import pytest

from ksi_daemon.retrieval.front_matter import BadFrontMatter, read_front_matter

LEVELS = "\n".join(f"l{number}: &l{number} [{', '.join([f'*l{number - 1}'] * 9)}]" for number in range(1, 40))


def note(source: str) -> str:
    return f"---\n{source}\n---\nThe body.\n"


def test_a_mapping_is_read_and_the_body_starts_behind_it() -> None:
    text = note("title: A plan\ntags: [draft, plan]\nmade: 2024-05-01\nowner: {name: Ada}\nsize: 0x10")
    read = read_front_matter(text)
    assert read.values["title"] == "A plan"
    assert read.values["tags"] == ["draft", "plan"]
    assert read.values["owner"] == {"name": "Ada"}
    assert text[read.body_start :] == "The body.\n"


@pytest.mark.parametrize(
    "text", ["", "No front matter.", "--- \nnever closed", "----\na: 1\n----\n", "Text.\n---\na: 1\n---\n", "---"]
)
def test_a_text_without_front_matter_is_all_body(text: str) -> None:
    read = read_front_matter(text)
    assert (read.values, read.body_start) == ({}, 0)


def test_windows_line_ends_a_byte_order_mark_and_an_empty_mapping_are_read() -> None:
    text = "\ufeff---\r\ntitle: A\r\n---\r\nBody"
    read = read_front_matter(text)
    assert read.values == {"title": "A"}
    assert text[read.body_start :] == "Body"
    assert read_front_matter("---\n---\nBody").values == {}


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("a: !!python/object/apply:os.getcwd []", "tag"),
        ("a: !!str 1", "tag"),
        ("a: &x 1\nb: *x", "anchors"),
        ("l0: &l0 [x, x]\n" + LEVELS, "anchors"),
        ("a: 1\na: 2", "'a' occurs twice"),
        ("a: {b: 1, b: 2}", "'b' occurs twice"),
        ('1: a\n"1": b', "'1' occurs twice"),
        ("<<: {a: 1}", "plain word"),
        ("? [a, b]\n: 1", "plain word"),
        ("- a\n- b", "not a mapping"),
        ("just words", "not a mapping"),
        ("a: [1, 2", "not valid YAML"),
        ("\ta: 1", "not valid YAML"),
        ("a: 'x\0y'", "not valid YAML"),
        ("a: " + "9" * 5_000, "not valid YAML"),
        ("a: 2024-13-45", "not valid YAML"),
        ("a: " + "[" * 40 + "]" * 40, "deeper than 32"),
        ("a: " + "x" * 1_000_000, "longer than"),
    ],
    ids=lambda value: value[:20],
)
def test_what_is_not_plain_is_refused_with_its_reason(source: str, reason: str) -> None:
    """Y01: tags, alias bombs, duplicate keys, a scalar of 1 MB, tabs."""
    with pytest.raises(BadFrontMatter, match=reason):
        read_front_matter(note(source))


def test_words_that_yaml_takes_for_booleans_are_read_as_its_rules_say() -> None:
    """Y01: on and off are booleans, quoted they are words."""
    assert read_front_matter(note("a: on\nb: off\nc: 'on'")).values == {"a": True, "b": False, "c": "on"}
