"""`ksi events`: list events, show the help of one, and follow notices."""

from typing import Annotated, Any

import typer

from ksi_client.command.complete import complete_events
from ksi_client.command.screen import Screen
from ksi_client.command.verb import Verb, verb_app
from ksi_client.sync_client import SyncClient
from ksi_client.terminal import visible

app = verb_app("List, explain and watch events.")


@app.command("ls", cls=Verb)
def list_events(
    context: typer.Context,
    namespace: Annotated[str | None, typer.Option("--namespace", "-n", help="Only events of this namespace.")] = None,
) -> None:
    """List the events of this daemon."""
    screen: Screen = context.obj
    with SyncClient() as client:
        found = client.send("system:discover", {"namespace": namespace} if namespace else {})
    if screen.json:
        screen.document(found)
        return
    events = found.get("events", {})
    screen.table(
        ("event", "kind", "plugin", "summary"),
        [(name, _kind(event), event.get("plugin"), event.get("summary")) for name, event in sorted(events.items())],
        styles={"notice": "faint", "read": "good"},
    )
    screen.note(f"{len(events)} events; ksi events help EVENT shows one")


def _kind(event: dict[str, Any]) -> str:
    if event.get("kind") == "notice":
        return "notice"
    return "read" if event.get("reads") else "call"


@app.command("help", cls=Verb)
def explain_event(
    context: typer.Context,
    event: Annotated[str, typer.Argument(help="The event, such as state:set.", autocompletion=complete_events)],
) -> None:
    """Show what an event does, its parameters and its result."""
    screen: Screen = context.obj
    with SyncClient() as client:
        known = client.send("system:help", {"event": event})
    if screen.json:
        screen.document(known)
        return
    summary = visible(str(known.get("summary") or ""))
    screen.line(f"{screen.paint(visible(str(known.get('event', event))), 'name')}  {summary}")
    description = str(known.get("description") or "").strip()
    if description and description != known.get("summary"):
        screen.line(visible(description, multiline=True))
    fields = {
        name: known[name] for name in ("kind", "plugin", "tool", "reads", "timeout_s") if known.get(name) is not None
    }
    screen.facts(fields)
    parameters = known.get("parameters") or {}
    if parameters:
        screen.line()
        screen.table(
            ("parameter", "type", "needed", "default", "description"),
            [_parameter_row(name, parameter) for name, parameter in parameters.items()],
            styles={"yes": "warn"},
        )


def _parameter_row(name: str, parameter: dict[str, Any]) -> tuple[Any, ...]:
    from ksi_client.terminal import json_text

    default = json_text(parameter["default"]) if "default" in parameter else ""
    needed = "yes" if parameter.get("required") else ""
    return name, parameter.get("type"), needed, default, parameter.get("description")


@app.command("tail", cls=Verb)
def tail_events(
    context: typer.Context,
    patterns: Annotated[
        list[str] | None, typer.Argument(metavar="PATTERN", help="Such as agent:* (default: everything).")
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Start with notices since then: 90s, 10m, 2h, 1d or an ISO time.")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", "-c", min=1, help="Stop after this many notices.")] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="text|jsonl", help="Output format of each notice.")
    ] = "text",
) -> None:
    """Print notices as they happen, until Ctrl-C."""
    from ksi_client.command.tail import follow

    follow(context.obj, tuple(patterns or ("*",)), since=since, count=count, output=output)
