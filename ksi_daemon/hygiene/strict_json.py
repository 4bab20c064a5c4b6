"""JSON as callers send it: duplicate keys are refused, at every level.

Parsers differ in which of two equal keys they take, so what was checked need not be what is used. msgspec takes the last one and
has no option to refuse. This costs 2 µs for a small request and about as much as parsing for a large one.
"""

import json
from typing import Any


def refuse_duplicate_keys(text: bytes) -> None:
    """Raise `ValueError` when an object in this JSON document, which must be valid, has a key twice."""
    _decode(text.decode())


def _check(pairs: list[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {ascii(twice)[:80]} occurs twice in one object")


_decode = json.JSONDecoder(object_pairs_hook=_check).decode
