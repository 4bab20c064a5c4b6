"""`ksi plugins`: list, show and reload plugins, create a new one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ksi_client.command.complete import complete_plugins
from ksi_client.command.screen import Screen
from ksi_client.command.verb import Verb, verb_app
from ksi_client.errors import KsiError
from ksi_client.sync_client import SyncClient
from ksi_client.terminal import visible

app = verb_app("List, inspect, reload and create plugins.")

_Name = Annotated[str, typer.Argument(help="The plugin's name.", autocompletion=complete_plugins)]
_PART_STATES = {"ok": "good", "degraded": "warn", "failed": "bad"}
_STATES = {"running": "good", "broken": "bad", "disabled": "faint"}


@app.command("ls", cls=Verb)
def list_plugins(context: typer.Context) -> None:
    """List the plugins, broken ones with the reason."""
    screen: Screen = context.obj
    with SyncClient() as client:
        found = client.send("plugin:list")
    if screen.json:
        screen.document(found)
        return
    screen.table(
        ("name", "state", "source", "events", "summary"),
        [
            (plugin["name"], plugin["state"], plugin.get("source"), len(plugin.get("events", ())), _about(plugin))
            for plugin in found["plugins"]
        ],
        styles=_STATES,
    )


def _about(plugin: dict[str, Any]) -> str:
    return str(plugin.get("reason") or plugin.get("summary") or "")


@app.command("show", cls=Verb)
def show_plugin(context: typer.Context, name: _Name) -> None:
    """Show one plugin: its health, its handlers with their counts, its subscriptions, its own work, its last errors, its database."""
    screen: Screen = context.obj
    with SyncClient() as client:
        plugin = client.send("plugin:inspect", {"name": name})
    if screen.json:
        screen.document(plugin)
        return
    tables = ("handlers", "subscriptions", "background", "errors", "health")
    screen.facts({key: value for key, value in plugin.items() if key not in (*tables, "events", "loaded_at") and value})
    if plugin.get("loaded_at"):
        screen.line(f"loaded_at: {screen.moment(plugin['loaded_at'])}")
    if health := plugin.get("health"):
        screen.line()
        screen.table(
            ("part", "state", "reason"),
            [(part["name"], part["state"], part.get("reason") or "") for part in health],
            styles=_PART_STATES,
        )
    if handlers := plugin.get("handlers"):
        columns = ("event", "calls", "errors", "timeout_s", "summary")
        screen.line()
        screen.table(columns, [[handler.get(column) for column in columns] for handler in handlers])
    if subscriptions := plugin.get("subscriptions"):
        columns = ("pattern", "delivered", "failed", "dropped", "waiting")
        screen.line()
        screen.table(columns, [[subscription.get(column) for column in columns] for subscription in subscriptions])
    if works := plugin.get("background"):
        screen.line()
        screen.table(
            ("background work", "state", "failed"), [(work["name"], work["state"], work["failed"]) for work in works]
        )
    _print_errors(screen, plugin.get("errors", ()))


def _print_errors(screen: Screen, errors: Sequence[dict[str, Any]]) -> None:
    for failed in errors:
        screen.line()
        what, when = f"{failed['kind']} {failed['name']}", screen.moment(failed["last_at"])
        screen.line(
            f"{screen.paint('failed', 'bad')}  {visible(what)}: {visible(failed['error'])} ({failed['count']} so far, last {when})"
        )
        for line in str(failed.get("traceback", "")).splitlines():
            screen.line(f"  {visible(line)}")


@app.command("reload", cls=Verb)
def reload_plugin(context: typer.Context, name: _Name) -> None:
    """Load a plugin's files again. If the new version is broken, the old one keeps running (exit 7)."""
    screen: Screen = context.obj
    with SyncClient(timeout_s=60) as client:
        reloaded = client.send("plugin:reload", {"name": name})
    if screen.json:
        screen.document(reloaded)
        return
    events = len(reloaded.get("events", ()))
    screen.line(f"{visible(str(reloaded['name']))} is {visible(str(reloaded['state']))} with {events} events")


@app.command("new", cls=Verb)
def new_plugin(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Lower-case letters, digits and _, starting with a letter.")],
    folder: Annotated[Path, typer.Option("--dir", help="Where to create the plugin's folder.")] = Path("plugins"),
) -> None:
    """Create a working plugin with a passing test, to be changed into your own."""
    from ksi_client.command.plugin_template import write_plugin

    screen: Screen = context.obj
    written = write_plugin(name, folder)
    if screen.json:
        screen.document({"name": name, "files": [str(path) for path in written]})
        return
    for path in written:
        screen.line(visible(str(path)))
    screen.note("\n      ".join([f"next: pytest {written[1]}", *_next_commands(name, folder.absolute())]))


def _next_commands(name: str, folder: Path) -> list[str]:
    """The commands that load a new plugin, which depend on the folders that the running daemon searches."""
    try:
        with SyncClient(timeout_s=2) as client:
            searched = [Path(path).absolute() for path in client.send("plugin:list").get("folders", ())]
        running = True
    except KsiError:
        searched, running = [], False
    commands = [f"ksi plugins reload {name}"]
    if folder not in searched:
        commands = [
            f'plugin_dirs = ["{folder}"] in ksi.toml, unless the daemon searches it already',
            "ksi restart" if running else "ksi start --wait",
        ]
    return [*commands, f"ksi send {name}:greet who=Ada"]
