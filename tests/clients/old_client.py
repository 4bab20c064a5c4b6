"""A virtual environment with the old SDK `mcp` 1.30, made once beside the checkout's own, and its client run in it."""

import asyncio
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LOCK = Path(__file__).with_name("mcp-1.30.lock")
SCRIPT = Path(__file__).with_name("mcp1_script.py")
ENVIRONMENT = Path(sys.prefix) / "clients" / "mcp-1.30"
RUN_LIMIT_S = 60


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


async def run(
    url: str, token: str, calls: list[tuple[str, dict[str, Any]]], extra: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """What the client saw: its revision, its tools, and the answer to each call. `extra` are headers."""
    python = await asyncio.to_thread(interpreter)
    headers = json.dumps({"Authorization": f"Bearer {token}", **(extra or {})})
    process = await asyncio.create_subprocess_exec(
        python, SCRIPT, url, headers, json.dumps(calls),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    try:
        async with asyncio.timeout(RUN_LIMIT_S):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, err.decode()
    return [json.loads(line) for line in out.splitlines()]
