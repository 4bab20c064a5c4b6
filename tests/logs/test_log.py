"""The log: structured lines without secrets, a level that can be changed, and a file that no fault of the disk can stop the hub with."""

import io
import logging
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksi_daemon.logs import log as log_module
from ksi_daemon.logs.log import KEPT_FILES, Log, LogFile, printable, readable
from ksi_daemon.plugin import Context, Field, JsonValue, Params, Plugin
from ksi_daemon.testing import running
from tests.cases import case
from tests.in_process import Said, log_lines, until

SECRET = "ksi_" + "a1B2" * 10


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path / "ksi.jsonl", "info")
    yield made
    made.file.close()


def lines(log: Log) -> list[dict[str, Any]]:
    return log_lines(log.file.path)


def test_a_line_has_time_level_event_and_its_facts(log: Log) -> None:
    log.logger.info("ready", port=8080, words=["a"])
    (line,) = lines(log)
    assert (line["level"], line["event"], line["port"], line["words"]) == ("info", "ready", 8080, ["a"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", line["time"])


def test_lines_below_the_level_are_not_kept_and_the_level_can_change_while_running(log: Log) -> None:
    """L097: debug adds lines."""
    log.logger.debug("one")
    log.level = "debug"
    log.logger.debug("two")
    log.level = "error"
    log.logger.warning("three")
    log.logger.error("four")
    assert [line["event"] for line in lines(log)] == ["two", "four"]


def test_secrets_are_taken_out_first_of_message_facts_and_bound_facts(log: Log) -> None:
    """Promise 6 of the log: redaction is first in the chain."""
    log.logger.bind(session=SECRET).info(
        f"token {SECRET}", password="hunter2", nested={"api_key": "hunter2", "list": [SECRET]}
    )
    text = log.file.path.read_text(encoding="utf-8")
    assert "a1B2" not in text
    assert "hunter2" not in text
    assert text.count("[redacted]") == 5


@given(st.integers(0, 9_000), st.integers(7_930, 8_010))
def test_secrets_in_an_exception_are_taken_out_wherever_a_long_text_is_cut(before: int, after: int) -> None:
    """Cut first and redact then, and the tail of a secret is no secret's shape any more."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        log = Log(Path(folder) / "ksi.jsonl", "info")
        log.logger.error("broke", exc_info=ValueError("x" * before + " " + SECRET + " " + "y" * after))
        log.file.close()
        assert "a1B2" not in (Path(folder) / "ksi.jsonl").read_text(encoding="utf-8")


@pytest.mark.parametrize("form", ["error", "tuple", "true", "exception()", "false", "none"])
def test_an_exception_is_shown_in_whichever_form_it_is_handed_over(log: Log, form: str) -> None:
    say = log.logger.error
    try:
        raise ValueError("the reason")
    except ValueError as error:
        if form == "error":
            say("broke", exc_info=error)
        elif form == "tuple":
            say("broke", exc_info=(type(error), error, error.__traceback__))
        elif form == "true":
            say("broke", exc_info=True)
        elif form == "exception()":
            log.logger.exception("broke")
        else:
            say("broke", exc_info=False if form == "false" else None)
    (line,) = lines(log)
    assert ("the reason" in line.get("exception", "")) == (form not in ("false", "none"))
    assert "exc_info" not in line


@pytest.mark.parametrize(
    "fact",
    [object(), b"\xff", "\ud800", {1, 2}, {("a", 1): 2}, 2**100, float("nan"), Path("/x"), ValueError("x")],
    ids=lambda fact: type(fact).__name__,
)
def test_a_fact_that_json_cannot_write_costs_neither_its_line_nor_the_next(log: Log, fact: Any) -> None:
    log.logger.info("odd", fact=fact)
    log.logger.info("next")
    assert [line["event"] for line in lines(log)] == ["odd", "next"]


def test_an_exception_whose_text_is_no_utf8_is_logged_all_the_same(log: Log) -> None:
    log.logger.error("broke", exc_info=OSError(2, "No such file", os.fsdecode(b"/tmp/\xff\xfe")))
    log.logger.info("next")
    assert [line["event"] for line in lines(log)] == ["broke", "next"]


def test_a_deep_exception_is_cut_to_its_end(log: Log) -> None:
    log.logger.error("broke", exc_info=ValueError("x" * 100_000 + "the end"))
    (line,) = lines(log)
    assert len(line["exception"]) <= 8_100
    assert "the end" in line["exception"]


def test_what_libraries_log_comes_into_the_same_lines(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", root.handlers[:])
    monkeypatch.setattr(root, "level", root.level)
    log.take_standard_logging()
    logging.getLogger("uvicorn.error").warning("from %s", "uvicorn")
    logging.getLogger("uvicorn.error").error("token %s", SECRET)
    first, second = lines(log)
    assert (first["event"], first["source"], first["level"]) == ("from uvicorn", "uvicorn.error", "warning")
    assert "a1B2" not in second["event"]


# --- the file


def test_the_file_is_private(log: Log) -> None:
    log.logger.info("x")
    assert stat.S_IMODE(log.file.path.stat().st_mode) == 0o600


def test_a_link_in_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    """Promise 7."""
    (tmp_path / "ksi.jsonl").symlink_to(tmp_path / "elsewhere")
    file = LogFile(tmp_path / "ksi.jsonl")
    file.write([b"{}"])
    assert file.problem
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_that_somebody_rotated_or_removed_is_followed_without_losing_a_line(tmp_path: Path) -> None:
    """F13."""
    file = LogFile(tmp_path / "ksi.jsonl")
    file.write([b"1"])
    file.path.rename(tmp_path / "ksi.jsonl.old")
    file.write([b"2"])
    file.path.unlink()
    file.write([b"3"])
    file.close()
    assert (tmp_path / "ksi.jsonl.old").read_bytes() == b"1\n"
    assert file.path.read_bytes() == b"3\n"
    assert (file.problem, file.lost_lines) == (None, 0)


def test_the_file_rotates_itself_and_keeps_a_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F13."""
    monkeypatch.setattr(log_module, "ROTATE_AT_BYTES", 4)
    file = LogFile(tmp_path / "ksi.jsonl")
    for number in range(20):
        file.write([b"line %02d" % number])
    file.close()
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == ["ksi.jsonl", *(f"ksi.jsonl.{number}" for number in range(1, KEPT_FILES + 1))]
    assert file.path.read_bytes() == b"line 19\n"
    assert (tmp_path / "ksi.jsonl.1").read_bytes() == b"line 18\n"


def test_a_file_that_cannot_be_written_counts_its_losses_says_why_and_recovers(tmp_path: Path) -> None:
    """F13."""
    folder = tmp_path / "log"
    file = LogFile(folder / "ksi.jsonl")
    file.write([b"1", b"2"])
    assert file.lost_lines == 2
    assert "No such file or directory" in str(file.problem)
    folder.mkdir()
    file.write([b"3"])
    file.close()
    assert (file.problem, file.lost_lines) == (None, 2)
    assert file.path.read_bytes() == b"3\n"


def test_a_full_disk_is_a_problem_and_not_an_exception() -> None:
    """F13: /dev/full says ENOSPC to every write."""
    file = LogFile(Path("/dev/full"))
    file.write([b"1"])
    assert "No space left" in str(file.problem)
    assert file.lost_lines == 1
    file.close()


async def test_a_log_that_cannot_be_written_raises_an_alarm_and_the_hub_serves_on() -> None:
    """F13."""
    async with running() as hub:
        path = hub.hub.log.file.path
        hub.hub.log.file.close()
        path.unlink(missing_ok=True)
        path.mkdir()
        hub.hub.log.logger.error("lost")
        health = await hub.call("system:health")
        assert health["status"] == "degraded"
        assert str(path) in health["alarms"][0]
        path.rmdir()
        hub.hub.log.logger.error("kept")
        assert (await hub.call("system:health"))["status"] == "ok"


# --- calls and notices in the log


class Told(Params):
    """What to tell."""

    data: dict[str, JsonValue] = Field({}, description="The notice's data.")


def telling() -> Plugin:
    plugin = Plugin("tell")
    plugin.announces("tell:told", "A thing was told.")

    @plugin.handles("tell:tell")
    async def tell(ctx: Context, params: Told) -> Said:
        """Tell."""
        ctx.notify("tell:told", params.data)
        return Said()

    return plugin


@pytest.mark.parametrize(("level", "calls", "notices"), [("debug", 1, 1), ("info", 1, 0), ("warning", 0, 0)])
async def test_every_call_is_a_line_at_info_and_every_notice_at_debug(level: str, calls: int, notices: int) -> None:
    """L097: a setting turns on verbose logs."""
    async with running(telling(), log_level=level) as hub:
        path = hub.hub.log.file.path
        await hub.call("tell:tell", data={"password": "hunter2", "text": SECRET, "plain": "shown"})
        await until(lambda: hub.hub.router.journal._written == hub.hub.router.journal._seen)
        await until(lambda: sum(line.get("called") == "tell:tell" for line in log_lines(path)) == calls)
        kept = log_lines(path)
        assert sum(line.get("noticed") == "tell:told" for line in kept) == notices
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        assert "hunter2" not in text
        assert "a1B2" not in text
        if calls:
            (line,) = [line for line in kept if line.get("called") == "tell:tell"]
            assert (line["outcome"], line["principal"], line["event"]) == ("ok", "operator", "call")
        if notices:
            (line,) = [line for line in kept if line.get("noticed") == "tell:told"]
            assert line["data"] == {"password": "[redacted]", "text": "[redacted]", "plain": "shown"}


async def test_calls_of_the_last_moment_are_in_the_log_when_the_hub_has_closed(tmp_path: Path) -> None:
    import shutil

    async with running(telling()) as hub:
        path = hub.hub.log.file.path
        original = hub.hub.log.file.close

        def close() -> None:
            original()
            shutil.copy(path, tmp_path / "kept.jsonl")

        hub.hub.log.file.close = close  # type: ignore[method-assign]
        for _ in range(500):
            await hub.call("tell:tell")
    kept = log_lines(tmp_path / "kept.jsonl")
    assert sum(line.get("called") == "tell:tell" for line in kept) == 500


async def test_calls_that_came_too_fast_to_be_logged_are_counted_in_the_log(tmp_path: Path) -> None:
    """Promise 6: nothing is silently lost."""
    async with running(monitor_events=100) as hub:
        path = hub.hub.log.file.path
        for _ in range(1_000):
            await hub.call("system:echo", text="x")

        def logged_count() -> int:
            kept = log_lines(path)
            left_out: int = sum(line.get("left_out", 0) for line in kept)
            logged: int = sum(line.get("called") == "system:echo" for line in kept)
            return logged + left_out

        await until(lambda: logged_count() >= 1_000)
        assert logged_count() <= 1_020


# --- on a terminal


def test_a_terminal_gets_one_readable_line_per_event(tmp_path: Path) -> None:
    terminal = io.StringIO()
    log = Log(tmp_path / "ksi.jsonl", "info", terminal)
    log.logger.info("ready", port=8080, words=["a"])
    log.file.close()
    assert re.fullmatch(r'\d\d:\d\d:\d\d\.\d{3} info    ready  port=8080 words=\["a"\]\n', terminal.getvalue())


@given(st.text(max_size=50), st.text(max_size=50), st.text(max_size=80))
def test_nothing_a_terminal_would_obey_reaches_it(event: str, fact: str, trace: str) -> None:
    line = {"time": "2026-11-18T07:00:00.123456Z", "level": "error", "event": event, "fact": fact, "exception": trace}
    shown = readable(line)
    assert all(char.isprintable() or char == "\n" for char in shown)
    assert all(part.startswith("    ") for part in shown.split("\n")[1:])


def test_control_and_invisible_characters_become_visible() -> None:
    cases = ["\x1b[2J", "\x1b]0;title\x07", "\r", "\x9b31m", "\u202e", "\u200b", "\x00", "\u2028"]
    for evil in cases:
        with case(evil):
            assert evil not in printable(f"a{evil}b")
            assert printable("ünïcode 日本 ok") == "ünïcode 日本 ok"
