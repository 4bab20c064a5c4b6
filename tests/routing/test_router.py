"""The path of every call: find, permit, parse, run, bound, record; and what each kind of failure looks like outside."""

import asyncio
import contextlib
import functools
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksi_daemon.errors import (
    Cancelled,
    Conflict,
    Forbidden,
    Internal,
    Invalid,
    KsiError,
    NotFound,
    TimedOut,
    TooDeep,
    TooLarge,
    TooMany,
    Unavailable,
    UnknownEvent,
)
from ksi_daemon.identifiers import EVENT_NAME, matches, namespace_of, new_id, tool_name
from ksi_daemon.logs.log import Log
from ksi_daemon.notice import Notice
from ksi_daemon.plugin import Context, Field, Nothing, Params, Plugin, Result
from ksi_daemon.routing.router import DEPTH_LIMIT
from ksi_daemon.testing import TestHub, running
from tests.in_process import OPERATOR, Said, Text, bare_router, call, log_lines, soon, take_clock, until

WORDS = st.text("abcdefghijklmnopqrstuvwxyz0123456789_", min_size=1, max_size=20)


async def records(hub: TestHub, event: str) -> list[dict[str, Any]]:
    """What the monitor remembers of an event, newest first."""
    found = await hub.call("monitor:get_events", event_patterns=[event])
    return list(found["events"])


def breaking(error: BaseException) -> Plugin:
    """A plugin whose one handler raises this."""
    plugin = Plugin("fragile")

    @plugin.handles("fragile:break")
    async def fail(ctx: Context, params: Text) -> Said:
        """Fail."""
        raise error

    return plugin


def waiting(entered: asyncio.Event, release: asyncio.Event, **traits: Any) -> Plugin:
    """A plugin whose one handler says that it was entered and then waits to be released."""
    plugin = Plugin("slow")

    @plugin.handles("slow:wait", **traits)
    async def wait(ctx: Context, params: Text) -> Said:
        """Wait."""
        entered.set()
        await release.wait()
        return Said(text="released")

    return plugin


def returning(result: Any, declared: type[Result] = Said) -> Plugin:
    """A plugin whose one handler returns this, whatever it declares."""
    plugin = Plugin("odd")

    async def give(ctx: Context, params: Text) -> Any:
        """Give something."""
        return result

    give.__annotations__["return"] = declared
    plugin.handles("odd:give")(give)
    return plugin


# --- finding and reading


async def test_an_event_that_no_plugin_owns_is_refused_and_recorded() -> None:
    async with running() as hub:
        with pytest.raises(UnknownEvent) as caught:
            await hub.call("nobody:home")
        assert caught.value.hint
        (record,) = await records(hub, "nobody:home")
        assert (record["outcome"], record["kind"], record["principal"]) == ("unknown_event", "call", "operator")


@pytest.mark.parametrize(
    "event", ["", "x" * 100_000, "a:b\x1b[31m", "\ud800", "system", "system:", ":echo", "SYSTEM:ECHO", "*"]
)
async def test_a_name_that_is_no_event_is_only_an_unknown_event(event: str) -> None:
    async with running() as hub:
        with pytest.raises(UnknownEvent) as caught:
            await hub.call(event)
        assert len(caught.value.message) < 500
        assert caught.value.message.isprintable()


async def test_every_bad_field_is_named_at_once_and_no_input_is_echoed() -> None:
    """L079 for real calls; the answer may be logged by others, so it never repeats what was sent."""
    plugin = Plugin("form")

    class Form(Params):
        name: str = Field(max_length=5, description="A name.")
        age: int = Field(ge=0, description="An age.")
        mood: str = Field(pattern="^[a-z]+$", description="A mood.")

    @plugin.handles("form:send")
    async def send(ctx: Context, params: Form) -> Said:
        """Send a form."""
        raise AssertionError("a bad form must not get here")

    planted = "hunter2-do-not-repeat"
    async with running(plugin) as hub:
        with pytest.raises(Invalid) as caught:
            await hub.call("form:send", name=planted, age=planted, mood=planted + "!", extra=planted)
        assert {field["field"] for field in caught.value.fields} == {"name", "age", "mood", "extra"}
        assert all(field["problem"] for field in caught.value.fields)
        assert planted not in str(caught.value.as_dict())
        assert "system:help" in str(caught.value.hint)


@pytest.mark.parametrize(
    "data", [None, [], "text", 5, True, {"text": "x", 5: 6}, {"text": "\ud800"}, {"text": {"a": []}}]
)
async def test_data_that_is_no_object_of_known_fields_is_invalid(data: Any) -> None:
    async with running() as hub:
        with pytest.raises(Invalid):
            await hub.hub.router.call("system:echo", data, principal=OPERATOR)


async def test_a_thousand_bad_fields_are_named_in_a_bounded_answer() -> None:
    """L062."""
    async with running() as hub:
        with pytest.raises(Invalid) as caught:
            await hub.call("system:echo", **{f"field_{number}" * 20: 1 for number in range(1_000)})
        assert len(str(caught.value.as_dict())) < 50_000


# --- identity of a call: ids, depth, nesting


async def test_nested_calls_and_notices_share_a_correlation_and_name_their_parents() -> None:
    plugin = Plugin("family")
    plugin.announces("family:grown", "A child was born.")
    seen: dict[str, Context] = {}

    @plugin.handles("family:parent")
    async def parent(ctx: Context, params: Nothing) -> Said:
        """Have a child."""
        seen["parent"] = ctx
        await ctx.call("family:child")
        return Said()

    @plugin.handles("family:child")
    async def child(ctx: Context, params: Nothing) -> Said:
        """Tell."""
        seen["child"] = ctx
        ctx.notify("family:grown")
        return Said()

    heard = asyncio.Event()

    @plugin.on("family:grown")
    async def listen(ctx: Context, notice: Notice) -> None:
        seen["listener"] = ctx
        await ctx.call("system:echo", {"text": "heard"})
        heard.set()

    async with running(plugin) as hub:
        await call(hub.hub.router, "family:parent", correlation_id="one-thread")
        await soon(heard.wait())
        assert {ctx.correlation_id for ctx in seen.values()} == {"one-thread"}
        assert (seen["parent"].parent_id, seen["parent"].depth) == (None, 0)
        assert (seen["child"].parent_id, seen["child"].depth) == (seen["parent"].call_id, 1)
        assert (seen["listener"].parent_id, seen["listener"].depth) == (seen["child"].call_id, 2)
        chain = await hub.call("monitor:get_correlation_chain", correlation_id="one-thread")
        told = [(step["event"], step["depth"], step["parent_id"]) for step in chain["events"]]
        assert told == [
            ("family:parent", 0, None),
            ("family:child", 1, seen["parent"].call_id),
            ("family:grown", 2, seen["child"].call_id),
            ("system:echo", 3, seen["listener"].call_id),
        ]


async def test_a_call_without_a_correlation_starts_one_of_its_own() -> None:
    async with running() as hub:
        await hub.call("system:echo", text="a")
        await hub.call("system:echo", text="b")
        second, first = await records(hub, "system:echo")
        assert first["correlation_id"] == first["id"]
        assert second["correlation_id"] == second["id"] != first["id"]


async def test_a_nested_call_acts_for_the_caller_of_the_outer_one() -> None:
    plugin = Plugin("agent_of")

    @plugin.handles("agent_of:ask")
    async def ask(ctx: Context, params: Nothing) -> Said:
        """Ask."""
        return Said(text=(await ctx.call("system:echo", {"text": ctx.principal.name}))["text"])

    async with running(plugin) as hub:
        assert (await hub.call("agent_of:ask"))["text"] == "test"
        assert (await records(hub, "system:echo"))[0]["principal"] == "operator"


async def test_a_plugin_calling_a_plugin_gets_what_any_client_gets() -> None:
    """K046: the in-process emitter takes the same path: same answer, same errors, same record."""
    plugin = Plugin("proxy")

    class Forward(Params):
        to: str = Field(description="Where.")
        data: dict[str, Any] = Field({}, description="What.")

    class Back(Result):
        answer: Any

    @plugin.handles("proxy:send")
    async def send(ctx: Context, params: Forward) -> Back:
        """Forward."""
        return Back(answer=await ctx.call(params.to, params.data))

    async with running(plugin) as hub:
        direct = await hub.call("system:help", event="system:echo")
        through = await hub.call("proxy:send", to="system:help", data={"event": "system:echo"})
        assert through["answer"] == direct
        for event, data in [("state:get", {"key": "nothing"}), ("no:where", {}), ("system:echo", {"wrong": 1})]:
            with pytest.raises(KsiError) as plain:
                await hub.hub.router.call(event, data, principal=OPERATOR)
            with pytest.raises(KsiError) as proxied:
                await hub.call("proxy:send", to=event, data=data)
            assert proxied.value.as_dict() == plain.value.as_dict()
            nested, outer = (await hub.call("monitor:get_events", limit=2))["events"][::-1]
            assert nested["outcome"] == outer["outcome"] == plain.value.code


async def test_a_handler_that_calls_itself_is_cut_at_the_depth_limit_and_the_hub_answers_on() -> None:
    """D08."""
    plugin = Plugin("loop")
    entered = 0

    @plugin.handles("loop:again")
    async def again(ctx: Context, params: Nothing) -> Said:
        """Call itself."""
        nonlocal entered
        entered += 1
        return Said(**await ctx.call("loop:again"))

    async with running(plugin) as hub:
        with pytest.raises(TooDeep):
            await hub.call("loop:again")
        assert entered == DEPTH_LIMIT + 1
        outcomes = [record["outcome"] for record in await records(hub, "loop:again")]
        assert outcomes == ["too_deep"] * (DEPTH_LIMIT + 2)
        assert await soon(hub.call("system:echo", text="still here"))


async def test_two_plugins_that_call_each_other_are_cut_too() -> None:
    """D08: A -> B -> A."""
    left, right = Plugin("left"), Plugin("right")

    @left.handles("left:go")
    async def go_right(ctx: Context, params: Nothing) -> Said:
        """Go right."""
        return Said(**await ctx.call("right:go"))

    @right.handles("right:go")
    async def go_left(ctx: Context, params: Nothing) -> Said:
        """Go left."""
        return Said(**await ctx.call("left:go"))

    async with running(left, right) as hub:
        with pytest.raises(TooDeep):
            await soon(hub.call("left:go"))
        assert await hub.call("system:echo", text="still here")


async def test_notices_that_set_off_themselves_end_at_the_depth_limit_and_count_as_one_failure() -> None:
    """D08."""
    plugin = Plugin("echoes")
    plugin.announces("echoes:again", "It rang.")
    depths: list[int] = []

    @plugin.handles("echoes:ring")
    async def ring(ctx: Context, params: Nothing) -> Said:
        """Ring."""
        ctx.notify("echoes:again")
        return Said()

    @plugin.on("echoes:*")
    async def listen(ctx: Context, notice: Notice) -> None:
        depths.append(notice.depth)
        ctx.notify("echoes:again")

    async with running(plugin, raise_failures=False) as hub:
        await hub.call("echoes:ring")
        await until(lambda: depths and depths[-1] == DEPTH_LIMIT)
        await until(lambda: hub.hub.loader.running["echoes"].subscriptions[0].failed == 1)
        assert depths == list(range(1, DEPTH_LIMIT + 1))
        (subscription,) = (await hub.call("plugin:inspect", name="echoes"))["subscriptions"]
        assert (subscription["delivered"], subscription["failed"], subscription["dropped"]) == (DEPTH_LIMIT, 1, 0)


async def test_calls_and_notices_that_answer_each_other_are_cut_as_well() -> None:
    """D08: the depth is one count for both."""
    plugin = Plugin("pingpong")
    plugin.announces("pingpong:ponged", "A pong.")
    depths: list[int] = []

    @plugin.handles("pingpong:ping")
    async def ping(ctx: Context, params: Nothing) -> Said:
        """Ping."""
        depths.append(ctx.depth)
        ctx.notify("pingpong:ponged")
        return Said()

    @plugin.on("pingpong:ponged")
    async def pong(ctx: Context, notice: Notice) -> None:
        await ctx.call("pingpong:ping")

    async with running(plugin) as hub:
        await hub.call("pingpong:ping")
        await until(lambda: len(depths) == DEPTH_LIMIT // 2 + 1)
        await until(lambda: not hub.hub.router.in_flight)
        assert max(depths) <= DEPTH_LIMIT


# --- deadlines


async def test_a_handler_past_its_deadline_is_cancelled_and_reported_as_timed_out() -> None:
    entered, release = asyncio.Event(), asyncio.Event()
    async with running(waiting(entered, release, timeout_s=7)) as hub:
        clock = take_clock(hub)
        task = asyncio.create_task(hub.call("slow:wait"))
        await soon(entered.wait())
        clock.now_s += 6.9
        hub.hub.router.deadlines.sweep()
        await asyncio.sleep(0)
        assert not task.done()
        clock.now_s += 0.2
        hub.hub.router.deadlines.sweep()
        with pytest.raises(TimedOut, match="7 s"):
            await soon(task)
        assert (await records(hub, "slow:wait"))[0]["outcome"] == "timed_out"
        assert hub.hub.router.in_flight == 0


async def test_a_handler_without_its_own_deadline_gets_the_one_of_the_settings() -> None:
    entered, release = asyncio.Event(), asyncio.Event()
    async with running(waiting(entered, release), call_timeout_s=3) as hub:
        clock = take_clock(hub)
        task = asyncio.create_task(hub.call("slow:wait"))
        await soon(entered.wait())
        clock.now_s += 3
        hub.hub.router.deadlines.sweep()
        with pytest.raises(TimedOut, match="3 s"):
            await soon(task)


@pytest.mark.parametrize(("asked_s", "allowed_s", "counts_s"), [(2.0, 10.0, 2.0), (50.0, 10.0, 10.0)])
async def test_a_caller_may_shorten_a_deadline_but_never_lengthen_it(
    asked_s: float, allowed_s: float, counts_s: float
) -> None:
    entered, release = asyncio.Event(), asyncio.Event()
    async with running(waiting(entered, release, timeout_s=allowed_s)) as hub:
        clock = take_clock(hub)
        task = asyncio.create_task(call(hub.hub.router, "slow:wait", timeout_s=asked_s))
        await soon(entered.wait())
        clock.now_s += counts_s - 0.1
        hub.hub.router.deadlines.sweep()
        await asyncio.sleep(0)
        assert not task.done()
        clock.now_s += 0.1
        hub.hub.router.deadlines.sweep()
        with pytest.raises(TimedOut, match=f"{counts_s:g} s"):
            await soon(task)


async def test_a_handlers_own_timeout_error_is_its_failure_and_not_the_deadline() -> None:
    """Trap 3."""
    async with running(breaking(TimeoutError("upstream did not answer"))) as hub:
        with pytest.raises(Internal):
            await hub.call("fragile:break")
        assert (await records(hub, "fragile:break"))[0]["outcome"] == "internal"


async def test_a_timeout_inside_a_handler_that_it_mends_itself_is_nobodys_business() -> None:
    """Trap 3, the other way round: an inner asyncio timeout neither fires nor eats the deadline."""
    plugin = Plugin("patient")
    never, again = asyncio.Event(), asyncio.Event()

    @plugin.handles("patient:wait", timeout_s=5)
    async def wait(ctx: Context, params: Nothing) -> Said:
        """Wait twice."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0):
                await never.wait()
        again.set()
        await never.wait()
        return Said()

    async with running(plugin) as hub:
        clock = take_clock(hub)
        task = asyncio.create_task(hub.call("patient:wait"))
        await soon(again.wait())
        clock.now_s += 5
        hub.hub.router.deadlines.sweep()
        with pytest.raises(TimedOut):
            await soon(task)


async def test_the_deadline_of_an_inner_call_fails_that_call_and_the_outer_one_may_go_on() -> None:
    entered, release = asyncio.Event(), asyncio.Event()
    outer = Plugin("outer")

    @outer.handles("outer:try", timeout_s=60)
    async def attempt(ctx: Context, params: Nothing) -> Said:
        """Try the slow one."""
        try:
            await ctx.call("slow:wait")
        except TimedOut:
            await asyncio.sleep(0)  # a cancellation that was left behind would hit here
            return Said(text="went on")
        raise AssertionError("the inner call must time out")

    async with running(waiting(entered, release, timeout_s=1), outer) as hub:
        clock = take_clock(hub)
        task = asyncio.create_task(hub.call("outer:try"))
        await soon(entered.wait())
        clock.now_s += 1
        hub.hub.router.deadlines.sweep()
        assert (await soon(task))["text"] == "went on"


async def test_when_outer_and_inner_deadline_pass_at_once_the_outer_one_is_told() -> None:
    entered, release = asyncio.Event(), asyncio.Event()
    outer = Plugin("outer")

    @outer.handles("outer:try", timeout_s=1)
    async def attempt(ctx: Context, params: Nothing) -> Said:
        """Try the slow one."""
        return Said(**await ctx.call("slow:wait"))

    async with running(waiting(entered, release, timeout_s=1), outer) as hub:
        clock = take_clock(hub)
        task = asyncio.create_task(hub.call("outer:try"))
        await soon(entered.wait())
        clock.now_s += 1
        hub.hub.router.deadlines.sweep()
        with pytest.raises(TimedOut):
            await soon(task)
        assert task.cancelling() == 0
        assert (await records(hub, "outer:try"))[0]["outcome"] == "timed_out"


async def test_a_handler_that_swallows_its_cancellation_is_cancelled_again() -> None:
    plugin = Plugin("stubborn")
    entered = asyncio.Event()
    swallowed = 0

    @plugin.handles("stubborn:stay", timeout_s=1)
    async def stay(ctx: Context, params: Nothing) -> Said:
        """Stay."""
        nonlocal swallowed
        while swallowed < 3:
            entered.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            swallowed += 1
        await asyncio.Event().wait()
        return Said()

    async with running(plugin) as hub:
        clock = take_clock(hub)
        task = asyncio.create_task(hub.call("stubborn:stay"))
        await soon(entered.wait())
        clock.now_s += 1
        for sweeps in range(1, 5):
            hub.hub.router.deadlines.sweep()
            wanted = min(sweeps, 3)
            await until(functools.partial(lambda least: swallowed >= least, wanted))
        with pytest.raises(TimedOut):
            await soon(task)
        assert swallowed == 3
        assert task.cancelling() == 0


# --- cancellation


async def test_a_cancelled_call_is_recorded_as_cancelled_and_never_as_ok() -> None:
    """Trap 2."""
    entered, release = asyncio.Event(), asyncio.Event()
    async with running(waiting(entered, release)) as hub:
        task = asyncio.create_task(hub.call("slow:wait"))
        await soon(entered.wait())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await soon(task)
        assert (await records(hub, "slow:wait"))[0]["outcome"] == "cancelled"
        stats = await hub.call("monitor:get_stats")
        assert stats["outcomes"]["cancelled"] == 1
        assert stats["calls"]["slow:wait"]["errors"] == 1
        assert hub.hub.router.in_flight == 0


async def test_a_cancellation_from_outside_is_not_taken_for_a_deadline_that_passed_too() -> None:
    """Trap 3: both at once; the caller went away, so nobody is told about a timeout."""
    entered, release = asyncio.Event(), asyncio.Event()
    async with running(waiting(entered, release, timeout_s=1)) as hub:
        clock = take_clock(hub)
        task = asyncio.create_task(hub.call("slow:wait"))
        await soon(entered.wait())
        clock.now_s += 1
        hub.hub.router.deadlines.sweep()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await soon(task)
        assert (await records(hub, "slow:wait"))[0]["outcome"] == "cancelled"


async def test_a_handler_that_raises_cancelled_error_itself_is_a_broken_handler() -> None:
    async with running(breaking(asyncio.CancelledError("I quit"))) as hub:
        with pytest.raises(Internal):
            await soon(hub.call("fragile:break"))
        assert (await records(hub, "fragile:break"))[0]["outcome"] == "internal"


# --- what handlers raise


@pytest.mark.parametrize(
    "error",
    [
        ValueError("secret detail"),
        AssertionError("secret detail"),
        SystemExit("secret detail"),
        KeyboardInterrupt("secret detail"),
        BaseException("secret detail"),
        StopIteration("secret detail"),
        StopAsyncIteration("secret detail"),
        RecursionError("secret detail"),
        MemoryError("secret detail"),
        ExceptionGroup("secret detail", [ValueError("secret detail")]),
        BaseExceptionGroup("secret detail", [SystemExit("secret detail")]),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_a_handler_raises_is_one_internal_error_whose_text_stays_in_the_log(
    error: BaseException,
) -> None:
    """D07, L077: the answer names the call, the log under that id has the rest."""
    async with running(breaking(error)) as hub:
        with pytest.raises(Internal) as caught:
            await soon(hub.call("fragile:break"))
        told = caught.value.as_dict()
        assert "secret detail" not in str(told)
        assert type(error).__name__ not in told["message"]
        assert told["call_id"] in told["hint"]
        (record,) = await records(hub, "fragile:break")
        assert (record["id"], record["outcome"]) == (told["call_id"], "internal")
        lines = log_lines(hub.hub.log.file.path)
        (line,) = [line for line in lines if line.get("call_id") == told["call_id"] and line["level"] == "error"]
        assert "secret detail" in line["exception"]
        assert line["called"] == "fragile:break"
        assert await hub.call("system:echo", text="still here")


async def test_details_of_a_broken_handler_are_told_only_when_the_settings_say_so() -> None:
    """L077."""
    async with running(breaking(ValueError("the detail" + "x" * 10_000)), expose_error_details=True) as hub:
        with pytest.raises(Internal, match="ValueError: the detail") as caught:
            await hub.call("fragile:break")
        assert len(caught.value.message) < 1_000


async def test_an_error_whose_own_text_fails_is_still_one_internal_error() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    for exposed in (False, True):
        async with running(breaking(Unprintable()), expose_error_details=exposed) as hub:
            with pytest.raises(Internal):
                await hub.call("fragile:break")
            assert (await records(hub, "fragile:break"))[0]["outcome"] == "internal"


@pytest.mark.parametrize(
    "error",
    [
        Invalid("bad", fields=[{"field": "a", "problem": "b"}]),
        Forbidden("no"),
        NotFound("none", hint="look elsewhere"),
        Conflict("there"),
        TooLarge("big"),
        TooMany("often", retry_after_s=1.5),
        Cancelled("gone"),
        Unavailable("down"),
        TimedOut("late"),
    ],
    ids=lambda error: str(error.code),
)
async def test_an_error_from_the_tree_reaches_the_caller_as_it_is_and_is_recorded_by_its_code(error: KsiError) -> None:
    async with running(breaking(error)) as hub:
        with pytest.raises(type(error)) as caught:
            await hub.call("fragile:break")
        assert caught.value.as_dict() == error.as_dict()
        assert (await records(hub, "fragile:break"))[0]["outcome"] == error.code


async def test_an_error_message_of_fifty_megabytes_is_cut_and_says_so() -> None:
    """D07, L062: a failure is bounded as a result is."""
    huge = "x" * 50_000_000
    async with running(breaking(NotFound(huge, hint=huge))) as hub:
        with pytest.raises(NotFound) as caught:
            await hub.call("fragile:break")
        assert len(str(caught.value.as_dict())) < 100_000


# --- what handlers return


async def test_a_result_over_the_limit_is_refused_as_too_large_with_its_size() -> None:
    """L062, D07: never cut silently."""
    async with running(returning(Said(text="x" * 1_000_000))) as hub:
        with pytest.raises(TooLarge, match="1,000,011 bytes") as caught:
            await hub.call("odd:give")
        assert "result_limit_bytes" in str(caught.value.hint)
        (record,) = await records(hub, "odd:give")
        assert (record["outcome"], record["result_bytes"]) == ("too_large", 1_000_011)


@pytest.mark.parametrize(("extra", "fits"), [(0, True), (1, False)])
async def test_the_result_limit_is_exact_and_counts_bytes_not_characters(extra: int, fits: bool) -> None:
    """L062."""
    text = "é" * ((1_000 - len('{"text":""}')) // 2) + "x" * ((1_000 - len('{"text":""}')) % 2 + extra)
    async with running(returning(Said(text=text)), result_limit_bytes=1_000) as hub:
        if fits:
            assert (await hub.call("odd:give"))["text"] == text
        else:
            with pytest.raises(TooLarge):
                await hub.call("odd:give")


async def test_a_hundred_megabytes_are_one_error_answer() -> None:
    """D07."""
    async with running(returning(Said(text="x" * 100_000_000))) as hub:
        with pytest.raises(TooLarge):
            await soon(hub.call("odd:give"))
        assert await hub.call("system:echo", text="still here")


class Loose(Result):
    """A result that may hold anything."""

    value: Any = None


def _cycle() -> list[Any]:
    cycle: list[Any] = []
    cycle.append(cycle)
    return cycle


def _deep() -> list[Any]:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    return deep


GARBAGE: dict[str, Any] = {
    "nothing": None,
    "another class": Loose(value=1),
    "a dictionary": {"text": "x"},
    "a class": Said,
    "a wrong field": Said.model_construct(text=5),  # type: ignore[arg-type]
    "a lone surrogate": Said.model_construct(text="\ud800"),
    "bytes": b"x",
}
LOOSE_GARBAGE: dict[str, Any] = {
    "an object": object(),
    "a cycle": _cycle(),
    "a set of objects": {object()},
    "a coroutine function": running,
    "too deep": _deep(),
    "bytes that are no text": b"\xff\xfe",
    "a lone surrogate": "\udfff",
}


@pytest.mark.parametrize("result", GARBAGE.values(), ids=GARBAGE.keys())
async def test_a_result_of_another_shape_than_declared_is_the_handlers_failure(result: Any) -> None:
    """D07."""
    async with running(returning(result)) as hub:
        with pytest.raises(Internal):
            await hub.call("odd:give")
        assert (await records(hub, "odd:give"))[0]["outcome"] == "internal"


@pytest.mark.parametrize("value", LOOSE_GARBAGE.values(), ids=LOOSE_GARBAGE.keys())
async def test_a_result_that_cannot_be_written_as_json_is_the_handlers_failure(value: Any) -> None:
    """D07: cycles, objects, nesting past any stack."""
    async with running(returning(Loose.model_construct(value=value), Loose)) as hub:
        with pytest.raises(Internal):
            await soon(hub.call("odd:give"))
        assert await hub.call("system:echo", text="still here")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
async def test_a_number_that_json_cannot_write_is_refused_and_not_silently_nothing(value: float) -> None:
    """D07, J05: null instead of a number would be a silent loss."""
    async with running(returning(Loose(value=value), Loose)) as hub:
        with pytest.raises(Internal):
            await hub.call("odd:give")


async def test_a_subclass_of_the_declared_result_is_written_without_a_complaint() -> None:
    class More(Said):
        more: int = 5

    async with running(returning(More(text="x"))) as hub:
        assert (await hub.call("odd:give"))["text"] == "x"


# --- notices


async def test_a_plugin_may_only_send_notices_that_it_announced() -> None:
    plugin = Plugin("gossip")
    plugin.announces("gossip:true", "A fact.")

    class What(Params):
        event: str = Field(description="The notice.")

    @plugin.handles("gossip:tell")
    async def tell(ctx: Context, params: What) -> Said:
        """Tell."""
        return Said(text=ctx.notify(params.event, {"a": 1}).id)

    async with running(plugin) as hub:
        hub.subscribe("*")
        for event in ("gossip:false", "system:ready", "state:changed", "free:word", "nonsense", ""):
            with pytest.raises(Forbidden):
                await call(hub.hub.router, "gossip:tell", {"event": event})
        sent = await call(hub.hub.router, "gossip:tell", {"event": "gossip:true"})
        notice = await hub.next_notice()
        assert (notice.id, notice.event, notice.data, notice.sender) == (
            sent["text"],
            "gossip:true",
            {"a": 1},
            "operator",
        )
        assert notice.origin == hub.hub.router.origin


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ({"x": object()}, Invalid),
        ({"x": "\ud800"}, Invalid),
        ({"x": _cycle()}, Invalid),
        ({"x": "y" * 1_000_000}, TooLarge),
    ],
    ids=["object", "surrogate", "cycle", "size"],
)
async def test_a_notice_that_cannot_be_written_or_is_too_large_is_not_sent(
    data: dict[str, Any], error: type[KsiError]
) -> None:
    """L062."""
    plugin = Plugin("gossip")
    plugin.announces("gossip:told", "A fact.")

    @plugin.handles("gossip:tell")
    async def tell(ctx: Context, params: Nothing) -> Said:
        """Tell."""
        with pytest.raises(error):
            ctx.notify("gossip:told", data)
        return Said()

    async with running(plugin) as hub:
        hub.subscribe("gossip:*")
        await hub.call("gossip:tell")
        assert await records(hub, "gossip:told") == []


async def test_what_one_listener_does_to_its_data_no_other_sees() -> None:
    plugin = Plugin("shared")
    plugin.announces("shared:told", "A fact.")
    seen: list[Any] = []

    @plugin.handles("shared:tell")
    async def tell(ctx: Context, params: Nothing) -> Said:
        """Tell."""
        ctx.notify("shared:told", {"list": [1]})
        return Said()

    async def listen(ctx: Context, notice: Notice) -> None:
        data = notice.data
        seen.append(data["list"].copy())
        data["list"].append(2)

    plugin.on("shared:told")(listen)
    plugin.on("shared:*")(listen)
    async with running(plugin) as hub:
        await hub.call("shared:tell")
        await until(lambda: len(seen) == 2)
        assert seen == [[1], [1]]


# --- stopping


async def test_a_stopping_hub_refuses_new_calls_but_lets_those_under_way_finish_with_all_they_need() -> None:
    """K005, F07."""
    plugin = Plugin("closing")
    entered, release = asyncio.Event(), asyncio.Event()

    @plugin.handles("closing:last")
    async def last(ctx: Context, params: Nothing) -> Said:
        """Finish properly."""
        entered.set()
        await release.wait()
        await ctx.call("state:set", {"key": "last words", "value": "bye"})
        return Said(text="finished")

    async with running(plugin) as hub:
        router = hub.hub.router
        task = asyncio.create_task(hub.call("closing:last"))
        await soon(entered.wait())
        router.stopping = True
        with pytest.raises(Unavailable, match="stopping"):
            await hub.call("system:echo", text="too late")
        assert router.in_flight == 1
        drained = asyncio.create_task(router.idle(5))
        release.set()
        assert (await soon(task))["text"] == "finished"
        assert await soon(drained)


async def test_waiting_for_calls_under_way_ends_when_patience_does() -> None:
    entered, release = asyncio.Event(), asyncio.Event()
    async with running(waiting(entered, release)) as hub:
        task = asyncio.create_task(hub.call("slow:wait"))
        await soon(entered.wait())
        assert not await hub.hub.router.idle(0.01)
        release.set()
        await soon(task)
        assert await hub.hub.router.idle(0)


async def test_everybody_who_waits_for_the_last_call_is_woken() -> None:
    entered, release = asyncio.Event(), asyncio.Event()
    async with running(waiting(entered, release)) as hub:
        task = asyncio.create_task(hub.call("slow:wait"))
        await soon(entered.wait())
        waiters = [asyncio.create_task(hub.hub.router.idle(60)) for _ in range(3)]
        await asyncio.sleep(0)
        release.set()
        await soon(task)
        assert await soon(asyncio.gather(*waiters)) == [True, True, True]


# --- the catalogue


async def test_the_catalogue_cannot_be_changed_in_anybodys_hands() -> None:
    async with running() as hub:
        router = hub.hub.router
        with pytest.raises(TypeError):
            router.routes["evil:event"] = router.routes["system:echo"]  # type: ignore[index]
        before, version = router.routes, router.catalogue_version
        await hub.hub.loader.load(_found(breaking(ValueError())))
        assert "fragile:break" in router.routes
        assert "fragile:break" not in before
        assert router.catalogue_version == version + 1


def _found(plugin: Plugin) -> Any:
    from ksi_daemon.plugin_host.discovery import Found

    return Found(plugin.name, "package", "a test", lambda: (plugin, ""))


async def test_a_bare_router_without_any_plugin_answers_unknown_event(tmp_path: Path) -> None:
    router = bare_router(Log(tmp_path / "log", "info"))
    with pytest.raises(UnknownEvent):
        await router.call("system:echo", {}, principal=OPERATOR)
    assert router.journal.outcomes == {"ok": 0, "unknown_event": 1}


# --- names


@given(st.from_regex(EVENT_NAME, fullmatch=True), st.from_regex(EVENT_NAME, fullmatch=True))
def test_a_pattern_takes_in_exactly_what_its_words_say(event: str, other: str) -> None:
    assert matches("*", event)
    assert matches(event, event)
    assert matches(namespace_of(event) + ":*", event)
    assert matches(event, other) == (event == other)
    assert matches(namespace_of(event) + ":*", other) == (
        event.split(":", maxsplit=1)[0] == other.split(":", maxsplit=1)[0]
    )


@given(st.text(max_size=90))
def test_an_event_name_is_two_short_lower_case_words_and_nothing_else(text: str) -> None:
    allowed = re.match(r"\A[a-z][a-z0-9_]{0,31}:[a-z][a-z0-9_]{0,47}\Z", text) is not None
    assert (EVENT_NAME.fullmatch(text) is not None) == allowed


@given(WORDS, WORDS, WORDS)
def test_a_tool_name_does_not_turn_back_into_an_event(first: str, middle: str, last: str) -> None:
    """Trap 1: `a_b:c` and `a:b_c` are one tool name, so there is no way back and the loader must refuse the pair."""
    assert tool_name(f"{first}_{middle}:{last}") == tool_name(f"{first}:{middle}_{last}")


def test_nothing_in_the_daemon_parses_a_tool_name() -> None:
    """Trap 1."""
    import ksi_daemon

    source = "".join(path.read_text(encoding="utf-8") for path in Path(ksi_daemon.__file__).parent.rglob("*.py"))
    assert 'removeprefix("ksi_")' not in source


def test_ids_sort_by_the_time_they_were_made_and_never_repeat() -> None:
    made = [new_id() for _ in range(10_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert all(len(one) <= 64 and one.isalnum() for one in made)
