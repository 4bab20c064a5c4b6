"""docs/reference/commands.md: every verb of the `ksi` command with its own help."""

from collections.abc import Iterator
from typing import Any

import typer

from ksi_client.command.app import root
from scripts.reference.markdown import HEAD

WIDTH = 100
INTRO = """# Commands

The help of every verb, as `ksi VERB --help` prints it. The options from `--json` to `--utc` may stand before or after
the verb. What the exit codes mean: [errors](errors.md).

"""


def page() -> str:
    """The whole page."""
    return HEAD + INTRO + "\n".join(f"## {name}\n\n```text\n{text}\n```\n" for name, text in verbs())


def verbs() -> Iterator[tuple[str, str]]:
    """Each verb by its full name, with its help; a group before its members."""
    yield from _walk(typer.main.get_command(root), "ksi", None)


def _walk(command: Any, name: str, parent: Any) -> Iterator[tuple[str, str]]:
    settings = {"terminal_width": WIDTH, "max_content_width": WIDTH} | command.context_settings
    context = typer.Context(command, info_name=name, parent=parent, **settings)
    yield context.command_path, "\n".join(line.rstrip() for line in command.get_help(context).strip().splitlines())
    if hasattr(command, "list_commands"):
        for inner in command.list_commands(context):
            yield from _walk(command.get_command(context, inner), inner, context)
