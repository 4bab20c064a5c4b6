"""message:publish, subscribe, unsubscribe and subscriptions."""

from typing import Any

import msgspec
import pytest

from ksi_daemon.errors import Conflict, Forbidden, Invalid, TooLarge
from ksi_daemon.plugin import Context, Nothing, Plugin
from ksi_daemon.testing import TestHub, running
from tests.agents_at_work import add_agent, call_as
from tests.in_process import Said, call


async def publish(hub: TestHub, event: str, data: Any = None) -> dict[str, Any]:
    return dict(await call(hub.hub.router, "message:publish", {"event": event, "data": data or {}}))


async def test_a_notice_reaches_those_who_subscribed_and_the_sender_is_told_how_many() -> None:
    """K043."""
    async with running() as hub:
        assert (await publish(hub, "build:finished"))["matched"] == 0
        assert (await hub.call("message:subscribe", patterns=["build:*"]))["patterns"] == ["build:*"]
        sent = await publish(hub, "build:finished", {"ok": True})
        assert (sent["matched"], sent["dropped"]) == (1, 0)
        heard = await hub.next_notice()
        assert (heard.id, heard.event, heard.data, heard.sender) == (
            sent["id"],
            "build:finished",
            {"ok": True},
            "operator",
        )
        assert heard.depth == 1
        assert heard.parent_id


async def test_unsubscribing_stops_what_was_named_or_everything() -> None:
    async with running() as hub:
        assert (await hub.call("message:subscribe", patterns=["b:*", "a:b", "b:*"]))["patterns"] == ["a:b", "b:*"]
        assert (await hub.call("message:unsubscribe", patterns=["a:b", "never:had"]))["patterns"] == ["b:*"]
        assert (await hub.call("message:unsubscribe"))["patterns"] == []
        assert (await publish(hub, "b:c"))["matched"] == 0


async def test_subscriptions_show_who_hears_what_and_what_was_lost() -> None:
    """L06."""
    async with running(notice_inbox=2) as hub:
        await hub.call("message:subscribe", patterns=["build:*"])
        for _ in range(5):
            await publish(hub, "build:finished")
        await hub.next_notice()
        (mine,) = (await hub.call("message:subscriptions"))["subscriptions"]
        assert mine == {
            "subscriber": "test", "principal": "operator", "patterns": ["build:*"],
            "delivered": 1, "dropped": 3, "waiting": 1,
        }  # fmt: skip
        assert (await publish(hub, "build:finished"))["dropped"] == 0
        assert (await publish(hub, "build:finished"))["dropped"] == 1


def with_notices_only() -> Plugin:
    plugin = Plugin("quiet")
    plugin.announces("quiet:said", "Something.")
    return plugin


def with_listener_only() -> Plugin:
    plugin = Plugin("quiet")

    @plugin.on("*")
    async def listen(ctx: Context, notice: object) -> None:
        """Hear everything."""

    return plugin


def with_handler() -> Plugin:
    plugin = Plugin("quiet")

    @plugin.handles("quiet:ask")
    async def ask(ctx: Context, params: Nothing) -> Said:
        """Ask."""
        return Said()

    return plugin


@pytest.mark.parametrize("make", [with_notices_only, with_listener_only, with_handler])
async def test_nobody_can_publish_in_the_namespace_of_a_plugin(make: Any) -> None:
    """A listener may trust that a notice of a plugin is from that plugin."""
    async with running(make()) as hub:
        hub.subscribe("*")
        for event in (
            "quiet:said",
            "quiet:anything",
            "system:ready",
            "state:changed",
            "plugin:failed",
            "config:reloaded",
            "message:x",
            "monitor:x",
        ):
            with pytest.raises(Forbidden, match="alone"):
                await publish(hub, event)
        await publish(hub, "free:word")
        assert (await hub.next_notice()).event == "free:word"


@pytest.mark.parametrize(
    "event", ["", "build", "build:", "build:*", "*", "Build:finished", "build:finished\n", "a" * 40 + ":b", "a:b:c"]
)
async def test_what_is_no_name_for_a_notice_is_refused(event: str) -> None:
    async with running() as hub:
        with pytest.raises(Invalid):
            await publish(hub, event)


async def test_data_that_is_no_object_or_too_large_is_refused() -> None:
    """L062."""
    async with running(result_limit_bytes=1_000) as hub:
        for data in ([1], "text", 5):
            with pytest.raises(Invalid):
                await call(hub.hub.router, "message:publish", {"event": "a:b", "data": data})
        with pytest.raises(TooLarge):
            await publish(hub, "a:b", {"x": "y" * 1_000})


@pytest.mark.parametrize("patterns", [[], ["nonsense"], ["a:*", "A:*"], ["a:b"] * 101, "a:*", [5]])
async def test_what_is_no_list_of_patterns_is_refused_and_changes_nothing(patterns: Any) -> None:
    async with running() as hub:
        with pytest.raises(Invalid):
            await hub.call("message:subscribe", patterns=patterns)
        assert (await hub.call("message:subscriptions"))["subscriptions"] == []


async def test_a_caller_without_a_stream_is_told_so() -> None:
    async with running() as hub:
        for event, data in (("message:subscribe", {"patterns": ["a:*"]}), ("message:unsubscribe", {})):
            with pytest.raises(Conflict, match="no stream"):
                await call(hub.hub.router, event, data)


async def test_an_agent_sees_its_own_subscriptions_and_narrows_nobody_elses() -> None:
    """K043, P04: also when it calls on the operator's connection."""
    async with running() as hub:
        bot = await add_agent(hub)
        on_this_stream = msgspec.structs.replace(bot, mailbox="test")
        await hub.call("message:subscribe", patterns=["*"])
        answer = await call_as(hub, on_this_stream, "message:subscribe", patterns=["build:*", "agent:*"])
        assert answer["patterns"] == ["agent:*", "build:*"]
        shown = (await call_as(hub, on_this_stream, "message:subscriptions"))["subscriptions"]
        assert [(row["principal"], row["patterns"]) for row in shown] == [("agent/bot", ["agent:*", "build:*"])]
        both = (await hub.call("message:subscriptions"))["subscriptions"]
        assert {row["principal"] for row in both} == {"operator", "agent/bot"}
        await hub.call("agent:register", agent_id="other")
        assert (await hub.next_notice()).event == "permission:changed", "the operator still receives everything"
        assert (await call_as(hub, on_this_stream, "message:unsubscribe"))["patterns"] == []
        await publish(hub, "build:finished")
        while (await hub.next_notice()).event != "build:finished":
            pass
        assert (await hub.call("message:subscribe", patterns=["a:b"]))["patterns"] == ["*", "a:b"]


async def test_on_a_shared_stream_an_agent_alone_receives_only_what_it_may_read() -> None:
    """K043: what it may not read at the moment of the notice does not reach the stream on its behalf."""
    async with running() as hub:
        bot = await add_agent(hub)
        on_this_stream = msgspec.structs.replace(bot, mailbox="test")
        await call_as(hub, on_this_stream, "message:subscribe", patterns=["*"])
        await hub.call("agent:register", agent_id="other")
        await publish(hub, "build:finished")
        assert (await hub.next_notice()).event == "build:finished"
        await hub.call("agent:freeze", agent_id="bot")
        assert (await publish(hub, "build:finished"))["matched"] == 0
