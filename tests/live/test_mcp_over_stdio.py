"""`ksi mcp stdio` between the SDK's own stdio client and a real daemon process."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from mcp import Client, MCPError
from mcp.client.stdio import StdioServerParameters, stdio_client

from tests.live.daemon_process import Daemon

REVISIONS = {"auto": "2026-07-28", "legacy": "2025-11-25"}


@asynccontextmanager
async def client_of(daemon: Daemon, token: str, mode: str, *words: str) -> AsyncIterator[Client]:
    """The SDK's client with the bridge as its server; what the bridge notes goes to a file."""
    bridge = StdioServerParameters(
        command=sys.executable,
        args=["-m", "ksi_client", "mcp", "stdio", *words],
        env=daemon.environment() | {"KSI_TOKEN": token},
    )
    with (daemon.folder / "notes").open("w") as notes:
        async with asyncio.timeout(60), Client(stdio_client(bridge, errlog=notes), mode=mode) as client:
            yield client


def notes(daemon: Daemon) -> str:
    return Path(daemon.folder / "notes").read_text()


@pytest.mark.parametrize("mode", REVISIONS)
async def test_the_sdks_stdio_client_lists_calls_and_goes_on_after_kill_9(daemon: Daemon, mode: str) -> None:
    """In both eras the call after a restart, and one made while the daemon is away, simply work (L002, L080, K022)."""
    daemon.start()
    token = daemon.add_agent("bot", "standard")
    async with client_of(daemon, token, mode, "--agent", "bot") as client:
        assert client.protocol_version == REVISIONS[mode]
        assert "ksi_system_echo" in [tool.name for tool in (await client.list_tools()).tools]
        for text in ("before", "after", "and again"):
            answer = await client.call_tool("ksi_system_echo", {"text": text})
            assert answer.structured_content == {"text": text}
            with pytest.raises(MCPError) as refused:
                await client.call_tool("ksi_no_such", {})
            assert refused.value.code == -32602
            daemon.kill()
            if text == "before":
                await asyncio.to_thread(daemon.start)
                continue
            waiting = asyncio.create_task(client.call_tool("ksi_system_echo", {"text": "waited"}))
            await asyncio.to_thread(daemon.start)
            assert (await waiting).structured_content == {"text": "waited"}
    assert "Traceback" not in notes(daemon)
    calls = daemon.audit_rows("event = 'system:echo' AND agent_id = 'bot' AND status = 'ok'")
    assert len(calls) == 5


async def test_a_token_that_is_not_valid_is_an_error_for_the_client_and_a_note_for_the_person(daemon: Daemon) -> None:
    """The client gets the daemon's refusal, stderr says what to do, and nothing hangs (L080, A05)."""
    daemon.start()
    with pytest.raises(BaseException) as failed:  # noqa: PT011 - a group, or the error itself
        async with client_of(daemon, "ksi_" + "0" * 43, "legacy"):
            pass
    assert "MCPError" in repr(failed.value)
    assert "ksi tokens create" in notes(daemon)
