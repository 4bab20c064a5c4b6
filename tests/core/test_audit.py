"""audit:query, stats, verify, export and retain through the router. How the record is kept inside is tests/audit."""

import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ksi_daemon.audit.export import verify_export
from ksi_daemon.errors import Conflict, Forbidden, Invalid, KsiError, NotFound
from ksi_daemon.testing import TestHub, running
from tests.agents_at_work import add_agent, call_as


async def query(hub: TestHub, **wanted: Any) -> list[dict[str, Any]]:
    return list((await hub.call("audit:query", **wanted))["rows"])


async def some_calls(hub: TestHub) -> None:
    bot = await add_agent(hub)
    await call_as(hub, bot, "system:health")
    await call_as(hub, bot, "state:set", key="k", value="v")
    with pytest.raises(Forbidden):
        await call_as(hub, bot, "config:show")
    with pytest.raises(NotFound):
        await call_as(hub, bot, "state:get", key="nothing")
    made = await hub.call("session:create", clientId="client", scopes=["read"])
    session = hub.hub.rights.credentials.principal(made["token"], transport="http")
    await call_as(hub, session, "system:health")


async def test_rows_can_be_asked_for_by_type_session_time_and_number() -> None:
    """L058, K042."""
    async with running() as hub:
        await some_calls(hub)
        everything = await query(hub)
        seqs = [row["seq"] for row in everything]
        assert seqs == sorted(seqs, reverse=True)
        assert [row["event"] for row in await query(hub, type="authorization")] == ["config:show"]
        (session,) = (await hub.call("session:list"))["sessions"]
        (row,) = await query(hub, sessionId=session["sessionId"])
        assert (row["event"], row["agent_id"], row["session_id"]) == ("system:health", "client", session["sessionId"])
        assert {row["event"] for row in await query(hub, agent_id="bot")} == {
            "system:health", "state:set", "config:show", "state:get",
        }  # fmt: skip
        assert len(await query(hub, event="ksi_state_set")) == len(await query(hub, event="state:set")) == 2
        assert [row["event"] for row in await query(hub, status="not_found")] == ["state:get"]
        page = await hub.call("audit:query", limit=2)
        assert (len(page["rows"]), page["more"]) == (2, True)


async def test_rows_can_be_asked_for_by_time() -> None:
    """L058: an ISO time, or seconds ago."""
    async with running() as hub:
        await some_calls(hub)
        an_hour_on = datetime.fromtimestamp(time.time() + 3600, UTC).isoformat()
        assert len(await query(hub, agent_id="bot", since=60)) == 5
        assert len(await query(hub, agent_id="bot", since="2020-01-01", until=an_hour_on)) == 5
        assert await query(hub, agent_id="bot", since=an_hour_on) == []
        assert await query(hub, agent_id="bot", until="2020-01-01T00:00:00Z") == []
        for bad in ("yesterday", "2020-13-01", 1e12, "9999-99-99"):
            with pytest.raises(Invalid):
                await query(hub, since=bad)


async def test_the_record_can_be_followed() -> None:
    async with running() as hub:
        await some_calls(hub)
        seen: list[int] = []
        after = 0
        for _ in range(100):
            page = await hub.call("audit:query", after=after, limit=3)
            seen += [row["seq"] for row in page["rows"]]
            after = seen[-1]
            if not page["more"]:
                break
        assert seen == list(range(seen[0], seen[0] + len(seen)))


@pytest.mark.parametrize("bad", [{"limit": 0}, {"limit": 1001}, {"after": -1}, {"type": "x" * 33}, {"what": 1}])
async def test_a_question_that_does_not_fit_is_refused(bad: dict[str, Any]) -> None:
    async with running() as hub:
        with pytest.raises(Invalid):
            await query(hub, **bad)


async def test_stats_have_the_shape_of_the_specification_and_add_up() -> None:
    """L059."""
    async with running() as hub:
        await some_calls(hub)
        stats = await hub.call("audit:stats", agent_id="bot")
        assert stats.keys() == {
            "totalEvents", "byType", "byStatus", "uniqueSessions", "avgToolDurationMs", "errorRate",
        }  # fmt: skip
        assert stats["totalEvents"] == 4
        assert stats["byType"] == {"tool_call": 3, "authorization": 1}
        assert stats["byStatus"] == {"ok": 2, "forbidden": 1, "not_found": 1}
        assert stats["errorRate"] == 50.0
        assert stats["avgToolDurationMs"] > 0
        assert stats["uniqueSessions"] == 0
        assert (await hub.call("audit:stats"))["uniqueSessions"] == 1
        nothing = await hub.call("audit:stats", agent_id="nobody")
        assert (nothing["totalEvents"], nothing["errorRate"], nothing["avgToolDurationMs"]) == (0, 0.0, 0.0)


async def test_the_record_can_be_verified_while_it_is_written() -> None:
    """U03, U06."""
    async with running() as hub:
        await some_calls(hub)
        for deep in (False, True):
            verdict = await hub.call("audit:verify", deep=deep)
            assert (verdict["ok"], verdict["first_bad_seq"], verdict["problem"]) == (True, None, None)
            assert verdict["rows"] > 10


async def test_an_export_keeps_the_chain_and_is_written_once() -> None:
    """U08."""
    async with running() as hub:
        await some_calls(hub)
        made = await hub.call("audit:export", name="all.jsonl")
        path = Path(made["path"])
        assert path.parent.name == "exports"
        assert path.stat().st_mode & 0o077 == 0
        assert verify_export(path).ok
        assert len(path.read_text(encoding="utf-8").splitlines()) >= made["rows"]
        with pytest.raises(KsiError):
            await hub.call("audit:export", name="all.jsonl")
        table = await hub.call("audit:export", name="all.csv", format="csv")
        assert Path(table["path"]).read_text(encoding="utf-8").count("\n") > made["rows"]


@pytest.mark.parametrize("name", ["../x", "a/b", "", "x" * 101, "a\x00", "/etc/x", ".."])
async def test_an_export_stays_in_its_folder(name: str) -> None:
    """L060, X01."""
    async with running() as hub:
        with pytest.raises(KsiError) as caught:
            await hub.call("audit:export", name=name)
        assert caught.value.code in ("invalid", "conflict")


async def test_only_what_was_exported_is_let_go_and_the_rest_is_whole() -> None:
    """U08."""
    async with running() as hub:
        await some_calls(hub)
        with pytest.raises(Conflict, match="export"):
            await hub.call("audit:retain", keep_rows=3)
        await hub.call("audit:export", name="all.jsonl")
        kept = await hub.call("audit:retain", keep_rows=5)
        assert kept["dropped"] > 0
        assert (await hub.call("audit:query", limit=1000))["rows"][-1]["seq"] == kept["first_seq"]
        assert (await hub.call("audit:verify", deep=True))["ok"]
        assert "audit:retain" in {row["event"] for row in await query(hub, type="admin")}


async def test_letting_go_is_forced_or_wants_a_measure() -> None:
    async with running() as hub:
        await some_calls(hub)
        with pytest.raises(Invalid):
            await hub.call("audit:retain")
        assert (await hub.call("audit:retain", keep_rows=3, unexported=True))["dropped"] > 0
        assert (await hub.call("audit:retain", keep_days=1))["dropped"] == 0
        assert (await hub.call("audit:verify"))["ok"]


async def test_a_signed_head_that_was_kept_can_be_compared_later() -> None:
    """U03."""
    async with running() as hub:
        kept = await hub.call("audit:checkpoint")
        assert (await hub.call("audit:verify", against=kept["head"]))["ok"]
        changed = kept["head"].replace(f":{kept['seq']}:", f":{kept['seq'] - 1}:")
        assert "not signed" in (await hub.call("audit:verify", against=changed))["problem"]
        with pytest.raises(Invalid, match="ksi-audit-head:DAEMON:ROW:HASH:MAC"):
            await hub.call("audit:verify", against="something else")


async def test_no_agent_reads_or_trims_the_record_and_the_try_is_in_it() -> None:
    """U09, E003."""
    async with running() as hub:
        bot = await add_agent(hub, profile="trusted")
        for event in (
            "audit:query", "audit:stats", "audit:verify", "audit:export", "audit:retain", "audit:checkpoint",
        ):  # fmt: skip
            with pytest.raises(Forbidden, match="no such tool"):
                await call_as(hub, bot, event)
        assert len(await query(hub, agent_id="bot", type="authorization")) == 6


@pytest.mark.parametrize(
    "value",
    ["a\nb\x1b[31m", "x" * 90_000, float("inf"), "\ud800", {"password": "hunter2-hunter2"}, "ksi_" + "a" * 43],
    ids=["ansi", "long", "infinity", "surrogate", "password", "token"],
)
async def test_what_a_caller_sends_cannot_break_or_soil_a_row(value: Any) -> None:
    """U07, S05, L069."""
    async with running() as hub:
        bot = await add_agent(hub)
        with suppress(Invalid):
            await call_as(hub, bot, "state:set", key="k", value=value)
        found = await query(hub, agent_id="bot", event="state:set")
        assert found
        assert "hunter2-hunter2" not in str(found)
        assert "ksi_" + "a" * 43 not in str(found)
        assert all(len(str(row)) < 20_000 for row in found)
        assert (await hub.call("audit:verify", deep=True))["ok"]
