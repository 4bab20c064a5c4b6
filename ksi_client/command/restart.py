"""`ksi restart`: stop, then start with the settings file of the running daemon."""

from pathlib import Path
from typing import Annotated

import typer

from ksi_client.command.launch import stop_process
from ksi_client.command.screen import Screen
from ksi_client.command.settings import refuse_bad_settings
from ksi_client.command.start import start_detached
from ksi_client.command.status import read_state
from ksi_client.command.verb import Verb, verb_app
from ksi_client.paths import var_dir

app = verb_app()


@app.command(cls=Verb)
def restart(
    context: typer.Context,
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="How long to wait for the stop, and for the start.")
    ] = 15,
) -> None:
    """Stop the daemon if it runs, and start it again; agents' programs go on meanwhile. Returns when it answers.

    With invalid settings the daemon is not stopped (exit 78).
    """
    screen: Screen = context.obj
    var = var_dir()
    state, _ = read_state(var)
    config = Path(state["config_file"]) if state.get("config_file") else None
    refuse_bad_settings(config)  # before the stop, so that invalid settings do not end a running daemon
    if stop_process(var, at_most_s=timeout, keep_agents=True) is None:
        screen.note(f"no daemon was running on {var}")
    start_detached(screen, var, wait_s=timeout, config=config)
