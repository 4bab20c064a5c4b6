"""A virtual environment with the old SDK `mcp` 1.30, made once beside the checkout's own, and its client run in it."""

import asyncio
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LOCK = Path(__file__).with_name("mcp-1.30.lock")
SCRIPT = Path(__file__).with_name("mcp1_script.py")
ENVIRONMENT = Path(sys.prefix) / "clients" / "mcp-1.30"
RUN_LIMIT_S = 30
LINE_LIMIT_BYTES = 1024 * 1024


def interpreter() -> Path:
    """The environment's Python; the first caller makes the environment, others wait for it."""
    ENVIRONMENT.parent.mkdir(exist_ok=True)
    stamp = ENVIRONMENT / "complete"
    with (ENVIRONMENT.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_bytes() != LOCK.read_bytes():
            uv = Path(sys.prefix) / "bin" / "uv"
            python = ENVIRONMENT / "bin" / "python"
            subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, ENVIRONMENT], check=True)
            install: list[str | Path] = [
                uv,
                "pip",
                "install",
                "--quiet",
                "--require-hashes",
                "--python",
                python,
                "-r",
                LOCK,
            ]
            subprocess.run(install, check=True)
            stamp.write_bytes(LOCK.read_bytes())
    return ENVIRONMENT / "bin" / "python"


class OldClient:
    """A client that is connected, in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.revision = ""

    async def step(self, wanted: Any) -> dict[str, Any]:
        """Have it call a tool, by name and arguments, or list them, with None; what it saw."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(wanted).encode() + b"\n")
        return await self.answer()

    async def answer(self) -> dict[str, Any]:
        """The next line that it writes."""
        assert self._process.stdout is not None
        async with asyncio.timeout(RUN_LIMIT_S):
            line = await self._process.stdout.readline()
            if not line:
                assert self._process.stderr is not None
                raise AssertionError((await self._process.stderr.read()).decode())
        seen: dict[str, Any] = json.loads(line)
        return seen


@asynccontextmanager
async def connected(url: str, token: str, extra: Mapping[str, str] | None = None) -> AsyncIterator[OldClient]:
    """The old client, connected. `extra` are headers."""
    python = await asyncio.to_thread(interpreter)
    headers = json.dumps({"Authorization": f"Bearer {token}", **(extra or {})})
    process = await asyncio.create_subprocess_exec(
        python, SCRIPT, url, headers, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={"PATH": os.environ["PATH"]}, limit=LINE_LIMIT_BYTES,
    )  # fmt: skip
    try:
        client = OldClient(process)
        client.revision = (await client.answer())["revision"]
        yield client
        async with asyncio.timeout(RUN_LIMIT_S):
            _, errors = await process.communicate(b"")  # the end of its input
        assert process.returncode == 0, errors.decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
