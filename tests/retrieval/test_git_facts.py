"""Facts from real repositories, also hostile ones: what git knows, why it knows nothing, and nothing of theirs is run."""

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from ksi_daemon.errors import NotFound, Unavailable
from ksi_daemon.retrieval import git_facts as module
from ksi_daemon.retrieval.git_facts import GitFacts, NoGitFacts, git_facts
from tests.machine import needs_git

pytestmark = needs_git

CALM = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "PATH": os.environ["PATH"], "LC_ALL": "C"}


def git(folder: Path, *arguments: str, at: int = 1_000_000_000, author: str = "Ada") -> None:
    who = {f"GIT_{role}_{part}": value for role in ("AUTHOR", "COMMITTER") for part, value in
           {"NAME": author, "EMAIL": "a@example.org", "DATE": f"{at} +0000"}.items()}  # fmt: skip
    subprocess.run(["git", *arguments], cwd=folder, env=CALM | who, check=True, capture_output=True, timeout=30)


def commit(folder: Path, files: dict[str, str], *, at: int = 1_000_000_000, author: str = "Ada") -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "add", "--all")
    git(folder, "commit", "--message", "change", at=at, author=author)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--initial-branch", "main")
    return folder


async def facts_of(folder: Path, **options: int) -> GitFacts:
    found = await git_facts(folder, **options)
    assert isinstance(found, GitFacts), found
    return found


async def test_facts_tell_head_branch_dirt_and_the_last_commit_of_each_file(repository: Path) -> None:
    commit(repository, {"a.md": "1", "docs/b c\n.md": "1", "docs/é.md": "1"}, at=1_000_000_001, author="Ada Ö")
    commit(repository, {"a.md": "2"}, at=1_000_000_002, author="Bob")
    found = await facts_of(repository)
    assert found.head is not None
    assert len(found.head) == 40
    assert (found.branch, found.is_dirty, found.commits, found.is_complete) == ("main", False, 2, True)
    assert {name: (last.at, last.author) for name, last in found.files.items()} == {
        "a.md": (1_000_000_002, "Bob"),
        "docs/b c\n.md": (1_000_000_001, "Ada Ö"),
        "docs/é.md": (1_000_000_001, "Ada Ö"),
    }
    assert found.files["a.md"].commit == found.head
    below = await facts_of(repository / "docs")
    assert set(below.files) == {"b c\n.md", "é.md"}
    (repository / "new.md").write_text("1")
    assert (await facts_of(repository)).is_dirty
    assert not (await facts_of(repository / "docs")).is_dirty
    git(repository, "checkout", "--detach")
    assert (await facts_of(repository)).branch is None


async def test_files_that_change_together_are_counted_and_huge_commits_are_not(repository: Path) -> None:
    commit(repository, {f"f{number}.md": "1" for number in range(51)})
    for text in ("2", "3"):
        commit(repository, {"f1.md": text, "f2.md": text, "sub/x.md": text})
    found = await facts_of(repository)
    assert found.changed_together == {("f1.md", "f2.md"): 2, ("f1.md", "sub/x.md"): 2, ("f2.md", "sub/x.md"): 2}
    assert len(found.files) == 52
    short = await facts_of(repository, commits_limit=1)
    assert (short.commits, short.is_complete, len(short.files)) == (1, False, 3)


async def test_no_commit_no_repository_and_no_git_are_three_things(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "a.md").write_text("1")
    assert await facts_of(repository) == GitFacts(None, "main", True, {}, {}, 0, is_complete=True)
    plain = tmp_path / "plain"
    plain.mkdir()
    found = await git_facts(plain)
    assert isinstance(found, NoGitFacts)
    assert found.reason == "not_a_repository"
    with pytest.raises(NotFound):
        await git_facts(tmp_path / "gone")
    monkeypatch.setenv("PATH", str(plain))
    found = await git_facts(repository)
    assert isinstance(found, NoGitFacts)
    assert found.reason == "not_installed"


async def test_nothing_that_a_repository_names_is_run(repository: Path, tmp_path: Path) -> None:
    commit(repository, {"a.md": "1", ".gitattributes": "*.md filter=evil=x diff=evil\n"})
    mark = tmp_path / "ran"
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch '{mark}'\ncat\n")
    trap.chmod(0o755)
    for key in (
        "core.fsmonitor", "core.pager", "pager.log", "pager.status", "core.sshCommand", "core.askPass", "gpg.program",
        "filter.evil=x.clean", "filter.evil=x.process", "diff.evil.command", "diff.evil.textconv", "diff.external",
    ):  # fmt: skip
        git(repository, "config", "--file", ".git/config", key, str(trap))
    git(repository, "config", "filter.evil=x.required", "true")
    git(repository, "config", "log.showSignature", "true")
    hook = repository / ".git" / "hooks" / "post-index-change"
    hook.write_bytes(trap.read_bytes())
    hook.chmod(0o755)
    os.utime(repository / "a.md", (1, 1))  # git must look into it
    found = await facts_of(repository)
    assert set(found.files) == {"a.md", ".gitattributes"}
    assert not mark.exists()
    await asyncio.to_thread(
        subprocess.run, ["git", "status"], cwd=repository, env=CALM, capture_output=True, timeout=30
    )
    assert mark.exists()  # the traps do work


async def test_a_work_tree_elsewhere_is_refused(repository: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    git(repository, "config", "core.worktree", str(elsewhere))
    found = await git_facts(repository)
    assert isinstance(found, NoGitFacts)
    assert found.reason in ("refused", "not_a_repository")


async def test_output_and_time_are_bounded(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        commit(repository, {f"f{number}.md": "1"})
    with monkeypatch.context() as patched:
        patched.setattr(module._Git.run, "__kwdefaults__", {"limit_bytes": 150})
        found = await facts_of(repository)
        assert not found.is_complete
        assert found.commits < 3
    slow = tmp_path / "bin"
    slow.mkdir()
    (slow / "git").write_text("#!/bin/sh\nexec sleep 1000\n")
    (slow / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow}:{os.environ['PATH']}")
    monkeypatch.setattr(module, "TIME_LIMIT_S", 0.05)
    with pytest.raises(Unavailable):
        await git_facts(repository)
