"""`ksi tokens`: the secrets by which agents authenticate. Each is shown only once, when it is created."""

from typing import Annotated

import typer

from ksi_client.command.complete import complete_agents
from ksi_client.command.durations import seconds
from ksi_client.command.screen import Screen
from ksi_client.command.secret import show_secret
from ksi_client.command.verb import Verb, verb_app
from ksi_client.sync_client import SyncClient
from ksi_client.terminal import visible

app = verb_app("Create, list, revoke and rotate tokens.")

_Id = Annotated[str, typer.Argument(metavar="ID", help="The token's id, as ksi tokens ls shows it.")]


@app.command("create", cls=Verb)
def create_token(
    context: typer.Context,
    agent: Annotated[str, typer.Argument(help="The agent that the token is for.", autocompletion=complete_agents)],
    label: Annotated[str, typer.Option(help="What it is for.")] = "",
    lasting: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="Lifetime: 30s, 5m, 1h, 2d (default: unlimited).")
    ] = None,
    conversation: Annotated[str | None, typer.Option(metavar="ID", help="Bind it to one conversation.")] = None,
    completion: Annotated[
        str | None, typer.Option(metavar="ID", help="Bind it to one completion of that conversation.")
    ] = None,
) -> None:
    """Create a token for an agent. It is shown only once."""
    wanted = {
        "agent_id": agent,
        "label": label,
        "expires_in_s": None if lasting is None else seconds(lasting, "--for"),
        "conversation_id": conversation,
        "completion_id": completion,
    }
    with SyncClient() as client:
        made = client.send("token:create", wanted)
    show_secret(context.obj, made)


@app.command("ls", cls=Verb)
def list_tokens(
    context: typer.Context,
    agent: Annotated[
        str | None, typer.Argument(help="Only tokens of this agent.", autocompletion=complete_agents)
    ] = None,
) -> None:
    """List tokens by their ids; the secrets are not kept and cannot be shown."""
    screen: Screen = context.obj
    with SyncClient() as client:
        found = client.send("token:list", {"agent_id": agent} if agent else {})
    if screen.json:
        screen.document(found)
        return
    screen.table(
        ("id", "agent", "kind", "label", "state", "bound to", "expires", "last used"),
        [
            (
                token["credential_id"],
                token.get("agent_id"),
                token.get("kind"),
                token.get("label"),
                token.get("state"),
                "/".join(filter(None, (token.get("conversation_id"), token.get("completion_id")))),
                screen.moment(token.get("expires_at")),
                screen.moment(token.get("last_used_at")),
            )
            for token in found["tokens"]
        ],
        styles={"live": "good", "revoked": "faint", "expired": "faint"},
    )


@app.command("revoke", cls=Verb)
def revoke_token(context: typer.Context, token_id: _Id) -> None:
    """Revoke a token from the next call on."""
    screen: Screen = context.obj
    with SyncClient() as client:
        revoked = client.send("token:revoke", {"credential_id": token_id})
    if screen.json:
        screen.document(revoked)
    else:
        owner = visible(str(revoked.get("agent_id")))
        screen.line(f"revoked {visible(str(revoked['credential_id']))} of {owner}")


@app.command("rotate", cls=Verb)
def rotate_token(context: typer.Context, token_id: _Id) -> None:
    """Create a new token with the same properties, and revoke the old one."""
    with SyncClient() as client:
        made = client.send("token:rotate", {"credential_id": token_id})
    show_secret(context.obj, made)
