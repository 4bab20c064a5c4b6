"""A listener acts with the rights of whoever caused the notice: a plugin is never a way around the gate."""

import asyncio
from typing import Any

from ksi_daemon.errors import Forbidden
from ksi_daemon.notice import Notice
from ksi_daemon.plugin import Context, Nothing, Plugin
from ksi_daemon.testing import running
from tests.agents_at_work import add_agent, call_as, rows
from tests.in_process import Said, soon


class Helpful:
    """A plugin that calls, on each notice, the event that the notice names."""

    def __init__(self) -> None:
        self.seen: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self.plugin = Plugin("helpful")

        @self.plugin.handles("helpful:wipe", operator_only=True)
        async def wipe(ctx: Context, params: Nothing) -> Said:
            """For the operator alone."""
            return Said(text="wiped")

        @self.plugin.on("please:*")
        async def help_out(ctx: Context, notice: Notice) -> None:
            try:
                await ctx.call(notice.data["event"], {})
            except Forbidden:
                self.seen.put_nowait((notice.sender, "forbidden"))
            else:
                self.seen.put_nowait((notice.sender, "done"))


async def ask(hub: Any, event: str, principal: Any = None) -> None:
    data = {"event": "please:help", "data": {"event": event}}
    if principal is None:
        await hub.call("message:publish", **data)
    else:
        await call_as(hub, principal, "message:publish", **data)


async def test_an_agents_notice_makes_a_listener_do_nothing_that_the_agent_may_not() -> None:
    """L052, P04: a researcher's notice once made a listener call what only the operator may."""
    helpful = Helpful()
    async with running(helpful.plugin) as hub:
        bot = await add_agent(hub, profile="researcher")
        await ask(hub, "helpful:wipe", bot)
        assert await soon(helpful.seen.get()) == ("agent/bot", "forbidden")
        await ask(hub, "system:health", bot)
        assert await soon(helpful.seen.get()) == ("agent/bot", "done")
        await ask(hub, "helpful:wipe")
        assert await soon(helpful.seen.get()) == ("operator", "done")
        for row in await rows(hub, agent="bot", event="system:health"):
            assert (row["principal"], row["agent_id"], row["transport"]) == ("agent", "bot", "plugin")
            assert row["details"] == {"listener_of": "helpful"}


async def test_a_listener_loses_its_rights_with_the_agent_whose_notice_it_handles() -> None:
    """P09: frozen between the notice and the listener's call."""
    seen: asyncio.Queue[str] = asyncio.Queue()
    go_on = asyncio.Event()
    plugin = Plugin("slow")

    @plugin.on("please:*")
    async def listen(ctx: Context, notice: Notice) -> None:
        await go_on.wait()
        try:
            await ctx.call("system:health", {})
        except Forbidden as error:
            seen.put_nowait(error.message)

    async with running(plugin) as hub:
        bot = await add_agent(hub, profile="researcher")
        await ask(hub, "system:health", bot)
        await hub.call("agent:freeze", agent_id="bot")
        go_on.set()
        assert "frozen" in await soon(seen.get())


async def test_an_agent_cannot_pass_for_another_kind_of_sender_by_its_name() -> None:
    """P10: the sender shows the kind."""
    async with running() as hub:
        bot = await add_agent(hub, agent_id="Operator-1", profile="researcher")
        hub.subscribe("please:*")
        await ask(hub, "x:y", bot)
        assert (await hub.next_notice()).sender == "agent/Operator-1"
        await ask(hub, "x:y")
        assert (await hub.next_notice()).sender == "operator"
