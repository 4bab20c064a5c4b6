"""Writes the folder of a new plugin: one working handler and its test."""

import keyword
import re
from pathlib import Path

from ksi_client.command.fault import CONFLICT, USAGE, Fault

_PLUGIN = '''\
"""__Name__: describe in one sentence what this plugin is for."""

from ksi_daemon.plugin import Context, Field, Params, Plugin, Result

plugin = Plugin("__name__")


class Greet(Params):
    who: str = Field(min_length=1, max_length=100, description="Whom to greet.")
    times: int = Field(1, ge=1, le=10, description="How often.")


class Greeting(Result):
    text: str


@plugin.handles("__name__:greet", reads=True)
async def greet(ctx: Context, params: Greet) -> Greeting:
    """Greet a person by name."""
    return Greeting(text=" ".join([f"Hello, {params.who}!"] * params.times))
'''

_TEST = '''\
"""Tests of __name__, in a daemon that runs no other plugin."""

from pathlib import Path

import pytest
from ksi_daemon.plugin import Invalid
from ksi_daemon.testing import running

PLUGIN = Path(__file__).parent

pytestmark = pytest.mark.asyncio


async def test_it_greets_by_name() -> None:
    async with running(PLUGIN) as daemon:
        assert await daemon.call("__name__:greet", who="Ada") == {"text": "Hello, Ada!"}


async def test_it_greets_as_often_as_asked() -> None:
    async with running(PLUGIN) as daemon:
        assert await daemon.call("__name__:greet", who="Ada", times=2) == {"text": "Hello, Ada! Hello, Ada!"}


async def test_an_empty_name_is_refused() -> None:
    async with running(PLUGIN) as daemon:
        with pytest.raises(Invalid):
            await daemon.call("__name__:greet", who="")
'''


def write_plugin(name: str, folder: Path) -> list[Path]:
    """Make `folder/name` with the plugin and its test; existing files are never changed."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,31}", name) or keyword.iskeyword(name):
        raise Fault(
            f"{name!r} is not a valid plugin name: use at most 32 lower-case letters, digits and _, starting with a letter, not a Python keyword",
            exit_code=USAGE,
            hint="ksi plugins new weather",
        )
    plugin_folder = folder / name
    files = {plugin_folder / "__init__.py": _PLUGIN, plugin_folder / f"test_{name}.py": _TEST}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        plugin_folder.mkdir()
        for path, template in files.items():
            text = template.replace("__name__", name).replace("__Name__", name.replace("_", " ").capitalize())
            path.write_text(text, encoding="utf-8")
    except FileExistsError as error:
        raise Fault(
            f"{plugin_folder} already exists; nothing was changed",
            exit_code=CONFLICT,
            hint="choose another name or --dir",
        ) from error
    except OSError as error:
        raise Fault(f"cannot write {error.filename}: {error.strerror}", hint="choose another --dir") from error
    return list(files)
