"""An audit in a folder of its own, entries to put into it, and clocks that only tests move."""

import asyncio
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ksi_daemon.audit import Audit, Entry, open_audit
from ksi_daemon.audit.files import Files
from ksi_daemon.identifiers import new_id
from ksi_daemon.process.var_dir import prepare

Open = Callable[..., AbstractAsyncContextManager[Audit]]


@dataclass
class FakeClock:
    """Seconds that pass only when told to."""

    now_s: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class FakeLog:
    """Keeps what is logged."""

    lines: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def info(self, event: str, **facts: Any) -> None:
        self.lines.append((event, facts))

    error = info


@pytest.fixture
def var_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "var"
    prepare(folder)
    return folder


@pytest.fixture
def files(var_dir: Path) -> Files:
    return Files.under(var_dir)


@pytest.fixture
def log() -> FakeLog:
    return FakeLog()


@pytest.fixture
def opened(var_dir: Path, log: FakeLog) -> Open:
    """`async with opened() as audit`, as often as a test wants to start the hub."""
    return lambda **options: open_audit(var_dir, log=log, **options)


async def _record(folder: Path, log: FakeLog) -> None:
    """Some calls in two runs, each stopped cleanly."""
    for run in range(2):
        async with open_audit(folder, log=log) as audit:
            calls = [f"c{run}-{number}" for number in range(15)]
            begun = [intent(call_id, arguments={"n": 1}, reason="why " * 100, rule="r") for call_id in calls]
            ended = [outcome(call_id, details={"d": 1}, session_id="s") for call_id in calls]
            await asyncio.gather(*map(audit.append, begun + ended))


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, FakeLog]:
    """A record made once, to be copied: 61 rows, checkpoints at 1, 31 and 61."""
    folder, log = tmp_path_factory.mktemp("recorded") / "var", FakeLog()
    prepare(folder)
    with ThreadPoolExecutor(1) as thread:  # a loop of its own, away from the tests'
        thread.submit(asyncio.run, _record(folder, log)).result()
    return folder, log


@pytest.fixture
def record(recorded: tuple[Path, FakeLog], var_dir: Path) -> FakeLog:
    """A record to tamper with, and what was logged while it was made."""
    shutil.copytree(recorded[0], var_dir, dirs_exist_ok=True)
    return recorded[1]


async def until(true: Callable[[], bool]) -> None:
    """Wait for something that happens on another thread, with a limit."""
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - the thread it is about knows no event of ours
            await asyncio.sleep(0.005)


def intent(call_id: str | None = None, **fields: Any) -> Entry:
    made: dict[str, Any] = {
        "type": "tool_call", "phase": "intent", "status": "started", "event": "state:set", "call_id": call_id or new_id(),
        "transport": "http", "principal": "agent", "agent_id": "a1",
    }  # fmt: skip
    return Entry(**(made | fields))


def outcome(call_id: str, **fields: Any) -> Entry:
    return intent(call_id, **({"phase": "outcome", "status": "ok", "duration_ms": 1.5, "result_bytes": 10} | fields))


def happening(number: int = 0, **fields: Any) -> Entry:
    return Entry(**({"type": "system", "event": f"test:number_{number}"} | fields))
