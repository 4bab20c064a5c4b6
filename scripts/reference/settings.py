"""docs/reference/settings.md: every setting."""

from ksi_daemon.config import NEED_RESTART, Settings
from scripts.reference.markdown import HEAD, code, in_words, table, value

INTRO = """# Settings

One frozen object, read at the start: first `ksi.toml` (another file: `KSI_CONFIG`), then the variables, which win.
`ksi config show` shows each value and its source; `ksi config check` checks them without starting anything.
`ksi config reload` (or SIGHUP) reads them again; those marked *restart* wait for the next start.

In `ksi.toml` a setting is one line, `port = 8081`; lists are `["a", "b"]`. In a variable a list is `a,b`. An unknown
name in the file is an error that names the nearest setting; an unknown `KSI_…` variable is a warning.

"""


def page() -> str:
    """The whole page."""
    schema = Settings.model_json_schema()
    rows = [
        (
            code(name),
            code(f"KSI_{name.upper()}"),
            in_words(schema, part),
            value(part.get("default")),
            "restart" if name in NEED_RESTART else "reload",
            part["description"],
        )
        for name, part in schema["properties"].items()
    ]
    return HEAD + INTRO + table(("setting", "variable", "type", "default", "applied at", "what it does"), rows)
