"""`ksi status`: the state of the daemon."""

from pathlib import Path
from typing import Any

import typer

from ksi_client.command.fault import UNREACHABLE
from ksi_client.command.lock import holder
from ksi_client.command.readable import duration
from ksi_client.command.screen import Screen
from ksi_client.command.verb import Verb, verb_app
from ksi_client.errors import KsiError
from ksi_client.paths import chosen_var_dir, socket_file
from ksi_client.sync_client import SyncClient

app = verb_app()


@app.command(cls=Verb)
def status(context: typer.Context) -> None:
    """Show the state of the daemon. Exit 5 when it does not answer."""
    screen: Screen = context.obj
    var, reason = chosen_var_dir()
    state, answers = read_state(var)
    show_state(screen, state | {"var_dir_from": reason})
    if not answers:
        raise typer.Exit(UNREACHABLE)


def read_state(var: Path) -> tuple[dict[str, Any], bool]:
    """The state of the daemon on this var folder, and whether the daemon itself answered."""
    try:
        with SyncClient(socket_file(var), timeout_s=5) as client:
            return dict(client.send("system:status")), True
    except KsiError as error:
        pid = holder(var)
        unanswered: dict[str, Any] = {"state": "stopped" if pid is None else "unresponsive", "pid": pid or None}
        return unanswered | {"var_dir": str(var), "socket": str(socket_file(var)), "reason": error.message}, False


def show_state(screen: Screen, state: dict[str, Any]) -> None:
    """Print a state for a person, or as JSON."""
    if screen.json:
        screen.document(state)
        return
    fields = {name: value for name, value in state.items() if value not in (None, [], "")}
    if "var_dir_from" in fields:
        fields["var_dir"] = f"{fields.get('var_dir')} ({fields.pop('var_dir_from')})"
    if isinstance(fields.get("uptime_s"), (int, float)):
        fields["uptime"] = duration(fields.pop("uptime_s"))
    if isinstance(fields.get("started_at"), str):
        fields["started_at"] = screen.moment(fields["started_at"])
    if isinstance(fields.get("plugins"), dict):
        fields["plugins"] = ", ".join(f"{number} {name}" for name, number in fields["plugins"].items() if number)
    if fields.get("state") == "stopped":
        fields.pop("reason", None)
        screen.facts(fields)
        screen.note("next: ksi start")
    else:
        screen.facts(fields)
