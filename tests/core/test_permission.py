"""permission:get_agent, set_agent, remove_agent, list_profiles, get_profile, grant, revoke, explain and validate_spawn."""

from typing import Any

import pytest

from ksi_daemon.errors import Forbidden, Invalid, NotFound
from ksi_daemon.plugin import Context, Nothing, Plugin
from ksi_daemon.testing import TestHub, running
from tests.agents_at_work import WallClock, add_agent, call_as, gate_of, rows
from tests.in_process import Said


def notes() -> Plugin:
    plugin = Plugin("notes")

    @plugin.handles("notes:list", reads=True)
    async def list_notes(ctx: Context, params: Nothing) -> Said:
        """List."""
        return Said()

    @plugin.handles("notes:add")
    async def add(ctx: Context, params: Nothing) -> Said:
        """Add."""
        return Said()

    @plugin.handles("notes:wipe", needs=[("operation/wipe", "execute")])
    async def wipe(ctx: Context, params: Nothing) -> Said:
        """Wipe."""
        return Said()

    return plugin


async def allowed(hub: TestHub, agent_id: str = "bot") -> set[str]:
    return set((await hub.call("permission:get_agent", agent_id=agent_id))["allowed_tools"])


async def usable(hub: TestHub, agent_id: str = "bot") -> set[str]:
    held = await hub.call("permission:get_agent", agent_id=agent_id)
    return set(held["allowed_tools"]) - set(held["needs_grant"])


async def test_get_agent_has_the_shape_of_the_specification() -> None:
    """K019, K020: profile, allowed_tools, allowed_modules, disallowed_tools."""
    async with running(notes()) as hub:
        await add_agent(hub)
        held = await hub.call("permission:get_agent", agent_id="bot")
        assert held.keys() == {
            "agent_id", "profile", "allowed_tools", "allowed_modules", "disallowed_tools", "needs_grant",
            "grants", "frozen", "version",
        }  # fmt: skip
        assert (held["agent_id"], held["profile"], held["frozen"], held["grants"]) == ("bot", "standard", False, [])
        assert "ksi_notes_list" in held["allowed_tools"]
        assert {"ksi_notes_add", "ksi_notes_wipe"} <= set(held["disallowed_tools"])
        assert {"state", "message"} <= set(held["allowed_modules"])
        assert "notes" not in held["allowed_modules"]
        assert not set(held["allowed_tools"]) & set(held["disallowed_tools"])
        assert not any(tool.startswith("ksi_permission") for tool in held["allowed_tools"] + held["disallowed_tools"])


@pytest.mark.parametrize("profile", ["restricted", "standard", "researcher", "trusted"])
async def test_discover_get_agent_explain_and_the_call_say_the_same_of_every_event(profile: str) -> None:
    """K018, K020, K040: one judgement behind all of them."""
    async with running(notes(), rate_limit="off") as hub:
        bot = await add_agent(hub, profile=profile)
        held = await hub.call("permission:get_agent", agent_id="bot")
        listed, needs_grant = set(held["allowed_tools"]), held["needs_grant"]
        discovered = (await call_as(hub, bot, "system:discover"))["events"]
        assert {
            hub.hub.router.routes[event].handler.tool for event, facts in discovered.items() if facts["kind"] == "call"
        } == listed
        for event, route in hub.hub.router.routes.items():
            explained = await hub.call("permission:explain", agent_id="bot", event=event)
            tool = route.handler.tool
            assert explained["allowed"] == (tool in listed and tool not in needs_grant), event
            if not explained["allowed"]:
                with pytest.raises(Exception, match="consent" if tool in listed else "no such tool"):
                    await call_as(hub, bot, event)
        writes = profile in ("researcher", "trusted")
        assert needs_grant == ({"ksi_notes_wipe": ["execute on operation/wipe"]} if writes else {})


async def test_a_revoked_or_frozen_principal_is_explained_listed_and_called_alike() -> None:
    """K040: explaining asks for the very principal, not only for the agent."""
    async with running(notes()) as hub:
        bot = await add_agent(hub, profile="trusted")
        gate, handler = gate_of(hub), hub.hub.router.routes["notes:list"].handler
        assert gate.explain(bot, handler, "notes:list").allowed
        await hub.call("token:revoke", credential_id=bot.credential_id)
        assert not gate.explain(bot, handler, "notes:list").allowed
        assert "no: its token is not valid any more" in gate.explain(bot, handler, "notes:list").text()
        assert not gate.lists(bot, handler)
        with pytest.raises(Forbidden, match="not valid any more"):
            await call_as(hub, bot, "notes:list")
        assert "ksi_notes_list" in await allowed(hub), "the agent itself may act, with another token"
        await hub.call("agent:freeze", agent_id="bot")
        assert await allowed(hub) == set()


async def test_another_profile_counts_from_the_next_call() -> None:
    """K021."""
    async with running(notes()) as hub:
        bot = await add_agent(hub, profile="restricted")
        with pytest.raises(Forbidden):
            await call_as(hub, bot, "notes:list")
        version = (await hub.call("permission:get_agent", agent_id="bot"))["version"]
        hub.subscribe("permission:changed")
        held = await hub.call("permission:set_agent", agent_id="bot", profile="researcher")
        assert (held["profile"], held["version"]) == ("researcher", version + 1)
        assert (await hub.next_notice()).data == {"agents": ["bot"]}
        await call_as(hub, bot, "notes:add")
        with pytest.raises(Invalid, match="researcher"):
            await hub.call("permission:set_agent", agent_id="bot", profile="reseacher")


async def test_everything_can_be_taken_back_while_the_agent_stays() -> None:
    async with running(notes()) as hub:
        bot = await add_agent(hub, profile="trusted")
        await hub.call("permission:grant", agent_id="bot", resource="events/notes:*")
        held = await hub.call("permission:remove_agent", agent_id="bot")
        assert (held["profile"], held["grants"]) == ("restricted", [])
        await call_as(hub, bot, "system:health")
        with pytest.raises(Forbidden):
            await call_as(hub, bot, "notes:list")


async def test_the_profiles_can_be_read() -> None:
    """K020."""
    async with running() as hub:
        profiles = {one["name"]: one for one in (await hub.call("permission:list_profiles"))["profiles"]}
        assert set(profiles) == {"restricted", "standard", "researcher", "trusted"}
        shown = (await hub.call("permission:get_profile", level="standard"))["profile"]
        assert shown == profiles["standard"]
        assert shown["rate"] == {"calls_per_minute": 100, "burst": 20, "concurrent_calls": 8}
        assert {"resource": "events/state:*", "access": "write"} in shown["grants"]
        with pytest.raises(Invalid, match="standard"):
            await hub.call("permission:get_profile", level="standerd")


async def test_a_grant_says_what_it_opens_and_a_dry_run_changes_nothing() -> None:
    async with running(notes()) as hub:
        bot = await add_agent(hub)
        wanted: dict[str, Any] = {"agent_id": "bot", "resource": "events/notes:add"}
        version = hub.hub.rights.version
        dry = await hub.call("permission:grant", **wanted, dry_run=True)
        assert (dry["applied"], dry["gained"], dry["lost"]) == (False, ["ksi_notes_add"], [])
        assert hub.hub.rights.version == version
        with pytest.raises(Forbidden):
            await call_as(hub, bot, "notes:add")
        wet = await hub.call("permission:grant", **wanted)
        assert wet == dry | {"applied": True}
        await call_as(hub, bot, "notes:add")
        dry = await hub.call("permission:revoke", **wanted, dry_run=True)
        assert (dry["applied"], dry["gained"], dry["lost"]) == (False, [], ["ksi_notes_add"])
        await call_as(hub, bot, "notes:add")
        assert await hub.call("permission:revoke", **wanted) == dry | {"applied": True}
        for again in ({}, {"dry_run": True}):
            with pytest.raises(NotFound, match="no grant"):
                await hub.call("permission:revoke", **wanted, **again)


async def test_the_diff_is_exactly_what_changes() -> None:
    """K019."""
    async with running(notes()) as hub:
        await add_agent(hub)
        for resource, access in (
            ("events/*", "write"), ("events/notes:*", "none"), ("events/monitor:*", "read"), ("events/state:set", "read"),
            ("operation/wipe", "execute"), ("events/notes:*", "write"), ("events/*", "none"),
        ):  # fmt: skip
            before = await usable(hub)
            change = await hub.call("permission:grant", agent_id="bot", resource=resource, access=access)
            after = await usable(hub)
            assert set(change["gained"]) == after - before
            assert set(change["lost"]) == before - after


async def test_a_grant_opens_what_the_profile_closes_on_the_same_resource() -> None:
    """K020: and forbids what it opens."""
    async with running() as hub:
        bot = await add_agent(hub)
        opened = await hub.call("permission:grant", agent_id="bot", resource="events/monitor:*", access="read")
        assert "ksi_monitor_get_stats" in opened["gained"]
        await call_as(hub, bot, "monitor:get_stats")
        closed = await hub.call("permission:grant", agent_id="bot", resource="events/state:*", access="none")
        assert "ksi_state_set" in closed["lost"]
        with pytest.raises(Forbidden):
            await call_as(hub, bot, "state:list")


async def test_a_grant_for_a_time_ends_by_the_clock() -> None:
    async with running(notes()) as hub:
        clock = WallClock(hub)
        bot = await add_agent(hub)
        made = await hub.call("permission:grant", agent_id="bot", resource="events/notes:add", for_s=60)
        assert made["expires_at"].endswith("Z")
        await call_as(hub, bot, "notes:add")
        clock.now_s += 61
        with pytest.raises(Forbidden):
            await call_as(hub, bot, "notes:add")
        text = (await hub.call("permission:explain", agent_id="bot", event="notes:add"))["text"]
        assert "expired     events/notes:add write" in text


@pytest.mark.parametrize(
    ("resource", "access"),
    [("events/notes:add", "write"), ("operation/wipe", "execute"), ("knowledge/reader", "execute"),
     ("librarian/read", "execute"), ("raw/events", "execute"), ("tables/meals", "write")],
)  # fmt: skip
async def test_a_grant_without_an_access_means_the_usual_one(resource: str, access: str) -> None:
    """L050."""
    async with running(notes()) as hub:
        await add_agent(hub)
        assert (await hub.call("permission:grant", agent_id="bot", resource=resource))["access"] == access


@pytest.mark.parametrize(
    "resource",
    ["", "events", "events/notes", "events/n\u043etes:*", "Events/notes:*", "events/notes:* ", "a//b", "a/*b"],
)
async def test_a_resource_that_only_looks_like_one_is_refused(resource: str) -> None:
    """P10."""
    async with running() as hub:
        await add_agent(hub)
        for dry_run in (False, True):
            with pytest.raises(Invalid):
                await hub.call("permission:grant", agent_id="bot", resource=resource, dry_run=dry_run)


async def test_a_child_is_held_to_its_parents_rights_in_lists_calls_and_explanations() -> None:
    """K021."""
    async with running(notes()) as hub:
        await add_agent(hub, "top", "standard")
        child = await add_agent(hub, "child", "trusted", parent_id="top")
        assert await allowed(hub, "child") <= await allowed(hub, "top")
        with pytest.raises(Forbidden):
            await call_as(hub, child, "notes:add")
        explained = await hub.call("permission:explain", agent_id="child", event="notes:add")
        assert not explained["allowed"]
        assert "in the rules of its parent" in explained["text"]
        gained = await hub.call("permission:grant", agent_id="child", resource="events/notes:add", dry_run=True)
        assert gained["gained"] == []
        await hub.call("permission:grant", agent_id="top", resource="events/notes:add")
        await call_as(hub, child, "notes:add")


async def test_a_spawn_is_validated_before_it_is_tried() -> None:
    async with running() as hub:
        await add_agent(hub, "top", "standard")
        assert await hub.call("permission:validate_spawn", parent_id="top", profile="standard") == {
            "valid": True, "shortfalls": [],
        }  # fmt: skip
        short = await hub.call("permission:validate_spawn", parent_id="top", profile="trusted")
        assert not short["valid"]
        missing = {one["resource"]: one["missing"] for one in short["shortfalls"]}
        assert missing["knowledge/maintainer"] == "all"
        assert missing["events/*"] == "part"
        with pytest.raises(NotFound):
            await hub.call("permission:validate_spawn", parent_id="nobody")


async def test_explain_names_the_winner_those_it_beat_and_every_condition() -> None:
    """K032."""
    async with running(notes()) as hub:
        await add_agent(hub)
        await hub.call("permission:grant", agent_id="bot", resource="events/notes:add")
        told = await hub.call("permission:explain", agent_id="bot", event="ksi_notes_add")
        assert (told["event"], told["allowed"]) == ("notes:add", True)
        (decision,) = told["explanation"]["decisions"]
        assert decision["rule"]["resource"] == "events/notes:add"
        assert [rule["resource"] for rule in decision["beaten"]] == ["events/*"]
        assert {one["about"] for one in told["explanation"]["conditions"]} == {
            "agent", "operator_only", "rate", "slots", "breaker",
        }  # fmt: skip
        await hub.call("agent:freeze", agent_id="bot")
        frozen = await hub.call("permission:explain", agent_id="bot", event="notes:add")
        assert not frozen["allowed"]
        assert "no: the agent is frozen" in frozen["text"]
        unknown = await hub.call("permission:explain", agent_id="bot", event="no:such")
        assert not unknown["allowed"]
        assert "no plugin owns" in unknown["text"]
        mine = await hub.call("permission:explain", agent_id="bot", event="agent:list")
        assert "only for the operator" in mine["text"]


async def test_every_change_of_rights_is_on_record_with_what_was_changed() -> None:
    """K032, E059."""
    async with running() as hub:
        await add_agent(hub)
        await hub.call("permission:grant", agent_id="bot", resource="events/notes:*", access="read")
        intent, outcome = await rows(hub, event="permission:grant")
        assert (intent["type"], intent["arguments"]) == (
            "admin", {"agent_id": "bot", "resource": "events/notes:*", "access": "read"},
        )  # fmt: skip
        assert outcome["status"] == "ok"
