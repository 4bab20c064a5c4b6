"""Markdown pieces that several pages share: tables, and JSON Schema types with their bounds in words."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from ksi_daemon.routing.describe import type_name

HEAD = "<!-- Written by scripts/docs from the code; do not edit. -->\n\n"

Schema = dict[str, Any]


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a bar or line break inside a cell cannot break it."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def code(text: str) -> str:
    """As code, or nothing."""
    return f"`{text}`" if text else ""


def value(thing: Any) -> str:
    """A default as JSON, in code."""
    return code(json.dumps(thing))


def in_words(schema: Schema, part: Schema) -> str:
    """A type with its bounds: `string, 1 to 256 characters`."""
    words = [type_name(schema, part)]
    for option in part.get("anyOf", [part]):
        words += _bounds(option)
    return ", ".join(words)


def _bounds(part: Schema) -> list[str]:
    bounds: list[str] = []
    for low, high, unit in (("minLength", "maxLength", " characters"), ("minItems", "maxItems", " entries")):
        if low in part or high in part:
            bounds.append(_range(part.get(low), part.get(high)) + unit)
    if "exclusiveMinimum" in part:
        bounds.append(f"above {part['exclusiveMinimum']:,}")
    if "minimum" in part or "maximum" in part:
        bounds.append(_range(part.get("minimum"), part.get("maximum")))
    return bounds


def _range(low: float | None, high: float | None) -> str:
    if low is None:
        return f"at most {high:,}"
    if high is None:
        return f"at least {low:,}"
    return f"{low:,} to {high:,}" if low != high else f"{low:,}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
