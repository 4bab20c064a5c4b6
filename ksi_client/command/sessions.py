"""`ksi sessions`: tokens with scopes and a limited lifetime."""

from typing import Annotated

import typer

from ksi_client.command.complete import complete_agents
from ksi_client.command.durations import seconds
from ksi_client.command.screen import Screen
from ksi_client.command.secret import show_secret
from ksi_client.command.verb import Verb, verb_app
from ksi_client.sync_client import SyncClient
from ksi_client.terminal import visible

app = verb_app("Create, list and revoke sessions.")


def complete_scopes(incomplete: str) -> list[str]:
    """The scopes that start with the typed text."""
    return [scope for scope in ("read", "write", "execute", "network", "admin") if scope.startswith(incomplete)]


@app.command("create", cls=Verb)
def create_session(
    context: typer.Context,
    client_id: Annotated[
        str,
        typer.Argument(
            metavar="CLIENT",
            help="The agent that uses it; a new one is added with the profile restricted.",
            autocompletion=complete_agents,
        ),
    ],
    scopes: Annotated[
        list[str],
        typer.Option(
            "--scope",
            metavar="read|write|execute|network|admin",
            help="What it may do; may be repeated.",
            autocompletion=complete_scopes,
        ),
    ],
    lasting: Annotated[str, typer.Option("--for", metavar="TIME", help="Maximum lifetime.")] = "1h",
    idle: Annotated[str, typer.Option(metavar="TIME", help="Ends when unused for this long.")] = "30m",
) -> None:
    """Create a session: a token with scopes and a limited lifetime. It is shown only once."""
    wanted = {
        "clientId": client_id,
        "scopes": scopes,
        "ttl_s": seconds(lasting, "--for"),
        "idle_s": seconds(idle, "--idle"),
    }
    with SyncClient() as client:
        made = client.send("session:create", wanted)
    show_secret(context.obj, made)


@app.command("ls", cls=Verb)
def list_sessions(context: typer.Context) -> None:
    """List sessions, live and ended."""
    screen: Screen = context.obj
    with SyncClient() as client:
        found = client.send("session:list")
    if screen.json:
        screen.document(found)
        return
    screen.table(
        ("id", "client", "scopes", "state", "expires", "last used"),
        [
            (
                session["sessionId"],
                session.get("clientId"),
                ",".join(session.get("scopes", ())),
                session.get("state"),
                screen.moment(session.get("expires_at")),
                screen.moment(session.get("last_used_at")),
            )
            for session in found["sessions"]
        ],
        styles={"live": "good"},
    )


@app.command("revoke", cls=Verb)
def revoke_session(
    context: typer.Context,
    session_id: Annotated[str, typer.Argument(metavar="ID", help="The session's id, as ksi sessions ls shows it.")],
) -> None:
    """Revoke a session now."""
    screen: Screen = context.obj
    with SyncClient() as client:
        revoked = client.send("session:revoke", {"sessionId": session_id})
    if screen.json:
        screen.document(revoked)
    else:
        screen.line(f"ended {visible(str(revoked['sessionId']))}")
