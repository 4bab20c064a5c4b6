"""`ksi explain`: why an agent may or may not call an event."""

from typing import Annotated

import typer

from ksi_client.command.complete import complete_agents, complete_events
from ksi_client.command.fault import DENIED
from ksi_client.command.screen import Screen
from ksi_client.command.verb import Verb, verb_app
from ksi_client.sync_client import SyncClient
from ksi_client.terminal import visible

app = verb_app()


@app.command(cls=Verb)
def explain(
    context: typer.Context,
    agent: Annotated[str, typer.Argument(help="The agent's id.", autocompletion=complete_agents)],
    event: Annotated[
        str,
        typer.Argument(
            metavar="EVENT-or-TOOL", help="Such as state:set or ksi_state_set.", autocompletion=complete_events
        ),
    ],
) -> None:
    """Explain whether an agent may call an event: the deciding rule, overridden rules, limits. Exit 4 when it may not."""
    screen: Screen = context.obj
    with SyncClient() as client:
        explanation = client.send("permission:explain", {"agent_id": agent, "event": event})
    if screen.json:
        screen.document(explanation)
    else:
        first, *others = visible(str(explanation["text"]), multiline=True).split("\n")
        screen.line("\n".join([screen.paint(first, "good" if explanation["allowed"] else "bad"), *others]))
    if not explanation["allowed"]:
        raise typer.Exit(DENIED)
