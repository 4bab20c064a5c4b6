"""Formats any data as plain text for people: nested names and values, or aligned columns. Safe for a terminal."""

from collections.abc import Sequence
from typing import Any

from ksi_client.terminal import visible


def readable(data: Any) -> str:
    """One name and value per line, nested data indented below its name."""
    return "\n".join(_lines(data)) if isinstance(data, (dict, list)) and data else _scalar(data, indent="")


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns without a frame, nothing truncated."""
    lines = [[column.upper() for column in columns], *rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def duration(seconds: float) -> str:
    """A duration in its two largest units: 3 s, 4 min 10 s, 2 h 5 min, 9 d 3 h."""
    whole = int(seconds)
    for size, unit, smaller_size, smaller_unit in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // smaller_size} {smaller_unit}"
    return f"{seconds:.1f} s"


def _lines(data: Any, indent: str = "") -> list[str]:
    if isinstance(data, dict):
        width = max((len(visible(str(name))) for name, value in data.items() if not _nested(value)), default=0)
        lines = []
        for name, value in data.items():
            label = visible(str(name))
            if _nested(value):
                lines += [f"{indent}{label}:", *_lines(value, indent + "  ")]
            else:
                lines.append(f"{indent}{label + ':':<{width + 1}} {_scalar(value, indent + ' ' * (width + 2))}")
        return lines
    if isinstance(data, list):
        lines = []
        for item in data:
            first, *rest = _lines(item, indent + "  ") if _nested(item) else [_scalar(item, indent + "  ")]
            lines += [f"{indent}- {first.lstrip()}", *rest]
        return lines
    return [indent + _scalar(data, indent)]


def _nested(value: Any) -> bool:
    return isinstance(value, (dict, list)) and bool(value)


def _scalar(value: Any, indent: str) -> str:
    match value:
        case None:
            return "none"
        case True | False:
            return "yes" if value else "no"
        case {} | []:
            return "none"
        case str():
            return visible(value, multiline=True).replace("\n", "\n" + indent)
    return str(value)
