"""When the record cannot be written nothing is served; when it can again, service goes on by itself."""

import json
import resource
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress

import pytest

from tests.live.daemon_process import Daemon, until
from tests.live.storms import integrity
from tests.machine import mounted, needs_mount

EFFECTS = '''
@plugin.handles("effects:run")
async def run(ctx: Context, params: Nothing) -> Done:
    """Leave a trace."""
    with open(os.environ["EFFECTS"], "a") as file:
        file.write(f"{ctx.call_id}\\n")
    return Done()
'''
RECOVERY_S = 5.0

Trouble = Callable[[Daemon], AbstractContextManager[None]]


@contextmanager
def _locked(daemon: Daemon) -> Iterator[None]:
    with closing(sqlite3.connect(daemon.audit_database, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


@contextmanager
def _files_may_not_grow(daemon: Daemon) -> Iterator[None]:
    before = resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        yield
    finally:
        if daemon.alive:
            resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, before)


@contextmanager
def _moved_away(daemon: Daemon) -> Iterator[None]:
    aside = daemon.audit_database.with_name("elsewhere.db")
    daemon.audit_database.rename(aside)
    yield
    aside.rename(daemon.audit_database)


@contextmanager
def _disk_full(daemon: Daemon) -> Iterator[None]:
    ballast = daemon.var / "db" / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    yield
    ballast.unlink()


@pytest.fixture
def small_disk(daemon: Daemon) -> Iterator[Daemon]:
    """A daemon whose databases are on a disk of a few megabytes."""
    folder = daemon.var / "db"
    daemon.var.mkdir(mode=0o700)
    folder.mkdir(mode=0o700)
    with mounted(folder, options="size=4m,mode=0700"):
        try:
            yield daemon
        finally:
            daemon.end()


def _code(daemon: Daemon, event: str) -> str:
    with daemon.connect() as connection:
        answer = connection.send(event, {"text": "x"} if event == "system:echo" else {})
    return "ok" if answer["ok"] else str(answer["error"]["code"])


def _survives(daemon: Daemon, trouble: Trouble, *, growing: bool = False) -> None:
    daemon.plugin("effects", EFFECTS)
    effects = daemon.folder / "effects"
    daemon.start(EFFECTS=str(effects))
    assert _code(daemon, "effects:run") == "ok"
    with trouble(daemon):
        if growing:  # a log that was allocated before still has room for a few rows
            until(
                lambda: _code(daemon, "effects:run") == "audit_unavailable", what="the disk is full for the audit too"
            )
        before = effects.read_text()
        codes = {
            event: _code(daemon, event) for event in ("effects:run", "system:echo", "state:list") for _ in range(2)
        }
        assert set(codes.values()) == {"audit_unavailable"}
        assert effects.read_text() == before, "something was done that could not be recorded"
        time.sleep(1.2)  # long enough for a probe in between, which fails, or finds the room that a closed log left
        if not growing:
            assert _code(daemon, "effects:run") == "audit_unavailable"
            assert effects.read_text() == before
    ended = time.monotonic()
    until(lambda: _code(daemon, "effects:run") == "ok", within_s=RECOVERY_S, what="it recovers by itself")
    assert time.monotonic() - ended <= RECOVERY_S
    assert daemon.call("system:status")["alarms"] == []
    assert daemon.call("audit:verify", {"deep": True})["ok"] is True
    assert len(daemon.audit_rows("event = 'audit:recovered'")) >= 1
    assert daemon.stop() == 0
    intents = {row["call_id"] for row in daemon.audit_rows("event = 'effects:run' AND phase = 'intent'")}
    assert set(effects.read_text().split()) <= intents
    open_calls = intents - {row["call_id"] for row in daemon.audit_rows("phase = 'outcome'")}
    assert open_calls == set()
    assert integrity(daemon.audit_database) == "ok"
    assert daemon.verify_audit()["exit_code"] == 0


def test_a_record_that_somebody_has_locked(daemon: Daemon) -> None:
    """U02 F03"""
    _survives(daemon, _locked)


def test_a_record_whose_files_may_not_grow(daemon: Daemon) -> None:
    """U02 F03"""
    _survives(daemon, _files_may_not_grow)


def test_a_record_that_was_moved_away(daemon: Daemon) -> None:
    """U02 F03"""
    _survives(daemon, _moved_away)


@needs_mount
def test_a_record_on_a_full_disk(small_disk: Daemon) -> None:
    """U02 F03"""
    _survives(small_disk, _disk_full, growing=True)


def test_a_mirror_that_cannot_be_written_raises_an_alarm_and_service_goes_on(daemon: Daemon) -> None:
    """U10"""
    daemon.start()
    mirror = daemon.var / "log" / "audit.jsonl"
    mirror.unlink()
    mirror.mkdir()
    with daemon.connect() as connection:

        def alarmed() -> bool:
            connection.call("state:set", {"key": "k", "value": 1})
            return any("mirror" in alarm for alarm in connection.call("system:status")["alarms"])

        until(alarmed, within_s=5, what="the alarm")
        for number in range(20):
            connection.call("state:set", {"key": "k", "value": number})
        mirror.rmdir()
        until(lambda: not alarmed(), within_s=5, what="it goes on by itself")
    assert daemon.call("audit:verify")["ok"] is True
    assert daemon.stop() == 0
    lines = [json.loads(line) for line in mirror.read_text().splitlines() if line]
    assert any("gap" in line for line in lines), "the mirror tells which rows it lacks"
    assert [line["seq"] for line in lines if "seq" in line][-1] == daemon.audit_rows()[-1]["seq"]
