"""Parses `key=value` arguments into an event's data; each value is parsed by the event's JSON Schema."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from ksi_client.command.fault import USAGE, Fault

_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_KINDS = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a JSON list or a,b,c",
    "object": 'a JSON object such as {"name": 1}',
    "null": "null",
}


def parse_pairs(pairs: Sequence[str], schema: Mapping[str, Any], *, event: str) -> dict[str, Any]:
    """The data of the arguments. A list parameter may be repeated."""
    data: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise Fault(f"{pair!r} is not key=value", exit_code=USAGE, hint=f"ksi events help {event}")
        value = parse_value(key, text, _parameter(schema, key, event=event), definitions=schema.get("$defs", {}))
        if key in data and isinstance(data[key], list) and isinstance(value, list):
            data[key] += value
        elif key in data:
            raise Fault(f"{key} is given twice", exit_code=USAGE)
        else:
            data[key] = value
    return data


def parse_value(key: str, text: str, schema: Any, *, definitions: Mapping[str, Any] = {}) -> Any:
    """Parse one value. Text stays text if the schema allows a string; otherwise it must match the schema's type."""
    kinds = list(_kinds(schema, definitions))
    takes_text = any(kind == "string" for kind, _ in kinds)
    for kind, detail in kinds:
        if kind == "string" or (
            kind == "null" and takes_text
        ):  # "null" may be meant as text; leaving the key out is null
            continue
        try:
            return _READERS[kind](text, detail, definitions)
        except (ValueError, RecursionError):
            continue
    if takes_text:
        return text
    expected = " or ".join(dict.fromkeys(_KINDS[kind] for kind, _ in kinds))
    raise Fault(f"{key} takes {expected}, not {text!r}", exit_code=USAGE)


def _parameter(schema: Mapping[str, Any], key: str, *, event: str) -> Any:
    properties = schema.get("properties", {})
    if key in properties:
        return properties[key]
    if schema.get("additionalProperties", False) is not False:
        return schema["additionalProperties"]
    near = get_close_matches(key, properties, n=1, cutoff=0.5)
    takes = f"it takes {', '.join(properties)}" if properties else "it takes none"
    guess = f"did you mean {near[0]}?" if near else takes
    raise Fault(f"{event} has no parameter {key}: {guess}", exit_code=USAGE, hint=f"ksi events help {event}")


def _kinds(schema: Any, definitions: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every type the schema allows, with its part of the schema; "any" if no type is given."""
    if not isinstance(schema, Mapping):
        yield "any", {}
    elif "$ref" in schema:
        yield from _kinds(definitions.get(str(schema["$ref"]).rsplit("/", 1)[-1], True), definitions)
    elif choices := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
        for choice in choices:
            yield from _kinds(choice, definitions)
    elif "type" in schema:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        yield from ((name if name in _READERS or name == "string" else "any", schema) for name in names)
    elif options := schema.get("enum") or ([schema["const"]] if "const" in schema else None):
        for option in options:
            yield ("string" if isinstance(option, str) else "any"), schema
    else:
        yield "any", schema


def _integer(text: str, *_: Any) -> int:
    return int(text, 10)


def _number(text: str, *_: Any) -> int | float:
    value = json.loads(text, parse_constant=_refuse)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value in (float("inf"), float("-inf")):
        raise ValueError
    return value


def _boolean(text: str, *_: Any) -> bool:
    if text.lower() not in _BOOLEANS:
        raise ValueError
    return _BOOLEANS[text.lower()]


def _null(text: str, *_: Any) -> None:
    if text != "null":
        raise ValueError


def _array(text: str, schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> list[Any]:
    if text.lstrip().startswith("["):
        value = json.loads(text, parse_constant=_refuse)
        if not isinstance(value, list):
            raise ValueError
        return value
    items = schema.get("items", True)
    try:
        return (
            [parse_value("", part.strip(), items, definitions=definitions) for part in text.split(",")] if text else []
        )
    except Fault as error:
        raise ValueError from error


def _object(text: str, *_: Any) -> dict[str, Any]:
    value = json.loads(text, parse_constant=_refuse)
    if not isinstance(value, dict):
        raise ValueError
    return value


def _any(text: str, *_: Any) -> Any:
    """No type given: parsed as JSON if possible, else kept as text."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except ValueError:
        return text


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


_READERS: dict[str, Callable[..., Any]] = {
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "null": _null,
    "array": _array,
    "object": _object,
    "any": _any,
}
