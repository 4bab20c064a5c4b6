"""One var folder has one daemon, by a lock that a crash cannot leave behind."""

import os
import signal
import subprocess
import time
from pathlib import Path

from tests.live.daemon_process import Daemon
from tests.live.storms import start_together
from tests.machine import mounted, needs_mount

LOSER_LIMIT_S = 5.0  # 1 s on a quiet machine; here twenty interpreters share two cores with the other test runner


def test_of_twenty_daemons_started_at_once_one_wins_and_the_others_name_it(folder: Path) -> None:
    """F06"""
    race = start_together(folder, 20)
    assert race.winners == 1
    assert [loser.exit_code for loser in race.losers] == [75] * 19
    assert [loser.message for loser in race.losers if f"pid {race.winner_pid} " not in loser.message] == []
    assert max(loser.seconds for loser in race.losers) <= LOSER_LIMIT_S


def test_a_second_daemon_on_the_same_var_loses_within_a_second_and_names_the_winner(daemon: Daemon) -> None:
    """F06"""
    daemon.start()
    times: list[float] = []
    for _ in range(3):  # the machine may be busy with other tests; the daemon itself is not what takes the time
        began = time.monotonic()
        code, message = Daemon(daemon.folder).refusal()
        times.append(time.monotonic() - began)
    assert min(times) <= 1.0
    assert code == 75
    assert f"pid {daemon.pid} " in message
    assert "ksi stop" in message
    assert daemon.call("system:status")["pid"] == daemon.pid


def test_after_kill_nine_the_next_daemon_starts_at_once(daemon: Daemon) -> None:
    """F06"""
    daemon.start()
    daemon.kill()
    assert daemon.socket_path.exists(), "a killed daemon leaves its socket behind; that must not stop the next one"
    daemon.start()
    assert daemon.call("system:echo", {"text": "again"}) == {"text": "again"}


def test_the_lock_is_not_inherited_by_what_a_plugin_starts(daemon: Daemon) -> None:
    """F06"""
    daemon.plugin(
        "forks",
        """
class Child(Result):
    pid: int

@plugin.handles("forks:sleep")
async def sleep(ctx: Context, params: Nothing) -> Child:
    \"\"\"Start a program that outlives the daemon.\"\"\"
    child = await asyncio.create_subprocess_exec("sleep", "60")
    return Child(pid=child.pid)
""",
    )
    daemon.start()
    child = daemon.call("forks:sleep")["pid"]
    try:
        daemon.kill()
        daemon.start()
    finally:
        os.kill(child, signal.SIGKILL)


@needs_mount
def test_a_read_only_var_is_refused_with_a_message(daemon: Daemon) -> None:
    """F06 F13: root passes over permission bits, so the folder is made read-only by a mount."""
    daemon.var.mkdir(mode=0o700)
    with mounted(daemon.var, options="ro,mode=700"):
        code, message = daemon.refusal()
    assert code == 78
    assert "Read-only file system" in message
    assert "KSI_VAR_DIR" in message


@needs_mount
def test_a_var_that_became_read_only_after_a_first_run_is_refused_with_a_message(daemon: Daemon) -> None:
    """F06 F13"""
    daemon.start()
    assert daemon.stop() == 0
    with mounted(daemon.var, source=str(daemon.var), options="bind"):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(daemon.var)], check=True)
        code, message = daemon.refusal()
    assert code == 78
    assert "Read-only file system" in message
    assert "Traceback" not in message


def test_a_var_under_a_path_that_cannot_be_made_is_refused_with_a_message(daemon: Daemon) -> None:
    """F06"""
    code, message = daemon.refusal(KSI_VAR_DIR="/proc/nothing/var")
    assert code == 78
    assert "/proc/nothing/var" in message


def test_a_loser_leaves_the_winner_as_it_was(daemon: Daemon) -> None:
    """F06"""
    daemon.start()
    with daemon.connect() as connection:
        Daemon(daemon.folder).refusal()
        assert connection.call("system:echo", {"text": "still here"}) == {"text": "still here"}
