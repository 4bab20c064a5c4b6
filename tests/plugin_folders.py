"""Plugins as folders on disk, for tests of finding, importing and reloading them."""

from pathlib import Path

SOURCE = '''"""A plugin that says {answer}."""

from ksi_daemon.plugin import Context, Nothing, Plugin, Result

plugin = Plugin("{name}")


class Said(Result):
    text: str


@plugin.handles("{name}:say")
async def say(ctx: Context, params: Nothing) -> Said:
    """Say it."""
    return Said(text="{answer}")
'''


def write_plugin(parent: Path, name: str, source: str, **more: str) -> Path:
    """Write (again) a plugin's folder; `more` are further modules in it."""
    folder = parent / name
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in {"__init__": source, **more}.items():
        (folder / f"{file}.py").write_text(text, encoding="utf-8")
    return folder
