"""`ksi connect`: an agent, its token and its client's config in one step, and how to undo it."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from ksi_client.command.client_config import config_file, refuse_unknown_type, servers_key
from ksi_client.command.complete import complete_agents, complete_clients, complete_profiles
from ksi_client.command.connection_setup import DEFAULT_ENTRY, SetUp, set_up, show_file_notes
from ksi_client.command.fault import CONFLICT, Fault
from ksi_client.command.screen import Screen
from ksi_client.command.secret import show_outside_token
from ksi_client.command.secret_file import SecretFile
from ksi_client.command.verb import Verb, verb_app
from ksi_client.errors import KsiError
from ksi_client.sync_client import SyncClient
from ksi_client.terminal import visible

app = verb_app()


@app.command(cls=Verb)
def connect(
    context: typer.Context,
    client: Annotated[
        str,
        typer.Argument(
            metavar="CLIENT", help="claude-code, codex, cursor, vscode or generic.", autocompletion=complete_clients
        ),
    ],
    agent: Annotated[
        str | None,
        typer.Option(
            "--agent",
            "--name",
            metavar="NAME",
            help="Connect as this agent, added if there is none (default: named after the client).",
            autocompletion=complete_agents,
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(help="Profile of a new agent (default: standard).", autocompletion=complete_profiles),
    ] = None,
    file: Annotated[
        str | None, typer.Option(metavar="PATH", help="The client's file (else the one it reads by itself).")
    ] = None,
    in_environment: Annotated[
        bool | None,
        typer.Option(
            "--env/--in-file",
            help="Token from the variable KSI_TOKEN (vscode asks for it), or in the file. Default: --env for codex, cursor, vscode.",
        ),
    ] = None,
    transport: Annotated[
        str, typer.Option("--type", metavar="TYPE", help="streamable-http or http (its name in JSON), or stdio.")
    ] = "streamable-http",
) -> None:
    """Add an agent and write its config into a client's file. Again for the same file: replaces the entry and its token."""
    screen: Screen = context.obj
    path = config_file(client, None if file is None else Path(file))
    refuse_unknown_type(transport)
    with SyncClient() as ksi, SecretFile(path) as target:
        choice = _AgentChoice(ksi, screen, client, agent, profile)
        wanted = {
            "client": client,
            "type": transport,
            "entry_name": DEFAULT_ENTRY,
            "token_in_environment": in_environment,
        }
        try:
            done = set_up(ksi, screen, target, agent_of=choice.agent_id, wanted=wanted)
        except BaseException:
            choice.undo()
            raise
    undo = _undo_commands(client, done, added=choice.added)
    if screen.json:
        backup = None if done.replaced.backup is None else str(done.replaced.backup)
        answer = {
            name: value for name, value in done.answer.items() if name not in ("text", "entry", "format", "inputs")
        }
        screen.document(
            answer
            | {"agent_added": choice.added, "file": str(path), "backup": backup, "revoked": done.revoked, "undo": undo}
        )
    else:
        _show(screen, client, done, added=choice.added, undo=undo)
    show_file_notes(screen, done)
    if done.answer.get("token") is not None and not screen.json:
        show_outside_token(done.answer)


class _AgentChoice:
    """Which agent connects: the named one, or the one that an earlier run connected, or a new one."""

    def __init__(self, ksi: SyncClient, screen: Screen, client: str, wanted: str | None, profile: str | None) -> None:
        self.added = False
        self._ksi = ksi
        self._screen = screen
        self._client = client
        self._wanted = wanted
        self._profile = profile
        self._name = ""

    def agent_id(self, earlier: list[dict[str, Any]]) -> str:
        """The agent's id; it is added if there is no such agent. `earlier` are the tokens made for the same file."""
        agents = {agent["agent_id"]: agent for agent in self._ksi.send("agent:list")["agents"]}
        self._name = self._wanted or (earlier[-1]["agent_id"] if earlier else _free_name(self._client, agents))
        if self._name in agents:
            has = agents[self._name].get("profile")
            if self._profile not in (None, has):
                raise Fault(
                    f"the agent {self._name} exists and has the profile {has}",
                    exit_code=CONFLICT,
                    hint=f"leave --profile out, or first: ksi permissions set {self._name} {self._profile}",
                )
            return self._name
        self._ksi.send(
            "agent:register",
            {
                "agent_id": self._name,
                "profile": self._profile or "standard",
                "note": f"added by ksi connect {self._client}",
                "first_token": False,
            },
        )
        self.added = True
        return self._name

    def undo(self) -> None:
        """Remove the agent again if it was added."""
        if self.added:
            try:
                self._ksi.send("agent:remove", {"agent_id": self._name})
            except KsiError as error:
                self._screen.note(f"the agent {self._name} could not be removed: {error.message}")
                self._screen.note(f"next: ksi agents rm {self._name}")


def _free_name(client: str, agents: dict[str, Any]) -> str:
    taken = {agent.lower() for agent in agents}
    number = 1
    while (name := client if number == 1 else f"{client}-{number}") in taken:
        number += 1
    return name


def _undo_commands(client: str, done: SetUp, *, added: bool) -> list[str]:
    """The commands that undo this run. A backup of an entry whose token is revoked is not worth restoring."""
    agent_id, replaced = done.answer["agent_id"], done.replaced
    path = shlex.quote(str(replaced.path))
    commands = [
        f"ksi agents rm {agent_id} --force" if added else f"ksi tokens revoke {done.answer['credential_id']}",
    ]
    if replaced.backup is None:
        commands.append(f"rm {path}")
    elif not done.revoked:
        commands.append(f"mv {shlex.quote(str(replaced.backup))} {path}")
    else:
        commands.append(f"$EDITOR {path}  # delete the entry {DEFAULT_ENTRY} of {servers_key(client)}")
    return commands


def _show(screen: Screen, client: str, done: SetUp, *, added: bool, undo: list[str]) -> None:
    agent_id = visible(str(done.answer["agent_id"]))
    screen.line(f"{client} is connected as the agent {agent_id}{' (new)' if added else ''}")
    screen.facts(
        {
            "file": str(done.replaced.path),
            "entry": f"{servers_key(client)}.{DEFAULT_ENTRY}",
            "url": done.answer["url"],
            "token": done.answer["credential_id"],
        }
    )
    screen.line()
    screen.line("try it:")
    screen.line(f"  ksi tools call ksi_system_echo text=hello --as {agent_id}")
    screen.line(f"  {_TRY[client]}")
    screen.line("undo it:")
    for command in undo:
        screen.line(f"  {visible(command)}")


_TRY = {
    "claude-code": "claude    # in this folder; approve the server ksi; /mcp shows it",
    "codex": "codex    # with KSI_TOKEN set if the token is not in the file; /mcp shows the server ksi",
    "cursor": "open this folder in Cursor, which needs KSI_TOKEN if the token is not in the file; its settings list the server ksi",
    "vscode": "open this folder in VS Code and start the server ksi in .vscode/mcp.json; it asks for the token once",
    "generic": "start the client; its tools are called ksi_…",
}
