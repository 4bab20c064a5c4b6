"""Describes handlers and notices: as MCP tools, and in the other formats of `system:help` and `system:discover`."""

import json
import re
from typing import Any, Literal

from ksi_daemon.handler import Handler

SIGNATURE_DEPTH = 4
PLAIN_WORD = "word"

Format = Literal["verbose", "compact", "ultra_compact", "mcp", "json_schema"]


def describe(handler: Handler, style: Format) -> dict[str, Any]:
    """Describe an event in one format."""
    return {
        "verbose": _verbose,
        "compact": _compact,
        "ultra_compact": _ultra_compact,
        "mcp": _mcp,
        "json_schema": _json_schema,
    }[style](handler)


def describe_notice(event: str, plugin: str, meaning: str) -> dict[str, Any]:
    """Describe a notice: it has a meaning, but no parameters."""
    return {"event": event, "kind": "notice", "plugin": plugin, "summary": meaning, "description": meaning}


def tool_definition(handler: Handler) -> dict[str, Any]:
    """The handler as an MCP tool, with its complete schemas."""
    declared = handler.traits.annotations
    hints = {
        "readOnlyHint": handler.traits.reads,
        "destructiveHint": declared.destructive,
        "idempotentHint": declared.idempotent,
        "openWorldHint": declared.open_world,
    }
    return {
        "name": handler.tool,
        "title": handler.title,
        "description": handler.description,
        "inputSchema": handler.input_schema,
        "outputSchema": handler.output_schema,
        "annotations": {name: hint for name, hint in hints.items() if hint is not None},
    }


def thin_definition(definition: dict[str, Any]) -> dict[str, Any]:
    """A tool in short: its name, and one line that ends in its signature. A call that does not fit gets the whole schema."""
    line = " ".join(definition["description"].split("\n\n")[0].split())
    description = f"{line} {signature(definition['inputSchema'])}"
    return {"name": definition["name"], "description": description, "inputSchema": {"type": "object"}}


def _verbose(handler: Handler) -> dict[str, Any]:
    return {
        "event": handler.event,
        "kind": "call",
        "plugin": handler.plugin,
        "summary": handler.summary,
        "description": handler.description,
        "tool": handler.tool,
        "reads": handler.traits.reads,
        "timeout_s": handler.traits.timeout_s,
        "parameters": _parameters(handler.input_schema),
        "result": _parameters(handler.output_schema),
    }


def _compact(handler: Handler) -> dict[str, Any]:
    shown = {name: _in_short(parameter) for name, parameter in _parameters(handler.input_schema).items()}
    return {"event": handler.event, "summary": handler.summary, "parameters": shown}


def _in_short(parameter: dict[str, Any]) -> str:
    if parameter["required"]:
        return f"{parameter['type']}, required"
    return (
        f"{parameter['type']}, default {parameter['default']!r}"
        if "default" in parameter
        else f"{parameter['type']}, optional"
    )


def _ultra_compact(handler: Handler) -> dict[str, Any]:
    names = [
        name if parameter["required"] else f"{name}?" for name, parameter in _parameters(handler.input_schema).items()
    ]
    return {"event": handler.event, "parameters": names}


def _mcp(handler: Handler) -> dict[str, Any]:
    return {"event": handler.event, **tool_definition(handler)}


def _json_schema(handler: Handler) -> dict[str, Any]:
    return {"event": handler.event, "schema": handler.input_schema, "result_schema": handler.output_schema}


def _parameters(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    required = schema.get("required", [])
    return {name: _parameter(schema, part, name in required) for name, part in schema.get("properties", {}).items()}


def _parameter(schema: dict[str, Any], part: dict[str, Any], required: bool) -> dict[str, Any]:
    omitted = ("title", "type", "anyOf", "allOf", "$ref", "items")
    return {"type": type_name(schema, part), "required": required} | {
        name: value for name, value in part.items() if name not in omitted
    }


def type_name(schema: dict[str, Any], part: dict[str, Any]) -> str:
    """A JSON Schema type in a few words: `array of string`, `string or null`, `one of a, b`."""
    if "$ref" in part:
        return type_name(schema, schema.get("$defs", {}).get(part["$ref"].rsplit("/", 1)[-1], {"type": "object"}))
    if "enum" in part:
        return "one of " + ", ".join(str(value) for value in part["enum"])
    if "anyOf" in part:
        return " or ".join(type_name(schema, option) for option in part["anyOf"])
    if part.get("type") == "array":
        return f"array of {type_name(schema, part.get('items', {}))}"
    return str(part.get("type", "any"))


def signature(schema: dict[str, Any]) -> str:
    """The parameters as one short line: `(key: string, value: any, limit?: integer 1..1000)`.

    Limits are in it that a plain value could miss: of numbers and of how many items, and patterns that an ordinary word does not match.
    """
    return f"({_members(schema, schema, depth=0)})"


def _members(schema: dict[str, Any], part: dict[str, Any], *, depth: int) -> str:
    required = part.get("required", [])
    return ", ".join(
        f"{name}{'' if name in required else '?'}: {_short_type(schema, member, depth=depth)}"
        for name, member in part.get("properties", {}).items()
    )


def _short_type(schema: dict[str, Any], part: dict[str, Any], *, depth: int) -> str:
    if depth > SIGNATURE_DEPTH:
        return "any"
    if "$ref" in part:
        named = schema.get("$defs", {}).get(part["$ref"].rsplit("/", 1)[-1], {})
        return _short_type(schema, named, depth=depth + 1)
    if "const" in part:
        return json.dumps(part["const"])
    if "enum" in part:
        return "|".join(json.dumps(value) for value in part["enum"])
    for choice in ("anyOf", "oneOf"):
        if choice in part:
            return "|".join(dict.fromkeys(_short_type(schema, option, depth=depth + 1) for option in part[choice]))
    if "prefixItems" in part:
        return f"[{', '.join(_short_type(schema, item, depth=depth + 1) for item in part['prefixItems'])}]"
    if part.get("type") == "array":
        inner = _short_type(schema, part.get("items", {}), depth=depth + 1)
        fewest = f"{part['minItems']}.." if part.get("minItems") else ""
        return f"({inner})[{fewest}]" if "|" in inner or " " in inner else f"{inner}[{fewest}]"
    if part.get("properties"):
        return f"{{{_members(schema, part, depth=depth + 1)}}}"
    return str(part.get("type", "any")) + _limits(part)


def _number(limit: Any) -> str:
    """A limit as short as it can be written: 60, not 60.0."""
    return str(int(limit)) if isinstance(limit, float) and limit.is_integer() else str(limit)


def _limits(part: dict[str, Any]) -> str:
    """The limits of a number, the least length and the pattern of a text; nothing where any plain value fits."""
    least, most = _number(part.get("minimum", "")), _number(part.get("maximum", ""))
    outside = (("exclusiveMinimum", ">"), ("exclusiveMaximum", "<"))
    limits = "".join(f" {sign}{_number(part[name])}" for name, sign in outside if name in part)
    limits += f" {least}..{most}" if (least, most) != ("", "") else ""
    if limits:
        return limits
    if part.get("minLength", 0) > len(PLAIN_WORD):
        return f" of {part['minLength']}.. characters"
    pattern = part.get("pattern")
    return f" like {json.dumps(pattern)}" if pattern is not None and not re.search(pattern, PLAIN_WORD) else ""
