"""What a client is told of a call while it runs: progress and log lines, if it asked for them, and nothing of other calls."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
from mcp import types

from ksi_daemon.mcp.feedback import LINE_LIMIT_BYTES, LINES_LIMIT
from ksi_daemon.plugin import Context, NotFound, Plugin, in_thread
from ksi_daemon.testing import running
from tests.cases import case
from tests.in_process import Said, Text, log_lines
from tests.mcp.test_sessions import opened
from tests.mcp_hub import META, McpHub, serving_mcp

STEPS = 5_000
LEVEL = "io.modelcontextprotocol/logLevel"
Messages = list[dict[str, Any]]


def talkative() -> Plugin:
    plugin = Plugin("talk")

    @plugin.handles("talk:count", reads=True)
    async def count(ctx: Context, params: Text) -> Said:
        """Count fast, without ever waiting, and with a step back at the end."""
        for step in range(STEPS):
            ctx.progress(step + 1, STEPS, f"step {step + 1}")
        ctx.progress(1)
        if params.text == "fail":
            raise NotFound("nothing there")
        return Said(text="counted")

    @plugin.handles("talk:walk", reads=True)
    async def walk(ctx: Context, params: Text) -> Said:
        """Count slowly enough for several messages, from another thread."""
        for step in (1.5, 2.5, 3.5):
            await in_thread(ctx.progress, step)
            await asyncio.sleep(0.25)  # longer than what is merged
        return Said()

    @plugin.handles("talk:bad", reads=True)
    async def bad(ctx: Context, params: Text) -> Said:
        """Say something that is no progress."""
        ctx.progress(float(params.text))
        return Said()

    @plugin.handles("talk:log", reads=True)
    async def log(ctx: Context, params: Text) -> Said:
        """Log a line of each level."""
        ctx.log.debug("a detail", number=1)
        ctx.log.info("about to look", password="hunter2-hunter2", text=params.text)
        ctx.log.warning("hardly found", weight=float("nan"))
        try:
            raise RuntimeError("a secret of the plugin")
        except RuntimeError:
            ctx.log.exception("not found")
        return Said()

    @plugin.handles("talk:flood", reads=True)
    async def flood(ctx: Context, params: Text) -> Said:
        """Log far too much."""
        ctx.log.info("x" * LINE_LIMIT_BYTES * 2)
        for number in range(LINES_LIMIT * 3):
            ctx.log.info("line", number=number)
        return Said()

    @plugin.handles("talk:nested", reads=True)
    async def nested(ctx: Context, params: Text) -> Said:
        """Have others report."""
        await ctx.call("talk:log", {})
        await ctx.call("talk:count", {})
        ctx.log.info("only this")
        return Said()

    return plugin


def messages(reply: httpx2.Response) -> Messages:
    """Everything in a reply, as JSON or as a stream, in its order."""
    if reply.headers["content-type"].startswith("application/json"):
        return [reply.json()]
    return [json.loads(line.removeprefix("data: ")) for line in reply.text.splitlines() if line.startswith("data: {")]


async def called(
    hub: McpHub, token: str, tool: str, session: dict[str, str] | None, meta: dict[str, Any], **arguments: Any
) -> Messages:
    """The messages that a call is answered with, the answer last."""
    params: dict[str, Any] = {"name": tool, "arguments": arguments}
    if session is None:
        reply = await hub.request_2026(token, "tools/call", {**params, "_meta": {**META, **meta}})
    else:
        body = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {**params, "_meta": meta}}
        reply = await hub.post(token, body, headers=session)
    assert reply.status_code == 200
    *told, answer = messages(reply)
    assert "result" in answer
    assert all("id" not in message for message in told)
    return [*told, answer]


def told(found: Messages, method: str) -> Messages:
    return [message["params"] for message in found if message.get("method") == method]


async def test_progress_reaches_a_caller_that_sent_a_token_in_both_eras() -> None:
    async with serving_mcp(talkative()) as hub:
        token = await hub.agent()
        for session in (None, await opened(hub, token)):
            with case(session):
                found = await called(hub, token, "ksi_talk_walk", session, {"progressToken": "p-1"})
                steps = told(found, "notifications/progress")
                assert [step["progress"] for step in steps] == [1.5, 2.5, 3.5]
                assert {step["progressToken"] for step in steps} == {"p-1"}
                assert len(await called(hub, token, "ksi_talk_walk", session, {})) == 1


async def test_a_handler_that_reports_in_a_tight_loop_does_not_flood_its_caller_and_the_last_step_comes() -> None:
    async with serving_mcp(talkative()) as hub:
        token = await hub.agent()
        for session in (None, await opened(hub, token)):
            for text in ("", "fail"):
                with case(session, text):
                    found = await called(hub, token, "ksi_talk_count", session, {"progressToken": 7}, text=text)
                    steps = told(found, "notifications/progress")
                    assert len(steps) < 10
                    last = {"progressToken": 7, "progress": STEPS, "total": STEPS, "message": f"step {STEPS}"}
                    assert steps[-1] == last
                    assert found[-1]["result"]["isError"] is (text == "fail")


async def test_progress_that_is_no_finite_number_is_a_failure_of_the_handler_whoever_listens() -> None:
    async with serving_mcp(talkative()) as hub:
        token = await hub.agent()
        for text in ("nan", "inf", "-inf"):
            with case(text):
                found = await called(hub, token, "ksi_talk_bad", None, {"progressToken": 7}, text=text)
                assert found[-1]["result"]["isError"]
                assert json.loads(found[-1]["result"]["content"][0]["text"])["code"] == "internal"
                assert told(found, "notifications/progress") == []


async def test_progress_is_nothing_to_callers_of_other_transports() -> None:
    async with running(talkative()) as hub:
        assert await hub.call("talk:count") == {"text": "counted"}


async def test_the_client_of_the_sdk_hears_of_progress() -> None:
    async with serving_mcp(talkative()) as hub:
        token = await hub.agent()
        for mode in ("auto", "legacy"):
            with case(mode):
                steps: list[float] = []

                async def step(progress: float, total: float | None, message: str | None) -> None:
                    steps.append(progress)  # noqa: B023 - it is called within this round

                async with hub.client(token, mode) as client:
                    await client.call_tool("ksi_talk_count", {}, progress_callback=step)
                assert steps[-1] == STEPS


async def test_lines_reach_a_client_that_asked_for_their_level_redacted_and_without_tracebacks() -> None:
    async with serving_mcp(talkative()) as hub:
        token = await hub.agent()
        session = await opened(hub, token)
        expected = {
            "debug": ["a detail", "about to look", "hardly found", "not found"],
            "info": ["about to look", "hardly found", "not found"],
            "notice": ["hardly found", "not found"],
            "warning": ["hardly found", "not found"],
            "error": ["not found"],
            "emergency": [],
        }
        for level, texts in expected.items():
            asked = {"jsonrpc": "2.0", "id": 4, "method": "logging/setLevel", "params": {"level": level}}
            assert messages(await hub.post(token, asked, headers=session))[-1]["result"] == {}
            for headers, meta in ((session, {}), (None, {LEVEL: level})):
                with case(level, headers):
                    found = await called(hub, token, "ksi_talk_log", headers, meta, text="t")
                    lines = told(found, "notifications/message")
                    assert [line["data"]["event"] for line in lines] == texts
                    assert "hunter2" not in json.dumps(found)
                    assert "secret of the plugin" not in json.dumps(found)
                    for line in lines:
                        assert set(line["data"]) <= {"event", "call_id", "number", "password", "text", "weight"}
        kept = [line["event"] for line in log_lines(hub.hub.hub.control.read.settings.var_dir / "log" / "ksi.jsonl")]
        assert "about to look" in kept
        assert "a detail" not in kept  # the daemon's own level is another


async def test_who_did_not_ask_gets_no_lines_and_nobody_gets_those_of_others() -> None:
    async with serving_mcp(talkative()) as hub:
        token, other = await hub.agent("bot"), await hub.agent("other")
        session, silent = await opened(hub, token), await opened(hub, token)
        theirs = await opened(hub, other)
        asked = {"jsonrpc": "2.0", "id": 4, "method": "logging/setLevel", "params": {"level": "debug"}}
        await hub.post(token, asked, headers=session)
        for agent, headers in ((token, silent), (other, theirs), (token, None)):
            with case(agent, headers):
                assert len(await called(hub, agent, "ksi_talk_log", headers, {})) == 1
        found = await called(hub, token, "ksi_talk_nested", session, {"progressToken": 1})
        assert [line["data"]["event"] for line in told(found, "notifications/message")] == ["only this"]
        assert told(found, "notifications/progress") == []


async def test_a_session_gets_the_lines_that_it_asked_for_after_a_restart_too(tmp_path: Path) -> None:
    """K013"""
    async with serving_mcp(talkative(), var_dir=tmp_path / "var") as hub:
        token = await hub.agent()
        session = await opened(hub, token)
        asked = {"jsonrpc": "2.0", "id": 4, "method": "logging/setLevel", "params": {"level": "warning"}}
        await hub.post(token, asked, headers=session)
    async with serving_mcp(talkative(), var_dir=tmp_path / "var") as hub:
        found = told(await called(hub, token, "ksi_talk_log", session, {}), "notifications/message")
        assert [line["data"]["event"] for line in found] == ["hardly found", "not found"]


async def test_a_flood_of_lines_is_bounded_and_what_was_left_out_is_counted() -> None:
    """L062"""
    async with serving_mcp(talkative()) as hub:
        token = await hub.agent()
        lines = told(await called(hub, token, "ksi_talk_flood", None, {LEVEL: "info"}), "notifications/message")
        assert lines[0]["data"]["cut_from_bytes"] > LINE_LIMIT_BYTES
        assert all(len(json.dumps(line)) < LINE_LIMIT_BYTES * 2 for line in lines)
        left_out = sum(line["data"].get("left_out", 0) for line in lines)
        shown = sum("number" in line["data"] for line in lines)
        assert left_out > 0
        assert shown + left_out == LINES_LIMIT * 3


async def test_logging_is_declared_and_an_unknown_level_is_refused() -> None:
    async with serving_mcp(talkative()) as hub:
        token = await hub.agent()
        async with hub.client(token, "legacy") as client:
            assert client.server_capabilities.logging is not None
        session = await opened(hub, token)
        asked = {"jsonrpc": "2.0", "id": 4, "method": "logging/setLevel", "params": {"level": "loud"}}
        assert messages(await hub.post(token, asked, headers=session))[-1]["error"]["code"] == types.INVALID_PARAMS
        params = {"name": "ksi_talk_log", "arguments": {}, "_meta": {**META, LEVEL: "loud"}}
        assert (await hub.request_2026(token, "tools/call", params)).status_code == 400
        discovered = await hub.request_2026(token, "server/discover")
        assert "logging" in discovered.json()["result"]["capabilities"]
