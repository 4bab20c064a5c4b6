"""The table of verbs. Each is defined in its own module, which is imported only when needed."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any

import typer

from ksi_client.command.verb import VerbGroup

VERBS = {
    "start": "start",
    "stop": "stop",
    "restart": "restart",
    "status": "status",
    "send": "send",
    "events": "events",
    "connect": "connect",
    "agents": "agents",
    "completions": "completions",
    "conversations": "conversations",
    "usage": "usage",
    "tokens": "tokens",
    "permissions": "permissions",
    "explain": "explain",
    "tools": "tools",
    "mcp": "mcp",
    "sessions": "sessions",
    "audit": "audit",
    "plugins": "plugins",
    "config": "config",
    "doctor": "doctor",
    "version": "version",
}


class _Verbs(Mapping[str, Any]):
    """The commands by name; looking up a name imports its module."""

    def __getitem__(self, name: str) -> Any:
        module = import_module(f"ksi_client.command.{VERBS[name]}")
        command = typer.main.get_command(module.app)
        command.name = name
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)


class _Root(VerbGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Verbs()  # type: ignore[assignment]  # read-only: no verb is added later

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)


root = typer.Typer(
    cls=_Root,
    rich_markup_mode=None,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from ksi_client.command.version import own_version

        print(f"ksi {own_version()}")
        raise typer.Exit


@root.callback()
def ksi(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """One hub for many agents: start, query and watch the daemon.

    Data goes to stdout, notes and errors to stderr. Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 denied, 5 no daemon,
    6 timeout, 7 conflict, 65 bad data, 75 already running, 78 bad settings, 130 interrupted.
    """
