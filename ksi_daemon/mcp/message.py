"""The JSON-RPC message in a request's body: everything that two parsers could understand differently is refused.

Whether it is a valid request is for the SDK to check.
"""

import unicodedata
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from ksi_daemon.errors import Invalid
from ksi_daemon.hygiene.strict_json import is_usable_id, parse_strictly

MESSAGE_KEYS = {"jsonrpc", "id", "method", "params", "result", "error"}
VERSION_IN_BODY = "io.modelcontextprotocol/protocolVersion"
NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}  # what `Mcp-Name` repeats, by method


def _plain(key: str) -> str:
    """What lenient readers may make of a key."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", key).casefold()))


def _by_plain_form(*keys: str) -> dict[str, str]:
    return {_plain(key): key for key in keys}


PARAMS_KEYS = _by_plain_form(
    "_meta", "name", "arguments", "cursor", "uri", "ref", "argument", "context", "level", "task", "protocolVersion",
    "capabilities", "clientInfo", "requestId", "reason", "progressToken", "progress", "total", "message", "notifications",
    "inputResponses", "requestState",
)  # fmt: skip
META_KEYS = _by_plain_form(
    "progressToken", VERSION_IN_BODY, "io.modelcontextprotocol/clientCapabilities", "io.modelcontextprotocol/clientInfo",
    "io.modelcontextprotocol/logLevel", "io.modelcontextprotocol/subscriptionId",
)  # fmt: skip


class Rpc(msgspec.Struct, frozen=True):
    """A JSON-RPC message, as far as the endpoint needs to know it."""

    method: str | None = None
    id: str | int | None = None
    version: Any = None  # the protocol revision in its `_meta`, as requests since 2026 name it
    name: Any = None  # of the tool, prompt or resource
    params: Mapping[str, Any] = {}


def parse_message(body: bytes) -> Rpc:
    """The message in a body; raises `Invalid`."""
    try:
        message = parse_strictly(body)
    except ValueError as error:
        raise Invalid(f"the body is not a valid JSON document: {str(error)[:200]}") from None
    if not isinstance(message, dict):
        raise Invalid("the body must be one JSON-RPC request or notification", hint="batches are not supported")
    if unknown := message.keys() - MESSAGE_KEYS:
        raise Invalid(f"a JSON-RPC message has no key {ascii(min(unknown))[:80]}")
    if "id" in message and not is_usable_id(message["id"]):
        raise Invalid("id: send text of at most 128 characters or an integer of 64 bits")
    if "method" in message and ("result" in message or "error" in message):
        raise Invalid("a JSON-RPC message with a method has no result and no error")
    params = message.get("params")
    params = params if isinstance(params, dict) else {}
    meta = params.get("_meta")
    meta = meta if isinstance(meta, dict) else {}
    _refuse_lookalike_keys(params, PARAMS_KEYS)
    _refuse_lookalike_keys(meta, META_KEYS)
    method = message.get("method") if isinstance(message.get("method"), str) else None
    return Rpc(method, message.get("id"), meta.get(VERSION_IN_BODY), params.get(NAMED_BY.get(method or "", "")), params)


def _refuse_lookalike_keys(found: Collection[str], known: Mapping[str, str]) -> None:
    """Refuse `Name`, `na_me` and `name` with a NUL: lenient readers take them for the key itself, strict ones ignore them."""
    for key in found:
        meant = known.get(_plain(key), key)
        if meant != key:
            raise Invalid(f"the key {ascii(key)[:80]} is not allowed", hint=f"write it {meant}, or leave it away")
