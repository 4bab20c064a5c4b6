"""The MCP server's life beside the daemon's."""

import asyncio
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ksi_daemon.mcp import mcp_service
from ksi_daemon.plugin import Context, Plugin
from ksi_daemon.web.listener import bind
from ksi_daemon.workers.worker import in_thread
from tests.agents_at_work import rows
from tests.in_process import Said, Text, soon, until
from tests.mcp_hub import serving_mcp


def test_the_daemon_imports_without_the_sdk() -> None:
    """Its import takes a second and 30 MB: it comes after the daemon is ready."""
    script = "import sys, ksi_daemon.daemon; print([name for name in sys.modules if name.split('.')[0] in ('mcp', 'mcp_types')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_a_request_during_the_import_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = asyncio.Event()

    async def slow(*args: Any) -> Any:
        await imported.wait()
        return await in_thread(*args)

    monkeypatch.setattr(mcp_service, "in_thread", slow)
    async with serving_mcp() as hub:
        token = await hub.agent()
        call = asyncio.create_task(hub.call(token, "ksi_system_echo", text="hi"))
        await until(lambda: hub.service.endpoint.requests["bot"] == 1)
        imported.set()
        assert (await soon(call)).status_code == 200


async def test_a_request_that_waits_too_long_for_the_server_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """K029"""
    monkeypatch.setattr(mcp_service, "START_LIMIT_S", 0.01)

    async def never(*args: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(mcp_service, "in_thread", never)
    async with serving_mcp() as hub:
        reply = await hub.call(await hub.agent(), "ksi_system_echo", text="hi")
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
        assert reply.json()["error"]["data"]["code"] == "unavailable"


async def test_a_daemon_that_stops_takes_no_more_requests() -> None:
    """K029"""
    async with serving_mcp() as hub:
        token = await hub.agent()
        hub.hub.hub.router.stopping = True
        for reply in (await hub.call(token, "ksi_system_echo"), await hub.request_2026(token, "tools/list")):
            assert reply.status_code == 503
            assert "stopping" in reply.text


class Patient:
    """A plugin whose handlers wait until they are released; one of them whoever cancels it."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.release = asyncio.Event()
        self.plugin = Plugin("patient")

        @self.plugin.handles("patient:wait", reads=True, timeout_s=60)
        async def wait(ctx: Context, params: Text) -> Said:
            """Wait."""
            self.entered.set()
            await self.release.wait()
            return Said()

        @self.plugin.handles("patient:ignore", reads=True, timeout_s=0.05)
        async def ignore(ctx: Context, params: Text) -> Said:
            """Wait, whatever happens."""
            while not self.release.is_set():
                with suppress(asyncio.CancelledError):
                    await self.release.wait()
            return Said()


async def test_a_client_that_leaves_cancels_its_call_and_the_record_says_so() -> None:
    patient = Patient()
    async with serving_mcp(patient.plugin) as hub:
        token = await hub.agent()
        call = asyncio.create_task(hub.call_2026(token, "ksi_patient_wait"))
        await soon(patient.entered.wait())
        call.cancel()
        await until(lambda: not hub.service.endpoint.requests)
        await hub.hub.hub.router.idle(5)
        [row] = await rows(hub.hub, agent="bot")
        assert (row["event"], row["status"]) == ("patient:wait", "cancelled")


async def test_a_caller_gets_its_answer_although_the_handler_never_ends() -> None:
    patient = Patient()
    async with serving_mcp(patient.plugin) as hub:
        reply = await hub.call_2026(await hub.agent(), "ksi_patient_ignore")
        patient.release.set()
        assert reply.json()["result"]["isError"]
        assert "timed_out" in reply.text


async def test_a_reply_in_two_writes_does_not_wait_for_an_acknowledgement(tmp_path: Path) -> None:
    """Also on asyncio's own loop, which disables Nagle's algorithm only on sockets that name their protocol."""
    accepted = asyncio.get_running_loop().create_future()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    listener = bind("127.0.0.1", 0, tmp_path / "http_port")
    async with await asyncio.start_server(serve, sock=listener):
        _, writer = await asyncio.open_connection(*listener.getsockname())
        assert await soon(accepted)
        writer.close()
