"""Nothing foreign reaches a terminal that could move its cursor, hide or reorder its text."""

import json
import unicodedata
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ksi_client.command.readable import duration, plain_table, readable
from ksi_client.terminal import json_text, visible
from tests.cases import case

UNSAFE = {"Cc", "Cf", "Zl", "Zp", "Co", "Cs"}
ANY_TEXT = st.text(st.characters(), max_size=60) | st.text(
    "\x1b[]31m\u202e\u200b\x9b\x07\\\r\n\té" + "\U000e0041\ud800"
)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4),
    max_leaves=12,
)


def unsafe_characters(text: str, *, allowed: str = "") -> list[str]:
    """What in the text a terminal should not see."""
    return [character for character in text if character not in allowed and unicodedata.category(character) in UNSAFE]


def test_unsafe_characters_are_shown_as_escapes_and_others_left_alone() -> None:
    cases = [
        ("plain ünïcode 漢字 🙂", "plain ünïcode 漢字 🙂"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x1b]8;;http://x\x07link", "\\x1b]8;;http://x\\x07link"),
        ("\x9b31m", "\\x9b31m"),
        ("a\u202eb\u200bc\ufeff", "a\\u202eb\\u200bc\\ufeff"),
        ("\U000e0041", "\\U000e0041"),
        ("a\r\nb\tc\x7f", "a\\x0d\\x0ab\\x09c\\x7f"),
        ("[red]markup[/red]", "[red]markup[/red]"),
        ("a\u3164b", "a\\u3164b"),
    ]
    for text, shown in cases:
        with case(text, shown):
            assert visible(text) == shown


@given(ANY_TEXT)
def test_no_text_passes_an_unsafe_character(text: str) -> None:
    assert unsafe_characters(visible(text)) == []
    assert unsafe_characters(visible(text, multiline=True), allowed="\n\t") == []


@given(ANY_JSON, st.sampled_from([None, 2]))
def test_json_is_safe_and_means_the_same(value: Any, indent: int | None) -> None:
    text = json_text(value, indent=indent)
    assert unsafe_characters(text, allowed="\n") == []
    assert json.loads(text) == value
    text.encode()


@given(ANY_JSON)
def test_the_readable_form_of_any_data_is_safe(value: Any) -> None:
    assert unsafe_characters(readable(value), allowed="\n\t") == []


def test_the_readable_form_shows_what_is_inside_what() -> None:
    data = {"name": "x", "ok": True, "empty": [], "list": [1, {"a": 1, "b": None}], "deep": {"text": "two\nlines"}}
    assert readable(data).splitlines() == [
        "name:  x",
        "ok:    yes",
        "empty: none",
        "list:",
        "  - 1",
        "  - a: 1",
        "    b: none",
        "deep:",
        "  text: two",
        "        lines",
    ]


def test_a_plain_table_is_aligned_and_cuts_nothing() -> None:
    assert plain_table(("name", "about"), [["a", "x" * 300], ["longer", ""]]).splitlines() == [
        "NAME    ABOUT",
        "a       " + "x" * 300,
        "longer",
    ]


def test_a_duration_is_shown_in_two_units() -> None:
    cases = [(0.04, "0.0 s"), (59.9, "59.9 s"), (75, "1 min 15 s"), (7300, "2 h 1 min"), (9e5, "10 d 10 h")]
    for seconds, expected in cases:
        with case(seconds, expected):
            assert duration(seconds) == expected
