"""What git knows of a folder: head, branch, last commit of each file, and which files change together. Reads only.

The repository is not trusted. Nothing that its configuration names is run: hooks, monitors, filters, pagers, helpers; nothing is
fetched, locked or asked for; time and output of every command are bounded.
"""

import asyncio
import os
import shutil
import signal
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Literal

from ksi_daemon.errors import NotFound, Unavailable, bounded

COMMITS_LIMIT = 1_000
TOGETHER_LIMIT_FILES = 50  # a commit of more files says nothing about which belong together
OUTPUT_LIMIT_BYTES = 32_000_000
ERROR_LIMIT_BYTES = 4_000
TIME_LIMIT_S = 20.0
COMMIT_MARK = b"\x01"
SETTINGS = {
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.pager": "cat",
    "core.askPass": "true",
    "core.sshCommand": "false",
    "core.untrackedCache": "false",
    "log.showSignature": "false",
    "protocol.allow": "never",
    "safe.bareRepository": "explicit",
    "status.submoduleSummary": "false",
}


@dataclass(frozen=True, slots=True)
class FileCommit:
    """The newest commit that touched a file."""

    commit: str
    at: int  # seconds since the epoch
    author: str


@dataclass(frozen=True, slots=True)
class GitFacts:
    """Facts of one folder; paths are relative to it. Without a head there is no commit yet, and then there are no files."""

    head: str | None
    branch: str | None  # None when the head is detached
    is_dirty: bool  # something in the folder is changed or not tracked
    files: Mapping[str, FileCommit]
    changed_together: Mapping[tuple[str, str], int]  # pairs in order: in how many of the commits that were read
    commits: int
    is_complete: bool  # the history was read to its end


@dataclass(frozen=True, slots=True)
class NoGitFacts:
    """Why there are no facts. `refused`: git does not read this repository, for example because another user owns it."""

    reason: Literal["not_installed", "not_a_repository", "refused"]
    detail: str


@dataclass(frozen=True, slots=True)
class _Output:
    code: int
    out: bytes
    error: str
    is_complete: bool

    def line(self) -> str:
        return os.fsdecode(self.out.removesuffix(b"\n"))


async def git_facts(folder: Path, *, commits_limit: int = COMMITS_LIMIT) -> GitFacts | NoGitFacts:
    """Ask git about a folder inside a work tree. Raises `Unavailable` when git takes too long."""
    folder = await asyncio.to_thread(folder.resolve)
    if not folder.is_dir():
        raise NotFound(f"there is no folder {folder.name}")
    program = shutil.which("git")
    if program is None:
        return NoGitFacts("not_installed", "there is no git in PATH")
    git = _Git(program, folder)
    top = await git.run("rev-parse", "--show-toplevel")
    if top.code:
        missing = "not a git repository" in top.error or "must be run in a work tree" in top.error
        return NoGitFacts("not_a_repository" if missing else "refused", bounded(top.error))
    if not folder.is_relative_to(top.line()):
        return NoGitFacts("refused", "the repository says that its work tree is somewhere else")
    await git.disarm_filters()
    prefix = (await git.run("rev-parse", "--show-prefix")).line()
    branch = await git.run("symbolic-ref", "--quiet", "--short", "HEAD")
    head = await git.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    is_dirty = await git.is_dirty()
    if head.code:
        return GitFacts(None, branch.line() or None, is_dirty, {}, {}, 0, is_complete=True)
    log = await git.run(
        "log", "-z", "--name-only", "--no-renames", "--full-diff", "--no-ext-diff", "--no-textconv", "--no-mailmap",
        f"--max-count={commits_limit}", "--format=%x01%H%x00%ct%x00%an", "--end-of-options", head.line(), "--", ".",
    )  # fmt: skip
    if log.code and log.is_complete:
        return NoGitFacts("refused", bounded(log.error))
    files, together, commits = _history(log, prefix)
    whole = log.is_complete and commits < commits_limit
    return GitFacts(head.line(), branch.line() or None, is_dirty, files, together, commits, is_complete=whole)


class _Git:
    """Commands for one folder, with an environment that has nothing of ours."""

    def __init__(self, program: str, folder: Path) -> None:
        self._command = (program, "--no-optional-locks", "--no-pager", "--literal-pathspecs", "-C", str(folder))
        self._settings = dict(SETTINGS)

    def _environment(self) -> dict[str, str]:
        """Settings of the command go before those of the repository, and any name is possible in this form."""
        settings = {"GIT_CONFIG_COUNT": str(len(self._settings))}
        for number, (name, value) in enumerate(self._settings.items()):
            settings |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
        return settings | {
            "PATH": os.environ.get("PATH", os.defpath),
            "LC_ALL": "C",
            "HOME": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_ALLOW_PROTOCOL": "",
            "GIT_PAGER": "cat",
            "GIT_ASKPASS": "true",
        }

    async def disarm_filters(self) -> None:
        """`git status` runs the filters that a repository names; with empty commands it does not."""
        named = await self.run("config", "-z", "--name-only", "--get-regexp", r"^filter\.")
        for name in filter(None, named.out.split(b"\0")):
            key = os.fsdecode(name)
            self._settings[key] = "false" if key.endswith(".required") else ""

    async def is_dirty(self) -> bool:
        status = ("status", "--porcelain", "-z", "--no-renames", "--ignore-submodules=all", "--", ".")
        output = await self.run(*status, limit_bytes=1)
        if output.is_complete and output.code:
            raise Unavailable(f"git status failed: {bounded(output.error)}")
        return bool(output.out)

    async def run(self, *arguments: str, limit_bytes: int = OUTPUT_LIMIT_BYTES) -> _Output:
        process = await asyncio.create_subprocess_exec(
            *self._command,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._environment(),
            start_new_session=True,
        )
        assert process.stdout is not None  # both are pipes
        assert process.stderr is not None
        is_complete = False
        try:
            async with asyncio.timeout(TIME_LIMIT_S):
                error = asyncio.create_task(_read(process.stderr, ERROR_LIMIT_BYTES, drain=True))
                try:
                    out = await _read(process.stdout, limit_bytes + 1)
                    is_complete = len(out) <= limit_bytes
                    if not is_complete:
                        _kill(process)
                    text = (await error).decode("utf-8", "replace").strip()
                    code = await process.wait()
                finally:
                    error.cancel()
        except TimeoutError as late:
            raise Unavailable(f"git {arguments[0]} took longer than {TIME_LIMIT_S:g} s") from late
        finally:
            if process.returncode is None:
                _kill(process)
                await process.wait()
        return _Output(code, out[:limit_bytes], text, is_complete)


def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


async def _read(stream: asyncio.StreamReader, limit_bytes: int, *, drain: bool = False) -> bytes:
    """At most so many bytes; with `drain` the rest is read and dropped, so that its writer does not wait."""
    kept = bytearray()
    while block := await stream.read(65_536):
        kept += block[: limit_bytes - len(kept)]
        if len(kept) >= limit_bytes and not drain:
            break
    return bytes(kept)


def _history(log: _Output, prefix: str) -> tuple[dict[str, FileCommit], dict[tuple[str, str], int], int]:
    """The newest commit of each file, the pairs that changed together, and how many commits were read."""
    files: dict[str, FileCommit] = {}
    together: Counter[tuple[str, str]] = Counter()
    records = log.out.split(b"\0" + COMMIT_MARK) if log.out else []
    if not log.is_complete and records:
        records.pop()  # cut somewhere inside
    for record in records:
        identifier, at, author, *names = record.removeprefix(COMMIT_MARK).split(b"\0")
        commit = FileCommit(identifier.decode("ascii"), int(at), author.decode("utf-8", "replace"))
        touched = [os.fsdecode(name.removeprefix(b"\n") if not number else name) for number, name in enumerate(names)]
        inside = sorted({name.removeprefix(prefix) for name in touched if name and name.startswith(prefix)})
        for name in inside:
            files.setdefault(name, commit)
        if len(touched) <= TOGETHER_LIMIT_FILES:
            together.update(combinations(inside, 2))
    return files, dict(sorted(together.items())), len(records)
