"""docs/reference/events.md: every event and notice of the daemon itself."""

from collections.abc import Iterator

from ksi_daemon.config import Settings
from ksi_daemon.core import CORE
from ksi_daemon.handler import Handler
from ksi_daemon.plugin import Plugin
from scripts.reference.markdown import HEAD, Schema, code, in_words, table, value

INTRO = """# Events

What the daemon itself answers and announces. `ksi events ls` shows these and the events of your plugins;
`ksi events help EVENT` shows one of them. How to send one: [the socket](../socket.md), or `ksi send EVENT key=value`.

- *Reads*: the event promises to change nothing.
- *Deadline*: after so long the call ends with `timed_out`. A caller may ask for less, never for more.
- *Tool*: the event's name where it is offered as a tool.
- Unknown parameters are refused. Every event can also fail with the codes in [errors](errors.md).
- In the tables of results, `plugins[].name` is the field `name` of each entry of a list, and `plugins.*.state` that of
  each value of an object.

"""


def page() -> str:
    """The whole page."""
    parts = [HEAD, INTRO, _contents()]
    for plugin, summary in CORE:
        parts.append(f"## {plugin.name}\n\n{summary}\n\n")
        parts += [_call(handler) for handler in plugin.handlers.values()]
        if plugin.notices:
            parts.append(_notices(plugin))
    return "".join(parts).rstrip() + "\n"


def _contents() -> str:
    rows = [
        (f"[`{event}`](#{event.replace(':', '')})", "yes" if handler.traits.reads else "no", handler.summary)
        for plugin, _ in CORE
        for event, handler in plugin.handlers.items()
    ]
    return table(("event", "reads", "what it does"), rows) + "\n"


def _call(handler: Handler) -> str:
    default_s = Settings.model_fields["call_timeout_s"].default
    deadline = f"{handler.traits.timeout_s:g} s" if handler.traits.timeout_s else f"`call_timeout_s` ({default_s:g} s)"
    parts = [
        f"### {handler.event}\n\n{handler.description}\n\n",
        f"Reads: {'yes' if handler.traits.reads else 'no'}. Deadline: {deadline}. Tool: `{handler.tool}`.\n\n",
        _parameters(handler.input_schema),
        _result(handler.output_schema),
    ]
    return "".join(parts)


def _parameters(schema: Schema) -> str:
    required = schema.get("required", [])
    rows = [
        (
            code(name),
            in_words(schema, part),
            "yes" if name in required else "no",
            "" if name in required else value(part.get("default")),
            part.get("description", ""),
        )
        for name, part in schema.get("properties", {}).items()
    ]
    if not rows:
        return "No parameters.\n\n"
    return table(("parameter", "type", "required", "default", "meaning"), rows) + "\n"


def _result(schema: Schema) -> str:
    rows = [(code(name), in_words(schema, part), part.get("description", "")) for name, part in _fields(schema, schema)]
    open_ended = (
        "More fields follow, depending on the parameters.\n\n" if schema.get("additionalProperties") is True else ""
    )
    return table(("result", "type", "meaning"), rows) + "\n" + open_ended


def _fields(schema: Schema, part: Schema, prefix: str = "") -> Iterator[tuple[str, Schema]]:
    """Every field, and those of the objects inside it."""
    for name, field in part.get("properties", {}).items():
        yield prefix + name, field
        for inner, step in ((field.get("items"), "[]."), (field.get("additionalProperties"), ".*."), (field, ".")):
            if isinstance(inner, dict) and "$ref" in inner:
                referred = schema["$defs"][inner["$ref"].rsplit("/", 1)[-1]]
                yield from _fields(schema, referred, prefix + name + step)


def _notices(plugin: Plugin) -> str:
    rows = [(code(event), meaning) for event, meaning in plugin.notices.items()]
    return f"### Notices of {plugin.name}\n\n" + table(("notice", "meaning"), rows) + "\n"
