"""`ksi usage`: the tokens that completions used, added up."""

from typing import Annotated

import typer

from ksi_client.command.complete import complete_agents
from ksi_client.command.fault import USAGE, Fault
from ksi_client.command.screen import Screen
from ksi_client.command.verb import Verb, verb_app
from ksi_client.sync_client import SyncClient

app = verb_app()

_GROUPS = ("agent", "conversation", "handshake", "day")


@app.command(cls=Verb)
def usage(
    context: typer.Context,
    by: Annotated[str, typer.Option(metavar="GROUP", help="agent, conversation, handshake or day.")] = "agent",
    agent: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this agent's.", autocompletion=complete_agents)
    ] = None,
    since: Annotated[str | None, typer.Option(metavar="DAY", help="From this day on (UTC): 2026-11-19.")] = None,
) -> None:
    """Show the tokens that completions used, as their providers reported them."""
    screen: Screen = context.obj
    if by not in _GROUPS:
        raise Fault(f"--by takes {', '.join(_GROUPS)}, not {by!r}", exit_code=USAGE)
    with SyncClient() as client:
        found = client.send("completion:token_usage", {"by": by, "agent_id": agent, "since_day": since})
    if screen.json:
        screen.document(found)
        return
    screen.table(
        (by, "completions", "input", "cache made", "cache read", "output", "cost $", "list bytes"),
        [
            (
                row["group"],
                row["completions"],
                row["input_tokens"],
                row["cache_creation_tokens"],
                row["cache_read_tokens"],
                row["output_tokens"],
                None if row["cost_usd"] is None else f"{row['cost_usd']:.4f}",
                row["listing_bytes"],
            )
            for row in found["usage"]
        ],
    )
    if not found["usage"]:
        screen.note("no completion has reported its usage yet")
