"""Every call has its row, of its kind, whatever became of it; and who may read them."""

import json
import secrets
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from tests.live.daemon_process import Connection, Daemon, until

KINDS = '''
class Word(Params):
    word: str = Field("", max_length=500_000, description="Any.")

@plugin.handles("kinds:ok")
async def ok(ctx: Context, params: Word) -> Done:
    """Work."""
    return Done()

@plugin.handles("kinds:read", reads=True)
async def read(ctx: Context, params: Nothing) -> Done:
    """Read."""
    return Done()

@plugin.handles("kinds:missing")
async def missing(ctx: Context, params: Nothing) -> Done:
    """Say that it is not there."""
    raise NotFound("it is not there")

@plugin.handles("kinds:wait")
async def wait(ctx: Context, params: Nothing) -> Done:
    """Wait for ever."""
    await asyncio.Event().wait()
    return Done()

@plugin.handles("kinds:consent", needs=[("operation/kinds:consent", "execute")])
async def consent(ctx: Context, params: Nothing) -> Done:
    """Need a person's yes."""
    return Done()

@plugin.handles("kinds:nested")
async def nested(ctx: Context, params: Nothing) -> Done:
    """Call another."""
    await ctx.call("kinds:ok")
    return Done()
'''
FRAIL = '''
@plugin.handles("frail:break")
async def broken(ctx: Context, params: Nothing) -> Done:
    """Break."""
    raise ValueError("broken")
'''
LATE = '''
@plugin.handles("late:wait", timeout_s=0.05)
async def wait(ctx: Context, params: Nothing) -> Done:
    """Wait for ever."""
    await asyncio.Event().wait()
    return Done()
'''

Asked = tuple[str, dict[str, Any], dict[str, Any]]


def _send(connection: Connection, counts: Counter[tuple[str, str]], asked: Asked, times: int) -> None:
    """Send one request many times, sixty at once, and count what was answered."""
    event, data, extra = asked
    while times > 0:
        few = min(times, 60)
        times -= few
        for one in [connection.post(event, data, **extra) for _ in range(few)]:
            answer = connection.answer(one)
            counts[event, "ok" if answer["ok"] else answer["error"]["code"]] += 1


def _recorded(daemon: Daemon, since: int) -> Counter[tuple[str, str]]:
    rows = daemon.audit_rows("phase = 'outcome' AND seq > ?", since)
    found: Counter[tuple[str, str]] = Counter()
    for row in rows:
        found[row["event"], row["status"]] += row["count"]
    return found


def test_the_record_has_as_many_calls_of_every_kind_as_there_were(daemon: Daemon) -> None:
    """U01 K031 K032 K034 K042 L052 L054 L056: fifteen kinds, thousands of calls"""
    for name, source in (("kinds", KINDS), ("frail", FRAIL), ("late", LATE)):
        daemon.plugin(name, source)
    daemon.start()
    alice, hasty = daemon.add_agent("alice"), daemon.add_agent("hasty", "researcher")
    since = daemon.audit_rows()[-1]["seq"]
    wrong = {"token": "ksi_" + secrets.token_urlsafe(32)}
    as_alice, as_hasty = {"token": alice}, {"token": hasty}
    counts: Counter[tuple[str, str]] = Counter()
    with daemon.connect() as connection:
        for asked, times in (
            (("kinds:ok", {}, as_alice), 1_000),  # it worked
            (("kinds:ok", {}, {}), 300),  # an event of the operator's
            (("kinds:read", {}, as_alice), 500),
            (("kinds:missing", {}, as_alice), 200),  # the tool's own error
            (("token:create", {"agent_id": "alice"}, as_alice), 300),  # denied
            (("no:such", {}, as_alice), 100),
            (("no:such", {}, {}), 100),  # unknown, to the operator
            (("kinds:ok", {}, wrong), 300),  # unauthenticated
            (("kinds:ok", {}, as_hasty), 400),  # rate-limited
            (("kinds:ok", {"word": 1}, as_alice), 200),  # invalid
            (("kinds:consent", {}, as_alice), 200),  # approval missing
            (("late:wait", {}, as_alice), 4),  # timed out; the fifth would open the breaker
            (("frail:break", {}, as_alice), 1),
            (("permission:grant", {"agent_id": "alice", "resource": "tables/x"}, {}), 50),  # an admin's change
        ):
            _send(connection, counts, asked, times)
        for _ in range(200):  # one at a time, so that exactly five break and the rest meets the breaker
            _send(connection, counts, ("frail:break", {}, as_alice), 1)
    with daemon.connect() as leaving:
        for _ in range(20):
            leaving.post("kinds:wait", token=alice)
        until(lambda: len(daemon.audit_rows("event = 'kinds:wait' AND phase = 'intent'")) == 20)
    counts["kinds:wait", "cancelled"] = 20
    words = [sys.executable, "-m", "ksi_client", "send", "kinds:ok", "word=typed"]
    subprocess.run(words, env=daemon.environment(), check=True, capture_output=True, timeout=30)
    counts.update([("system:help", "ok"), ("kinds:ok", "ok")])  # the command looks up what it sends
    assert counts["frail:break", "internal"] == 5
    assert counts["frail:break", "circuit_open"] == 196
    assert counts["kinds:ok", "too_many"] >= 300
    assert counts["late:wait", "timed_out"] == 4
    until(lambda: sum(_recorded(daemon, since).values()) >= sum(counts.values()), within_s=5, what="the last counts")
    told = daemon.call("audit:verify")
    assert told["ok"], told
    assert daemon.stop() == 0
    recorded = _recorded(daemon, since)
    for ours in ("system:status", "audit:verify"):
        recorded.pop((ours, "ok"), None)
    assert recorded == counts
    _check_pairs(daemon, since)


def _check_pairs(daemon: Daemon, since: int) -> None:
    """An intent for each call that may change something and was let in, before its only outcome; types by kind."""
    rows = daemon.audit_rows("seq > ?", since)
    intents = {row["call_id"]: row["seq"] for row in rows if row["phase"] == "intent"}
    outcomes = [row for row in rows if row["phase"] == "outcome" and row["call_id"] is not None]
    assert len(outcomes) == len({row["call_id"] for row in outcomes}), "two outcomes of one call"
    assert set(intents) <= {row["call_id"] for row in outcomes}
    ran = [row for row in outcomes if row["status"] in ("ok", "not_found", "internal", "timed_out", "cancelled")]
    without = [
        row for row in ran if row["event"] in ("kinds:ok", "kinds:missing", "kinds:wait", "frail:break", "late:wait")
    ]
    assert all(intents[row["call_id"]] < row["seq"] for row in without)
    types = {
        (row["status"], row["type"]) for row in rows if row["event"] in ("kinds:ok", "kinds:consent", "frail:break")
    }
    assert types == {
        ("started", "tool_call"), ("ok", "tool_call"), ("too_many", "tool_call"), ("invalid", "tool_call"),
        ("circuit_open", "tool_call"), ("unauthenticated", "authorization"), ("approval_required", "authorization"),
        ("internal", "error"),
    }  # fmt: skip
    assert {row["type"] for row in rows if row["event"] == "permission:grant"} == {"admin"}
    agents = {row["agent_id"] for row in rows if row["event"] == "kinds:missing"}
    assert agents == {"alice"}


def test_a_call_inside_a_call_is_recorded_with_its_parent_and_its_agent(daemon: Daemon) -> None:
    """U01 K042"""
    daemon.plugin("kinds", KINDS)
    daemon.start()
    daemon.call("kinds:nested", token=daemon.add_agent("alice"))
    [outer] = daemon.audit_rows("event = 'kinds:nested' AND phase = 'outcome'")
    [inner] = daemon.audit_rows("event = 'kinds:ok' AND phase = 'outcome'")
    assert (inner["parent_id"], inner["agent_id"], inner["transport"]) == (outer["call_id"], "alice", "plugin")
    assert inner["correlation_id"] == outer["correlation_id"]


HOSTILE = (
    "two\nlines",
    "\x1b[31mred\x1b[0m",
    "\x00",
    "\u202egnp",
    "\u2028",
    '"}\n{"forged": true}',
    "x" * 400_000,
    "😀" * 1000,
)


def test_nothing_in_the_arguments_breaks_a_row_or_its_mirror(daemon: Daemon) -> None:
    """U07"""
    daemon.plugin("kinds", KINDS)
    daemon.start()
    with daemon.connect() as connection:
        for word in HOSTILE:
            connection.call("kinds:ok", {"word": word})
            connection.send(f"kinds:{word[:90]}", {word[:1000]: word[:1000]})
        for raw in (
            b'{"event":"kinds:ok","data":{"word":NaN},"id":1}',
            b'{"event":"kinds:ok","data":{"word":"\xff"},"id":1}',
        ):
            assert connection.ask(raw)["error"]["code"] == "invalid"
    rows = daemon.audit_rows("event = 'kinds:ok' AND phase = 'intent'")
    assert len(rows) == len(HOSTILE)
    for word, row in zip(HOSTILE, rows, strict=True):
        shown = json.loads(row["arguments"])
        assert len(row["arguments"]) < 10_000
        if len(word) > 4_000:
            assert row["arguments_bytes"] > len(word)
            assert len(row["arguments_sha256"]) == 64
        else:
            assert set(shown) == {"word"}
    assert daemon.call("audit:verify", {"deep": True})["ok"] is True
    assert daemon.stop() == 0
    lines = (daemon.var / "log" / "audit.jsonl").read_bytes().split(b"\n")[:-1]
    assert [json.loads(line)["seq"] for line in lines] == [row["seq"] for row in daemon.audit_rows()][-len(lines) :]
    assert b"\x1b" not in b"".join(lines)


@pytest.mark.parametrize("profile", ["standard", "trusted"])
def test_an_agent_may_neither_read_nor_thin_the_record(daemon: Daemon, profile: str) -> None:
    """U09"""
    daemon.start()
    token = daemon.add_agent("alice", profile)
    daemon.call("permission:grant", {"agent_id": "alice", "resource": "events/audit:*"})
    asked: dict[str, dict[str, Any]] = {
        "audit:query": {}, "audit:stats": {}, "audit:verify": {}, "audit:export": {"name": "x"},
        "audit:checkpoint": {},
        "audit:retain": {"keep_rows": 1, "unexported": True},
    }  # fmt: skip
    before = daemon.audit_rows()[-1]["seq"]
    with daemon.connect() as connection:
        for event, data in asked.items():
            assert connection.send(event, data, token=token)["error"]["code"] == "forbidden"
    refused = daemon.audit_rows("status = 'forbidden' AND agent_id = 'alice' AND seq > ?", before)
    assert [row["event"] for row in refused] == list(asked)
    assert not (daemon.var / "exports").exists()


def test_the_figures_are_those_of_the_rows(daemon: Daemon) -> None:
    """L058 L059"""
    daemon.plugin("kinds", KINDS)
    daemon.start()
    session = daemon.call("session:create", {"clientId": "c", "scopes": ["read"]})
    with daemon.connect() as connection:
        for _ in range(10):
            connection.send("kinds:ok", token=session["token"])
            connection.call("kinds:ok")
        stats = connection.call("audit:stats")
        mine = connection.call("audit:query", {"sessionId": session["sessionId"], "limit": 5})
    assert {"totalEvents", "byType", "byStatus", "uniqueSessions", "avgToolDurationMs", "errorRate"} <= set(stats)
    assert stats["uniqueSessions"] == 1
    assert stats["byStatus"]["forbidden"] == 10
    assert stats["byType"]["authorization"] == 10
    assert (len(mine["rows"]), mine["more"]) == (5, True)
    assert {row["status"] for row in mine["rows"]} == {"forbidden"}
