"""The folder of one run, `var/agents/<agent>/<completion>/`: made 0700 with files 0600 under any umask, without following links."""

import os
import shutil
from pathlib import Path
from typing import Any

import msgspec

from ksi_daemon.hygiene.beneath import create_beneath, open_beneath, read_beneath

CONFIG = "mcp.json"
WORKSPACE = "workspace"  # of an agent that was given none: beside its runs
RECORD_LIMIT_BYTES = 1_000_000
AWAY = ".unused"
FOLDERS_KEPT = 20  # of one agent: the output of its last runs


class Ended(msgspec.Struct, frozen=True):
    """How a program ended, as its runner wrote it down."""

    code: int | None
    signal: int | None
    problem: str | None  # why it could not be started
    stopped: bool  # it was asked to
    dropped: dict[str, int]  # bytes of output beyond the limit
    left: list[int]  # processes that could not be killed


class RunFolder:
    """The files of one run."""

    def __init__(self, agents: Path, agent_id: str, completion_id: str) -> None:
        self.path = agents / agent_id / completion_id
        self._agents = agents
        self._relative = f"{agent_id}/{completion_id}"

    def create(self, files: dict[str, str | bytes]) -> None:
        """Make the folder anew, with these files in it."""
        self._agents.mkdir(mode=0o700, exist_ok=True)
        self.delete()
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        agent = os.open(self.path.parent, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.mkdir(self.path.name, 0o700, dir_fd=agent)
            run = os.open(self.path.name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=agent)
        finally:
            os.close(agent)
        try:
            for name, content in files.items():
                data = content if isinstance(content, bytes) else content.encode()
                create_beneath(run, name, data, mode=0o600)
        finally:
            os.close(run)

    def delete(self) -> None:
        """Delete the folder with all that is in it. `rmtree` does not follow links."""
        for path in (self.path.parent, self.path):
            if path.is_symlink():
                path.unlink()
        if self.path.exists():
            shutil.rmtree(self.path)

    def delete_secrets(self) -> None:
        """Delete what is of no use after the run: the configuration and what the program read."""
        for name in (CONFIG, "config.toml", "stdin", "launch.json"):
            (self.path / name).unlink(missing_ok=True)

    def take_away(self) -> bool:
        """Delete the folder if its program never began, so that it never will; False if it may have run."""
        if not os.path.lexists(self.path):
            return True
        away = self.path.with_name(self.path.name + AWAY)
        self.path.rename(away)  # a runner that is about to begin fails from here on, or has begun before
        if os.path.lexists(away / "began"):
            away.rename(self.path)
            return False
        shutil.rmtree(away)
        return True

    def ended(self) -> Ended | None:
        """How the program ended; None if its runner did not write that down."""
        if not os.path.lexists(self.path / "ended.json"):
            return None
        data = read_beneath(self._agents, f"{self._relative}/ended.json", limit_bytes=RECORD_LIMIT_BYTES)
        return msgspec.json.decode(data, type=Ended)

    def read_output(self, name: str, offset: int, limit: int) -> bytes:
        """Bytes of `stdout` or `stderr` from an offset; none if there are none."""
        if not os.path.lexists(self.path / name):
            return b""
        with os.fdopen(open_beneath(self._agents, f"{self._relative}/{name}"), "rb", buffering=0) as file:
            return os.pread(file.fileno(), limit, offset)

    def output_size(self, name: str) -> int:
        """How many bytes of output there are."""
        try:
            return (self.path / name).lstat().st_size
        except FileNotFoundError:
            return 0


def delete_old(agents: Path, agent_id: str, keep: set[str]) -> None:
    """Delete the folders of an agent's runs but the last ones and these. Their names sort by time."""
    folder = agents / agent_id
    if folder.is_dir() and not folder.is_symlink():
        for name in sorted(set(os.listdir(folder)) - keep - {WORKSPACE}, reverse=True)[FOLDERS_KEPT:]:
            RunFolder(agents, agent_id, name).delete()


def make_workspace(agents: Path, agent_id: str) -> None:
    """The workspace of an agent that was given none."""
    if (agents / agent_id / WORKSPACE).is_dir() and not (agents / agent_id / WORKSPACE).is_symlink():
        return
    for folder in (agents, agents / agent_id, agents / agent_id / WORKSPACE):
        if folder.is_symlink():
            folder.unlink()
        folder.mkdir(mode=0o700, exist_ok=True)


def whole_characters(data: bytes) -> bytes:
    """UTF-8 without a character that is cut at the end."""
    for cut in range(1, min(4, len(data)) + 1):
        first = data[-cut]
        if first < 0x80:
            return data
        if first >= 0xC0:  # the first byte of a character, which says how long it is
            length = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
            return data if cut >= length else data[:-cut]
    return data


def delete_all(agents: Path, agent_id: str) -> None:
    """Delete the folders of all runs of an agent."""
    folder = agents / agent_id
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)


def launch_record(argv: list[str], cwd: Path, *, stdout_limit: int, stderr_limit: int, grace_s: float) -> str:
    """`launch.json`, which the runner reads."""
    launch: dict[str, Any] = {
        "argv": argv,
        "cwd": str(cwd),
        "stdout_limit": stdout_limit,
        "stderr_limit": stderr_limit,
        "grace_s": grace_s,
    }
    return msgspec.json.encode(launch).decode()
