"""`ksi start`: a daemon detached from the terminal, or in the foreground."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ksi_client.command.fault import TIMED_OUT, Fault
from ksi_client.command.launch import DAEMON, Detached, environment, refuse_second_daemon
from ksi_client.command.screen import Screen
from ksi_client.command.status import read_state, show_state
from ksi_client.command.verb import Verb, verb_app
from ksi_client.paths import output_file, socket_file, var_dir

app = verb_app()

_SHORT_WAIT_S = 1.0

WaitOption = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Return only when the daemon answers, or as soon as its process runs.")
]
WaitSecondsOption = Annotated[float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="How long to wait.")]


@app.command(cls=Verb)
def start(
    context: typer.Context,
    foreground: Annotated[bool, typer.Option("--foreground", "-f", help="Stay in this terminal.")] = False,
    wait: WaitOption = True,
    timeout: WaitSecondsOption = 15,
) -> None:
    """Start the daemon and wait until it answers. Its output goes to var/log/daemon.out; exit 75 when one is already running."""
    var = var_dir()
    refuse_second_daemon(var)
    if foreground:
        sys.stdout.flush()
        os.execve(sys.executable, DAEMON, environment(var))  # noqa: S606  (no shell wanted)
    start_detached(context.obj, var, wait_s=timeout if wait else None)


def start_detached(screen: Screen, var: Path, *, wait_s: float | None, config: Path | None = None) -> None:
    """Start a daemon and print its state."""
    daemon = Detached(var, config)
    if wait_s is None:
        daemon.wait_until(lambda: _answers(var, daemon.pid), at_most_s=_SHORT_WAIT_S)
    elif not daemon.wait_until(lambda: _answers(var, daemon.pid), at_most_s=wait_s):
        raise Fault(
            f"the daemon (pid {daemon.pid}) does not answer yet after {wait_s:g} s; it is still running",
            exit_code=TIMED_OUT,
            hint=f"ksi status, or read {output_file(var)}",
        )
    state, answers = read_state(var)
    if answers and not screen.json:
        screen.line(f"running, pid {state.get('pid')}, {state.get('url')}")
    elif answers:
        show_state(screen, state)
    else:
        show_state(screen, {"state": "starting", "pid": daemon.pid, "var_dir": str(var)})


def _answers(var: Path, pid: int) -> bool:
    """Whether it is this daemon that answers, and not one that is about to end."""
    if not socket_file(var).is_socket():
        return False
    state, answers = read_state(var)
    return answers and state.get("pid") == pid
