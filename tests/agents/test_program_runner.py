"""The process that runs an agent's program: real processes, which must not outlive it, and output of bounded size."""

import asyncio
import os
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ksi_daemon.agents.run_folder import Ended, RunFolder, launch_record
from ksi_daemon.agents.runner_process import (
    MARK,
    RunnerProcess,
    RunnerStarter,
    find_runner,
    kill,
    marked_processes,
)

END_S = 20.0
STARTER: RunnerStarter


@pytest.fixture(autouse=True)
def starter() -> Iterator[None]:
    global STARTER  # noqa: PLW0603
    STARTER = RunnerStarter()
    yield
    STARTER.close()


@pytest.fixture
def mark() -> Iterator[str]:
    mark = f"test-{os.getpid()}-{os.urandom(4).hex()}"
    yield mark
    for pid, _ in marked_processes(mark):
        kill(pid)


async def begin(
    agents: Path, mark: str, argv: list[str], *, grace_s: float = 1.0, run: str = "run", **limits: int
) -> tuple[RunFolder, RunnerProcess]:
    folder = RunFolder(agents, "scout", run)
    record = launch_record(
        argv,
        agents.parent,
        stdout_limit=limits.get("stdout_limit", 1_000_000),
        stderr_limit=limits.get("stderr_limit", 1_000_000),
        grace_s=grace_s,
    )
    folder.create({"launch.json": record, "stdin": "the prompt\n"})
    runner = await STARTER.start(folder.path, {"PATH": os.environ["PATH"], MARK: mark})
    assert runner is not None
    return folder, runner


async def end_of(folder: RunFolder, runner: RunnerProcess) -> Ended:
    async with asyncio.timeout(END_S):
        await runner.wait()
    ended = folder.ended()
    assert ended is not None
    return ended


async def printed(folder: RunFolder) -> None:
    async with asyncio.timeout(END_S):
        while folder.output_size("stdout") == 0:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)


def shell(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


async def test_input_output_and_exit_code_are_kept(tmp_path: Path, mark: str) -> None:
    """Stdin is a file, stdout and stderr are files, and the code is known after the end."""
    folder, runner = await begin(tmp_path / "agents", mark, shell("cat; echo oops >&2; exit 3"))
    ended = await end_of(folder, runner)
    assert (ended.code, ended.signal, ended.problem) == (3, None, None)
    assert folder.read_output("stdout", 0, 100) == b"the prompt\n"
    assert folder.read_output("stderr", 0, 100) == b"oops\n"
    for path in folder.path.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600, path


async def test_a_program_killed_by_a_signal_is_not_one_that_exited(tmp_path: Path, mark: str) -> None:
    folder, runner = await begin(tmp_path / "agents", mark, shell("kill -9 $$"))
    ended = await end_of(folder, runner)
    assert (ended.code, ended.signal) == (None, signal.SIGKILL)


async def test_a_program_that_does_not_exist_is_named(tmp_path: Path, mark: str) -> None:
    folder, runner = await begin(tmp_path / "agents", mark, ["/no/such/program"])
    ended = await end_of(folder, runner)
    assert ended.code is None
    assert "No such file" in (ended.problem or "")


async def test_output_beyond_the_limit_is_counted(tmp_path: Path, mark: str) -> None:
    script = "import sys; sys.stdout.write('x' * 300_000); sys.stderr.write('y' * 10)"
    folder, runner = await begin(tmp_path / "agents", mark, [sys.executable, "-c", script], stdout_limit=100_000)
    ended = await end_of(folder, runner)
    assert folder.output_size("stdout") == 100_000
    assert ended.dropped == {"stdout": 200_000, "stderr": 0}


async def test_what_the_program_leaves_behind_is_ended(tmp_path: Path, mark: str) -> None:
    """Also processes that left the session and ignore SIGTERM. RELIABILITY P02."""
    script = "(trap '' TERM; setsid sh -c \"trap '' TERM; sleep 1000\" & sleep 1000) & echo started"
    folder, runner = await begin(tmp_path / "agents", mark, shell(script), grace_s=0.2)
    ended = await end_of(folder, runner)
    assert ended.code == 0
    assert ended.left == []
    assert not list(marked_processes(mark))


async def test_stopping_ends_a_program_that_ignores_it(tmp_path: Path, mark: str) -> None:
    folder, runner = await begin(
        tmp_path / "agents", mark, shell("trap '' TERM; echo ready; while :; do sleep 0.1; done"), grace_s=0.3
    )
    await printed(folder)
    runner.send(signal.SIGTERM)
    ended = await end_of(folder, runner)
    assert ended.stopped
    assert ended.signal == signal.SIGKILL
    assert not list(marked_processes(mark))


async def test_a_program_dies_with_its_runner(tmp_path: Path, mark: str) -> None:
    """And nobody takes a folder without ended.json for a run that ended."""
    folder, runner = await begin(tmp_path / "agents", mark, shell("echo ready; exec sleep 1000"))
    await printed(folder)
    runner.send(signal.SIGKILL)
    async with asyncio.timeout(END_S):
        await runner.wait()
        while list(marked_processes(mark)):  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
    assert folder.ended() is None


async def test_a_runner_is_found_by_the_lock_that_it_holds(tmp_path: Path, mark: str) -> None:
    """After a restart of the daemon; nobody is found when it has ended."""
    folder, runner = await begin(tmp_path / "agents", mark, shell("echo ready; exec sleep 1000"))
    await printed(folder)
    found = find_runner(folder.path)
    assert found is not None
    assert found.pid == runner.pid
    found.abandon()
    runner.send(signal.SIGTERM)
    await end_of(folder, runner)
    assert find_runner(folder.path) is None


async def test_runners_outlive_the_process_that_forked_them(tmp_path: Path, mark: str) -> None:
    """It ends with the daemon, or is killed; the next start forks from a new one."""
    folder, runner = await begin(
        tmp_path / "agents", mark, shell("echo ready; while [ ! -e go ]; do sleep 0.02; done; echo on")
    )
    await printed(folder)
    starter = runner_parent(runner.pid)
    os.kill(starter, signal.SIGKILL)
    other, second = await begin(tmp_path / "agents", mark, shell("echo two"), run="other")
    assert (await end_of(other, second)).code == 0
    (tmp_path / "go").touch()
    assert (await end_of(folder, runner)).code == 0
    assert folder.read_output("stdout", 0, 100) == b"ready\non\n"


def runner_parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def test_a_run_that_never_began_is_taken_away_and_one_that_did_is_not(tmp_path: Path, mark: str) -> None:
    """So nothing runs twice: a runner that comes late finds no folder to begin in."""
    folder = RunFolder(tmp_path / "agents", "scout", "run")
    folder.create({"stdin": ""})
    assert folder.take_away()
    assert not folder.path.exists()
    assert folder.take_away()
    folder, runner = await begin(tmp_path / "agents", mark, shell("true"))
    await end_of(folder, runner)
    assert not folder.take_away()
    assert folder.ended() is not None


async def test_no_secret_is_in_the_arguments(tmp_path: Path, mark: str) -> None:
    """The mark stands for all variables: they are in the environment only. RELIABILITY S02."""
    _, runner = await begin(tmp_path / "agents", mark, shell("exec sleep 1000"))
    async with asyncio.timeout(END_S):
        while not (pids := [pid for pid, _ in marked_processes(mark)]):  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
    for pid in pids:
        assert mark.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    runner.send(signal.SIGTERM)
    await runner.wait()


async def test_whatever_lies_in_place_of_a_config_is_replaced_and_its_target_untouched(tmp_path: Path) -> None:
    """S02: a link, a hard link, a pipe."""
    target = tmp_path / "target"
    target.write_text("kept")
    places: list[Callable[[Path, Path], object]] = [os.symlink, os.link, lambda _, path: os.mkfifo(path)]
    for number, place in enumerate(places):
        folder = RunFolder(tmp_path / "agents", "scout", f"run{number}")
        folder.path.mkdir(parents=True)
        place(target, folder.path / "mcp.json")
        folder.create({"mcp.json": "{}"})
        assert (folder.path / "mcp.json").read_text() == "{}"
        assert stat.S_IMODE((folder.path / "mcp.json").lstat().st_mode) == 0o600
        assert target.read_text() == "kept"


async def test_a_link_in_place_of_a_folder_is_not_followed(tmp_path: Path) -> None:
    """Neither when the folder is made nor when it is deleted."""
    agents, target = tmp_path / "agents", tmp_path / "target"
    target.mkdir()
    (target / "kept").write_text("kept")
    agents.mkdir()
    (target / "run").mkdir()
    (target / "run" / "kept").write_text("kept")
    (agents / "scout").symlink_to(target)
    RunFolder(agents, "scout", "run").create({"mcp.json": "{}"})
    assert not (agents / "scout").is_symlink()
    assert sorted(path.name for path in target.rglob("*")) == ["kept", "kept", "run"]
