"""`ksi tools`: the tools that an agent sees, one tool's schema, a call of one, and how often and how fast they are called.

A tool's event is looked up in the daemon's list; a tool name is never parsed back into an event.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any

import typer

from ksi_client.command.complete import complete_agents, complete_tools
from ksi_client.command.fault import NOT_FOUND, Fault
from ksi_client.command.screen import Screen
from ksi_client.command.values import parse_pairs
from ksi_client.command.verb import Verb, verb_app
from ksi_client.sync_client import SyncClient
from ksi_client.terminal import json_text, visible

app = verb_app("List, show, call and measure tools.")

_Tool = Annotated[
    str,
    typer.Argument(metavar="TOOL-or-EVENT", help="Such as ksi_state_set.", autocompletion=complete_tools),
]
_As = Annotated[
    str | None,
    typer.Option("--as", metavar="AGENT", help="As this agent, with its rights.", autocompletion=complete_agents),
]


@app.command("ls", cls=Verb)
def list_tools(context: typer.Context, as_agent: _As = None) -> None:
    """List the tools that an agent sees; without --as, all tools."""
    screen: Screen = context.obj
    with SyncClient() as ksi:
        tools = _tools(ksi, as_agent)
    if screen.json:
        screen.document([_in_short(tool) for tool in tools])
        return
    screen.table(
        ("tool", "event", "reads", "summary"),
        [(tool["name"], tool["event"], "yes" if _reads(tool) else "", _summary(tool)) for tool in tools],
        styles={"yes": "good"},
    )
    screen.note(f"{len(tools)} tools; ksi tools show TOOL shows one")


@app.command("show", cls=Verb)
def show_tool(context: typer.Context, tool: _Tool, as_agent: _As = None) -> None:
    """Show one tool: its description and its schemas."""
    screen: Screen = context.obj
    with SyncClient() as ksi:
        found = _find(_tools(ksi, as_agent), tool, as_agent)
    if screen.json:
        screen.document({"tool": found["name"]} | {name: value for name, value in found.items() if name != "name"})
        return
    screen.line(f"{screen.paint(visible(found['name']), 'name')}  {visible(str(found['event']))}")
    screen.line(visible(str(found.get("description") or ""), multiline=True))
    for title, schema in (("takes", found.get("inputSchema")), ("returns", found.get("outputSchema"))):
        screen.line(f"{title}:")
        screen.line(visible(json_text(schema, indent=2), multiline=True))


@app.command("call", cls=Verb)
def call_tool(
    context: typer.Context,
    tool: _Tool,
    pairs: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Its arguments, parsed by its schema.")
    ] = None,
    as_agent: _As = None,
    timeout: Annotated[float, typer.Option(min=0.001, metavar="SECONDS", help="How long to wait.")] = 30,
) -> None:
    """Call a tool and print its answer. With --as the agent's rights decide, and its audit has the call."""
    screen: Screen = context.obj
    with SyncClient(timeout_s=timeout) as ksi:
        # In the operator's list: what this agent may not call is refused, and audited, by the daemon.
        found = _find(_tools(ksi, None), tool, None)
        arguments = parse_pairs(pairs or (), found["inputSchema"], event=found["event"])
        answer = ksi.send(found["event"], arguments, as_agent=as_agent)
    screen.show(answer)


@app.command("stats", cls=Verb)
def show_stats(context: typer.Context) -> None:
    """Show how often each tool was called since the start, its errors and its latencies."""
    screen: Screen = context.obj
    with SyncClient() as ksi:
        names = {tool["event"]: tool["name"] for tool in _tools(ksi, None)}
        counted = ksi.send("monitor:get_stats")["calls"]
    rows = [_measured(names.get(event), event, counts) for event, counts in counted.items()]
    if screen.json:
        screen.document(rows)
        return
    screen.table(
        ("tool", "event", "calls", "err %", "p50 ms", "p95 ms", "p99 ms"),
        [tuple(row[name] for name in _MEASURES) for row in rows],
    )
    if not rows:
        screen.note("no tool was called yet")


_MEASURES = ("tool", "event", "calls", "error_percent", "p50_ms", "p95_ms", "p99_ms")


def _measured(tool: str | None, event: str, counts: Mapping[str, Any]) -> dict[str, Any]:
    calls, errors = counts["calls"], counts["errors"]
    measured = {name: counts.get(name) for name in ("p50_ms", "p95_ms", "p99_ms")}
    percent = round(100 * errors / calls, 1) if calls else 0.0
    return {"tool": tool, "event": event, "calls": calls, "errors": errors, "error_percent": percent} | measured


def _tools(ksi: SyncClient, as_agent: str | None) -> list[dict[str, Any]]:
    """The tools as MCP describes them, each with its event, sorted by name."""
    found = ksi.send("system:discover", {"detail": True, "format_style": "mcp"}, as_agent=as_agent)["events"]
    return sorted((event for event in found.values() if event.get("name")), key=lambda tool: str(tool["name"]))


def _find(tools: list[dict[str, Any]], wanted: str, as_agent: str | None) -> dict[str, Any]:
    for tool in tools:
        if wanted in (tool["name"], tool["event"]):
            return tool
    near = get_close_matches(wanted, [tool["name"] for tool in tools], n=1)
    listing = "ksi tools ls" if as_agent is None else f"ksi tools ls --as {as_agent}"
    raise Fault(
        f"there is no tool {wanted!r}" + ("" if as_agent is None else f" for {as_agent}"),
        exit_code=NOT_FOUND,
        hint=f"did you mean {near[0]}?" if near else f"{listing} shows the tools",
    )


def _in_short(tool: Mapping[str, Any]) -> dict[str, Any]:
    title = tool.get("title") or tool.get("annotations", {}).get("title")
    return {
        "tool": tool["name"],
        "event": tool["event"],
        "title": title,
        "summary": _summary(tool),
        "reads": _reads(tool),
    }


def _summary(tool: Mapping[str, Any]) -> str:
    return str(tool.get("description") or "").strip().partition("\n")[0]


def _reads(tool: Mapping[str, Any]) -> bool:
    return bool(tool.get("annotations", {}).get("readOnlyHint"))
