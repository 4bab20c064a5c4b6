"""`ksi conversations`: list, show and export the conversations of agents that the daemon runs."""

import sys
from typing import Annotated

import typer

from ksi_client.command.complete import complete_agents
from ksi_client.command.fault import USAGE, Fault
from ksi_client.command.screen import Screen
from ksi_client.command.verb import Verb, verb_app
from ksi_client.sync_client import SyncClient
from ksi_client.terminal import visible

app = verb_app("List, show and export conversations.")

Id = Annotated[str, typer.Argument(metavar="CONVERSATION", help="The conversation's id.")]
Agent = Annotated[str | None, typer.Option(metavar="NAME", help="Only this agent's.", autocompletion=complete_agents)]


@app.command("ls", cls=Verb)
def list_conversations(context: typer.Context, agent: Agent = None) -> None:
    """List conversations, the last changed first."""
    screen: Screen = context.obj
    with SyncClient() as client:
        found = client.send("conversation:list", {"agent_id": agent})
    if screen.json:
        screen.document(found)
        return
    screen.table(
        ("conversation", "agent", "messages", "changed", "resumes"),
        [
            (
                row["conversation_id"],
                row["agent_id"],
                row["messages"],
                screen.moment(row["updated_at"]),
                "yes" if row["can_resume"] else "no",
            )
            for row in found["conversations"]
        ],
    )


@app.command("show", cls=Verb)
def show_conversation(context: typer.Context, conversation: Id, agent: Agent = None) -> None:
    """Print a conversation's messages."""
    screen: Screen = context.obj
    after: int | None = 0
    with SyncClient() as client:
        pages = []
        while after is not None:
            page = client.send("conversation:get", {"conversation_id": conversation, "agent_id": agent, "after": after})
            pages.append(page)
            after = page["next_after"]
    messages = [message for page in pages for message in page["page"]]
    if screen.json:
        screen.document(pages[0] | {"page": messages, "next_after": None})
        return
    for message in messages:
        screen.line(screen.paint(f"{message['role']}  {screen.moment(message['at'])}", "name"))
        for line in message["text"].splitlines():
            screen.line(visible(line))
        screen.line()


@app.command("export", cls=Verb)
def export_conversation(
    context: typer.Context,
    conversation: Id,
    agent: Agent = None,
    form: Annotated[str, typer.Option("--format", metavar="FORMAT", help="markdown or json.")] = "markdown",
) -> None:
    """Print a whole conversation as Markdown or JSON."""
    screen: Screen = context.obj
    if form not in ("markdown", "json"):
        raise Fault(f"--format takes markdown or json, not {form!r}", exit_code=USAGE)
    wanted = {"conversation_id": conversation, "agent_id": agent, "format": form}
    with SyncClient() as client:
        part = client.send("conversation:export", wanted)
        parts = [part["content"]]
        while (after := part.get("next_after")) is not None:
            part = client.send("conversation:export", wanted | {"after": after})
            parts.append(part["content"])
    if form == "json":
        screen.document(parts[0] | {"messages": [message for each in parts for message in each["messages"]]})
    else:
        sys.stdout.write(visible("".join(parts), multiline=True))
