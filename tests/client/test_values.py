"""`key=value` words read by an event's schema."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksi_client.command.fault import Fault
from ksi_client.command.values import parse_pairs, parse_value
from tests.cases import case

OPTIONAL_INTEGER = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
STRINGS = {"type": "array", "items": {"type": "string"}}

READ = [
    ({"type": "string"}, "5", "5"),
    ({"type": "string"}, "", ""),
    ({"type": "string"}, "true", "true"),
    ({"type": "string"}, '{"a":1}', '{"a":1}'),
    ({"type": "integer"}, "5", 5),
    ({"type": "integer"}, "-5", -5),
    ({"type": "number"}, "5", 5),
    ({"type": "number"}, "-0.5e3", -500.0),
    ({"type": "boolean"}, "true", True),
    ({"type": "boolean"}, "No", False),
    ({"type": "boolean"}, "0", False),
    ({"type": "null"}, "null", None),
    (STRINGS, "a, b,c", ["a", "b", "c"]),
    (STRINGS, '["a,b"]', ["a,b"]),
    (STRINGS, "", []),
    ({"type": "array", "items": {"type": "integer"}}, "1,2", [1, 2]),
    ({"type": "array"}, "[1, null]", [1, None]),
    ({"type": "object"}, '{"a": [1]}', {"a": [1]}),
    (OPTIONAL_INTEGER, "7", 7),
    (OPTIONAL_INTEGER, "null", None),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "7", "7"),
    ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "7", 7),
    ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "seven", "seven"),
    ({"type": ["integer", "null"]}, "7", 7),
    ({"type": ["string", "null"]}, "null", "null"),
    ({"$ref": "#/$defs/Size"}, "3", 3),
    ({"allOf": [{"$ref": "#/$defs/Size"}], "default": 1}, "3", 3),
    ({"enum": ["1", "2"]}, "1", "1"),
    ({"enum": [1, 2]}, "1", 1),
    ({"const": "on"}, "on", "on"),
    ({}, "5", 5),
    ({}, "five", "five"),
    ({}, '{"a":1}', {"a": 1}),
    ({}, "NaN", "NaN"),
    (True, "null", None),
    ({"title": "Value"}, "v", "v"),
]


def test_a_value_is_read_as_its_schema_says() -> None:
    for schema, text, value in READ:
        with case(schema, text, value):
            read = parse_value("key", text, schema, definitions={"Size": {"type": "integer"}})
            assert read == value
            assert type(read) is type(value)


REFUSED = [
    ({"type": "integer"}, "five", "a whole number"),
    ({"type": "integer"}, "5.0", "a whole number"),
    ({"type": "integer"}, "9" * 5000, "a whole number"),
    ({"type": "number"}, "NaN", "a number"),
    ({"type": "number"}, "1e999", "a number"),
    ({"type": "number"}, "true", "a number"),
    ({"type": "boolean"}, "perhaps", "true or false"),
    ({"type": "object"}, "[]", "a JSON object"),
    ({"type": "object"}, "{", "a JSON object"),
    ({"type": "array"}, "[1", "a JSON list"),
    ({"type": "array", "items": {"type": "integer"}}, "1,b", "a JSON list"),
    (OPTIONAL_INTEGER, "five", "a whole number or null"),
]


def test_a_value_of_the_wrong_kind_is_refused_naming_key_and_kind() -> None:
    for schema, text, expected in REFUSED:
        with case(schema, text, expected):
            with pytest.raises(Fault) as raised:
                parse_value("size", text, schema)
            assert raised.value.exit_code == 2
            assert raised.value.message.startswith(f"size takes {expected}")


SCHEMA = {"properties": {"text": {"type": "string"}, "tags": STRINGS}, "additionalProperties": False}


def test_the_value_is_all_that_follows_the_first_equals_sign() -> None:
    assert parse_pairs(["text=a=b="], SCHEMA, event="a:b") == {"text": "a=b="}


def test_a_list_may_be_given_in_several_words_and_text_may_not() -> None:
    assert parse_pairs(["tags=a", "tags=b,c"], SCHEMA, event="a:b") == {"tags": ["a", "b", "c"]}
    with pytest.raises(Fault, match="text is given twice"):
        parse_pairs(["text=a", "text=b"], SCHEMA, event="a:b")


def test_an_unknown_key_names_the_nearest_parameter() -> None:
    with pytest.raises(Fault, match="a:b has no parameter txet: did you mean text") as raised:
        parse_pairs(["txet=a"], SCHEMA, event="a:b")
    assert raised.value.exit_code == 2
    with pytest.raises(Fault, match="it takes text, tags"):
        parse_pairs(["zzz=a"], SCHEMA, event="a:b")
    with pytest.raises(Fault, match="it takes none"):
        parse_pairs(["zzz=a"], {}, event="a:b")


def test_an_event_that_takes_anything_takes_anything() -> None:
    assert parse_pairs(["zzz=1"], {"additionalProperties": True}, event="a:b") == {"zzz": 1}


def test_a_word_that_is_no_pair_is_refused() -> None:
    for word in ["text", "=text", ""]:
        with case(word), pytest.raises(Fault, match="not key=value"):
            parse_pairs([word], SCHEMA, event="a:b")


@given(st.text())
def test_text_for_a_string_is_never_changed(text: str) -> None:
    assert parse_pairs([f"text={text}"], SCHEMA, event="a:b") == {"text": text}


@given(st.text(), st.sampled_from(["integer", "number", "boolean", "array", "object", "null", "any"]))
def test_no_text_breaks_the_reading_of_any_type(text: str, kind: str) -> None:
    with contextlib.suppress(Fault):
        json.dumps(parse_value("key", text, {"type": kind}), allow_nan=False)
