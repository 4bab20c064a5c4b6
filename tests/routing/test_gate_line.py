"""The router's line with the gate, the limits and the audit in it: what is asked, in which order, and what is left on record."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from functools import partial
from typing import Any

import msgspec
import pytest

from ksi_daemon.audit import Entry
from ksi_daemon.errors import (
    ApprovalRequired,
    AuditUnavailable,
    CircuitOpen,
    Forbidden,
    Internal,
    Invalid,
    KsiError,
    NotFound,
    TimedOut,
    TooMany,
    UnknownEvent,
)
from ksi_daemon.gate.breaker import FAILURES, OPEN_S, SUCCESSES, Breakers
from ksi_daemon.gate.gate import REFUSALS
from ksi_daemon.gate.limits import Buckets, Rate
from ksi_daemon.plugin import Context, Field, Nothing, Params, Plugin
from ksi_daemon.principal import Principal
from ksi_daemon.routing import call_scope
from ksi_daemon.testing import TestHub, running
from tests.agents_at_work import add_agent, call_as, gate_of, limit, rows, told
from tests.in_process import Clock, Said, Text, call, soon, take_clock, until


class Strict(Params):
    """Params with a name that nobody should learn by guessing."""

    unguessable: int = Field(description="A number.")


class Workshop:
    """A plugin with one handler of each kind, and switches to hold and to break them."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.release = asyncio.Event()
        self.entered = 0
        self.failure: BaseException | None = None
        self.plugin = plugin = Plugin("work")
        self._add_handlers(plugin)

    def has_entered(self, times: int) -> bool:
        return self.entered == times

    def _add_handlers(self, plugin: Plugin) -> None:
        @plugin.handles("work:read", reads=True)
        async def read(ctx: Context, params: Text) -> Said:
            """Read."""
            self.ran.append("read")
            return Said(text=params.text)

        @plugin.handles("work:write")
        async def write(ctx: Context, params: Text) -> Said:
            """Write."""
            self.ran.append("write")
            if self.failure is not None:
                raise self.failure
            return Said(text=params.text)

        @plugin.handles("work:strict")
        async def strict(ctx: Context, params: Strict) -> Said:
            """Take a number."""
            self.ran.append("strict")
            return Said()

        @plugin.handles("work:hold")
        async def hold(ctx: Context, params: Nothing) -> Said:
            """Wait."""
            self.entered += 1
            await self.release.wait()
            self.ran.append("hold")
            return Said()

        @plugin.handles("work:reset", operator_only=True)
        async def reset(ctx: Context, params: Nothing) -> Said:
            """Only for the operator."""
            return Said()

        @plugin.handles("work:mend", needs=[("knowledge/maintainer", "execute")])
        async def mend(ctx: Context, params: Nothing) -> Said:
            """Needs a scope."""
            return Said()

        @plugin.handles("work:launch", needs=[("operation/launch", "execute")])
        async def launch(ctx: Context, params: Nothing) -> Said:
            """Needs a person's consent."""
            self.ran.append("launch")
            return Said()

        @plugin.handles("work:dear", reads=True, cost=10)
        async def dear(ctx: Context, params: Nothing) -> Said:
            """Counts as ten."""
            return Said()

        @plugin.handles("work:nested", reads=True)
        async def nested(ctx: Context, params: Text) -> Said:
            """Call another event for the caller."""
            answer = await ctx.call(params.text, {})
            return Said(text=str(answer))


@pytest.fixture
def work() -> Workshop:
    return Workshop()


@pytest.fixture
async def hub(work: Workshop) -> AsyncIterator[TestHub]:
    async with running(work.plugin) as found:
        yield found


async def refused(awaitable: Awaitable[Any], kind: type[KsiError]) -> dict[str, Any]:
    with pytest.raises(kind) as caught:
        await soon(awaitable)
    assert caught.value.code == kind.code
    return caught.value.as_dict()


class TestRights:
    """K018, K021, K040."""

    async def test_an_agent_may_call_what_its_profile_gives_and_nothing_else(self, hub: TestHub) -> None:
        bot = await add_agent(hub, profile="standard")
        assert await call_as(hub, bot, "work:read", text="x") == {"text": "x"}
        await refused(call_as(hub, bot, "work:write"), Forbidden)
        await refused(call_as(hub, bot, "monitor:get_stats"), Forbidden)

    async def test_an_agent_without_the_right_learns_nothing_of_the_params(self, hub: TestHub) -> None:
        """The right is asked for before the data is looked at."""
        bot = await add_agent(hub)
        said = await refused(call_as(hub, bot, "work:strict", wrong="x"), Forbidden)
        assert "unguessable" not in str(said)
        assert "wrong" not in str(said)
        await hub.call("permission:grant", agent_id="bot", resource="events/work:strict")
        assert "unguessable" in str(await refused(call_as(hub, bot, "work:strict", wrong="x"), Invalid))

    async def test_what_is_not_there_and_what_is_not_allowed_are_told_in_the_same_bytes(self, hub: TestHub) -> None:
        """K040."""
        bot = await add_agent(hub)
        for known in ("work:write", "work:reset", "agent:list", "audit:query"):
            unknown = known[:-1] + "x"
            there = await refused(call_as(hub, bot, known), Forbidden)
            nowhere = await refused(call_as(hub, bot, unknown), Forbidden)
            assert msgspec.json.encode(there).replace(known.encode(), unknown.encode()) == msgspec.json.encode(nowhere)

    @pytest.mark.parametrize("state", ["frozen", "removed", "revoked"])
    async def test_even_an_agent_that_may_do_nothing_cannot_tell_what_is_there(self, hub: TestHub, state: str) -> None:
        """K040."""
        bot = await add_agent(hub)
        if state == "frozen":
            await hub.call("agent:freeze", agent_id="bot")
        elif state == "removed":
            await hub.call("agent:remove", agent_id="bot")
        else:
            await hub.call("token:revoke", credential_id=bot.credential_id)
        there = await refused(call_as(hub, bot, "work:write"), Forbidden)
        nowhere = await refused(call_as(hub, bot, "work:writx"), Forbidden)
        assert str(there).replace("work:write", "work:writx") == str(nowhere)

    async def test_the_operator_is_told_which_event_is_not_there(self, hub: TestHub) -> None:
        await refused(hub.call("work:nothing"), UnknownEvent)

    async def test_what_is_the_operators_no_grant_can_open(self, hub: TestHub) -> None:
        bot = await add_agent(hub, profile="trusted")
        await hub.call("permission:grant", agent_id="bot", resource="events/work:reset")
        await refused(call_as(hub, bot, "work:reset"), Forbidden)
        assert await hub.call("work:reset") == {"text": ""}

    async def test_a_further_need_is_named_to_those_who_see_the_event(self, hub: TestHub) -> None:
        """K020."""
        bot = await add_agent(hub, profile="researcher")
        said = await refused(call_as(hub, bot, "work:mend"), Forbidden)
        assert "knowledge/maintainer" in said["message"]
        assert "ksi permissions grant bot knowledge/maintainer" in said["hint"]
        await hub.call("permission:grant", agent_id="bot", resource="knowledge/maintainer")
        await call_as(hub, bot, "work:mend")

    async def test_an_operation_waits_for_a_persons_consent(self, hub: TestHub, work: Workshop) -> None:
        """L050, E002: and the check is on record (E059)."""
        bot = await add_agent(hub, profile="trusted")
        said = await refused(call_as(hub, bot, "work:launch"), ApprovalRequired)
        assert "operation/launch" in said["message"]
        assert work.ran == []
        assert told(await rows(hub, agent="bot")) == [("authorization", "outcome", "approval_required")]
        await hub.call("permission:grant", agent_id="bot", resource="operation/launch")
        await call_as(hub, bot, "work:launch")
        await hub.call("permission:revoke", agent_id="bot", resource="operation/launch")
        await refused(call_as(hub, bot, "work:launch"), ApprovalRequired)
        assert work.ran == ["launch"]

    async def test_a_frozen_agent_and_one_below_it_may_do_nothing(self, hub: TestHub) -> None:
        """P09."""
        bot, child = await add_agent(hub), await add_agent(hub, "child", parent_id="bot")
        await hub.call("agent:freeze", agent_id="bot")
        assert "frozen" in (await refused(call_as(hub, bot, "work:read"), Forbidden))["message"]
        assert "frozen" in (await refused(call_as(hub, child, "work:read"), Forbidden))["message"]
        await hub.call("agent:unfreeze", all=True)
        await call_as(hub, bot, "work:read")
        await call_as(hub, child, "work:read")

    async def test_the_removed_and_the_revoked_are_refused_at_their_next_call(self, hub: TestHub) -> None:
        """K021, K041, A05."""
        one, two = await add_agent(hub, "one"), await add_agent(hub, "two")
        await hub.call("agent:remove", agent_id="one")
        await hub.call("token:revoke", credential_id=two.credential_id)
        assert "removed" in (await refused(call_as(hub, one, "work:read"), Forbidden))["message"]
        assert "not valid any more" in (await refused(call_as(hub, two, "work:read"), Forbidden))["message"]

    async def test_a_change_counts_from_the_very_next_call(self, hub: TestHub) -> None:
        """K021."""
        bot = await add_agent(hub)
        for _ in range(3):
            await hub.call("permission:grant", agent_id="bot", resource="events/work:write")
            await call_as(hub, bot, "work:write")
            await hub.call("permission:revoke", agent_id="bot", resource="events/work:write")
            await refused(call_as(hub, bot, "work:write"), Forbidden)

    async def test_a_right_that_goes_while_the_intent_is_written_is_gone(self, hub: TestHub, work: Workshop) -> None:
        """K021, P02: asked again after every wait, so no call runs whose intent follows the revocation."""
        bot = await add_agent(hub)
        await hub.call("permission:grant", agent_id="bot", resource="events/work:write")
        recorder = hub.hub.router.recorder
        assert recorder is not None
        write = recorder.intent

        async def slow_intent(*args: Any, **options: Any) -> None:
            await write(*args, **options)
            recorder.intent = write  # type: ignore[method-assign]
            await hub.call("permission:revoke", agent_id="bot", resource="events/work:write")

        recorder.intent = slow_intent  # type: ignore[method-assign]
        await refused(call_as(hub, bot, "work:write"), Forbidden)
        assert work.ran == []
        kinds = told(await rows(hub, agent="bot", event="work:write"))
        assert kinds == [("tool_call", "intent", "started"), ("authorization", "outcome", "forbidden")]

    async def test_a_right_that_goes_while_waiting_for_a_slot_is_gone(self, hub: TestHub, work: Workshop) -> None:
        """K021."""
        bot = await add_agent(hub, profile="researcher")
        limit(hub, "researcher", concurrent_calls=1)
        first = asyncio.create_task(call_as(hub, bot, "work:hold"))
        await until(lambda: work.entered == 1)
        second = asyncio.create_task(call_as(hub, bot, "work:write"))
        await until(lambda: gate_of(hub).slots.waiting("bot"))
        await hub.call("permission:set_agent", agent_id="bot", profile="restricted")
        work.release.set()
        await soon(first)
        await refused(second, Forbidden)
        assert work.ran == ["hold"]
        assert len(gate_of(hub).slots) == 0


class TestNestedCalls:
    """A plugin that calls for an agent has that agent's rights, and no more."""

    async def test_a_plugin_cannot_be_talked_into_what_the_agent_may_not_do(self, hub: TestHub, work: Workshop) -> None:
        """K018, P05."""
        bot = await add_agent(hub)
        for event in ("work:write", "work:reset", "agent:list"):
            await refused(call_as(hub, bot, "work:nested", text=event), Forbidden)
        assert work.ran == []
        assert "reset" in str((await hub.call("work:nested", text="work:read")) | {"reset": 1})

    async def test_a_nested_call_pays_nothing_and_takes_no_slot(self, hub: TestHub) -> None:
        """L066: or one agent with one slot would wait for itself."""
        bot = await add_agent(hub)
        limit(hub, concurrent_calls=1, burst=3, calls_per_minute=1)
        for _ in range(3):
            await soon(call_as(hub, bot, "work:nested", text="work:read"))
        await refused(call_as(hub, bot, "work:nested", text="work:read"), TooMany)

    async def test_a_nested_call_is_on_record_as_the_agents_by_way_of_a_plugin(self, hub: TestHub) -> None:
        """K031, K042."""
        bot = await add_agent(hub)
        await call_as(hub, bot, "work:nested", text="work:read")
        inner, outer = await rows(hub, agent="bot", type="tool_call")
        assert (inner["event"], inner["transport"], inner["parent_id"]) == ("work:read", "plugin", outer["call_id"])
        assert inner["correlation_id"] == outer["correlation_id"] == outer["call_id"]
        assert (outer["event"], outer["transport"], outer.get("parent_id")) == ("work:nested", "socket", None)


class TestLimits:
    """L066, L091: on clocks that only tests move."""

    async def test_a_burst_then_a_rate_then_when_to_come_back(self, hub: TestHub) -> None:
        """L066, L091: 100 a minute, 20 at once."""
        clock = Clock()
        gate_of(hub).buckets = Buckets(clock)
        bot = await add_agent(hub)
        for _ in range(20):
            await call_as(hub, bot, "work:read")
        said = await refused(call_as(hub, bot, "work:read"), TooMany)
        assert said["retry_after_s"] == pytest.approx(0.6, abs=0.01)
        clock.now_s += said["retry_after_s"]
        await call_as(hub, bot, "work:read")
        await refused(call_as(hub, bot, "work:read"), TooMany)
        clock.now_s += 60
        served = 0
        for _ in range(200):
            try:
                await call_as(hub, bot, "work:read")
                served += 1
            except TooMany:
                clock.now_s += 0.6
        assert served == pytest.approx(20 + 90, abs=1)

    async def test_a_dear_event_counts_as_many_calls(self, hub: TestHub) -> None:
        gate_of(hub).buckets = Buckets(Clock())
        bot = await add_agent(hub)
        await call_as(hub, bot, "work:dear")
        await call_as(hub, bot, "work:dear")
        await refused(call_as(hub, bot, "work:read"), TooMany)

    async def test_what_was_refused_by_its_rights_costs_nothing(self, hub: TestHub) -> None:
        gate_of(hub).buckets = Buckets(Clock())
        bot = await add_agent(hub)
        for _ in range(30):
            await refused(call_as(hub, bot, "work:write"), Forbidden)
        await call_as(hub, bot, "work:dear")

    async def test_one_agents_flood_is_its_own(self, hub: TestHub) -> None:
        """L05."""
        gate_of(hub).buckets = Buckets(Clock())
        loud, quiet = await add_agent(hub, "loud"), await add_agent(hub, "quiet")
        answers = await asyncio.gather(*(call_as(hub, loud, "work:read") for _ in range(60)), return_exceptions=True)
        assert sum(isinstance(one, TooMany) for one in answers) == 40
        await call_as(hub, quiet, "work:read")

    async def test_refused_calls_have_a_limit_of_their_own(self, hub: TestHub) -> None:
        """L05: one agent's 24,000 refusals a second once slowed everybody else by a factor of a hundred."""
        clock = Clock()
        gate_of(hub).refusals = Buckets(clock)
        bot, other = await add_agent(hub), await add_agent(hub, "other")
        for _ in range(REFUSALS.burst):
            await refused(call_as(hub, bot, "work:write"), Forbidden)
        for event in ("work:write", "work:unheard_of"):
            error = await refused(call_as(hub, bot, event), TooMany)
            assert error["message"] == "more than 600 refused calls a minute"
            assert error["retry_after_s"] == pytest.approx(0.1, abs=0.01)
        await call_as(hub, bot, "work:read")
        await refused(call_as(hub, other, "work:write"), Forbidden)
        await refused(hub.call("work:unheard_of"), UnknownEvent)
        clock.now_s += 0.1
        await refused(call_as(hub, bot, "work:write"), Forbidden)
        await asyncio.sleep(1.05)  # those beyond the budget of a second are written at its end
        counted = [row for status in ("forbidden", "too_many") for row in await rows(hub, agent="bot", status=status)]
        assert sum(row["count"] for row in counted) == REFUSALS.burst + 3, "each of them is on record"

    async def test_an_agent_over_that_limit_is_answered_slowly(
        self, hub: TestHub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """L05: what it sends waits in its own connection."""
        gate_of(hub).refusals = Buckets(Clock())
        bot = await add_agent(hub)
        for _ in range(REFUSALS.burst):
            await refused(call_as(hub, bot, "work:write"), Forbidden)
        monkeypatch.setattr(call_scope, "REFUSED_DELAY_S", 3600)
        slow = asyncio.create_task(call_as(hub, bot, "work:write"))
        await until(lambda: gate_of(hub).refusals.peek("bot", REFUSALS).remaining == 0)
        await hub.call("system:echo", text="others")
        await call_as(hub, bot, "work:read")
        assert not slow.done()
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow

    async def test_a_handlers_own_refusal_is_not_counted_as_one_of_the_gate(self, hub: TestHub, work: Workshop) -> None:
        """L05: it has run; its words reach the caller, and the audit says what it said."""
        gate_of(hub).refusals = Buckets(Clock())
        bot = await add_agent(hub, profile="trusted")
        work.failure = Forbidden("not on a Sunday")
        for _ in range(REFUSALS.burst + 5):
            assert (await refused(call_as(hub, bot, "work:write"), Forbidden))["message"] == "not on a Sunday"
        assert {row["status"] for row in await rows(hub, agent="bot", event="work:write")} == {"started", "forbidden"}

    async def test_an_answer_that_is_delayed_holds_no_capacity_of_the_plugin(
        self, hub: TestHub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """L05: enough of them at once would otherwise fill the plugin's limit for everybody."""
        gate_of(hub).refusals = Buckets(Clock())
        bot = await add_agent(hub)
        for _ in range(REFUSALS.burst):
            await refused(call_as(hub, bot, "work:write"), Forbidden)
        monkeypatch.setattr(call_scope, "REFUSED_DELAY_S", 3600)
        slow = asyncio.create_task(call_as(hub, bot, "work:write"))
        await until(lambda: gate_of(hub).refusals.peek("bot", REFUSALS).remaining == 0)
        await until(lambda: hub.hub.router.in_flight == 0)
        assert not slow.done()
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow

    async def test_a_child_uses_up_its_parents_rate_too(self, hub: TestHub) -> None:
        """L066: otherwise whoever may spawn has no rate."""
        clock = Clock()
        gate_of(hub).buckets = Buckets(clock)
        parent = await add_agent(hub, "parent")
        first = await add_agent(hub, "first", "trusted", parent_id="parent")
        second = await add_agent(hub, "second", "standard", parent_id="parent")
        for _ in range(10):
            await call_as(hub, first, "work:read")
            await call_as(hub, second, "work:read")
        for child in (first, second, parent):
            error = await refused(call_as(hub, child, "work:read"), TooMany)
            assert error["message"].startswith("parent and its children may make 100 calls a minute")
        assert gate_of(hub).buckets.peek("second", Rate()).remaining == 10, "a refused call costs nothing"
        explained = (await hub.call("permission:explain", agent_id="first", event="work:read"))["text"]
        assert "no: 100 calls a minute, bursts of 20, for parent and its children: used up" in explained
        clock.now_s += 0.6
        await call_as(hub, first, "work:read")
        await refused(call_as(hub, parent, "work:read"), TooMany)

    async def test_every_refusal_for_the_rate_is_counted(self, hub: TestHub) -> None:
        """L05: those beyond the budget of a second as one row with their number."""
        gate_of(hub).buckets = Buckets(Clock())
        bot = await add_agent(hub)
        await asyncio.gather(*(call_as(hub, bot, "work:read") for _ in range(220)), return_exceptions=True)
        await asyncio.sleep(1.05)
        found = await rows(hub, agent="bot", status="too_many")
        assert sum(row["count"] for row in found) == 200
        assert len(found) < 150

    async def test_all_agents_together_have_a_limit_too_and_take_turns(self, hub: TestHub, work: Workshop) -> None:
        """L05: one agent's many calls do not keep another's first one waiting behind all of them."""
        limit(hub, "researcher", calls_per_minute=None, concurrent_calls=50)
        gate_of(hub).slots.total = 2
        noisy, quiet = await add_agent(hub, "noisy", "researcher"), await add_agent(hub, "quiet", "researcher")
        calls = [asyncio.create_task(call_as(hub, noisy, "work:hold")) for _ in range(6)]
        await until(lambda: gate_of(hub).slots.waiting("noisy") == 4)
        late = asyncio.create_task(call_as(hub, quiet, "work:hold"))
        await until(lambda: gate_of(hub).slots.waiting("quiet") == 1)
        await until(lambda: work.entered == 2)
        await hub.call("system:echo", text="the operator needs no slot")
        work.release.set()
        await soon(asyncio.gather(late, *calls))
        order = [row["agent_id"] for row in await rows(hub, event="work:hold") if row["phase"] == "intent"]
        assert "quiet" in order[:4], "it came last of seven and was served among the next two"
        assert gate_of(hub).slots.running == 0

    async def test_the_operator_and_trusted_agents_have_no_rate(self, hub: TestHub) -> None:
        bot = await add_agent(hub, profile="trusted")
        for _ in range(50):
            await call_as(hub, bot, "work:read")
            await hub.call("work:read")

    async def test_load_tests_can_turn_the_rate_off(self) -> None:
        work = Workshop()
        async with running(work.plugin, rate_limit="off") as hub:
            bot = await add_agent(hub)
            for _ in range(50):
                await call_as(hub, bot, "work:read")

    async def test_waiting_calls_of_two_agents_take_turns(self, hub: TestHub, work: Workshop) -> None:
        """L05: however many calls one of them has in the queue."""
        gate_of(hub).slots.total = 1
        loud, quiet = await add_agent(hub, "loud", "researcher"), await add_agent(hub, "quiet", "researcher")
        first = asyncio.create_task(call_as(hub, loud, "work:hold"))
        await until(lambda: work.entered == 1)
        many = [asyncio.create_task(call_as(hub, loud, "work:write", text=str(n))) for n in range(8)]
        await until(lambda: gate_of(hub).slots.waiting("loud") == 8)
        one = asyncio.create_task(call_as(hub, quiet, "work:read"))
        await until(lambda: gate_of(hub).slots.waiting("quiet"))
        work.release.set()
        await soon(asyncio.gather(first, one, *many))
        assert work.ran.index("read") <= 2
        assert len(gate_of(hub).slots) == 0

    async def test_a_call_that_fails_or_is_cancelled_gives_its_slot_back(self, hub: TestHub, work: Workshop) -> None:
        bot = await add_agent(hub, profile="researcher")
        work.failure = ValueError("broke")
        await refused(call_as(hub, bot, "work:write"), Internal)
        task = asyncio.create_task(call_as(hub, bot, "work:hold"))
        await until(lambda: work.entered == 1)
        assert gate_of(hub).slots.in_use("bot") == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(gate_of(hub).slots) == 0

    async def test_a_call_without_a_slot_gives_nobody_elses_back(self, hub: TestHub, work: Workshop) -> None:
        """The limit came while the first was under way."""
        bot = await add_agent(hub, profile="researcher")
        limit(hub, "researcher", concurrent_calls=None)
        first = asyncio.create_task(call_as(hub, bot, "work:hold"))
        await until(lambda: work.entered == 1)
        limit(hub, "researcher", concurrent_calls=1)
        second = asyncio.create_task(call_as(hub, bot, "work:hold"))
        await until(lambda: work.entered == 2)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        in_use = gate_of(hub).slots.in_use("bot")
        work.release.set()
        await soon(second)
        assert in_use == 1


class TestBreaker:
    """L067, L07, F05: on a clock that only tests move."""

    @pytest.fixture
    def clock(self, hub: TestHub) -> Clock:
        clock = Clock()
        gate = gate_of(hub)
        gate.breakers = Breakers(clock)
        for route in hub.hub.router.routes.values():
            if route.breaker is not None:
                route.breaker = gate.breakers.of(route.handler.plugin)
        return clock

    async def test_it_opens_rests_is_tried_and_closes(self, hub: TestHub, work: Workshop, clock: Clock) -> None:
        """L067, L07."""
        work.failure = ValueError("broke")
        for _ in range(FAILURES):
            await refused(hub.call("work:write"), Internal)
        said = await refused(hub.call("work:write"), CircuitOpen)
        assert said["retry_after_s"] == pytest.approx(OPEN_S, abs=0.01)
        assert len(work.ran) == FAILURES
        assert any("work keeps failing" in alarm for alarm in (await hub.call("system:health"))["alarms"])
        clock.now_s += OPEN_S + 0.1
        await refused(hub.call("work:write"), Internal)  # the probe
        await refused(hub.call("work:write"), CircuitOpen)
        clock.now_s += OPEN_S + 0.1
        work.failure = None
        for _ in range(SUCCESSES):
            await hub.call("work:write")
        work.failure = ValueError("broke")
        for _ in range(FAILURES):  # closed again: it takes all of them to open it
            await refused(hub.call("work:write"), Internal)
        await refused(hub.call("work:write"), CircuitOpen)

    async def test_while_it_is_half_open_one_call_at_a_time_is_let_through(
        self, hub: TestHub, work: Workshop, clock: Clock
    ) -> None:
        work.failure = ValueError("broke")
        for _ in range(FAILURES):
            await refused(hub.call("work:write"), Internal)
        clock.now_s += OPEN_S + 0.1
        probe = asyncio.create_task(hub.call("work:hold"))
        await until(lambda: work.entered == 1)
        await refused(hub.call("work:read"), CircuitOpen)
        work.release.set()
        await soon(probe)
        await hub.call("work:read")

    async def test_other_plugins_go_on(self, hub: TestHub, work: Workshop, clock: Clock) -> None:
        """L07."""
        work.failure = ValueError("broke")
        for _ in range(FAILURES):
            await refused(hub.call("work:write"), Internal)
        await refused(hub.call("work:read"), CircuitOpen)
        assert await hub.call("system:echo", text="x") == {"text": "x"}
        await hub.call("state:set", key="k", value=1)

    async def test_refusals_bad_data_and_ordinary_answers_are_no_failures(
        self, hub: TestHub, work: Workshop, clock: Clock
    ) -> None:
        bot = await add_agent(hub)
        for failure in (NotFound("no"), Forbidden("no"), Invalid("no"), TooMany("no", retry_after_s=1)):
            work.failure = failure
            for _ in range(FAILURES + 1):
                await refused(hub.call("work:write"), type(failure))
                await refused(call_as(hub, bot, "work:write"), Forbidden)
                await refused(hub.call("work:strict", wrong=1), Invalid)
        await hub.call("work:read")

    async def test_callers_who_go_away_are_no_failures(self, hub: TestHub, work: Workshop, clock: Clock) -> None:
        for number in range(FAILURES + 1):
            task = asyncio.create_task(hub.call("work:hold"))
            await until(partial(work.has_entered, number + 1))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await hub.call("work:read")

    async def test_a_passed_deadline_is_a_failure(self, hub: TestHub, work: Workshop, clock: Clock) -> None:
        deadlines = take_clock(hub)
        for number in range(FAILURES):
            task = asyncio.create_task(hub.call("work:hold"))
            await until(partial(work.has_entered, number + 1))
            deadlines.now_s += 31
            hub.hub.router.deadlines.sweep()
            await refused(task, TimedOut)
        await refused(hub.call("work:read"), CircuitOpen)

    async def test_callers_who_would_not_wait_are_no_failures(self, hub: TestHub, work: Workshop, clock: Clock) -> None:
        """L067, D07: a caller's own short deadline once shut a plugin for everybody after five calls."""
        deadlines = take_clock(hub)
        for number in range(FAILURES + 1):
            task = asyncio.create_task(call(hub.hub.router, "work:hold", timeout_s=0.05))
            await until(partial(work.has_entered, number + 1))
            deadlines.now_s += 0.06
            hub.hub.router.deadlines.sweep()
            await refused(task, TimedOut)
        await hub.call("work:read")

    async def test_a_new_version_of_a_plugin_starts_with_a_closed_one(self, hub: TestHub, clock: Clock) -> None:
        assert hub.hub.router.routes["system:echo"].breaker is None, "the daemon's own parts have none"
        assert hub.hub.router.routes["work:read"].breaker is not None


class TestRecord:
    """K031, K042, E003: rows for everything, at the right moment."""

    async def test_a_writer_leaves_an_intent_and_an_outcome_and_a_reader_an_outcome(self, hub: TestHub) -> None:
        """L052, K031: with the agent, the rule, the arguments once, the time it took."""
        bot = await add_agent(hub, profile="researcher")
        await call_as(hub, bot, "work:write", text="hello")
        await call_as(hub, bot, "work:read", text="there")
        intent, outcome, read = await rows(hub, agent="bot")
        assert told([intent, outcome, read]) == [
            ("tool_call", "intent", "started"), ("tool_call", "outcome", "ok"), ("tool_call", "outcome", "ok"),
        ]  # fmt: skip
        assert intent["call_id"] == outcome["call_id"] != read["call_id"]
        assert (intent["arguments"], outcome.get("arguments"), read["arguments"]) == (
            {"text": "hello"}, None, {"text": "there"},
        )  # fmt: skip
        for row in (intent, outcome, read):
            assert (row["principal"], row["agent_id"], row["transport"]) == ("agent", "bot", "socket")
            assert row["credential_id"] == bot.credential_id
            assert row["tool"] == "ksi_" + row["event"].replace(":", "_")
        assert outcome["duration_ms"] > 0
        assert outcome["result_bytes"] == len('{"text":"hello"}')

    async def test_the_rule_that_decided_is_named_in_the_row(self, hub: TestHub) -> None:
        """K032, E059."""
        bot = await add_agent(hub)
        await call_as(hub, bot, "work:read")
        granted = await hub.call("permission:grant", agent_id="bot", resource="events/work:read")
        assert granted["applied"]
        await call_as(hub, bot, "work:read")
        by_profile, by_grant = [row["rule"] for row in await rows(hub, agent="bot")]
        assert by_profile == "events/* read (profile standard)"
        assert by_grant.startswith("events/work:read write (grant ")

    async def test_the_intent_is_durable_before_the_handler_runs(self, hub: TestHub, work: Workshop) -> None:
        """U04."""
        task = asyncio.create_task(hub.call("work:hold"))
        await until(lambda: work.entered == 1)
        (row,) = await rows(hub, event="work:hold")
        assert row["phase"] == "intent"
        work.release.set()
        await soon(task)
        assert [row["phase"] for row in await rows(hub, event="work:hold")] == ["intent", "outcome"]

    @pytest.mark.parametrize(
        ("failure", "type_", "status"),
        [
            (ValueError("broke"), "error", "internal"),
            (NotFound("not there"), "tool_call", "not_found"),
            (Forbidden("not you"), "authorization", "forbidden"),
        ],
    )
    async def test_a_failure_is_recorded_as_what_it_was(
        self, hub: TestHub, work: Workshop, failure: BaseException, type_: str, status: str
    ) -> None:
        """K034, L056."""
        work.failure = failure
        with pytest.raises(KsiError):
            await hub.call("work:write")
        _, outcome = await rows(hub, event="work:write")
        assert (outcome["type"], outcome["status"]) == (type_, status)
        assert str(failure) in outcome["reason"]

    async def test_refusals_are_of_type_authorization_with_what_was_asked(self, hub: TestHub) -> None:
        """K032, L054, E059: for the known and the unknown alike."""
        bot = await add_agent(hub)
        await refused(call_as(hub, bot, "work:write", text="x"), Forbidden)
        await refused(call_as(hub, bot, "no:such", text="x"), Forbidden)
        found = await rows(hub, agent="bot")
        assert told(found) == [("authorization", "outcome", "forbidden")] * 2
        assert [row["event"] for row in found] == ["work:write", "no:such"]
        assert all(row["arguments"] == {"text": "x"} and "no such tool" in row["reason"] for row in found)

    async def test_types_tell_admin_session_and_tool_calls_apart(self, hub: TestHub) -> None:
        """K033, L052, L055, L057."""
        await add_agent(hub)
        await hub.call("session:create", clientId="client", scopes=["read"])
        await hub.call("work:read")
        await hub.hub.router.note("system:started", {"version": "x"})
        types = {row["event"]: row["type"] for row in await rows(hub)}
        assert types["agent:register"] == "admin"
        assert types["session:create"] == "session"
        assert types["work:read"] == "tool_call"
        assert types["system:started"] == "system"

    async def test_every_type_of_the_specification_can_be_written(self, hub: TestHub) -> None:
        """L052, L053, L054, L055, L056, L057: plugins' doors bring the ones that the hub itself has no use for yet."""
        kinds = ("tool_call", "resource_read", "authorization", "session", "error", "system", "consent", "admin")
        for kind in kinds:
            await hub.hub.audit.append(Entry(type=kind, event="test:kind"))  # type: ignore[arg-type]
            (row,) = await rows(hub, type=kind, event="test:kind")
            assert row["status"] == "ok"

    async def test_a_stranger_is_recorded_without_what_was_shown(self, hub: TestHub) -> None:
        """L054."""
        error = Forbidden("this token is not valid here")
        await hub.hub.router.record_unauthenticated(
            Principal(kind="operator", name="x", transport="socket"), "work:read", error
        )
        (row,) = await rows(hub, type="authorization")
        assert (row["principal"], row["transport"], row.get("agent_id")) == ("unknown", "socket", None)

    async def test_a_cancelled_call_is_recorded_before_its_task_ends(self, hub: TestHub, work: Workshop) -> None:
        """U01."""
        task = asyncio.create_task(hub.call("work:hold"))
        await until(lambda: work.entered == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [row["status"] for row in await rows(hub, event="work:hold")] == ["started", "cancelled"]

    async def test_a_call_that_is_cancelled_again_while_it_is_recorded_is_recorded(
        self, hub: TestHub, work: Workshop
    ) -> None:
        """U01."""
        task = asyncio.create_task(hub.call("work:hold"))
        await until(lambda: work.entered == 1)
        for _ in range(5):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(5):
            while len(await rows(hub, event="work:hold")) < 2:
                pass
        assert [row["status"] for row in await rows(hub, event="work:hold")] == ["started", "cancelled"]

    async def test_a_refusal_after_the_intent_is_never_only_counted(self, hub: TestHub, work: Workshop) -> None:
        """U01, U05: an intent without an outcome would be called unknown at the next start."""
        work.failure = Forbidden("not today")
        await asyncio.gather(*(hub.call("work:write") for _ in range(120)), return_exceptions=True)
        await asyncio.sleep(1.05)
        found = await rows(hub, event="work:write")
        begun = {row["call_id"] for row in found if row["phase"] == "intent"}
        ended = {row.get("call_id") for row in found if row["phase"] == "outcome"}
        assert len(begun) == 120
        assert begun <= ended

    async def test_many_kinds_of_calls_leave_exactly_their_rows(self, hub: TestHub, work: Workshop) -> None:
        """U01, K042, E003: in small."""
        bot = await add_agent(hub, profile="trusted")
        work.failure = None
        expected: dict[str, int] = {}

        kinds: list[tuple[str, str, dict[str, Any]]] = [
            ("ok", "work:read", {}),
            ("ok", "work:write", {}),
            ("invalid", "work:strict", {"wrong": 1}),
            ("forbidden", "work:reset", {}),
            ("approval_required", "work:launch", {}),
            ("not_found", "state:get", {"key": "nothing"}),
        ]

        async def one(number: int) -> str:
            _, event, data = kinds[number % len(kinds)]
            try:
                await call_as(hub, bot, event, **data)
            except KsiError as error:
                return error.code
            return "ok"

        for start in range(0, 240, 24):
            ended = await asyncio.gather(*(one(number) for number in range(start, start + 24)))
            assert ended == [status for status, _, _ in kinds] * 4
            for status in ended:
                expected[status] = expected.get(status, 0) + 1
        await asyncio.sleep(1.05)
        found: dict[str, int] = {}
        for row in await rows(hub, agent="bot", phase="outcome"):
            found[row["status"]] = found.get(row["status"], 0) + row["count"]
        assert found == expected
        assert (await hub.call("audit:verify", deep=True))["ok"]


class TestWithoutRecord:
    """U02: no audit, no service."""

    @pytest.fixture
    def cut(self, hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
        writer = hub.hub.audit._writer

        async def unavailable(entry: Entry) -> None:
            raise writer.unavailable()

        monkeypatch.setattr(writer, "problem", "the disk is full")
        monkeypatch.setattr(writer, "append", unavailable)

    @pytest.mark.usefixtures("cut")
    async def test_nothing_runs_for_nobody(self, hub: TestHub, work: Workshop) -> None:
        """U02, F03."""
        for event in ("work:write", "work:read", "system:echo", "no:such"):
            await refused(hub.call(event, text="x"), AuditUnavailable)
        assert work.ran == []

    async def test_when_only_the_intent_cannot_be_written_the_handler_does_not_run(
        self, hub: TestHub, work: Workshop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """U02."""
        recorder = hub.hub.router.recorder
        assert recorder is not None

        async def broken(*args: Any, **options: Any) -> None:
            raise AuditUnavailable("the disk is full")

        monkeypatch.setattr(recorder, "intent", broken)
        await refused(hub.call("work:write"), AuditUnavailable)
        assert work.ran == []
        await hub.call("work:read")

    async def test_an_answer_whose_outcome_cannot_be_written_does_not_leave(
        self, hub: TestHub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """U02."""
        recorder = hub.hub.router.recorder
        assert recorder is not None

        async def broken(*args: Any, **options: Any) -> None:
            raise AuditUnavailable("the disk is full")

        monkeypatch.setattr(recorder, "outcome", broken)
        with pytest.raises(AuditUnavailable):
            await call(hub.hub.router, "work:read")
