"""Reads what a program prints as one JSON object a line, in pieces of any size, and the values in it, whatever their types."""

from typing import Any

import msgspec


class JsonLines:
    """Collects pieces of output into lines. A line that is not a JSON object is skipped."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The objects on the lines that are now complete."""
        *ends, rest = data.split(b"\n")
        found: list[dict[str, Any]] = []
        for end in ends:
            self._rest += end
            found += _objects(bytes(self._rest))
            self._rest.clear()
        self._rest += rest
        return found

    def end(self) -> list[dict[str, Any]]:
        """The object on a last line without an end."""
        found = _objects(bytes(self._rest))
        self._rest.clear()
        return found


def _objects(line: bytes) -> list[dict[str, Any]]:
    if not line.lstrip().startswith(b"{"):
        return []
    try:
        value = msgspec.json.decode(line.decode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError):
        return []
    return [value]


def text_in(value: object, *path: str) -> str:
    """A string inside of nested objects; empty if there is none."""
    found = _inside(value, path)
    return found if isinstance(found, str) else ""


def count_in(value: object, *path: str) -> int:
    """A number of things inside of nested objects; 0 if there is none."""
    found = _inside(value, path)
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else 0


def objects_in(value: object, *path: str) -> list[dict[str, Any]]:
    """The objects in a list inside of nested objects."""
    found = _inside(value, path)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _inside(value: object, path: tuple[str, ...]) -> object:
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value
