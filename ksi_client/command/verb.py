"""The options shared by all verbs (output, and which daemon), accepted before or after the verb."""

import os
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from ksi_client.command.quick_parsing import quick
from ksi_client.command.screen import Screen


def _remember(name: str) -> Callable[[typer.Context, bool], None]:
    def remember(context: typer.Context, given: bool) -> None:
        if given and isinstance(context.obj, Screen):
            setattr(context.obj, name, True)

    return remember


def _option(name: str, *flags: str, help: str) -> Any:
    return typer.Option(*flags, callback=_remember(name), expose_value=False, help=help)


def _use_var_dir(_context: typer.Context, path: str | None) -> None:
    if path:
        os.environ["KSI_VAR_DIR"] = os.path.abspath(
            os.path.expanduser(path)
        )  # also for the processes that a verb starts


def _shared(
    json: Annotated[bool, _option("json", "--json", help="Print one JSON document.")] = False,
    no_color: Annotated[bool, _option("no_color", "--no-color", help="No colours (also: NO_COLOR=1).")] = False,
    quiet: Annotated[bool, _option("quiet", "--quiet", "-q", help="No notes on stderr, only errors.")] = False,
    verbose: Annotated[bool, _option("verbose", "--verbose", "-v", help="More on stderr.")] = False,
    utc: Annotated[bool, _option("utc", "--utc", help="Times in UTC instead of local time.")] = False,
    var_dir: Annotated[
        str | None,
        typer.Option(
            "--var-dir",
            metavar="FOLDER",
            callback=_use_var_dir,
            expose_value=False,
            is_eager=True,
            help="Which daemon: the folder of its files (also: KSI_VAR_DIR).",
        ),
    ] = None,
) -> None:
    """Declares the shared options; never called."""


def _shared_options() -> list[Any]:
    declaration = typer.Typer(add_completion=False, rich_markup_mode=None)
    declaration.command()(_shared)
    return list(typer.main.get_command(declaration).params)


SHARED_OPTIONS = _shared_options()


class Verb(TyperCommand):
    """A command that also takes the shared options."""

    def __init__(self, name: str | None, **settings: Any) -> None:
        super().__init__(name, **settings)
        self.params.extend(SHARED_OPTIONS)

    def get_params(self, ctx: Any) -> list[Any]:
        return quick(super().get_params(ctx))


class VerbGroup(TyperGroup):
    """A group of verbs; the shared options may also stand before the verb."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.params.extend(SHARED_OPTIONS)

    def get_params(self, ctx: Any) -> list[Any]:
        return quick(super().get_params(ctx))


def verb_app(help: str | None = None) -> typer.Typer:
    """A Typer for the verbs of one module. With a help text it is a group, even with one verb."""
    app = typer.Typer(
        cls=VerbGroup,
        add_completion=False,
        rich_markup_mode=None,
        no_args_is_help=bool(help),
        help=help,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    if help:
        app.callback()(_do_nothing)
    return app


def _do_nothing() -> None:
    pass
