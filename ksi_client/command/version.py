"""`ksi version`: the versions of this command, of Python, and of the running daemon."""

import typer

from ksi_client.command.screen import Screen
from ksi_client.command.verb import Verb, verb_app
from ksi_client.errors import KsiError
from ksi_client.sync_client import SyncClient

app = verb_app()


def own_version() -> str:
    """The installed version of this package."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("ksi")
    except PackageNotFoundError:
        return "unknown (not installed)"


@app.command(cls=Verb)
def version(context: typer.Context) -> None:
    """Show the versions of the command, of Python and of the running daemon."""
    from platform import python_version

    screen: Screen = context.obj
    try:
        with SyncClient(timeout_s=2) as client:
            daemon = client.send("system:status").get("version")
    except KsiError:
        daemon = None
    facts = {"ksi": own_version(), "python": python_version(), "daemon": daemon}
    if screen.json:
        screen.document(facts)
    else:
        screen.facts(facts | {"daemon": daemon or "not running"})
