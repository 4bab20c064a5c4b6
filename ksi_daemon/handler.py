"""What a handler is to the router: an event, its schemas, how to read params, run, and write the result.

Pydantic classes are one maker of it (`handler_from_function`); others can make the same record from JSON Schema alone.
"""

import inspect
import re
import typing
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticSerializationError

from ksi_daemon.access import Need
from ksi_daemon.errors import Invalid
from ksi_daemon.identifiers import EVENT_NAME, tool_name

SCHEMA_DEPTH_LIMIT = 32
SCHEMA_PARTS_LIMIT = 2_000
SCHEMA_LIMIT_BYTES = 100_000
TOOL_NAME_LIMIT = 64  # several MCP clients refuse longer ones

# A result whose values are not of their declared types must fail. Asking for that per call costs more than writing the JSON does.
# Only warnings raised from this module's own calls: libraries in this process keep theirs.
warnings.filterwarnings(
    "error", message="Pydantic serializer warnings", category=UserWarning, module=re.escape(__name__) + "$"
)

DESCRIPTION_LIMIT = 16_000  # characters


class PluginRefused(Exception):
    """A plugin breaks a rule of the plugin API; the message names the plugin, the rule and the place."""


class Params(BaseModel):
    """What a handler takes. Unknown fields are refused; every field has a description."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Nothing(Params):
    """No parameters."""


class Result(BaseModel):
    """What a handler returns."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")  # so that `_encoder` sees and refuses them


@dataclass(frozen=True, slots=True)
class Annotations:
    """What MCP clients may show a person before a call; None leaves the protocol's default. Never a security boundary."""

    destructive: bool | None = None  # may it delete or overwrite?
    idempotent: bool | None = None  # does a second call with the same arguments change nothing more?
    open_world: bool | None = None  # does it reach beyond this machine?


@dataclass(frozen=True, slots=True)
class Traits:
    """What a handler declares about itself."""

    reads: bool = False
    title: str | None = None
    annotations: Annotations = Annotations()
    timeout_s: float | None = None
    uses: tuple[type, ...] = ()
    operator_only: bool = False
    needs: tuple[tuple[str, Need], ...] = ()  # beyond the event itself
    cost: float = 1.0  # of one call, in calls, against the agent's rate
    tool: str | None = None  # its name as a tool, when it is not that of the event
    every_agent: bool = False  # every active agent may call it, without a grant


@dataclass(frozen=True, slots=True)
class Handler:
    """One event's owner."""

    event: str
    plugin: str
    summary: str
    description: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any]
    parse: Callable[[Any], Any]
    invoke: Callable[[Any, Any], Awaitable[Any]]
    encode: Callable[[Any], bytes]
    traits: Traits = field(default_factory=Traits)

    @property
    def needs(self) -> tuple[tuple[str, Need], ...]:
        """What a caller must hold: the event itself, read if it only reads, and whatever the handler adds."""
        own: tuple[str, Need] = (f"events/{self.event}", "read" if self.traits.reads else "write")
        return (own, *self.traits.needs)

    @property
    def tool(self) -> str:
        """The event's name as a tool."""
        return self.traits.tool or tool_name(self.event)

    @property
    def title(self) -> str:
        """The event's name for people."""
        return self.traits.title or self.event.replace(":", " ").replace("_", " ").capitalize()


def handler_from_function(plugin: str, event: str, function: Callable[..., Awaitable[Any]], traits: Traits) -> Handler:
    """Read an async function `(ctx, params: SomeParams) -> SomeResult` with a docstring. Raises `PluginRefused`."""
    place = f"{plugin}: {getattr(function, '__name__', function)!s} for {event!r}"
    if not inspect.iscoroutinefunction(function):
        raise PluginRefused(f"{place} must be an async function")
    if not EVENT_NAME.fullmatch(event):
        raise PluginRefused(f"{place}: an event is named namespace:verb, in lower-case letters, digits and underscores")
    if not event.startswith(plugin + ":"):
        raise PluginRefused(f"{place}: the plugin {plugin!r} may only own events named {plugin}:…")
    if len(tool_name(event)) > TOOL_NAME_LIMIT:
        raise PluginRefused(f"{place}: its tool name {tool_name(event)!r} is longer than {TOOL_NAME_LIMIT} characters")
    description = inspect.getdoc(function)
    if not description:
        raise PluginRefused(f"{place} has no docstring: it is what agents read to choose the tool")
    if len(description) > DESCRIPTION_LIMIT:
        raise PluginRefused(
            f"{place} has a docstring of {len(description):,} characters; the limit is {DESCRIPTION_LIMIT:,}, because every listing sends it"
        )
    if traits.timeout_s is not None and not traits.timeout_s > 0:
        raise PluginRefused(f"{place}: timeout_s must be above 0")
    if traits.cost < 0:
        raise PluginRefused(f"{place}: cost cannot be negative")
    params_class, result_class = _classes(place, function)
    input_schema = params_class.model_json_schema()
    output_schema = result_class.model_json_schema(mode="serialization")
    _check_schema(place + " params", input_schema)
    _check_inner_models(place, input_schema)
    _check_schema(place + " result", output_schema)
    return Handler(
        event=event,
        plugin=plugin,
        summary=" ".join(description.split("\n\n")[0].split()),
        description=description,
        input_schema=input_schema,
        output_schema=output_schema,
        parse=_parser(event, params_class),
        invoke=function,
        encode=_encoder(result_class, output_schema),
        traits=traits,
    )


def _classes(place: str, function: Callable[..., Any]) -> tuple[type[Params], type[Result]]:
    try:
        hints = typing.get_type_hints(function)
    except NameError as error:
        raise PluginRefused(f"{place}: its annotations cannot be read: {error}") from error
    parameters = list(inspect.signature(function).parameters)
    if len(parameters) != 2:
        raise PluginRefused(f"{place} must take exactly (ctx, params), not ({', '.join(parameters)})")
    params_class, result_class = hints.get(parameters[1]), hints.get("return")
    if not (isinstance(params_class, type) and issubclass(params_class, Params)):
        raise PluginRefused(f"{place}: annotate {parameters[1]!r} with a class made from Params")
    if not (isinstance(result_class, type) and issubclass(result_class, Result)):
        raise PluginRefused(f"{place}: annotate what it returns with a class made from Result")
    if params_class.model_config.get("extra") != "forbid":
        raise PluginRefused(f"{place}: {params_class.__name__} must refuse unknown fields (extra='forbid')")
    for name, info in params_class.model_fields.items():
        if not info.description:
            raise PluginRefused(f"{place}: the field {params_class.__name__}.{name} has no description")
    return params_class, result_class


def _check_schema(place: str, schema: dict[str, Any]) -> None:
    """Bounded in depth and size, and complete in itself: nothing is fetched to understand it."""
    parts = 0
    stack: list[tuple[Any, int]] = [(schema, 1)]
    while stack:
        node, depth = stack.pop()
        parts += 1
        if depth > SCHEMA_DEPTH_LIMIT or parts > SCHEMA_PARTS_LIMIT:
            raise PluginRefused(
                f"{place}: the schema is deeper than {SCHEMA_DEPTH_LIMIT} or has over {SCHEMA_PARTS_LIMIT} parts"
            )
        if isinstance(node, dict):
            reference = node.get("$ref")
            if isinstance(reference, str) and not reference.startswith("#"):
                raise PluginRefused(
                    f"{place}: the schema refers to {reference!r}; only references inside the schema are allowed"
                )
            stack += [(child, depth + 1) for child in node.values()]
        elif isinstance(node, list):
            stack += [(child, depth + 1) for child in node]
    if len(str(schema)) > SCHEMA_LIMIT_BYTES:
        raise PluginRefused(f"{place}: the schema is larger than {SCHEMA_LIMIT_BYTES:,} bytes")


def _check_inner_models(place: str, schema: dict[str, Any]) -> None:
    """What holds for a params class holds for every model inside it."""
    for name, model in schema.get("$defs", {}).items():
        if "properties" not in model:
            continue
        if model.get("additionalProperties") is not False:
            raise PluginRefused(f"{place}: {name} must refuse unknown fields; make it from Params")
        for field_name, part in model["properties"].items():
            if not part.get("description"):
                raise PluginRefused(f"{place}: the field {name}.{field_name} has no description")


def _parser(event: str, params_class: type[Params]) -> Callable[[Any], Params]:
    validate = params_class.__pydantic_validator__.validate_python

    def parse(raw: Any) -> Params:
        try:
            return typing.cast(Params, validate(raw))
        except ValidationError as error:
            raise invalid_params(event, error) from None

    return parse


def invalid_params(event: str, error: ValidationError) -> Invalid:
    """Every bad field at once, without echoing what was sent."""
    fields = [
        {"field": ".".join(str(part) for part in detail["loc"]) or "(data)", "problem": detail["msg"]}
        for detail in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    named = "; ".join(f"{field['field']}: {field['problem']}" for field in fields[:5])
    return Invalid(
        f"{event} was sent data that does not fit: {named}",
        hint=f"system:help event={event} shows its parameters",
        fields=fields,
    )


def _encoder(result_class: type[Result], schema: dict[str, Any]) -> Callable[[Any], bytes]:
    to_json = result_class.__pydantic_serializer__.to_json
    may_hold_nan = _has_open_numbers(schema)

    def encode(result: Any) -> bytes:
        if not isinstance(result, result_class):
            raise TypeError(f"it returned {type(result).__name__} instead of {result_class.__name__}")
        try:
            text = to_json(result)
            if may_hold_nan and (b"NaN" in text or b"Infinity" in text):  # perhaps only as words inside a string
                msgspec.json.decode(text)
        except (
            PydanticSerializationError, UserWarning, UnicodeEncodeError, RecursionError, msgspec.DecodeError,
        ) as error:  # fmt: skip
            raise TypeError(f"its result cannot be written as JSON: {error}") from error
        return text

    return encode


def _has_open_numbers(schema: Any) -> bool:
    """Whether a result can hold a float, typed or inside something untyped: only then must NaN be looked for."""
    if isinstance(schema, list):
        return any(map(_has_open_numbers, schema))
    if not isinstance(schema, dict):
        return schema is True
    if schema.get("type") == "number":
        return True
    closed = {"type", "$ref", "anyOf", "allOf", "oneOf", "enum", "const"}
    parts = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()]
    parts += [schema[name] for name in ("items", "prefixItems", "anyOf", "allOf", "oneOf") if name in schema]
    untyped = not closed & schema.keys()
    open_object = schema.get("type") == "object" and schema.get("additionalProperties", "properties" not in schema)
    open_array = schema.get("type") == "array" and not {"items", "prefixItems"} & schema.keys()
    return untyped or open_array or _has_open_numbers(open_object) or any(map(_has_open_numbers, parts))
