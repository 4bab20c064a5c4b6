"""A job for a provider, the events that its program would print, and the reading of them in pieces."""

import json
from pathlib import Path
from typing import Any

from ksi_daemon.agents.run_folder import Ended
from ksi_daemon.completion.provider import Job, Outcome, OutputReader, Progress

SECRET = "ksi_secret_of_this_run"


def job(folder: Path, resumes: str | None = None, asked_model: str | None = None, **options: Any) -> Job:
    return Job(
        agent_id="scout",
        conversation_id="trip",
        completion_id="c1",
        prompt="-p look around",
        model=asked_model,
        resumes=resumes,
        options=options,
        folder=folder,
        url="http://127.0.0.1:8080/mcp",
        token=SECRET,
    )


def program(folder: Path, name: str) -> str:
    """A program that is there."""
    path = folder / name
    path.write_text("#!/bin/sh\n", encoding="ascii")
    path.chmod(0o700)
    return str(path)


def lines(*events: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(event, ensure_ascii=False).encode() + b"\n" for event in events)


def read(
    reader: OutputReader, output: bytes, *, code: int | None = 0, stderr: str = "", piece: int = 1_000_000
) -> tuple[Outcome, list[Progress]]:
    progress = [found for start in range(0, len(output), piece) for found in reader.feed(output[start : start + piece])]
    return reader.end(ended(code), stderr), progress


def ended(code: int | None = 0, signal: int | None = None) -> Ended:
    return Ended(code=code, signal=signal, problem=None, stopped=False, dropped={"stdout": 0, "stderr": 0}, left=[])
