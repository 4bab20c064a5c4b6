"""`ksi send`: send one event and print its answer."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ksi_client.command.complete import complete_agents, complete_events
from ksi_client.command.fault import BAD_DATA, USAGE, Fault
from ksi_client.command.screen import Screen
from ksi_client.command.values import parse_pairs
from ksi_client.command.verb import Verb, verb_app
from ksi_client.sync_client import SyncClient

app = verb_app()


@app.command(cls=Verb)
def send(
    context: typer.Context,
    event: Annotated[str, typer.Argument(help="The event, such as system:echo.", autocompletion=complete_events)],
    pairs: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Its parameters, parsed by its schema.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="All parameters as a JSON object, @FILE, or - for stdin. KEY=VALUE overrides it.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.001, metavar="SECONDS", help="How long to wait.")] = 30,
    correlation: Annotated[
        str | None, typer.Option(metavar="ID", help="Use this correlation id, to link the call to an earlier one.")
    ] = None,
    as_agent: Annotated[
        str | None,
        typer.Option(
            "--as", metavar="AGENT", help="Act as this agent, with its rights.", autocompletion=complete_agents
        ),
    ] = None,
    token_env: Annotated[
        str | None, typer.Option(metavar="VAR", help="Act with the token in this environment variable.")
    ] = None,
) -> None:
    """Send an event and print its answer."""
    screen: Screen = context.obj
    began = time.monotonic()
    token = _read_token(token_env, as_agent) if token_env is not None else None
    given = _read_data(data) if data is not None else {}
    with SyncClient(timeout_s=timeout) as client:
        if pairs:
            help_ = client.send("system:help", {"event": event, "format_style": "json_schema"})
            given |= parse_pairs(pairs, help_["schema"], event=event)
        answer = client.send(event, given, correlation_id=correlation, as_agent=as_agent, token=token)
    screen.show(answer)
    screen.detail(f"{event} answered in {(time.monotonic() - began) * 1000:.1f} ms")


def _read_token(variable: str, as_agent: str | None) -> str:
    """A token from the environment: on the command line every process on this machine could read it."""
    if as_agent is not None:
        raise Fault("--as and --token-env both set the caller", exit_code=USAGE, hint="use only one of them")
    token = os.environ.get(variable, "").strip()
    if not token:
        raise Fault(f"the environment variable {variable} is empty or not set", exit_code=USAGE)
    return token


def _read_data(source: str) -> dict[str, Any]:
    """The object given by --data: JSON text, @FILE or - for stdin."""
    source_name = "--data"
    try:
        if source == "-":
            source_name, text = "standard input", sys.stdin.read()
        elif source.startswith("@"):
            source_name, text = source[1:], Path(source[1:]).read_text(encoding="utf-8")
        else:
            text = source
        value = json.loads(text)
    except OSError as error:
        raise Fault(f"cannot read {source_name}: {error.strerror}", exit_code=USAGE) from error
    except (ValueError, RecursionError) as error:
        raise Fault(
            f"{source_name} is not JSON: {error}", exit_code=BAD_DATA if source_name != "--data" else USAGE
        ) from error
    if not isinstance(value, dict):
        raise Fault(f"{source_name} is not a JSON object", exit_code=USAGE)
    return value
