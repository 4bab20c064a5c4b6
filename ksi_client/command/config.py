"""`ksi config`: show the current settings, check the settings file, reload the settings."""

from typing import Any

import typer

from ksi_client.command.fault import BAD_CONFIG, Fault
from ksi_client.command.screen import Screen
from ksi_client.command.settings import check_settings, refuse_bad_settings
from ksi_client.command.verb import Verb, verb_app
from ksi_client.errors import Invalid, Unreachable
from ksi_client.sync_client import SyncClient
from ksi_client.terminal import json_text, visible

app = verb_app("Show, check and reload settings.")


@app.command("show", cls=Verb)
def show_settings(context: typer.Context) -> None:
    """Show every setting, its value and its source: from the running daemon, else from the file."""
    screen: Screen = context.obj
    try:
        with SyncClient() as client:
            found = client.send("config:show")
    except Unreachable:
        refuse_bad_settings()
        found = check_settings()
        screen.note("no daemon is running; these are the settings it would start with")
    _print(screen, found)


@app.command("check", cls=Verb)
def check_file(context: typer.Context) -> None:
    """Check the settings file and the environment without starting anything. Exit 78 on problems."""
    screen: Screen = context.obj
    found = check_settings()
    if screen.json:
        screen.document(found)
    else:
        path = visible(str(found.get("config_file")))
        absent = "" if found.get("config_file_exists", True) else " (absent: defaults and environment only)"
        screen.line(f"{path}{absent}: {'ok' if found.get('ok') else 'not ok'}")
        for warning in found.get("warnings", ()):
            screen.line(f"  {screen.paint('warning', 'warn')}  {visible(str(warning))}")
        for problem in found.get("problems", ()):
            screen.line(f"  {screen.paint('problem', 'bad')}  {visible(str(problem))}")
    if not found.get("ok"):
        raise typer.Exit(BAD_CONFIG)


@app.command("reload", cls=Verb)
def reload_settings(context: typer.Context) -> None:
    """Have the running daemon reload its settings. Invalid settings change nothing (exit 78)."""
    screen: Screen = context.obj
    try:
        with SyncClient(timeout_s=130) as client:  # plugins may have to start again
            result = client.send("config:reload")
    except Invalid as error:
        problems = "".join(f"\n  {field.get('field')}: {field.get('problem')}" for field in error.fields)
        raise Fault(error.message + problems, exit_code=BAD_CONFIG, hint=error.hint or "ksi config check") from error
    if screen.json:
        screen.document(result)
        return
    changed, later = result.get("changed", []), result.get("needs_restart", [])
    screen.line(f"changed: {visible(', '.join(changed)) or 'nothing'}")
    if later:
        screen.line(f"waiting for a restart: {visible(', '.join(later))}")
        screen.note("next: ksi restart")
    for warning in result.get("warnings", ()):
        screen.line(f"{screen.paint('warning', 'warn')}  {visible(str(warning))}")


def _print(screen: Screen, found: dict[str, Any]) -> None:
    if screen.json:
        screen.document(found)
        return
    screen.table(
        ("setting", "value", "source", "help"),
        [
            (setting["name"], _text(setting.get("value")), setting.get("source"), setting.get("help"))
            for setting in found.get("settings", ())
        ],
        styles={"default": "faint"},
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value)
