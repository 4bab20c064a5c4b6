"""`tools/call` without the protocol: from a tool's name to its answer. A tool that calls others is replaced by its targets first.

Nested calls pay no rate and take no slot, so a target is never called inside of another call: each is the router's own.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from ksi_daemon.errors import Invalid, KsiError
from ksi_daemon.identifiers import EVENT_NAME
from ksi_daemon.mcp.answers import Answer, Refusal, failure, success
from ksi_daemon.mcp.calling_tools import CALLING_EVENTS, Batch, Element, RawEvent, ToolCall, failed, run_batch
from ksi_daemon.mcp.calls import Calls
from ksi_daemon.mcp.tools import OfferedTool, Tools
from ksi_daemon.plugin import Feedback
from ksi_daemon.principal import Principal

_decode = msgspec.json.Decoder().decode


class ToolCalls:
    """Answers calls by tool name."""

    def __init__(self, tools: Tools, calls: Calls, log: Any) -> None:
        self._tools = tools
        self._calls = calls
        self._log = log

    async def answer(
        self,
        name: str,
        arguments: Mapping[str, Any],
        principal: Principal,
        view: str | None,
        feedback: Feedback | None = None,
    ) -> Answer | Refusal:
        """Call a tool by the name that the caller uses, and return what to reply."""
        call = _Call(principal, view, feedback)
        tool = self._tools.find(name, view)
        match self._wanted(tool, arguments, principal):
            case ToolCall() as target:
                return await self._call_target(target.name, target.arguments, call)
            case Batch() as batch:  # of several calls the client could not tell whose progress it is shown
                return await self._call_all(batch, _Call(principal, view))
            case RawEvent() as raw:
                return await self._call_event(raw, call)
        return await self._call(tool, name, arguments, call)

    def _wanted(self, tool: OfferedTool | None, arguments: Mapping[str, Any], principal: Principal) -> Any:
        """What a calling tool is asked to call. None for every other tool, and for what the router is to refuse."""
        if tool is None or tool.handler.event not in CALLING_EVENTS or not self._tools.allows(principal, tool):
            return None
        try:
            return tool.handler.parse(arguments)
        except Invalid:  # the router charges, refuses and records it
            return None

    async def _call_target(self, name: str, arguments: Mapping[str, Any], call: "_Call") -> Answer | Refusal:
        tool = self._tools.find(name, call.view)
        try:
            await self._refuse_calling_tool(tool, call.principal)
        except KsiError as error:
            return failure(None, name, None, error, call.principal, self._log)
        return await self._call(tool, name, arguments, call)

    async def _call_event(self, raw: RawEvent, call: "_Call") -> Answer | Refusal:
        tool = self._tools.of_event(raw.event)
        try:
            await self._refuse_calling_tool(tool, call.principal)
            result = await self._calls.run(raw.event, raw.data, call.principal, call.feedback)
            return success(tool, result, self._log)
        except KsiError as error:
            return failure(tool, raw.event, None, error, call.principal, self._log)

    async def _refuse_calling_tool(self, tool: OfferedTool | None, principal: Principal) -> None:
        if tool is not None and tool.handler.event in CALLING_EVENTS and self._tools.allows(principal, tool):
            error = Invalid(f"{tool.name} calls tools and cannot be called by one", hint=f"call {tool.name} directly")
            await self._calls.record_bad_request(principal, error)
            raise error

    async def _call(
        self, tool: OfferedTool | None, name: str, arguments: Mapping[str, Any], call: "_Call"
    ) -> Answer | Refusal:
        try:
            result = await self._calls.run(_event(tool, name), arguments, call.principal, call.feedback)
            return success(tool, result, self._log)
        except KsiError as error:
            return failure(tool, name, self._tools.view(call.view), error, call.principal, self._log)

    async def _call_all(self, batch: Batch, call: "_Call") -> Answer:
        async def make(name: str, arguments: dict[str, Any]) -> Element:
            return _element(name, await self._call_target(name, arguments, call))

        elements = await run_batch(batch, make, limit_bytes=self._calls.result_limit_bytes)
        return Answer(elements.model_dump_json(), elements.model_dump())


class _Call(msgspec.Struct, frozen=True):
    """Who calls, through which view, and where progress and log lines go."""

    principal: Principal
    view: str | None
    feedback: Feedback | None = None


def _element(name: str, answer: Answer | Refusal) -> Element:
    if isinstance(answer, Refusal):
        return failed(name, answer.error)
    value = answer.structured if answer.structured is not None else _decode(answer.text)
    return Element(name=name, ok=False, error=value) if answer.is_error else Element(name=name, ok=True, result=value)


def _event(tool: OfferedTool | None, name: str) -> str:
    """The tool's event. An unknown name the router refuses and records, also one of an event: only ksi_raw_event calls by those."""
    if tool is not None:
        return tool.handler.event
    return f"tool {name}" if EVENT_NAME.fullmatch(name) else name
