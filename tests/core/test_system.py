"""system:echo, health, status, help, discover, validate and shutdown."""

import asyncio
from typing import Any, Literal

import pytest

from ksi_daemon import __version__
from ksi_daemon.errors import Internal, Invalid, UnknownEvent
from ksi_daemon.plugin import Context, Field, JsonValue, Nothing, Params, Plugin, Result
from ksi_daemon.testing import running
from tests.in_process import Said, call, soon

CORE_PLUGINS = [
    "agent", "audit", "completion", "config", "conversation", "mcp", "message", "monitor", "permission", "plugin", "session", "state", "system",
    "token",
]  # fmt: skip
FORMATS = ["verbose", "compact", "ultra_compact", "mcp", "json_schema"]


class Place(Params):
    """Where."""

    town: str = Field(min_length=1, max_length=100, description="Town or airport code.")


class Outlook(Result):
    """What comes."""

    town: str
    days: list[str] = Field(description="Day by day.")


class Forecast(Params):
    """A bit of everything that a schema can say."""

    place: str = Field(min_length=1, max_length=100, description="Town or airport code.")
    days: int = Field(3, ge=1, le=10, description="How many days ahead.")
    unit: Literal["c", "f"] = Field("c", description="Celsius or Fahrenheit.")
    tags: list[str] = Field([], max_length=5, description="Words.")
    near: Place | None = Field(None, description="Near to.")


def weather() -> Plugin:
    plugin = Plugin("weather")
    plugin.announces("weather:changed", "The sky is another one.")

    @plugin.handles("weather:forecast", reads=True, timeout_s=5)
    async def forecast(ctx: Context, params: Forecast) -> Outlook:
        """Say what the weather will be,
        day by day.

        Longer words that only a full description has.
        """
        return Outlook(town=params.place, days=["sun"] * params.days)

    return plugin


async def explained(hub: Any, event: str, **data: Any) -> dict[str, Any]:
    return dict(await call(hub.hub.router, "system:help", {"event": event, **data}))


@pytest.mark.parametrize("text", ["hi", "", "é\x00\n\x1b[31m", "x" * 100_000])
async def test_echo_says_the_text_back_as_it_is(text: str) -> None:
    """K043."""
    async with running() as hub:
        assert await hub.call("system:echo", text=text) == {"text": text}


async def test_echo_refuses_more_than_its_limit() -> None:
    """L062."""
    async with running() as hub:
        with pytest.raises(Invalid):
            await hub.call("system:echo", text="x" * 100_001)


async def test_health_is_ok_and_names_every_plugin() -> None:
    async with running(weather()) as hub:
        health = await hub.call("system:health")
        assert (health["status"], health["alarms"], health["dropped_notices"]) == ("ok", [], 0)
        assert {name: one["state"] for name, one in health["plugins"].items()} == dict.fromkeys(
            [*CORE_PLUGINS, "weather"], "running"
        )
        assert health["uptime_s"] >= 0
        assert health["loop_lag_ms"] >= 0


async def test_health_is_degraded_while_there_is_an_alarm() -> None:
    """F13."""
    async with running() as hub:
        alarms: list[str] = ["the disk is full"]
        hub.hub.control.alarm_sources.append(lambda: alarms)
        health = await hub.call("system:health")
        assert (health["status"], health["alarms"]) == ("degraded", ["the disk is full"])
        assert (await hub.call("system:status"))["alarms"] == ["the disk is full"]
        alarms.clear()
        assert (await hub.call("system:health"))["status"] == "ok"


async def test_status_tells_where_and_since_when_and_how_much_is_going_on() -> None:
    plugin = Plugin("slow")
    entered, release = asyncio.Event(), asyncio.Event()

    @plugin.handles("slow:wait")
    async def wait(ctx: Context, params: Nothing) -> Said:
        """Wait."""
        entered.set()
        await release.wait()
        return Said()

    async with running(plugin) as hub:
        task = asyncio.create_task(hub.call("slow:wait"))
        await soon(entered.wait())
        status = await hub.call("system:status")
        release.set()
        await soon(task)
        import os
        import platform

        assert (status["state"], status["version"], status["pid"]) == ("running", __version__, os.getpid())
        assert status["python"] == platform.python_version()
        assert status["calls_in_flight"] == 1
        assert status["plugins"] == {"running": len(CORE_PLUGINS) + 1, "broken": 0}
        assert status["events"] == len(hub.hub.router.routes)
        assert status["socket"].startswith(status["var_dir"])
        assert status["socket"].endswith("/run/ksi.sock")
        assert status["started_at"].endswith("Z")


async def test_shutdown_answers_first_and_then_asks_the_daemon_to_stop() -> None:
    """K005."""
    async with running() as hub:
        assert not hub.hub.control.stop_requested.is_set()
        assert await hub.call("system:shutdown") == {"stopping": True}
        assert hub.hub.control.stop_requested.is_set()


# --- help


async def test_help_in_words_tells_everything_about_an_event() -> None:
    """L078: section 3.3, verbose."""
    async with running(weather()) as hub:
        told = await explained(hub, "weather:forecast")
        assert told["summary"] == "Say what the weather will be, day by day."
        assert told["description"].endswith("Longer words that only a full description has.")
        assert (told["event"], told["kind"], told["plugin"]) == ("weather:forecast", "call", "weather")
        assert (told["tool"], told["reads"], told["timeout_s"]) == ("ksi_weather_forecast", True, 5)
        assert told["parameters"]["place"] == {
            "type": "string",
            "required": True,
            "description": "Town or airport code.",
            "minLength": 1,
            "maxLength": 100,
        }
        assert told["parameters"]["days"] == {
            "type": "integer",
            "required": False,
            "description": "How many days ahead.",
            "default": 3,
            "minimum": 1,
            "maximum": 10,
        }
        assert told["parameters"]["unit"]["type"] == "one of c, f"
        assert told["parameters"]["tags"]["type"] == "array of string"
        assert told["parameters"]["near"]["type"] == "object or null"
        assert told["result"].keys() == {"town", "days"}


async def test_help_in_brief_and_briefer() -> None:
    """L078: section 3.3, compact and ultra_compact."""
    async with running(weather()) as hub:
        brief = await explained(hub, "weather:forecast", format_style="compact")
        assert brief == {
            "event": "weather:forecast",
            "summary": "Say what the weather will be, day by day.",
            "parameters": {
                "place": "string, required",
                "days": "integer, default 3",
                "unit": "one of c, f, default 'c'",
                "tags": "array of string, default []",
                "near": "object or null, default None",
            },
        }
        briefer = await explained(hub, "weather:forecast", format_style="ultra_compact")
        assert briefer == {"event": "weather:forecast", "parameters": ["place", "days?", "unit?", "tags?", "near?"]}


async def test_help_as_a_tool_and_as_json_schema_is_the_schema_that_calls_are_held_to() -> None:
    """L078."""
    async with running(weather()) as hub:
        tool = await explained(hub, "weather:forecast", format_style="mcp")
        assert (tool["name"], tool["annotations"]["readOnlyHint"]) == ("ksi_weather_forecast", True)
        schema = await explained(hub, "weather:forecast", format_style="json_schema")
        assert schema["schema"] == tool["inputSchema"] == Forecast.model_json_schema()
        assert schema["result_schema"] == tool["outputSchema"] == Outlook.model_json_schema(mode="serialization")
        assert schema["schema"]["additionalProperties"] is False
        assert schema["schema"]["required"] == ["place"]


async def test_every_event_can_be_explained_in_every_format() -> None:
    """L078, K043."""
    async with running(weather()) as hub:
        events = (await hub.call("system:discover"))["events"]
        for event in events:
            for style in FORMATS:
                assert (await explained(hub, event, format_style=style))["event"] == event


async def test_a_notice_is_explained_by_its_meaning() -> None:
    async with running(weather()) as hub:
        told = await explained(hub, "weather:changed")
        assert (told["kind"], told["plugin"], told["summary"]) == ("notice", "weather", "The sky is another one.")


async def test_help_for_what_does_not_exist_is_an_unknown_event() -> None:
    async with running() as hub:
        for event in ("weather:forecast", "nonsense", "ksi_system_echo"):
            with pytest.raises(UnknownEvent):
                await explained(hub, event)
        with pytest.raises(Invalid):
            await explained(hub, "system:echo", format_style="poem")


# --- discover


async def test_discover_lists_every_call_and_notice_with_its_summary() -> None:
    """K043."""
    async with running(weather()) as hub:
        found = await hub.call("system:discover")
        assert found["events"]["system:echo"] == {
            "summary": "Return the text, to test a connection.",
            "plugin": "system",
            "reads": True,
            "kind": "call",
        }
        assert found["events"]["weather:changed"]["kind"] == "notice"
        assert found["total"] == len(found["events"])
        assert found["namespaces"] == sorted({event.split(":")[0] for event in found["events"]})
        assert list(found["events"]) == sorted(found["events"])


CORE_EVENTS = {
    "system:echo", "system:health", "system:status", "system:shutdown", "system:help", "system:discover", "system:validate",
    "plugin:list", "plugin:inspect", "plugin:reload",
    "state:get", "state:set", "state:delete", "state:list",
    "message:publish", "message:subscribe", "message:unsubscribe", "message:subscriptions",
    "monitor:get_events", "monitor:get_stats", "monitor:get_correlation_chain",
    "config:show", "config:reload",
    "agent:register", "agent:list", "agent:get", "agent:remove", "agent:freeze", "agent:unfreeze", "agent:config",
    "agent:spawn", "agent:tree", "agent:terminate", "agent:restart", "agent:logs",
    "completion:async", "completion:wait", "completion:status", "completion:cancel", "completion:list",
    "completion:token_usage", "completion:providers", "conversation:list", "conversation:get", "conversation:export",
    "token:create", "token:list", "token:revoke", "token:rotate",
    "permission:get_agent", "permission:set_agent", "permission:remove_agent", "permission:list_profiles",
    "permission:get_profile", "permission:grant", "permission:revoke", "permission:explain", "permission:validate_spawn",
    "session:create", "session:list", "session:revoke",
    "audit:query", "audit:stats", "audit:verify", "audit:export", "audit:retain", "audit:checkpoint", "mcp:status",
    "mcp:help", "mcp:find_tools", "mcp:call_tool", "mcp:batch_call", "mcp:raw_event",
    "mcp:list_sessions", "mcp:get_session", "mcp:clear_sessions",
}  # fmt: skip
CORE_NOTICES = {
    "system:ready", "system:stopping", "plugin:loaded", "plugin:failed", "plugin:reloaded", "state:changed",
    "config:reloaded", "config:rejected", "agent:registered", "agent:removed", "agent:frozen", "agent:unfrozen",
    "token:revoked", "permission:changed", "agent:spawned", "agent:terminated", "agent:restarted",
    "completion:started", "completion:progress", "completion:result", "completion:failed", "completion:cancelled",
}  # fmt: skip


async def test_the_core_events_and_notices_are_the_ones_that_were_promised() -> None:
    """K043: a name that comes or goes is a change of the contract and of this list."""
    async with running() as hub:
        events = (await hub.call("system:discover"))["events"]
        assert {event for event, about in events.items() if about["kind"] == "call"} == CORE_EVENTS
        assert {event for event, about in events.items() if about["kind"] == "notice"} == CORE_NOTICES


async def test_discover_can_be_narrowed_to_a_namespace_a_plugin_or_one_event() -> None:
    async with running(weather()) as hub:
        for narrowing in ({"namespace": "weather"}, {"module": "weather"}):
            found = await hub.call("system:discover", **narrowing)
            assert list(found["events"]) == ["weather:changed", "weather:forecast"]
        one = await call(hub.hub.router, "system:discover", {"event": "weather:forecast"})
        assert list(one["events"]) == ["weather:forecast"]
        assert (await hub.call("system:discover", namespace="nowhere"))["total"] == 0


async def test_discover_has_three_levels() -> None:
    """L078: section 3.3, level summary, namespace and full."""
    async with running(weather()) as hub:
        full = await hub.call("system:discover")
        names = await hub.call("system:discover", level="namespace")
        summary = await hub.call("system:discover", level="summary")
        assert names["namespaces"]["weather"] == ["weather:changed", "weather:forecast"]
        assert summary["namespaces"]["weather"] == 2
        assert sorted(event for there in names["namespaces"].values() for event in there) == list(full["events"])
        assert sum(summary["namespaces"].values()) == full["total"] == names["total"] == summary["total"]
        assert names["events"] == summary["events"] == {}


@pytest.mark.parametrize("style", FORMATS)
async def test_discover_with_detail_tells_each_event_as_help_does(style: str) -> None:
    """L078: five formats."""
    async with running(weather()) as hub:
        found = await hub.call("system:discover", detail=True, format_style=style)
        for event in ("weather:forecast", "system:echo", "state:list", "weather:changed"):
            assert found["events"][event] == await explained(hub, event, format_style=style)


# --- validate


@pytest.mark.parametrize(
    ("data", "bad"),
    [
        ({"place": "Bonn"}, set()),
        ({"place": "Bonn", "days": 10, "unit": "f", "tags": ["a"], "near": {"town": "Köln"}}, set()),
        ({}, {"place"}),
        ({"place": ""}, {"place"}),
        ({"place": "x" * 101, "days": 11, "unit": "k", "extra": 1}, {"place", "days", "unit", "extra"}),
        ({"place": "Bonn", "tags": ["a"] * 6}, {"tags"}),
        ({"place": "Bonn", "near": {"town": "Köln", "extra": 1}}, {"near.extra"}),
        ([], {"(data)"}),
        ("text", {"(data)"}),
        (None, {"(data)"}),
    ],
)
async def test_validate_says_whether_data_would_fit_and_names_every_problem(data: JsonValue, bad: set[str]) -> None:
    """L079: strict, unknown fields are errors too, at any depth."""
    async with running(weather()) as hub:
        verdict = await call(hub.hub.router, "system:validate", {"event": "weather:forecast", "data": data})
        assert verdict["valid"] == (not bad)
        assert {problem["field"] for problem in verdict["errors"]} == bad
        assert all(problem["message"] for problem in verdict["errors"])


async def test_validate_and_the_call_itself_always_agree() -> None:
    """L079: one parser."""
    async with running(weather()) as hub:
        for data in (
            {"place": "Bonn"},
            {"place": 5},
            {"place": "Bonn", "days": "3"},
            {"days": 3},
            {"place": "Bonn", "more": 1},
        ):
            verdict = await call(hub.hub.router, "system:validate", {"event": "weather:forecast", "data": data})
            try:
                await call(hub.hub.router, "weather:forecast", data)
            except Invalid as error:
                told = [(field["field"], field["problem"]) for field in error.fields]
                assert [(problem["field"], problem["message"]) for problem in verdict["errors"]] == told
            else:
                assert verdict == {"valid": True, "errors": []}


async def test_validate_runs_nothing_and_refuses_what_does_not_exist() -> None:
    """L079."""
    plugin = Plugin("bomb")

    @plugin.handles("bomb:explode")
    async def explode(ctx: Context, params: Nothing) -> Said:
        """Explode."""
        raise AssertionError("it was run")

    async with running(plugin) as hub:
        assert (await call(hub.hub.router, "system:validate", {"event": "bomb:explode", "data": {}}))["valid"]
        with pytest.raises(Internal):
            await hub.call("bomb:explode")
        with pytest.raises(UnknownEvent):
            await call(hub.hub.router, "system:validate", {"event": "no:where", "data": {}})
