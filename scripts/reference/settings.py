"""docs/reference/settings.md: every setting."""

from ksi_daemon.config import FILE_ONLY, NEED_RESTART, Settings
from ksi_daemon.view_settings import ViewSettings
from scripts.reference.markdown import HEAD, code, in_words, table, value

INTRO = """# Settings

One frozen object, read at the start: first `ksi.toml` (another file: `KSI_CONFIG`), then the variables, which win.
`ksi config show` shows each value and its source; `ksi config check` checks them without starting anything.
`ksi config reload` (or SIGHUP) reads them again; those marked *restart* wait for the next start.

Plugins have settings of their own in tables `[plugins.NAME]`: see [plugins.md](../plugins.md#settings).

In `ksi.toml` a setting is one line, `port = 8081`; lists are `["a", "b"]`. In a variable a list is `a,b`. An unknown
name in the file is an error that names the nearest setting; an unknown `KSI_…` variable is a warning.

"""


VIEWS = """
## `[views.NAME]`

What a view does and an example are in [mcp.md](../mcp.md#views-of-your-own). Each has these keys and no others:

"""


def page() -> str:
    """The whole page."""
    schema = Settings.model_json_schema()
    rows = [
        (
            code(name),
            "" if name in FILE_ONLY else code(f"KSI_{name.upper()}"),
            in_words(schema, part),
            value(part.get("default")),
            "restart" if name in NEED_RESTART else "reload",
            part["description"],
        )
        for name, part in schema["properties"].items()
    ]
    settings = table(("setting", "variable", "type", "default", "applied at", "what it does"), rows)
    return HEAD + INTRO + settings + VIEWS + _views()


def _views() -> str:
    schema = ViewSettings.model_json_schema()
    rows = [
        (code(name), in_words(schema, part), value(part["default"]) if "default" in part else "", part["description"])
        for name, part in schema["properties"].items()
    ]
    return table(("key", "type", "default", "what it does"), rows)
