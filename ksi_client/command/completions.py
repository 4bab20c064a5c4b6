"""`ksi completions`: list, show, wait for and cancel the completions that the daemon runs."""

from typing import Annotated, Any

import typer

from ksi_client.command.agent_runs import show_answer, wait_for
from ksi_client.command.complete import complete_agents
from ksi_client.command.durations import seconds
from ksi_client.command.screen import Screen
from ksi_client.command.verb import Verb, verb_app
from ksi_client.sync_client import SyncClient
from ksi_client.terminal import visible

app = verb_app("List, show, wait for and cancel completions.")

_STATES = {"done": "good", "failed": "bad", "interrupted": "bad", "cancelled": "warn", "queued": "faint"}
Id = Annotated[str, typer.Argument(metavar="COMPLETION", help="The completion's id.")]


@app.command("ls", cls=Verb)
def list_completions(
    context: typer.Context,
    agent: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this agent's.", autocompletion=complete_agents)
    ] = None,
    state: Annotated[str | None, typer.Option(metavar="STATE", help="queued, running, done, failed, …")] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="At most so many.")] = 50,
) -> None:
    """List completions, the newest first."""
    screen: Screen = context.obj
    with SyncClient() as client:
        found = client.send("completion:list", {"agent_id": agent, "state": state, "limit": limit})
    if screen.json:
        screen.document(found)
        return
    screen.table(
        ("completion", "agent", "state", "attempt", "created", "tokens", "problem"),
        [
            (
                row["completion_id"],
                row["agent_id"],
                row["state"],
                row["attempt"],
                screen.moment(row["created_at"]),
                _tokens(row["usage"]),
                (row["error"] or {}).get("code"),
            )
            for row in found["completions"]
        ],
        styles=_STATES,
    )
    if found["waiting"] or found["under_way"]:
        screen.note(f"{found['under_way']} under way, {found['waiting']} waiting")


def _tokens(usage: dict[str, Any] | None) -> int | None:
    if usage is None:
        return None
    return sum(int(value) for name, value in usage.items() if name.endswith("_tokens"))


@app.command("show", cls=Verb)
def show_completion(context: typer.Context, completion: Id) -> None:
    """Show one completion: its state, times, usage and answer."""
    screen: Screen = context.obj
    with SyncClient() as client:
        found = client.send("completion:status", {"completion_id": completion})
    if screen.json:
        screen.document(found)
        return
    times = {key: screen.moment(found[key]) for key in ("created_at", "started_at", "ended_at") if found[key]}
    facts = {key: value for key, value in found.items() if key not in (*times, "text") and value not in (None, "", {})}
    screen.facts(facts | times)
    if found["text"]:
        screen.line()
        for line in found["text"].splitlines():
            screen.line(visible(line))


@app.command("wait", cls=Verb)
def wait_for_completion(
    context: typer.Context,
    completion: Id,
    timeout: Annotated[str | None, typer.Option(metavar="TIME", help="Stop waiting after so long (exit 6).")] = None,
) -> None:
    """Wait until a completion has ended and print its answer."""
    with SyncClient() as client:
        limit_s = None if timeout is None else seconds(timeout, "--timeout")
        done = wait_for(client, completion, at_most_s=limit_s)
    show_answer(context.obj, done)


@app.command("cancel", cls=Verb)
def cancel_completion(context: typer.Context, completion: Id) -> None:
    """End a completion, whether it waits or runs."""
    screen: Screen = context.obj
    with SyncClient() as client:
        found = client.send("completion:cancel", {"completion_id": completion})
    if screen.json:
        screen.document(found)
    else:
        screen.line(f"the completion is {found['state']}")
