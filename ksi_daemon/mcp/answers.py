"""What a call answers with, in the envelope and the errors of the tool's view, before the SDK writes it."""

from typing import Any

import msgspec

from ksi_daemon.errors import Forbidden, Internal, Invalid, KsiError, NotFound, NotVisible
from ksi_daemon.mcp.refusals import INVALID_PARAMS, error_object, is_refusal, refused_tool
from ksi_daemon.mcp.tools import OfferedTool
from ksi_daemon.principal import Principal
from ksi_daemon.view import Failure, View

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class Answer(msgspec.Struct, frozen=True):
    """A tool's result: the text, the same as data, and whether it is an error."""

    text: str
    structured: dict[str, Any] | None
    is_error: bool = False


class Refusal(msgspec.Struct, frozen=True):
    """An error of the protocol, and the failure that decides the HTTP status."""

    error: KsiError
    rpc_error: dict[str, Any]


def success(tool: OfferedTool | None, result: bytes, log: Any) -> Answer:
    """The answer of a call that succeeded."""
    value = _decode(result)
    if tool is None or tool.view is None or tool.view.dialect.success is None:
        return Answer(result.decode(), value)
    try:
        written = tool.view.dialect.success(tool.name, value)
        return _answer(written)
    except Exception as error:
        log.exception("a view's dialect failed", view=tool.view.name, tool=tool.name)
        details = Internal(f"the result of {tool.name} could not be written: {type(error).__name__}")
        return Answer(_encode(details.as_dict()).decode(), None, is_error=True)


def failure(
    tool: OfferedTool | None, name: str, view: View | None, error: KsiError, principal: Principal, log: Any
) -> Answer | Refusal:
    """The answer of a call that failed, or was refused."""
    dialect_view = view if tool is None or tool.view is None else tool.view
    written = None
    if dialect_view is not None and (tool is None or tool.view is not None):
        written = _in_dialect(dialect_view, tool, name, error, log)
    if written is not None and written.protocol_error:
        code = INVALID_PARAMS if isinstance(error, NotVisible) else error.status
        return Refusal(error, {"code": code, "message": error.message, "data": written.body})
    if written is not None:
        return _answer(written.body, is_error=True)
    if is_refusal(error):
        refused = refused_tool(error, name, principal.agent_id)
        return Refusal(refused, error_object(refused))
    details = error.as_dict()
    if tool is not None and isinstance(error, Invalid) and not error.by_handler:
        # The caller may know only the thin definition, and events are not what it calls.
        hint = "call it again with arguments that fit inputSchema, which is the tool's complete schema"
        details |= {"hint": hint, "inputSchema": tool.full.wire["inputSchema"]}
    return Answer(_encode(details).decode(), None, is_error=True)


def _in_dialect(view: View, tool: OfferedTool | None, name: str, error: KsiError, log: Any) -> Failure | None:
    """The error as the view's specification writes it. The names of a view are public: unknown and denied may differ there."""
    if view.dialect.failure is None:
        return None
    if isinstance(error, NotVisible):
        if tool is None:
            error = NotFound(f"there is no tool {ascii(name)[:100]} in {view.name}")
        else:
            error = Forbidden(f"this agent may not call {tool.name}", hint=error.hint)
    try:
        return view.dialect.failure(name, error)
    except Exception:
        log.exception("a view's dialect failed", view=view.name, tool=name)
        return None


def _answer(value: Any, *, is_error: bool = False) -> Answer:
    """A JSON value as text, and as data, which must be an object."""
    text = _encode(value).decode()
    return Answer(text, value if isinstance(value, dict) else {"result": value}, is_error)
