"""The settings of one plugin: its model held against the table `[plugins.NAME]` of ksi.toml and the variables `KSI_NAME_FIELD`.

Which tables and variables there are is left to config.py, when they are read to the loader.
"""

import difflib
import functools
import inspect
import os
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from pydantic import BaseModel, ConfigDict, PydanticUserError, ValidationError

from ksi_daemon.config import GIVEN_TO_AGENTS, NOT_SETTINGS, Settings
from ksi_daemon.handler import PluginRefused
from ksi_daemon.logs.failures import described
from ksi_daemon.logs.redaction import redact

SHOWN_LIMIT = 80  # characters of a value in a message


class PluginSettings(BaseModel):
    """What an operator can set for a plugin. Unknown names are refused; every field has a description."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class BadPluginSettings(PluginRefused):
    """The operator's settings for a plugin cannot be used."""


class PluginSettingsRead(msgspec.Struct, frozen=True):
    """The settings of one plugin with the source of each value."""

    plugin: str
    settings: PluginSettings
    sources: dict[str, str]

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the settings."""
        return tuple(type(self.settings).model_fields)

    def rows(self) -> list[dict[str, Any]]:
        """One row per setting, for `ksi config show`; secrets are hidden."""
        values = self.settings.model_dump(mode="json")
        return [
            {
                "name": f"plugins.{self.plugin}.{name}",
                "value": shown(name, values[name]),
                "default": shown(name, _default(self.settings, name)),
                "source": self.sources.get(name, "default"),
                "help": field.description,
            }
            for name, field in type(self.settings).model_fields.items()
        ]


def check_model(plugin: str, model: object) -> None:
    """Raise `PluginRefused` for a model that breaks a rule of the plugin API."""
    if not inspect.isclass(model) or not issubclass(model, PluginSettings):
        raise PluginRefused(f"{plugin}: settings must be a class made from PluginSettings")
    if model.model_config.get("extra") != "forbid" or not model.model_config.get("frozen"):
        raise PluginRefused(f"{plugin}: {model.__name__} must stay frozen and refuse unknown names")
    try:
        model.model_json_schema()
    except PydanticUserError as error:
        raise PluginRefused(f"{plugin}: {model.__name__} has a field that no file can hold: {error.message}") from error
    for name, field in model.model_fields.items():
        if not field.description:
            raise PluginRefused(f"{plugin}: {model.__name__}.{name} has no description")
        if field.alias is not None or field.validation_alias is not None:
            raise PluginRefused(f"{plugin}: {model.__name__}.{name} has an alias: a setting has one name")
        if name != name.lower():
            raise PluginRefused(f"{plugin}: {model.__name__}.{name} must be written in lower case")
        owned = variable(plugin, name)
        if owned in NOT_SETTINGS | GIVEN_TO_AGENTS or owned.removeprefix("KSI_").lower() in Settings.model_fields:
            raise PluginRefused(f"{plugin}: the variable {owned} of {model.__name__}.{name} is the daemon's own")


def variable(plugin: str, field: str = "") -> str:
    """The variable of a plugin's setting; without a field, what the variables of the plugin begin with."""
    return f"KSI_{plugin.upper()}_{field.upper()}"


def read_plugin_settings(
    plugin: str, model: type[PluginSettings], table: Any, *, variables: Mapping[str, str], file: str
) -> PluginSettingsRead:
    """The plugin's settings from its table and, over it, its variables. Raises `BadPluginSettings` with all problems at once."""
    if not isinstance(table, dict):
        raise BadPluginSettings(f"{file}: plugins.{plugin} must be a table [plugins.{plugin}]")
    fields = model.model_fields
    problems = [
        f"{file}: unknown setting plugins.{plugin}.{name}{nearest(name, fields)}"
        for name in table
        if name not in fields
    ]
    values = {name: value for name, value in table.items() if name in fields}
    sources = dict.fromkeys(values, file)
    for name in fields:
        owned = variable(plugin, name)
        text = variables.get(owned)
        if text is None:
            continue
        kind = _kind(model, name)
        if text == "":
            problems.append(f"{owned} is empty: give it a value or unset it")
        elif kind == "object":
            problems.append(f"{owned} cannot be set: {name} is a table, which only ksi.toml can hold")
        else:
            values[name] = (
                text if kind != "array" else [part for part in text.replace(os.pathsep, ",").split(",") if part]
            )
            sources[name] = owned
    try:
        settings = model.model_validate(values)
        settings.model_dump(mode="json")
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False)
        problems += [_problem(plugin, detail, sources=sources, file=file) for detail in details]
    except Exception as error:  # noqa: BLE001 - whatever a validator of the plugin raises
        problems.append(f"{model.__name__} failed with {described(error)}")
    if problems:
        raise BadPluginSettings(f"{plugin}: its settings cannot be used: " + "; ".join(problems))
    return PluginSettingsRead(plugin, settings, sources)


def nearest(name: str, known: Collection[str]) -> str:
    """`; did you mean …?`, or what there is."""
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; there are {', '.join(sorted(known))}" if known else "; it has no settings"


def shown(name: str, value: Any) -> Any:
    """A value as people may see it, hidden when its name is that of a secret."""
    return redact({name: value})[name] if value is not None else None


def _default(settings: PluginSettings, name: str) -> Any:
    field = type(settings).model_fields[name]
    if field.is_required():
        return None
    return field.get_default(call_default_factory=True, validated_data={})


def _kind(model: type[PluginSettings], name: str) -> str | None:
    """The JSON type that decides how a variable is read: array, object, or another."""
    schema = model.model_json_schema()
    part = schema["properties"][name]
    kinds = [option for option in part.get("anyOf", [part]) if option.get("type") != "null"]
    if "$ref" in kinds[0]:
        kinds[0] = schema["$defs"][kinds[0]["$ref"].rpartition("/")[2]]
    found = kinds[0].get("type")
    return found if isinstance(found, str) else None


def _problem(plugin: str, detail: Any, *, sources: Mapping[str, str], file: str) -> str:
    path = [str(part) for part in detail["loc"]]
    problem = detail["msg"].removeprefix("Value error, ")
    name = ".".join(["plugins", plugin, *path])
    if not path:
        return f"[plugins.{plugin}]: {problem}"
    if detail["type"] == "missing":
        return f"{name} is not set: write it into {file}, or set {variable(plugin, path[0])}"
    text = str(functools.reduce(lambda value, part: shown(part, value), path, detail["input"]))
    text = text if len(text) <= SHOWN_LIMIT else text[: SHOWN_LIMIT - 3] + "..."
    return f"{name} = {text} (from {sources.get(path[0], 'default')}): {problem}"
