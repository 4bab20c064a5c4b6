"""`ksi agents`: add, list, show and remove agents, print their clients' configs; freeze and unfreeze one or all.

The verbs for agents that the daemon runs are in `agent_runs.py`.
"""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ksi_client.command import agent_runs
from ksi_client.command.complete import complete_agents, complete_clients, complete_profiles
from ksi_client.command.confirm import can_ask, confirm
from ksi_client.command.fault import USAGE, Fault
from ksi_client.command.screen import Screen
from ksi_client.command.secret import show_outside_token, show_secret
from ksi_client.command.verb import Verb, verb_app
from ksi_client.sync_client import SyncClient
from ksi_client.terminal import visible

app = verb_app("Add, spawn, list, freeze, terminate and remove agents.")
app.registered_commands += agent_runs.app.registered_commands

_Name = Annotated[str, typer.Argument(help="The agent's id.", autocompletion=complete_agents)]
_Names = Annotated[str | None, typer.Argument(help="The agent's id.", autocompletion=complete_agents)]
_All = Annotated[bool, typer.Option("--all", help="Every agent, at once.")]


@app.command("add", cls=Verb)
def add_agent(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Its id: letters, digits and . _ -")],
    profile: Annotated[
        str, typer.Option(help="Its permissions: see ksi permissions profiles.", autocompletion=complete_profiles)
    ] = "standard",
    parent: Annotated[
        str | None,
        typer.Option(help="Parent agent; the new agent never has more rights than it.", autocompletion=complete_agents),
    ] = None,
    note: Annotated[str, typer.Option(help="What it is for.")] = "",
) -> None:
    """Add an agent and create its first token, which is shown only once."""
    with SyncClient() as client:
        made = client.send("agent:register", {"agent_id": name, "profile": profile, "parent_id": parent, "note": note})
    show_secret(context.obj, made)


@app.command("config", cls=Verb)
def configure_client(
    context: typer.Context,
    name: _Name,
    client: Annotated[
        str,
        typer.Option(
            metavar="CLIENT", help="claude-code, codex, cursor, vscode or generic.", autocompletion=complete_clients
        ),
    ] = "claude-code",
    transport: Annotated[
        str,
        typer.Option(
            "--type", metavar="TYPE", help="The transport: streamable-http or http (its name in JSON), or stdio."
        ),
    ] = "streamable-http",
    conversation: Annotated[
        str | None, typer.Option(metavar="ID", help="Send this conversation's id with each request.")
    ] = None,
    in_environment: Annotated[
        bool | None,
        typer.Option(
            "--env/--in-file",
            help="Token from the variable KSI_TOKEN (vscode asks for it), or in the text. Default: --env for codex, cursor and vscode.",
        ),
    ] = None,
    entry: Annotated[str, typer.Option(metavar="NAME", help="The server's name in the file.")] = "ksi",
    write: Annotated[
        bool, typer.Option("--write", help="Merge it into the client's file instead of printing.")
    ] = False,
    file: Annotated[
        str | None, typer.Option(metavar="PATH", help="With --write: this file (else the client's own).")
    ] = None,
) -> None:
    """Create a token and print the config with which an MCP client connects as this agent; --write merges it into a file."""
    from ksi_client.command.client_config import config_file, refuse_unknown_client, refuse_unknown_type

    screen: Screen = context.obj
    refuse_unknown_client(client)
    refuse_unknown_type(transport)
    if file is not None and not write:
        raise Fault("--file is for --write", exit_code=USAGE, hint="add --write, or redirect the output")
    wanted = {
        "agent_id": name,
        "client": client,
        "type": transport,
        "conversation_id": conversation,
        "token_in_environment": in_environment,
        "entry_name": entry,
    }
    if write:
        _write_config(screen, config_file(client, None if file is None else Path(file)), wanted)
        return
    with SyncClient() as ksi:
        answer = ksi.send("agent:config", wanted)
    if screen.json:
        screen.document(answer)
        return
    sys.stdout.write(answer["text"])
    if answer.get("token") is not None:
        show_outside_token(answer)
    screen.note(f"its token: {answer['credential_id']}; to revoke it: ksi tokens revoke {answer['credential_id']}")


def _write_config(screen: Screen, path: Path, wanted: dict[str, Any]) -> None:
    from ksi_client.command.connection_setup import set_up, show_file_notes
    from ksi_client.command.secret_file import SecretFile

    with SyncClient() as ksi, SecretFile(path) as target:
        done = set_up(ksi, screen, target, agent_of=lambda earlier: str(wanted["agent_id"]), wanted=wanted)
    if screen.json:
        backup = None if done.replaced.backup is None else str(done.replaced.backup)
        screen.document(done.answer | {"file": str(path), "backup": backup, "revoked": done.revoked})
    else:
        screen.line(f"wrote the entry {visible(str(wanted['entry_name']))} into {visible(str(path))}")
    show_file_notes(screen, done)
    if done.answer.get("token") is not None and not screen.json:
        show_outside_token(done.answer)


@app.command("ls", cls=Verb)
def list_agents(context: typer.Context) -> None:
    """List the agents."""
    screen: Screen = context.obj
    with SyncClient() as client:
        found = client.send("agent:list")
    if screen.json:
        screen.document(found)
        return
    screen.table(
        ("agent", "profile", "parent", "provider", "state", "tokens", "grants", "last used", "note"),
        [
            (
                agent["agent_id"],
                agent.get("profile"),
                agent.get("parent_id"),
                agent.get("provider"),
                agent.get("state"),
                agent.get("tokens"),
                agent.get("grants"),
                screen.moment(agent.get("last_used_at")),
                agent.get("note"),
            )
            for agent in found["agents"]
        ],
        styles={"frozen": "warn", "running": "good", "terminated": "bad"},
    )
    if not found["agents"]:
        screen.note("no agents yet; add one with: ksi agents add NAME")


@app.command("show", cls=Verb)
def show_agent(context: typer.Context, name: _Name) -> None:
    """Show one agent: its rules and where each comes from, its tokens, its children."""
    screen: Screen = context.obj
    with SyncClient() as client:
        agent = client.send("agent:get", {"agent_id": name})
    if screen.json:
        screen.document(agent)
        return
    fields = {
        key: agent.get(key)
        for key in (
            "agent_id",
            "profile",
            "parent_id",
            "provider",
            "workspace",
            "pids",
            "note",
            "created_by",
            "children",
        )
    }
    times = {key: screen.moment(agent[key]) for key in ("created_at", "last_used_at") if agent.get(key)}
    screen.facts({key: value for key, value in fields.items() if value} | {"state": agent.get("state")} | times)
    if rules := agent.get("rules"):
        screen.line()
        screen.table(
            ("resource", "access", "source", "expires"),
            [
                (rule.get("resource"), rule.get("access"), rule.get("source"), screen.moment(rule.get("expires_at")))
                for rule in rules
            ],
            styles={"none": "bad"},
        )
    if credentials := agent.get("credentials"):
        screen.line()
        screen.table(
            ("token", "kind", "label", "state"),
            [
                (token.get("credential_id"), token.get("kind"), token.get("label"), token.get("ended") or "live")
                for token in credentials
            ],
            styles={"live": "good"},
        )


@app.command("rm", cls=Verb)
def remove_agent(
    context: typer.Context,
    name: _Name,
    force: Annotated[bool, typer.Option("--force", "-f", help="Do not ask; scripts need it.")] = False,
) -> None:
    """Remove an agent with its tokens and grants. Its next call is unauthenticated."""
    screen: Screen = context.obj
    with SyncClient() as client:
        contents = ""
        if not force and can_ask():
            agent = client.send("agent:get", {"agent_id": name})
            contents = f" with its {agent.get('tokens', 0)} tokens and {agent.get('grants', 0)} grants"
        confirm(f"remove the agent {name}{contents}?", force=force)
        removed = client.send("agent:remove", {"agent_id": name})
    if screen.json:
        screen.document(removed)
    else:
        screen.line(f"removed {visible(str(removed['agent_id']))}")


@app.command("freeze", cls=Verb)
def freeze_agents(context: typer.Context, name: _Names = None, every: _All = False) -> None:
    """Freeze one agent or all: new calls are refused, running calls continue."""
    _set_frozen(context.obj, "agent:freeze", name, every, "frozen")


@app.command("unfreeze", cls=Verb)
def unfreeze_agents(context: typer.Context, name: _Names = None, every: _All = False) -> None:
    """Unfreeze one agent or all: new calls are accepted again."""
    _set_frozen(context.obj, "agent:unfreeze", name, every, "unfrozen")


def _set_frozen(screen: Screen, event: str, name: str | None, every: bool, done: str) -> None:
    if every == (name is not None):
        raise Fault("name an agent or give --all, not both", exit_code=USAGE)
    with SyncClient() as client:
        changed = client.send(event, {"all": True} if every else {"agent_id": name})
    if screen.json:
        screen.document(changed)
        return
    for agent in changed["agents"]:
        screen.line(f"{done} {visible(str(agent))}")
    if not changed["agents"]:
        screen.note("there are no agents")
