"""Makes untrusted text safe to print: characters that could move the cursor, hide or reorder text are escaped.

Every string that comes from a daemon, a plugin, a file or an agent passes `visible` (or `json_text`) before printing.
"""

import json
import unicodedata
from collections.abc import Iterable

# Controls, format characters (bidi, zero-width), line and paragraph separators, private use, surrogates.
_UNSAFE_CATEGORIES = frozenset({"Cc", "Cf", "Zl", "Zp", "Co", "Cs"})
# Letters and marks by category that are not drawn: they could hide in a name.
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")


def visible(text: str, *, multiline: bool = False) -> str:
    """The text with every unsafe character shown as an escape such as `\\x1b` or `\\u202e`.

    `multiline` keeps newlines and tabs, for text of several lines.
    """
    if _is_safe(text):
        return text
    kept = "\n\t" if multiline else ""
    return "".join(
        character if character in kept or not _unsafe(character) else _escape(character) for character in text
    )


def json_text(value: object, *, indent: int | None = None) -> str:
    """The value as JSON that is safe on a terminal and parses back to the same value."""
    separators = (",", ": ") if indent else (",", ":")
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent, separators=separators)
    if _is_safe(text):
        return text
    # Unsafe characters occur inside JSON strings only, where a \u escape means the same; newlines are the indentation.
    return "".join(
        character if character == "\n" or not _unsafe(character) else "".join(_json_escapes(character))
        for character in text
    )


def _is_safe(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _unsafe(character: str) -> bool:
    return unicodedata.category(character) in _UNSAFE_CATEGORIES or character in _INVISIBLE


def _escape(character: str) -> str:
    point = ord(character)
    if point <= 0xFF:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point <= 0xFFFF else f"\\U{point:08x}"


def _json_escapes(character: str) -> Iterable[str]:
    point = ord(character)
    if point <= 0xFFFF:
        yield f"\\u{point:04x}"
    else:
        point -= 0x10000
        yield f"\\u{0xD800 + (point >> 10):04x}"
        yield f"\\u{0xDC00 + (point & 0x3FF):04x}"
