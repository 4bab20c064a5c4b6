"""A log that cannot be written is an alarm and no outage; one that is moved away continues in a new file."""

import json
import resource

from tests.live.daemon_process import Daemon, until
from tests.machine import mounted, needs_mount


def _alarms(daemon: Daemon) -> list[str]:
    alarms: list[str] = daemon.call("system:health")["alarms"]
    return alarms


def test_a_log_that_cannot_be_opened_is_an_alarm_and_the_service_goes_on(daemon: Daemon) -> None:
    """F13"""
    log = daemon.var / "log" / "ksi.jsonl"
    daemon.var.mkdir(mode=0o700)
    log.parent.mkdir(mode=0o700)
    log.mkdir()
    daemon.start()
    until(lambda: any("ksi.jsonl" in alarm for alarm in _alarms(daemon)), what="the alarm")
    assert daemon.call("system:health")["status"] == "degraded"
    assert daemon.call("state:set", {"key": "k", "value": 1})["created"] is True
    log.rmdir()
    until(lambda: not _alarms(daemon), what="the alarm is over by itself")
    assert daemon.log_lines()


def test_a_full_log_disk_is_an_alarm_and_the_service_goes_on(daemon: Daemon) -> None:
    """F13: the log is already as large as the process may write files, the databases are not."""
    log = daemon.var / "log" / "ksi.jsonl"
    daemon.var.mkdir(mode=0o700)
    log.parent.mkdir(mode=0o700)
    with log.open("wb") as file:
        file.truncate(20_000_000)
    daemon.start()
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (20_000_000, 20_000_000))
    until(lambda: any("cannot be written" in alarm for alarm in _alarms(daemon)), what="the alarm")
    with daemon.connect() as connection:
        for number in range(200):
            assert connection.call("state:set", {"key": f"k{number}", "value": number})["created"] is True
    assert daemon.alive
    log.unlink()
    until(lambda: not _alarms(daemon), what="the alarm is over by itself")
    assert daemon.stop() == 0


@needs_mount
def test_a_line_that_a_full_disk_cut_in_two_does_not_spoil_the_next_one(daemon: Daemon) -> None:
    """F13: a disk of 128 KB for the logs alone"""
    folder = daemon.var / "log"
    daemon.var.mkdir(mode=0o700)
    folder.mkdir(mode=0o700)
    with mounted(folder, options="size=128k,mode=700"):
        try:
            (folder / "filler").write_bytes(bytes(60_000))
            daemon.start()
            until(lambda: any("cannot be written" in alarm for alarm in _alarms(daemon)), what="the alarm")
            (folder / "filler").unlink()
            until(lambda: not _alarms(daemon), what="the alarm is over by itself")
            daemon.call("system:echo", {"text": "after"})
            until(lambda: b'"system:echo"' in (folder / "ksi.jsonl").read_bytes(), what="it is logged again")
            assert daemon.stop() == 0
            lines = (folder / "ksi.jsonl").read_bytes().splitlines()
        finally:
            daemon.end()
    assert [line for line in lines if line.count(b'{"time"') > 1] == []
    json.loads(lines[-1])


def test_a_log_that_is_moved_away_mid_write_continues_in_a_new_file(daemon: Daemon) -> None:
    """F13"""
    daemon.start()
    log = daemon.var / "log" / "ksi.jsonl"
    calls = 0
    with daemon.connect() as connection:
        for round_number in range(4):
            for _ in range(500):
                calls += 1
                connection.post("system:echo", {"text": "x"}, correlation_id=f"c{calls}")
            log.rename(log.with_name(f"moved.{round_number}"))
            until(lambda: log.exists() or connection.call("system:echo", {"text": "more"}) is None, what="a new file")
        assert connection.call("system:echo", {"text": "last"}) == {"text": "last"}
    assert daemon.stop() == 0
    files = [log, *log.parent.glob("moved.*")]
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    written = [
        line["correlation_id"]
        for line in lines
        if line.get("called") == "system:echo" and line["correlation_id"].startswith("c")
    ]
    assert sorted(written) == sorted(f"c{number + 1}" for number in range(calls)), (
        "each call is logged once, in whole lines"
    )


def test_what_callers_send_cannot_break_a_line_of_the_log(daemon: Daemon) -> None:
    """F13"""
    daemon.start(KSI_LOG_LEVEL="debug")
    with daemon.connect() as connection:
        for text in ("bell\x07", "line\nbreak", "\x1b[31mred", "\u202e", "\x00", "\u2028"):
            connection.send(text, {})
            connection.call("message:publish", {"event": "odd:text", "data": {"text": text}})
            connection.send("system:echo", {"text": "x"}, correlation_id=text)
    assert daemon.stop() == 0
    raw = (daemon.var / "log" / "ksi.jsonl").read_bytes()
    assert all("time" in line and "level" in line for line in map(json.loads, raw.splitlines()))
    assert len(raw.splitlines()) == raw.count(b"\n")
    assert b"\x1b" not in raw
