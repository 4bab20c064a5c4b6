"""`sanitize_query`: what is tidied, what is refused, and that nothing changes its meaning in silence."""

import time

from ksi_daemon.hygiene.queries import sanitize_query
from tests.cases import case


def test_blanks_and_accents_are_tidied_and_the_words_stay() -> None:
    """L063, L065: same shape as for paths; for plain text SQL is just words."""
    cases = [
        ("how do notes link?", "how do notes link?"),
        ("  how\tdo \n notes  link ", "how do notes link"),
        ("cafe\u0301", "caf\u00e9"),
        ("\u65e5\u672c\u8a9e \U0001f469\u200d\U0001f680", "\u65e5\u672c\u8a9e \U0001f469\u200d\U0001f680"),
        ("it's; DROP TABLE -- quoted", "it's; DROP TABLE -- quoted"),
    ]
    for text, value in cases:
        with case(text, value):
            assert sanitize_query(text).as_dict() == {"valid": True, "value": value, "errors": []}


def test_what_cannot_be_used_is_named_and_nothing_is_returned() -> None:
    """L063, L065."""
    cases = [
        ("", "empty"),
        (" \n\t ", "empty"),
        ("a\x00b", "nul"),
        ("a\x1b[31mb", "control"),
        ("a\x7fb", "control"),
        ("a\x9bb", "control"),
        ("a\ud800b", "not_unicode"),
        ("a\u202eb", "invisible"),
        ("a\u200bb", "invisible"),
        ("a\U000e0041b", "invisible"),
        ("a" * 5_001, "too_long"),
        ("a" * 50_000, "too_long"),
    ]
    for text, code in cases:
        with case(text, code):
            result = sanitize_query(text)
            assert (result.valid, result.value) == (False, "")
            assert [error.code for error in result.errors] == [code]


def test_the_limit_is_the_callers_and_counts_what_is_left_after_tidying() -> None:
    assert sanitize_query("a    b", 3).valid
    assert not sanitize_query("abcd", 3).valid


def test_what_would_be_read_as_sql_is_refused_only_where_it_is_used_for_sql() -> None:
    """L061."""
    cases = [
        "x'; DROP TABLE notes; --", "1 OR 1=1", "a' OR 'a'='a", "x UNION SELECT secret", "a /* b */", 'say "hi"', "x; y",
        "delete from notes", "pragma table_info", "Insert  into x", "update notes set x", "attach database",
    ]  # fmt: skip
    for text in cases:
        with case(text):
            assert sanitize_query(text).valid
            assert [error.code for error in sanitize_query(text, used_for="sql").errors] == ["injection"]


def test_ordinary_words_pass_everywhere() -> None:
    cases = ["how do notes link", "order of selection and union of sets", "drop shipping", "or else and then"]
    for text in cases:
        with case(text):
            for use in ("text", "sql", "fts"):
                assert sanitize_query(text, used_for=use).valid


def test_search_operators_are_named_where_a_search_is_meant() -> None:
    """L061."""
    cases = ['"a', "a*", "title:a", "a AND b", "NOT a", "NEAR(a b)", "a OR b", "^a", "(a", "a - b", "{a}:b"]
    for text in cases:
        with case(text):
            assert [error.code for error in sanitize_query(text, used_for="fts").errors] == ["injection"]


def test_a_long_hostile_query_is_judged_at_once() -> None:
    """D05."""
    cases = ["or a", "and x= ", "union ", "update a ", "drop ", "'", "a ", "or " + "x" * 64]
    for piece in cases:
        with case(piece):
            began = time.process_time()
            for use in ("sql", "fts"):
                sanitize_query(piece * (20_000 // len(piece)), 20_000, used_for=use)
            assert time.process_time() - began < 0.2
