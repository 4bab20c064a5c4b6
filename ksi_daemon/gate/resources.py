"""The grammar of what rights are about: `events/notes:*`, `knowledge/maintainer`, `tables/meals`.

`/` and `:` both separate segments; `*` stands for one whole segment, at the end for one or more. Who holds which right is
left to the rules.
"""

import re
import unicodedata

from ksi_daemon.errors import Invalid

SEGMENT_LIMIT = 64
SEGMENTS_LIMIT = 8
SEGMENT = re.compile(r"[A-Za-z0-9._-]{1,64}")
EVENT_PART = re.compile(r"[a-z][a-z0-9_]*")
SEPARATOR = re.compile(r"[/:]")
# First segments with a meaning of their own: in any other case they would be a rule that looks right and never matches.
ROOTS = frozenset({"events", "knowledge", "librarian", "operation", "raw", "tables", "vectors", "workspace"})

Segments = tuple[str, ...]


def parse_resource(text: str) -> Segments:
    """The segments of a resource or a pattern. Raises `Invalid` with the reason for anything that is not exactly one."""
    if not isinstance(text, str):
        raise Invalid(f"a resource is a text, not {type(text).__name__}")
    if not text:
        raise _refused(text, "it is empty")
    if len(text) > SEGMENTS_LIMIT * (SEGMENT_LIMIT + 1):
        raise _refused(text, f"it has {len(text):,} characters")
    _refuse_characters(text)
    segments = tuple(SEPARATOR.split(text))
    if len(segments) > SEGMENTS_LIMIT:
        raise _refused(text, f"it has {len(segments)} segments, more than {SEGMENTS_LIMIT}")
    for segment in segments:
        if segment != "*":
            _refuse_segment(text, segment)
    if segments[0].lower() in ROOTS and segments[0] not in ROOTS:
        raise _refused(text, f"case matters: its first segment is written {segments[0].lower()!r}")
    if segments[0] == "events":
        _refuse_event(text, segments)
    return segments


def parse_concrete(text: str) -> Segments:
    """The segments of one thing that can be asked for: a resource without `*`."""
    segments = parse_resource(text)
    if "*" in segments:
        raise _refused(text, "it is a pattern, and one exact thing was asked for")
    return segments


def is_open(pattern: Segments) -> bool:
    """Whether it ends in `*` and so takes in longer resources too."""
    return pattern[-1] == "*"


def matches(pattern: Segments, resource: Segments) -> bool:
    """Whether a pattern takes in a concrete resource."""
    if len(resource) < len(pattern) or (len(resource) > len(pattern) and not is_open(pattern)):
        return False
    return all(ours in ("*", theirs) for ours, theirs in zip(pattern, resource, strict=False))


def specificity(pattern: Segments) -> tuple[int, tuple[bool, ...]]:
    """Sorts patterns that match the same thing: literal segments counted, then the leftmost literal, then length."""
    literal = tuple(segment != "*" for segment in pattern)
    return sum(literal), literal


def subsumes(wide: Segments, narrow: Segments) -> bool:
    """Whether everything that `narrow` takes in is taken in by `wide`."""
    if is_open(wide):
        if len(narrow) < len(wide):
            return False
    elif is_open(narrow) or len(narrow) != len(wide):
        return False
    return all(ours in ("*", theirs) for ours, theirs in zip(wide, narrow, strict=False))


def intersection(one: Segments, other: Segments) -> Segments | None:
    """The pattern of what both take in; None when there is no such thing."""
    length = max(len(one), len(other))
    both: list[str] = []
    for pattern in (one, other):
        if len(pattern) < length and not is_open(pattern):
            return None
    for here, there in zip(_stretched(one, length), _stretched(other, length), strict=True):
        if here != there and "*" not in (here, there):
            return None
        both.append(there if here == "*" else here)
    return tuple(both)


def _stretched(pattern: Segments, length: int) -> Segments:
    return pattern + ("*",) * (length - len(pattern))


def _refused(text: str, why: str) -> Invalid:
    return Invalid(
        f"{ascii(text)[:100]} is not a valid resource: {why}",
        hint="segments of letters, digits, '.', '_' and '-', separated by '/' or ':', such as events/notes:* or tables/meals",
    )


def _refuse_characters(text: str) -> None:
    if text != text.strip():
        raise _refused(text, "it begins or ends with a blank")
    for char in text:
        if char.isspace():
            raise _refused(text, f"it has a blank (U+{ord(char):04X}) inside")
        if not char.isascii():
            name = unicodedata.name(char, "a character without a name")
            raise _refused(
                text, f"U+{ord(char):04X} ({name}) is not ASCII, and could pass for something that it is not"
            )
        if not char.isprintable():
            raise _refused(text, f"it has the control character U+{ord(char):04X}")


def _refuse_segment(text: str, segment: str) -> None:
    if not segment:
        raise _refused(text, "it has an empty segment")
    if "*" in segment:
        raise _refused(text, f"'*' stands for a whole segment, not for a part of one as in {segment[:80]!r}")
    if len(segment) > SEGMENT_LIMIT:
        raise _refused(text, f"the segment {segment[:20] + '...'!r} is longer than {SEGMENT_LIMIT} characters")
    if not SEGMENT.fullmatch(segment):
        odd = sorted({char for char in segment if not SEGMENT.fullmatch(char)})
        raise _refused(text, f"{' '.join(odd)} cannot stand in a segment")
    if not segment.strip("."):
        raise _refused(text, f"a segment cannot be only {segment!r}")


def _refuse_event(text: str, segments: Segments) -> None:
    """A rule about events that no event's name can fit would only look like a rule."""
    if segments == ("events",) or (len(segments) == 2 and segments[1] != "*"):
        whole = "events/*" if len(segments) == 1 else f"events/{segments[1]}:*"
        raise _refused(text, f"an event is events/namespace:verb; did you mean {whole!r}?")
    if len(segments) > 3:
        raise _refused(text, "an event is events/namespace:verb and has no further segments")
    for segment in segments[1:]:
        if segment != "*" and not EVENT_PART.fullmatch(segment):
            raise _refused(text, f"event names are lower-case letters, digits and '_', unlike {segment!r}")
