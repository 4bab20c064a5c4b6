"""`ksi status`: whether the daemon runs, and how it is."""

from pathlib import Path
from typing import Any

import typer

from ksi_client.command.fault import UNREACHABLE
from ksi_client.command.lock import holder
from ksi_client.command.readable import duration
from ksi_client.command.screen import Screen
from ksi_client.command.verb import Verb, verb_app
from ksi_client.errors import KsiError
from ksi_client.paths import socket_file, var_dir
from ksi_client.sync_client import SyncClient

app = verb_app()


@app.command(cls=Verb)
def status(context: typer.Context) -> None:
    """Show the state of the daemon. Exit 5 when it does not answer."""
    screen: Screen = context.obj
    state, answers = look(var_dir())
    show_state(screen, state)
    if not answers:
        raise typer.Exit(UNREACHABLE)


def look(var: Path) -> tuple[dict[str, Any], bool]:
    """What is known of the daemon on this var folder, and whether it was itself that said so."""
    try:
        with SyncClient(socket_file(var), timeout_s=5) as client:
            return dict(client.send("system:status")), True
    except KsiError as error:
        pid = holder(var)
        silent: dict[str, Any] = {"state": "stopped" if pid is None else "unresponsive", "pid": pid or None}
        return silent | {"var_dir": str(var), "socket": str(socket_file(var)), "reason": error.message}, False


def show_state(screen: Screen, state: dict[str, Any]) -> None:
    """Print a state for a person, or as JSON."""
    if screen.json:
        screen.document(state)
        return
    told = {name: value for name, value in state.items() if value not in (None, [], "")}
    if isinstance(told.get("uptime_s"), (int, float)):
        told["uptime"] = duration(told.pop("uptime_s"))
    if isinstance(told.get("started_at"), str):
        told["started_at"] = screen.moment(told["started_at"])
    if isinstance(told.get("plugins"), dict):
        told["plugins"] = ", ".join(f"{number} {name}" for name, number in told["plugins"].items() if number)
    if told.get("state") == "stopped":
        told.pop("reason", None)
        screen.facts(told)
        screen.note("next: ksi start")
    else:
        screen.facts(told)
