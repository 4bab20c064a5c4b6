"""The tools that call other tools: what they take, and how a batch runs its calls one after the other or side by side.

The MCP server calls their targets in their place (`tool_calls.py`), so that rates, slots and the audit see the targets.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from pydantic import ConfigDict

from ksi_daemon.errors import KsiError, TooLarge
from ksi_daemon.plugin import Field, JsonValue, Params, Result

CALLING_EVENTS = frozenset({"mcp:call_tool", "mcp:batch_call", "mcp:raw_event"})
BATCH_LIMIT = 20

_encode = msgspec.json.Encoder().encode


class ToolCall(Params):
    """One call of a tool."""

    name: str = Field(max_length=100, description="The tool, as ksi_find_tools or tools/list name it.")
    arguments: dict[str, JsonValue] = Field(default_factory=dict, description="The tool's arguments.")


class Batch(Params):
    """Several calls of tools."""

    calls: list[ToolCall] = Field(min_length=1, max_length=BATCH_LIMIT, description="The calls, in order.")
    at_once: bool = Field(False, description="Side by side instead of one after the other.")


class RawEvent(Params):
    """One event, by its own name."""

    event: str = Field(max_length=100, description="The event, such as system:health.")
    data: dict[str, JsonValue] = Field(default_factory=dict, description="The event's parameters.")


class Anything(Result):
    """The target's own result."""

    model_config = ConfigDict(extra="allow", frozen=True)


class Element(Result):
    """What became of one call of a batch."""

    name: str
    ok: bool
    result: JsonValue = Field(None, description="The tool's result, when ok.")
    error: JsonValue = Field(None, description="What went wrong, when not ok: code, message, hint.")


class Elements(Result):
    """What became of each call, in the order of the calls. One that fails does not stop the others."""

    results: list[Element]


async def run_batch(
    batch: Batch, call: Callable[[str, dict[str, Any]], Awaitable[Element]], *, limit_bytes: int
) -> Elements:
    """Make every call. `call` returns what became of one, whatever that is; results that do not fit together become errors."""
    if batch.at_once:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_made(call, one)) for one in batch.calls]
        made = [task.result() for task in tasks]
    else:
        made = [await call(one.name, one.arguments) for one in batch.calls]
    return Elements(results=_fitting(made, limit_bytes))


async def _made(call: Callable[[str, dict[str, Any]], Awaitable[Element]], one: ToolCall) -> Element:
    return await call(one.name, one.arguments)


def failed(name: str, error: KsiError) -> Element:
    """A call that was refused or failed."""
    return Element(name=name, ok=False, error=error.as_dict())


def _fitting(made: list[Element], limit_bytes: int) -> list[Element]:
    fitting: list[Element] = []
    left = limit_bytes
    for element in made:
        size = len(_encode(element.result))
        if size > left:
            error = TooLarge(
                f"{element.name} was called; its result of {size:,} bytes exceeds what is left of {limit_bytes:,} for the batch",
                hint="call it alone if calling it again does no harm",
            )
            fitting.append(failed(element.name, error))
        else:
            left -= size
            fitting.append(element)
    return fitting
