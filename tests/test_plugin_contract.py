"""Every plugin against every rule of the plugin API: those that are there keep the rules, and whatever breaks one is refused by name."""

import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from ksi_daemon.core import CORE
from ksi_daemon.handler import SCHEMA_DEPTH_LIMIT, SCHEMA_LIMIT_BYTES, TOOL_NAME_LIMIT
from ksi_daemon.identifiers import EVENT_NAME, PATTERN, tool_name
from ksi_daemon.plugin import Context, Field, Nothing, Params, Plugin, PluginRefused, Result
from ksi_daemon.plugin_host.discovery import load_folder, shipped_folder
from ksi_daemon.testing import running
from tests.cases import case
from tests.in_process import Said


def shipped() -> list[tuple[Plugin, str]]:
    places = [place for place in sorted(shipped_folder().iterdir()) if (place / "__init__.py").is_file()]
    return [load_folder(place) for place in places]


ALL = [*CORE, *shipped()]
HANDLERS = [handler for plugin, _ in ALL for handler in plugin.handlers.values()]


# --- those that are there


def test_a_plugin_says_in_one_line_what_it_is() -> None:
    for plugin, summary in ALL:
        with case(plugin.name):
            assert 10 <= len(summary) <= 200
            assert "\n" not in summary
            assert summary.endswith(".")


def test_every_name_of_a_plugin_is_in_its_own_namespace() -> None:
    """K004: what a plugin has is events; none opens a port of its own."""
    for plugin, _ in ALL:
        with case(plugin.name):
            for event in [*plugin.handlers, *plugin.notices]:
                assert EVENT_NAME.fullmatch(event)
                assert event.startswith(plugin.name + ":")
            assert all(PATTERN.fullmatch(pattern) for pattern, _ in plugin.listeners)
            assert not set(plugin.handlers) & set(plugin.notices)
            assert all(10 <= len(meaning) <= 200 for meaning in plugin.notices.values())


def test_a_handler_has_a_summary_that_fits_a_line_of_a_list() -> None:
    for handler in HANDLERS:
        with case(handler.event):
            assert 10 <= len(handler.summary) <= 200
            assert handler.summary[0].isupper()
            assert handler.summary.endswith(".")
            assert handler.description.startswith(handler.summary.split(" ")[0])


def test_every_parameter_is_described_and_unknown_ones_are_refused() -> None:
    """L079."""
    for handler in HANDLERS:
        with case(handler.event):
            assert handler.input_schema["type"] == "object"
            for part in _objects(handler.input_schema):
                assert part.get("additionalProperties") is not None, f"{part.get('title')} takes unknown fields"
                for name, about in part.get("properties", {}).items():
                    assert len(about.get("description", "")) >= 5, f"{name} has no description"


def test_a_result_has_a_schema_of_its_own() -> None:
    """L078."""
    for handler in HANDLERS:
        with case(handler.event):
            assert handler.output_schema["type"] == "object"
            open_ended = handler.output_schema.get("additionalProperties") is True  # the result of what it calls
            assert handler.output_schema.get("properties") or open_ended, "a result that tells nothing"


def test_schemas_are_bounded_and_complete_in_themselves() -> None:
    for handler in HANDLERS:
        with case(handler.event):
            for schema in (handler.input_schema, handler.output_schema):
                text = str(schema)
                assert len(text) < SCHEMA_LIMIT_BYTES
                assert all(reference.startswith("#/") for reference in re.findall(r"'\$ref': '([^']*)'", text))


def test_tool_names_are_unique_short_and_made_from_the_event() -> None:
    """Trap 1."""
    tools = [handler.tool for handler in HANDLERS]
    assert len(set(tools)) == len(tools)
    assert all(len(tool) <= TOOL_NAME_LIMIT and re.fullmatch(r"ksi_[a-z0-9_]+", tool) for tool in tools)
    assert tools == [handler.traits.tool or tool_name(handler.event) for handler in HANDLERS]
    assert all(handler.plugin == "mcp" for handler in HANDLERS if handler.traits.tool is not None)


def test_an_event_has_one_owner() -> None:
    names = [event for plugin, _ in ALL for event in [*plugin.handlers, *plugin.notices]]
    assert len(set(names)) == len(names)


def _objects(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """The schema and every object defined inside it that has fields of its own."""
    return [
        schema,
        *(part for part in schema.get("$defs", {}).values() if part.get("type") == "object" and "properties" in part),
    ]


# --- what breaks a rule


class Described(Params):
    """Good params."""

    text: str = Field(description="Any text.")


class Undescribed(Params):
    """A field without a word."""

    text: str


class Lax(Params):
    """Takes anything."""

    model_config = ConfigDict(extra="allow")


class Open(BaseModel):
    """No Params at all."""


class Inner(BaseModel):
    """A model inside that ignores what it does not know."""

    text: str = Field("", description="Any text.")


class Nested(Params):
    """Strict outside, lax inside."""

    inner: Inner = Field(description="Something.")


class InnerUndescribed(Params):
    """Inside, a field without a word."""

    text: str = ""


class NestedUndescribed(Params):
    """Described outside, not inside."""

    inner: list[InnerUndescribed] = Field(description="Something.")


def _deep(levels: int) -> type[Params]:
    annotation: Any = int
    for _ in range(levels):
        annotation = list[annotation]

    class Deep(Params):
        value: annotation = Field(description="Nested.")

    return Deep


def _wide() -> type[Params]:
    from pydantic import create_model

    fields: dict[str, Any] = {f"field_{number}": (int, Field(description="A number.")) for number in range(1_000)}
    return create_model("Wide", __base__=Params, **fields)


def _wordy() -> type[Params]:
    class Wordy(Params):
        text: str = Field(description="word " * SCHEMA_LIMIT_BYTES)

    return Wordy


def _far() -> type[Params]:
    class Far(Params):
        text: str = Field(description="x", json_schema_extra={"$ref": "https://example.org/schema.json"})

    return Far


def mirroring(name: str, header: Any, kind: Any = str) -> type[Params]:
    """Params with one field that clients are to repeat as a header."""
    from pydantic import create_model

    field: Any = (kind, Field(description="A value.", json_schema_extra={"x-mcp-header": header}))
    return create_model("Mirroring", __base__=Params, **{name: field})


def _mirroring_inside() -> type[Params]:
    class Outer(Params):
        inner: mirroring("region", "Region") = Field(description="x")  # type: ignore[valid-type]

    return Outer


def _mirroring_twice() -> type[Params]:
    class Twice(mirroring("region", "Region")):  # type: ignore[misc]
        place: str = Field(description="x", json_schema_extra={"x-mcp-header": "REGION"})

    return Twice


def handler(
    event: str = "sample:do",
    params: Any = Nothing,
    result: Any = Said,
    doc: str | None = "Do something.",
    **traits: Any,
) -> Callable[[], object]:
    """Make a plugin whose one handler is this."""

    def make() -> object:
        async def do(ctx: Context, params: Any) -> Any:
            return Said()

        do.__doc__ = doc
        do.__annotations__ |= {"params": params, "return": result}
        return Plugin("sample").handles(event, **traits)(do)

    return make


def _plain_function() -> object:
    def do(ctx: Context, params: Nothing) -> Said:
        """Do."""
        return Said()

    return Plugin("sample").handles("sample:do")(do)  # type: ignore[arg-type]


def _three_parameters() -> object:
    async def do(ctx: Context, params: Nothing, more: int) -> Said:
        """Do."""
        return Said()

    return Plugin("sample").handles("sample:do")(do)


def _unreadable() -> object:
    async def do(ctx: Context, params: "NoSuchClass") -> Said:  # type: ignore[name-defined]  # noqa: F821
        """Do."""
        return Said()

    return Plugin("sample").handles("sample:do")(do)


def _twice() -> None:
    plugin = Plugin("sample")

    async def do(ctx: Context, params: Nothing) -> Said:
        """Do."""
        return Said()

    plugin.handles("sample:do")(do)
    plugin.handles("sample:do")(do)


def _notice_twice() -> None:
    plugin = Plugin("sample")
    plugin.announces("sample:done", "It was done.")
    plugin.announces("sample:done", "It was done.")


def _two_lifespans() -> None:
    plugin = Plugin("sample")

    def live(home: object) -> AbstractAsyncContextManager[None]:
        raise AssertionError

    plugin.lifespan(live)
    plugin.lifespan(live)


BROKEN_RULES: dict[str, tuple[Callable[[], object], str]] = {
    "a bad plugin name": (lambda: Plugin("Bad-Name"), "Bad-Name"),
    "an empty plugin name": (lambda: Plugin(""), "not a valid plugin name"),
    "a name too long": (lambda: Plugin("x" * 33), "at most 32"),
    "no event name": (handler("nonsense"), "namespace:verb"),
    "an upper-case event": (handler("sample:Do"), "namespace:verb"),
    "a wildcard": (handler("sample:*"), "namespace:verb"),
    "another's namespace": (handler("system:do"), "may only own events named sample:"),
    "another's namespace with the same beginning": (handler("sample_more:do"), "may only own"),
    "a tool name too long": (handler("sample:" + "x" * 48 + "y" * 10), "namespace:verb|longer than"),
    "no docstring": (handler(doc=None), "no docstring"),
    "an empty docstring": (handler(doc="   "), "no docstring"),
    "no deadline": (handler(timeout_s=0), "timeout_s"),
    "a negative deadline": (handler(timeout_s=-1), "timeout_s"),
    "a deadline that is no number": (handler(timeout_s=float("nan")), "timeout_s"),
    "a field without description": (handler(params=Undescribed), "Undescribed.text has no description"),
    "params that take anything": (handler(params=Lax), "refuse unknown fields"),
    "params that are none": (handler(params=dict), "Params"),
    "params that are another model": (handler(params=Open), "Params"),
    "a lax model inside": (handler(params=Nested), "Inner"),
    "a field without description inside": (
        handler(params=NestedUndescribed),
        "InnerUndescribed.text has no description",
    ),
    "a result that is none": (handler(result=dict), "Result"),
    "no result": (handler(result=None), "Result"),
    "a schema too deep": (handler(params=_deep(SCHEMA_DEPTH_LIMIT + 1)), "deeper than"),
    "a schema too wide": (handler(params=_wide()), "parts"),
    "a schema too wordy": (handler(params=_wordy()), "larger than"),
    "a schema that must be fetched": (handler(params=_far()), "only references inside"),
    "a secret as a header": (handler(params=mirroring("api_key", "Key")), "the field api_key may hold a secret"),
    "a header that is called a secret": (
        handler(params=mirroring("text", "Auth-Token")),
        "the field text may hold a secret",
    ),
    "a header that is none": (handler(params=mirroring("text", "two words")), "the field text: x-mcp-header must be"),
    "a header that is no text": (handler(params=mirroring("text", 5)), "the field text: x-mcp-header must be"),
    "a header of a list": (
        handler(params=mirroring("text", "Text", list[str])),
        "the field text: x-mcp-header is only",
    ),
    "a header of text or nothing": (handler(params=mirroring("text", "Text", str | None)), "is only for text"),
    "a header of an inner field": (handler(params=_mirroring_inside()), "only for the parameters themselves"),
    "two fields with one header": (handler(params=_mirroring_twice()), "region and place have the same"),
    "no async function": (_plain_function, "async"),
    "three parameters": (_three_parameters, r"exactly \(ctx, params\)"),
    "annotations nobody can read": (_unreadable, "NoSuchClass"),
    "two handlers of one event": (_twice, "two handlers"),
    "a notice twice": (_notice_twice, "twice"),
    "a notice of another": (lambda: Plugin("sample").announces("system:done", "x"), "sample:"),
    "a notice that is no name": (lambda: Plugin("sample").announces("sample:*", "x"), "not a valid notice name"),
    "a pattern that is none": (lambda: Plugin("sample").on("sample*"), "not a valid pattern"),
    "two lifespans": (_two_lifespans, "two lifespans"),
}


def test_a_plugin_that_breaks_a_rule_is_refused_and_the_message_names_plugin_and_rule() -> None:
    """G03: a schema that must be fetched, is too deep or too large is refused at load."""
    for name, (make, named) in BROKEN_RULES.items():
        with case(name):
            with pytest.raises(PluginRefused, match=named) as caught:
                make()
            assert "sample" in str(caught.value) or "Plugin" in make.__name__ or "lambda" in make.__name__


def test_no_parameter_that_may_hold_a_secret_is_repeated_as_a_header() -> None:
    """G04"""
    names = ("token", "access_token", "password", "db_password", "secret", "client_secret", "api_key", "apiKey", "authorization",
             "cookie", "passphrase", "pin", "otp", "private_key", "credentials")  # fmt: skip
    for name in names:
        with case(name):
            with pytest.raises(PluginRefused, match=f"the field {name} may hold a secret") as caught:
                handler(params=mirroring(name, "Value"))()
            assert str(caught.value).startswith("sample: the params of 'sample:do'")
    for name in ("region", "token_id", "tenant", "max_tokens_count"):
        with case(name):
            handler(params=mirroring(name, "Region"))()


async def load_with(plugin: Plugin, function: Any) -> None:
    plugin.handles("sample:do")(function)
    async with running(plugin):
        raise AssertionError("it was loaded")


async def test_a_name_that_is_both_a_call_and_a_notice_is_refused_whichever_came_first() -> None:
    async def do(ctx: Context, params: Nothing) -> Said:
        """Do."""
        return Said()

    plugin = Plugin("sample")
    plugin.handles("sample:do")(do)
    with pytest.raises(PluginRefused, match="twice"):
        plugin.announces("sample:do", "It was done.")
    other = Plugin("sample")
    other.announces("sample:do", "It was done.")
    with pytest.raises(PluginRefused, match="sample:do"):
        await load_with(other, do)


def test_a_plugin_that_keeps_the_rules_passes() -> None:
    handler(params=Described)()
    handler("sample:" + "x" * 46)()
    handler(params=_deep(10))()


def test_the_example_of_the_style_page_is_a_plugin() -> None:
    """Word for word but for the table it asks."""
    plugin = Plugin("weather")

    class Forecast(Params):
        place: str = Field(min_length=1, max_length=100, description="Town or airport code.")
        days: int = Field(3, ge=1, le=10, description="How many days ahead.")

    class Outlook(Result):
        place: str
        days: list[str]

    @plugin.handles("weather:forecast", reads=True, timeout_s=5)
    async def forecast(ctx: Context, params: Forecast) -> Outlook:
        """Say what the weather will be, day by day."""
        return Outlook(place=params.place, days=[])

    made = plugin.handlers["weather:forecast"]
    assert made.summary == "Say what the weather will be, day by day."
    assert made.input_schema["properties"]["days"]["maximum"] == 10
    assert made.tool == "ksi_weather_forecast"


def test_everything_a_plugin_may_import_is_in_a_single_list() -> None:
    import ksi_daemon.plugin as api

    for name in api.__all__:
        assert hasattr(api, name)
    assert {"Context", "Field", "NotFound", "Params", "Plugin", "Result"} <= set(api.__all__)
    assert Path(api.__file__).stat().st_size < 20_000
