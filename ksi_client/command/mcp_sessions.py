"""`ksi mcp sessions`: what the conversations of agents were shown of their tools."""

from typing import Annotated

import typer

from ksi_client.command.complete import complete_agents
from ksi_client.command.fault import USAGE, Fault
from ksi_client.command.screen import Screen
from ksi_client.command.verb import Verb, verb_app
from ksi_client.sync_client import SyncClient
from ksi_client.terminal import visible

app = verb_app("Show and reset what conversations were shown of their tools: full lists and thin ones.")

Agent = Annotated[str, typer.Argument(metavar="AGENT", help="Whose.", autocompletion=complete_agents)]
OptionalAgent = Annotated[
    str | None, typer.Argument(metavar="[AGENT]", help="Only this agent's.", autocompletion=complete_agents)
]


@app.command("ls", cls=Verb)
def list_sessions(context: typer.Context, agent: OptionalAgent = None) -> None:
    """List conversations with their full and thin lists, the last used first."""
    screen: Screen = context.obj
    with SyncClient() as client:
        found = client.send("mcp:list_sessions", {} if agent is None else {"agent_id": agent})
    if screen.json:
        screen.document(found)
        return
    screen.table(
        ("agent", "conversation", "full", "thin", "last", "tokens", "client", "listed"),
        [
            (
                row["agent_id"],
                row["conversation_id"],
                row["full"],
                row["thin"],
                row["last_kind"],
                row["tokens"],
                row["client"],
                screen.moment(row["listed_at"]),
            )
            for row in found["sessions"]
        ],
    )


@app.command("show", cls=Verb)
def show_session(
    context: typer.Context,
    agent: Agent,
    conversation: Annotated[str, typer.Argument(metavar="CONVERSATION", help="Which conversation.")],
) -> None:
    """Show what each completion of a conversation was shown, the newest first."""
    screen: Screen = context.obj
    with SyncClient() as client:
        found = client.send("mcp:get_session", {"agent_id": agent, "conversation_id": conversation})
    if screen.json:
        screen.document(found)
        return
    screen.table(
        ("completion", "kind", "delivered", "lists", "bytes", "tokens", "client", "listed"),
        [
            (
                row["completion_id"],
                row["kind"],
                "yes" if row["delivered"] else "no",
                row["listings"],
                row["bytes"],
                row["tokens"],
                row["client"],
                screen.moment(row["listed_at"]),
            )
            for row in found["completions"]
        ],
        styles={"no": "bad"},
    )


@app.command("reset", cls=Verb)
def reset_sessions(
    context: typer.Context,
    agent: OptionalAgent = None,
    conversation: Annotated[
        str | None, typer.Argument(metavar="[CONVERSATION]", help="Only this conversation of the agent.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Of all agents.")] = False,
) -> None:
    """Forget what conversations were shown: their next list is full again. Nothing is disconnected."""
    if (agent is None) is not everything:
        raise Fault("name an agent, or use --all", exit_code=USAGE, hint="ksi mcp sessions ls shows what is remembered")
    wanted = {"agent_id": agent, "conversation_id": conversation}
    with SyncClient() as client:
        done = client.send("mcp:clear_sessions", {key: value for key, value in wanted.items() if value is not None})
    screen: Screen = context.obj
    if screen.json:
        screen.document(done)
        return
    whose = "all agents" if agent is None else visible(agent)
    screen.line(f"reset    {done['completions']:,} completions of {whose}; their conversations' next lists are full")
