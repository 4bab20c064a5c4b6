"""Which parameters a tool's schema has clients repeat as HTTP headers (`x-mcp-header`): plain ones only, and no secrets.

Proxies read and log headers, so a secret must not be in one. `mcp/dynamic_server.py` checks at each call that a header agrees with the body.
"""

import re
from typing import Any

from ksi_daemon.logs.redaction import names_a_secret

KEY = "x-mcp-header"
HEADER_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
TYPES = ("boolean", "integer", "string")


def mirrored_headers(schema: dict[str, Any]) -> dict[str, Any]:
    """The parameters that are repeated, each with the name of its header."""
    return {name: part[KEY] for name, part in schema.get("properties", {}).items() if KEY in part}


def mirroring_problem(schema: dict[str, Any]) -> str | None:
    """What is wrong with the schema's `x-mcp-header` entries, or None. Clients drop a tool whose entries are not valid."""
    headers: dict[str, str] = {}
    for name, header in mirrored_headers(schema).items():
        if not isinstance(header, str) or not HEADER_TOKEN.fullmatch(header):
            return f"the field {name}: {KEY} must be the name of an HTTP header"
        if names_a_secret(name) or names_a_secret(header):
            return (
                f"the field {name} may hold a secret: remove its {KEY}, which shows the value to every proxy on the way"
            )
        if schema["properties"][name].get("type") not in TYPES:
            return f"the field {name}: {KEY} is only for text, integers and booleans, without other choices"
        if header.lower() in headers:
            return f"the fields {headers[header.lower()]} and {name} have the same {KEY}"
        headers[header.lower()] = name
    if _count(schema) != len(headers):
        return f"{KEY} is only for the parameters themselves, not for fields inside of them"
    return None


def _count(schema: Any, *, names_fields: bool = False) -> int:
    """How many parts of a schema have the entry. A field may be named like it."""
    if isinstance(schema, list):
        return sum(_count(part) for part in schema)
    if not isinstance(schema, dict):
        return 0
    own = KEY in schema and not names_fields
    inner = (
        _count(part, names_fields=name in ("properties", "$defs") and not names_fields)
        for name, part in schema.items()
        if name not in ("default", "examples", "const", "enum") or names_fields
    )
    return own + sum(inner)
