"""Front matter: the YAML mapping between two `---` lines at the top of a note.

Strict on purpose: no tags, no duplicate keys, no aliases, bounded size and depth. Which keys mean something is the caller's
business, and so is what to do with a text whose front matter is refused.
"""

from dataclasses import dataclass, field
from typing import Any

FRONT_MATTER_LIMIT_CHARACTERS = 65_536
DEPTH_LIMIT = 32
PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "timestamp"))


class BadFrontMatter(ValueError):
    """The front matter is not one plain mapping; the message says why, with the line where it is known."""


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """The values, and where the text behind them starts."""

    values: dict[str, Any] = field(default_factory=dict)
    body_start: int = 0


def read_front_matter(text: str) -> FrontMatter:
    """The front matter of a text; an empty one when the text has none."""
    body = text.removeprefix("\ufeff")
    offset = len(text) - len(body)
    first, separator, _ = body.partition("\n")
    if not separator or first.rstrip() != "---":
        return FrontMatter()
    position = len(first) + 1
    start = position
    while position < len(body):
        end = body.find("\n", position)
        end = len(body) if end < 0 else end
        if body[position:end].rstrip() in ("---", "..."):
            return FrontMatter(_mapping(body[start:position]), offset + min(end + 1, len(body)))
        if end - start > FRONT_MATTER_LIMIT_CHARACTERS:
            raise BadFrontMatter(f"the front matter is longer than {FRONT_MATTER_LIMIT_CHARACTERS:,} characters")
        position = end + 1
    return FrontMatter()


def _mapping(source: str) -> dict[str, Any]:
    if len(source) > FRONT_MATTER_LIMIT_CHARACTERS:
        raise BadFrontMatter(f"the front matter is longer than {FRONT_MATTER_LIMIT_CHARACTERS:,} characters")
    import yaml

    try:
        _refuse_unsafe_events(source)
        node = yaml.compose(source, Loader=yaml.SafeLoader)
        if node is None:
            return {}
        if not isinstance(node, yaml.MappingNode):
            raise BadFrontMatter("the front matter is not a mapping of keys to values")
        _refuse_duplicate_keys(node)
        value = yaml.safe_load(source)
    except (yaml.YAMLError, ValueError) as error:
        if isinstance(error, BadFrontMatter):
            raise
        raise BadFrontMatter(f"the front matter is not valid YAML: {' '.join(str(error).split())}") from error
    return {str(key): item for key, item in value.items()}


def _refuse_unsafe_events(source: str) -> None:
    """Look at the stream of events before anything is built: an alias can make a small text into a huge value."""
    import yaml

    depth = 0
    for event in yaml.parse(source, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 2 if event.start_mark else 0
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise BadFrontMatter(f"line {line}: anchors and aliases are not allowed")
        if tag := getattr(event, "tag", None):
            raise BadFrontMatter(f"line {line}: the tag {tag} is not allowed")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEPTH_LIMIT:
            raise BadFrontMatter(f"line {line}: nested deeper than {DEPTH_LIMIT} levels")


def _refuse_duplicate_keys(node: Any) -> None:
    import yaml

    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_duplicate_keys(item)
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, item in node.value:
            line = key.start_mark.line + 2
            if not isinstance(key, yaml.ScalarNode):
                raise BadFrontMatter(f"line {line}: a key must be a plain word")
            if key.tag not in PLAIN_TAGS:
                raise BadFrontMatter(f"line {line}: the key {key.value!r} is not a plain word")
            if key.value in seen:
                raise BadFrontMatter(f"line {line}: the key {key.value!r} occurs twice")
            seen.add(key.value)
            _refuse_duplicate_keys(item)
