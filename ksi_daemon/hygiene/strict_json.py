"""JSON as callers send it: duplicate keys and deep nesting are refused, at every level.

Parsers differ in which of two equal keys they take, so what was checked need not be what is used. msgspec takes the last one and
has no option to refuse. This costs 2 µs for a small request and about as much as parsing for a large one.
"""

import json
from typing import Any, TypeGuard

import msgspec

NESTING_LIMIT = 64
ID_LIMIT = 128


def parse_strictly(text: bytes) -> Any:
    """A JSON document's value. Raises `ValueError` that says what is wrong with it."""
    try:
        value = _parse(text)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error
    except RecursionError as error:
        raise ValueError(f"nested deeper than {NESTING_LIMIT}") from error
    refuse_duplicate_keys(text)
    refuse_deep_nesting(text, value)
    return value


def refuse_duplicate_keys(text: bytes) -> None:
    """Raise `ValueError` when an object in this JSON document, which must be valid, has a key twice."""
    _check_keys(text.decode())


def refuse_deep_nesting(text: bytes, value: Any) -> None:
    """Raise `ValueError` when the value parsed from this text is nested deeper than the limit."""
    if len(text) > NESTING_LIMIT and text.count(b"{") + text.count(b"[") > NESTING_LIMIT:
        level, depth = [value], 0
        while level:
            depth += 1
            if depth > NESTING_LIMIT:
                raise ValueError(f"nested deeper than {NESTING_LIMIT}")
            level = [
                inner
                for outer in level
                for inner in (outer.values() if isinstance(outer, dict) else outer)
                if isinstance(inner, dict | list)
            ]


def is_usable_id(candidate: object) -> TypeGuard[str | int]:
    """Whether a request's id can be repeated in its reply: short text, or an integer of 64 bits."""
    if isinstance(candidate, str):
        return len(candidate) <= ID_LIMIT
    return type(candidate) is int and -(2**63) <= candidate < 2**63


def _refuse_twice(pairs: list[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {ascii(twice)[:80]} occurs twice in one object")


_parse = msgspec.json.Decoder().decode
_check_keys = json.JSONDecoder(object_pairs_hook=_refuse_twice).decode
