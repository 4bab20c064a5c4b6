"""`ksi restart`: stop, then start with the settings file the running daemon had."""

from pathlib import Path
from typing import Annotated

import typer

from ksi_client.command.launch import stop_process
from ksi_client.command.screen import Screen
from ksi_client.command.settings import refuse_bad_settings
from ksi_client.command.start import start_detached
from ksi_client.command.status import look
from ksi_client.command.verb import Verb, verb_app
from ksi_client.paths import var_dir

app = verb_app()


@app.command(cls=Verb)
def restart(
    context: typer.Context,
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="How long to wait for the end, and for the start.")
    ] = 15,
) -> None:
    """Stop the daemon if it runs, and start it again. Returns when it answers. Bad settings stop nothing (exit 78)."""
    screen: Screen = context.obj
    var = var_dir()
    state, _ = look(var)
    config = Path(state["config_file"]) if state.get("config_file") else None
    refuse_bad_settings(config)  # before the stop: a daemon that runs is worth more than one that will not start
    if stop_process(var, at_most_s=timeout) is None:
        screen.note(f"no daemon was running on {var}")
    start_detached(screen, var, wait_s=timeout, config=config)
