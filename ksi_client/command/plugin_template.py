"""Writes the folder of a new plugin: one handler and its test, both of which work as they are."""

import keyword
import re
from pathlib import Path

from ksi_client.command.fault import CONFLICT, USAGE, Fault

_PLUGIN = '''\
"""__Name__: say in one sentence what this plugin is for."""

from ksi_daemon.plugin import Context, Field, Params, Plugin, Result

plugin = Plugin("__name__")


class Greet(Params):
    who: str = Field(min_length=1, max_length=100, description="Whom to greet.")
    times: int = Field(1, ge=1, le=10, description="How often.")


class Greeting(Result):
    text: str


@plugin.handles("__name__:greet", reads=True)
async def greet(ctx: Context, params: Greet) -> Greeting:
    """Greet somebody by name."""
    return Greeting(text=" ".join([f"Hello, {params.who}!"] * params.times))
'''

_TEST = '''\
"""What __name__ promises, tried through a hub that runs nothing else."""

from pathlib import Path

import pytest
from ksi_daemon.plugin import Invalid
from ksi_daemon.testing import running

HERE = Path(__file__).parent

pytestmark = pytest.mark.asyncio


async def test_it_greets_by_name() -> None:
    async with running(HERE) as hub:
        assert await hub.call("__name__:greet", who="Ada") == {"text": "Hello, Ada!"}


async def test_it_greets_as_often_as_asked() -> None:
    async with running(HERE) as hub:
        assert await hub.call("__name__:greet", who="Ada", times=2) == {"text": "Hello, Ada! Hello, Ada!"}


async def test_nobody_is_not_greeted() -> None:
    async with running(HERE) as hub:
        with pytest.raises(Invalid):
            await hub.call("__name__:greet", who="")
'''


def write_plugin(name: str, folder: Path) -> list[Path]:
    """Make `folder/name` with the plugin and its test; nothing that exists is touched."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,31}", name) or keyword.iskeyword(name):
        raise Fault(
            f"{name!r} cannot name a plugin: at most 32 small letters, digits and _, a letter first, no Python keyword",
            exit_code=USAGE,
            hint="ksi plugins new weather",
        )
    home = folder / name
    files = {home / "__init__.py": _PLUGIN, home / f"test_{name}.py": _TEST}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        home.mkdir()
        for path, template in files.items():
            text = template.replace("__name__", name).replace("__Name__", name.replace("_", " ").capitalize())
            path.write_text(text, encoding="utf-8")
    except FileExistsError as error:
        raise Fault(
            f"{home} exists already, and nothing was changed", exit_code=CONFLICT, hint="choose another name or --dir"
        ) from error
    except OSError as error:
        raise Fault(f"cannot write {error.filename}: {error.strerror}", hint="choose another --dir") from error
    return list(files)
