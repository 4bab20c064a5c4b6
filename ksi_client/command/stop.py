"""`ksi stop`: ask the daemon to finish its calls and exit, and wait for it."""

import time
from typing import Annotated

import typer

from ksi_client.command.launch import stop_process
from ksi_client.command.screen import Screen
from ksi_client.command.verb import Verb, verb_app
from ksi_client.paths import var_dir

app = verb_app()

StopSecondsOption = Annotated[float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="How long to wait.")]


@app.command(cls=Verb)
def stop(context: typer.Context, timeout: StopSecondsOption = 15) -> None:
    """Stop the daemon. Not an error if none is running."""
    screen: Screen = context.obj
    var = var_dir()
    began = time.monotonic()
    pid = stop_process(var, at_most_s=timeout)
    if screen.json:
        screen.document({"state": "stopped", "pid": pid, "was_running": pid is not None})
    elif pid is None:
        screen.note(f"no daemon is running on {var}")
    else:
        screen.line(f"stopped, pid {pid} ended after {time.monotonic() - began:.1f} s")
