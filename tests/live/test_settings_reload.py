"""Settings change while the daemon runs, or stay as they were when the new ones are bad."""

import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.live.daemon_process import Daemon, Refused, until

BAD_FILES = {
    "half-written": 'log_level = "deb',
    "no TOML": "port: 8080\n",
    "wrong type": 'result_limit_bytes = "many"\n',
    "unknown name": 'log_levle = "debug"\n',
    "out of range": "result_limit_bytes = 1\n",
    "not loopback": 'host = "0.0.0.0"\n',
    "too large": "# filler\n" * 200_000,
}


def _setting(daemon: Daemon, name: str) -> Any:
    return next(row["value"] for row in daemon.call("config:show")["settings"] if row["name"] == name)


def test_bad_settings_are_refused_on_reload_and_the_old_ones_stay(daemon: Daemon) -> None:
    """F09"""
    daemon.configure('log_level = "warning"\nresult_limit_bytes = 5000\n')
    daemon.start()
    for text in BAD_FILES.values():
        daemon.configure(text)
        with pytest.raises(Refused) as refused:
            daemon.call("config:reload")
        assert refused.value.code == "invalid"
        message = refused.value.error["message"]
        assert "ksi.toml" in message
        assert "old settings stay" in message
        assert (_setting(daemon, "log_level"), _setting(daemon, "result_limit_bytes")) == ("warning", 5000)


def test_bad_settings_are_refused_on_sighup_and_announced(daemon: Daemon) -> None:
    """F09"""
    daemon.configure('log_level = "info"\n')
    daemon.start()
    with daemon.connect() as connection:
        connection.call("message:subscribe", {"patterns": ["config:*"]})
        daemon.configure(BAD_FILES["half-written"])
        daemon.signal(signal.SIGHUP)
        notice = connection.notice()
    assert notice["event"] == "config:rejected"
    assert "not valid TOML" in notice["data"]["problem"]
    assert daemon.logged("new settings refused, the old ones stay in effect")
    assert _setting(daemon, "log_level") == "info"


def test_a_file_that_is_no_text_is_refused_and_not_a_crash(daemon: Daemon) -> None:
    """F09"""
    daemon.start()
    daemon.config_file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Refused) as refused:
        daemon.call("config:reload")
    assert refused.value.code == "invalid"
    daemon.config_file.unlink()
    daemon.config_file.mkdir()
    with pytest.raises(Refused) as refused:
        daemon.call("config:reload")
    assert refused.value.code == "invalid"


@pytest.mark.parametrize("text", BAD_FILES.values(), ids=BAD_FILES.keys())
def test_bad_settings_keep_a_daemon_from_starting_with_every_problem_named(daemon: Daemon, text: str) -> None:
    """F09"""
    daemon.configure(text)
    code, message = daemon.refusal()
    assert code == 78
    assert "settings cannot be used" in message


def test_a_good_change_applies_to_the_very_next_call(daemon: Daemon) -> None:
    """F09"""
    daemon.start()
    big = {"text": "x" * 5_000}
    assert daemon.call("system:echo", big) == big
    daemon.configure("result_limit_bytes = 2000\n")
    assert daemon.call("config:reload") == {"changed": ["result_limit_bytes"], "needs_restart": [], "warnings": []}
    with pytest.raises(Refused) as refused:
        daemon.call("system:echo", big)
    assert refused.value.code == "too_large"
    daemon.config_file.unlink()
    assert daemon.call("config:reload")["changed"] == ["result_limit_bytes"]
    assert daemon.call("system:echo", big) == big


def test_a_changed_port_is_told_to_wait_for_a_restart_and_the_old_one_serves_on(daemon: Daemon) -> None:
    """F09"""
    daemon.configure("port = 0\n")
    environment = daemon.environment
    daemon.environment = _without(environment, "KSI_PORT")  # type: ignore[method-assign]
    daemon.start()
    url = daemon.call("system:status")["url"]
    daemon.configure('port = 1\nlog_level = "debug"\n')
    assert daemon.call("config:reload") == {"changed": ["log_level", "port"], "needs_restart": ["port"], "warnings": []}
    assert daemon.call("system:status")["url"] == url


def _without(environment: Callable[[], dict[str, str]], name: str) -> Callable[[], dict[str, str]]:
    return lambda: {key: value for key, value in environment().items() if key != name}


def test_a_reload_asked_for_during_the_start_does_not_end_it(daemon: Daemon) -> None:
    """F09"""
    daemon.plugin("lingers", "time.sleep(1)\n")
    daemon.spawn()
    until((daemon.var / "run" / "http_port").exists, what="it is on its way")
    daemon.signal(signal.SIGHUP)
    until(daemon.answers, what="it starts all the same")


def test_twenty_reloads_between_calls_change_nothing_else(daemon: Daemon) -> None:
    """F09"""
    daemon.start()
    with daemon.connect() as connection:
        for number in range(20):
            daemon.configure(f"call_timeout_s = {number + 1}\n" if number % 2 else BAD_FILES["half-written"])
            daemon.signal(signal.SIGHUP)
            assert connection.call("system:echo", {"text": str(number)}) == {"text": str(number)}
    assert daemon.alive


def test_debug_mode_logs_what_info_leaves_out(daemon: Daemon) -> None:
    """L097"""
    daemon.start(KSI_LOG_LEVEL="debug")
    daemon.call("message:publish", {"event": "build:finished", "data": {"step": 7}})
    until(
        lambda: [
            line
            for line in daemon.logged("notice")
            if line["noticed"] == "build:finished" and line["data"] == {"step": 7}
        ]
    )
    assert any(line["level"] == "debug" for line in daemon.log_lines())


def test_debug_mode_is_switched_on_and_off_while_it_runs(daemon: Daemon) -> None:
    """L097"""
    daemon.start()
    daemon.call("message:publish", {"event": "build:quiet"})
    until(
        lambda: any(line.get("called") == "message:publish" for line in daemon.log_lines()),
        what="the quiet call is written",
    )
    daemon.configure('log_level = "debug"\n')
    daemon.call("config:reload")
    daemon.call("message:publish", {"event": "build:loud"})
    until(lambda: any(line.get("noticed") == "build:loud" for line in daemon.log_lines()))
    assert not any(line.get("noticed") == "build:quiet" for line in daemon.log_lines())
    daemon.configure('log_level = "error"\n')
    daemon.call("config:reload")
    daemon.call("message:publish", {"event": "build:silent"})
    assert daemon.stop() == 0
    assert not any(line.get("noticed") == "build:silent" for line in daemon.log_lines())


BREAKS = '''
@plugin.handles("breaks:now")
async def now(ctx: Context, params: Nothing) -> Done:
    """Break."""
    raise ValueError("the inner text nobody outside should read")
'''


def test_a_broken_handlers_own_words_are_in_the_log_and_not_in_the_answer(daemon: Daemon) -> None:
    """L077"""
    daemon.plugin("breaks", BREAKS)
    daemon.start()
    with pytest.raises(Refused) as refused:
        daemon.call("breaks:now")
    assert refused.value.code == "internal"
    assert "inner text" not in str(refused.value.error)
    [line] = daemon.logged("handler failed")
    assert "inner text" in line["exception"]
    assert line["call_id"] == refused.value.error["call_id"]


def test_a_broken_handlers_own_words_are_in_the_answer_when_the_operator_asks_for_it(daemon: Daemon) -> None:
    """L077 F09"""
    daemon.plugin("breaks", BREAKS)
    daemon.start()
    daemon.configure("expose_error_details = true\n")
    daemon.call("config:reload")
    with pytest.raises(Refused) as refused:
        daemon.call("breaks:now")
    assert "ValueError: the inner text" in refused.value.error["message"]
    assert "Traceback" not in str(refused.value.error)
