"""How a plugin is: what it says of its parts, what a silent or broken health function means, and the last errors of each part."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ksi_daemon.errors import Internal, NotFound
from ksi_daemon.logs.failures import ERROR_LIMIT, PARTS_LIMIT, TRACEBACK_LIMIT, Failures
from ksi_daemon.notice import Notice
from ksi_daemon.plugin import Context, HealthPart, Home, Nothing, Plugin, PluginRefused
from ksi_daemon.plugin_host import health_check
from ksi_daemon.testing import TestHub, running
from ksi_daemon.web.app import make_app
from tests.cases import case
from tests.in_process import Said, soon, until

Health = Callable[[Home], Awaitable[Any]]


def saying(health: Health, name: str = "notes") -> Plugin:
    plugin = Plugin(name)
    plugin.health(health)
    return plugin


async def health_of(hub: TestHub, name: str = "notes") -> list[tuple[str, str, str | None]]:
    parts = (await hub.call("system:health"))["plugins"][name]["parts"]
    return [(part["name"], part["state"], part["reason"]) for part in parts]


async def test_the_parts_are_in_the_health_of_the_daemon_and_of_the_plugin() -> None:
    state: list[Any] = ["ok", None]

    async def health(home: Home) -> list[HealthPart]:
        return [HealthPart(name="index", state=state[0], reason=state[1]), HealthPart(name="queue")]

    async with running(saying(health)) as hub:
        assert await health_of(hub) == [("index", "ok", None), ("queue", "ok", None)]
        assert (await hub.call("system:health"))["status"] == "ok"
        state[:] = ["degraded", "no embedder, password=hunter2 " + "x" * 1000]
        (index, _) = await health_of(hub)
        assert index[:2] == ("index", "degraded")
        assert index[2] is not None
        assert "hunter2" not in index[2]
        assert len(index[2]) <= health_check.REASON_LIMIT
        assert (await hub.call("system:health"))["status"] == "degraded"
        assert (await hub.call("plugin:inspect", name="notes"))["health"][0]["state"] == "degraded"
        assert hub.hub.loader.degraded


async def test_a_health_function_that_raises_or_answers_nonsense_is_a_failed_part_of_that_plugin_only() -> None:
    """Promise 5."""

    async def broken(home: Home) -> list[HealthPart]:
        raise ValueError("no database")

    async def exits(home: Home) -> list[HealthPart]:
        raise SystemExit(3)

    async def cancels(home: Home) -> list[HealthPart]:
        raise asyncio.CancelledError

    async def nonsense(home: Home) -> Any:
        return ["fine"]

    async def nothing(home: Home) -> Any:
        return None

    async def sound(home: Home) -> list[HealthPart]:
        return [HealthPart(name="index")]

    for function, reason in [
        (broken, "ValueError: no database"),
        (exits, "SystemExit: 3"),
        (cancels, "CancelledError"),
        (nonsense, "a list of HealthPart"),
        (nothing, "TypeError"),
    ]:
        with case(function.__name__):
            async with running(saying(function), saying(sound, "sound")) as hub:
                ((name, state, said),) = await health_of(hub)
                assert (name, state) == ("health", "failed")
                assert reason in str(said)
                assert await health_of(hub, "sound") == [("index", "ok", None)]
                (error,) = (await hub.call("plugin:inspect", name="notes"))["errors"]
                assert (error["kind"], error["name"]) == ("health", "health")


async def test_a_health_function_that_hangs_is_a_failed_part_also_when_it_ignores_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health_check, "LIMIT_S", 0.01)
    calls, release = 0, asyncio.Event()

    async def stubborn(home: Home) -> list[HealthPart]:
        nonlocal calls
        calls += 1
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return []

    async with running(saying(stubborn)) as hub:
        for _ in range(3):
            ((name, state, reason),) = await health_of(hub)
            assert (name, state) == ("health", "failed")
            assert "did not answer" in str(reason)
        assert calls == 1
        release.set()
        await until(lambda: not any(task.get_name().startswith("health of") for task in asyncio.all_tasks()))
        assert await health_of(hub) == []


async def test_a_failed_part_is_visible_at_readyz_and_leaves_the_daemon_ready() -> None:
    for degraded, expected in [(False, "ready\n"), (True, "ready\ndegraded\n")]:
        with case(degraded):
            app = make_app(lambda: "ready", HOSTS, lambda: None, degraded=lambda degraded=degraded: degraded)  # type: ignore[misc]
            assert await get_readyz(app) == (200, expected)
    app = make_app(lambda: "stopping", HOSTS, lambda: None, degraded=lambda: True)
    assert await get_readyz(app) == (503, "stopping\n")


HOSTS = frozenset({"127.0.0.1:1"})


async def get_readyz(app: Any) -> tuple[int, str]:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "GET", "path": "/readyz", "raw_path": b"/readyz", "query_string": b"",
        "headers": [(b"host", b"127.0.0.1:1")], "http_version": "1.1", "scheme": "http", "root_path": "",
    }  # fmt: skip
    await app(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:]).decode()


async def test_the_daemon_asks_now_and_then_so_that_readyz_runs_no_code_of_plugins() -> None:
    asked = asyncio.Event()

    async def health(home: Home) -> list[HealthPart]:
        asked.set()
        return [HealthPart(name="index", state="failed", reason="gone")]

    async with running() as hub:
        assert not hub.hub.loader.degraded
        await hub.load(saying(health))
        asking = asyncio.create_task(hub.hub.loader.keep_asking())
        await soon(asked.wait())
        await until(lambda: hub.hub.loader.degraded)
        asking.cancel()


async def test_the_last_error_of_handlers_and_listeners_is_shown_with_its_traceback() -> None:
    plugin = Plugin("notes")
    plugin.announces("notes:added", "A note was added.")

    @plugin.handles("notes:add")
    async def add(ctx: Context, params: Nothing) -> Said:
        """Fail."""
        ctx.notify("notes:added")
        raise ValueError("no disk")

    @plugin.handles("notes:find")
    async def find(ctx: Context, params: Nothing) -> Said:
        """Find nothing, which is an answer and no failure."""
        raise NotFound("no such note")

    @plugin.on("notes:*")
    async def index(ctx: Context, notice: Notice) -> None:
        raise KeyError("unknown")

    async with running(plugin, raise_failures=False) as hub:
        for event, kind in [("notes:add", Internal), ("notes:add", Internal), ("notes:find", NotFound)]:
            with pytest.raises(kind):
                await hub.call(event)
        await until(lambda: hub.hub.loader.running["notes"].subscriptions[0].failed == 2)
        errors = {error["name"]: error for error in (await hub.call("plugin:inspect", name="notes"))["errors"]}
        assert {name: (error["kind"], error["count"], error["error"]) for name, error in errors.items()} == {
            "notes:add": ("handler", 2, "ValueError: no disk"),
            "notes:*": ("listener", 2, "KeyError: 'unknown'"),
        }
        assert "in add" in errors["notes:add"]["traceback"]
        assert "in index" in errors["notes:*"]["traceback"]


def test_what_is_kept_of_failures_is_bounded_and_redacted() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def deep(left: int) -> None:
        if left:
            deep(left - 1)
        raise ValueError("token=hunter2secret " + "x" * 10_000)

    failures = Failures()
    for number in range(PARTS_LIMIT * 2):
        failures.note("background", f"work {number}", Mute())
    try:
        deep(200)
    except ValueError as error:
        failures.note("handler", "notes:add", error)
    rows = failures.rows(with_tracebacks=True)
    assert len(rows) == PARTS_LIMIT
    assert (rows[0]["name"], rows[1]["error"]) == ("notes:add", "Mute")
    assert len(rows[0]["error"]) <= ERROR_LIMIT + 1
    assert len(rows[0]["traceback"]) <= TRACEBACK_LIMIT + 1
    assert "hunter2" not in str(rows)


def test_a_health_function_of_the_wrong_form_is_refused() -> None:
    async def two(home: Home, more: str) -> list[HealthPart]:
        return []

    def plain(home: Home) -> list[HealthPart]:
        return []

    async def good(home: Home) -> list[HealthPart]:
        return []

    for function in (two, plain):
        with case(function.__name__), pytest.raises(PluginRefused, match="async function"):
            Plugin("notes").health(function)  # type: ignore[arg-type]
    plugin = saying(good)
    with pytest.raises(PluginRefused, match="two health functions"):
        plugin.health(good)
