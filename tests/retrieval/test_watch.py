"""The watcher on real files: every change is delivered once, as what it is, and a failure loses nothing."""

import asyncio
import errno
import os
import random
import shutil
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ksi_daemon.retrieval import watch
from ksi_daemon.retrieval.file_scan import FileChoice, FileStamp, stamp_of
from ksi_daemon.retrieval.retrieval import Retrieval
from ksi_daemon.retrieval.watch import Changes, Watcher, WatchSettings, WatchState
from tests.cases import case
from tests.in_process import soon

QUICK = WatchSettings(
    choice=FileChoice(ignore=(".git",), only=("*.md",)),
    quiet_ms=20,
    batch_limit_ms=60,
    tick_ms=40,
    rename_window_s=0.1,
    pauses_s=(0.01,),
)
PATIENT = replace(QUICK, rename_window_s=60.0)


class Caller:
    """What a plugin is to a watcher: it knows files, stores every batch, and fails when it is asked to."""

    def __init__(self) -> None:
        self.known: dict[str, FileStamp] = {}
        self.batches: asyncio.Queue[Changes] = asyncio.Queue()
        self.states: asyncio.Queue[WatchState] = asyncio.Queue()
        self.failures = 0

    async def tell_known(self) -> dict[str, FileStamp]:
        return self.known

    async def take(self, changes: Changes) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.ENOSPC, "no space left")
        for path in (*changes.deleted, *(rename.old for rename in changes.renamed)):
            self.known.pop(path)
        self.known |= {**{rename.new: rename.stamp for rename in changes.renamed}, **changes.added, **changes.changed}
        self.batches.put_nowait(changes)

    async def state(self, wanted: str) -> WatchState:
        while (state := await soon(self.states.get())).state != wanted:
            pass
        return state

    async def until_known(self, *paths: str) -> list[str]:
        """What was delivered, as words, until exactly these files are known."""
        words: list[str] = []
        while set(self.known) != set(paths) or not words:
            words += told(await soon(self.batches.get()))
        return words


def told(changes: Changes) -> list[str]:
    return (
        [f"add {path}" for path in changes.added]
        + [f"change {path}" for path in changes.changed]
        + [f"rename {rename.old} {rename.new}" for rename in changes.renamed]
        + [f"delete {path}" for path in changes.deleted]
    )


Watch = Callable[..., AbstractAsyncContextManager[Watcher]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "vault"
    folder.mkdir()
    return folder


@pytest.fixture
def caller() -> Caller:
    return Caller()


@pytest.fixture
def watching(root: Path, caller: Caller) -> Watch:
    @asynccontextmanager
    async def watching(settings: WatchSettings = QUICK) -> AsyncIterator[Watcher]:
        async def notify(state: WatchState) -> None:
            caller.states.put_nowait(state)

        async with Retrieval.watch(
            root, known=caller.tell_known, changed=caller.take, notify=notify, settings=settings
        ) as watcher:
            await caller.state("watching")
            yield watcher

    return watching


def save_by_rename(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.new.md")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


async def test_files_that_are_made_written_and_deleted_are_delivered(
    root: Path, caller: Caller, watching: Watch
) -> None:
    async with watching():
        (root / "a.md").write_text("one")
        assert await caller.until_known("a.md") == ["add a.md"]
        (root / "a.md").write_text("one and two")
        assert told(await soon(caller.batches.get())) == ["change a.md"]
        (root / "sub" / "deep").mkdir(parents=True)
        (root / "sub" / "deep" / "b.md").write_text("two")  # written before the new folder can be watched
        assert await caller.until_known("a.md", "sub/deep/b.md") == ["add sub/deep/b.md"]
        (root / "a.md").unlink()
        assert await caller.until_known("sub/deep/b.md") == ["delete a.md"]
        shutil.rmtree(root / "sub")
        assert await caller.until_known() == ["delete sub/deep/b.md"]


def delete_and_make(path: Path) -> None:
    path.unlink()
    path.write_text("made anew")


def write_and_delete(path: Path) -> None:
    path.write_text("about to go")
    path.unlink()


COALESCED: list[tuple[str, Callable[[Path], object], list[str]]] = [
    ("add, change: add", lambda root: [(root / "new.md").write_text(text) for text in ("1", "12")], ["add new.md"]),
    ("add, unlink: nothing", lambda root: write_and_delete(root / "new.md"), []),
    ("change, unlink: unlink", lambda root: write_and_delete(root / "old.md"), ["delete old.md"]),
    ("unlink, add: add", lambda root: delete_and_make(root / "old.md"), ["add old.md"]),
    ("save by rename: change", lambda root: save_by_rename(root / "old.md", "saved"), ["change old.md"]),
    ("touch: nothing", lambda root: os.utime(root / "old.md", (1, 1)), []),
    ("rename: rename", lambda root: (root / "old.md").rename(root / "new.md"), ["rename old.md new.md"]),
    ("rename over another", lambda root: (root / "old.md").rename(root / "mark.md"), ["delete old.md"]),
]


async def test_events_of_one_file_coalesce(root: Path, caller: Caller, watching: Watch) -> None:
    """The table of semantics 2.3; the mark is written last, so a batch with it has everything before it."""
    for what, act, expected in COALESCED:
        with case(what):
            for path in root.iterdir():
                path.unlink()
            (root / "old.md").write_text("old")
            (root / "mark.md").write_text("mark")
            caller.known, caller.batches = {}, asyncio.Queue()
            async with watching():
                await caller.until_known("old.md", "mark.md")
                act(root)
                (root / "mark.md").write_text("mark again")
                gone = {word.split()[1] for word in expected if word.startswith("delete")}
                words: list[str] = []
                while "change mark.md" not in words or gone & set(caller.known):
                    words += told(await soon(caller.batches.get()))
                assert [word for word in words if not word.endswith(" mark.md")] == expected


async def test_a_rename_is_recognised_by_content_and_waits_for_the_second_half(
    root: Path, caller: Caller, watching: Watch
) -> None:
    (root / "a.md").write_text("the same words")
    (root / "empty.md").write_text("")
    async with watching(PATIENT):
        await caller.until_known("a.md", "empty.md")
        (root / "a.md").unlink()
        (root / "empty.md").unlink()
        (root / "mark.md").write_text("mark")  # delivered in a batch of its own: the deletion waits
        assert await caller.until_known("a.md", "empty.md", "mark.md") == ["add mark.md"]
        (root / "b.md").write_text("the same words")
        (root / "other.md").write_text("")
        words = await caller.until_known("b.md", "mark.md", "empty.md", "other.md")
        assert sorted(words) == ["add other.md", "rename a.md b.md"]  # nothing is told by an empty content


async def test_a_renamed_folder_renames_its_files(root: Path, caller: Caller, watching: Watch) -> None:
    (root / "old").mkdir()
    for name in ("a.md", "b.md", "c.md"):
        (root / "old" / name).write_text("equal words")
    async with watching(PATIENT):
        await caller.until_known("old/a.md", "old/b.md", "old/c.md")
        (root / "old").rename(root / "new")
        words = await caller.until_known("new/a.md", "new/b.md", "new/c.md")
        assert words == [f"rename old/{name} new/{name}" for name in ("a.md", "b.md", "c.md")]


async def test_ignored_files_links_and_what_is_behind_them_are_not_delivered(
    root: Path, caller: Caller, watching: Watch, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "link").symlink_to(outside)
    async with watching():
        (root / ".git").mkdir()
        (root / ".git" / "a.md").write_text("one")
        (root / "a.txt").write_text("one")
        (outside / "secret.md").write_text("one")
        (root / "linked.md").symlink_to(outside / "secret.md")
        os.mkfifo(root / "pipe.md")
        (root / "mark.md").write_text("mark")
        assert await caller.until_known("mark.md") == ["add mark.md"]


async def test_what_changed_while_nobody_watched_is_delivered_at_the_start(
    root: Path, caller: Caller, watching: Watch
) -> None:
    for name in ("same.md", "touched.md", "changed.md", "moved.md", "deleted.md"):
        (root / name).write_text(f"the words of {name}")
    async with watching():
        await caller.until_known("same.md", "touched.md", "changed.md", "moved.md", "deleted.md")
    assert caller.states.get_nowait().state == "stopped"
    os.utime(root / "touched.md", (1, 1))
    (root / "changed.md").write_text("other words")
    (root / "moved.md").rename(root / "here.md")
    (root / "deleted.md").unlink()
    (root / "new.md").write_text("new")
    async with watching():
        words = await caller.until_known("same.md", "touched.md", "changed.md", "here.md", "new.md")
    assert sorted(words) == ["add new.md", "change changed.md", "delete deleted.md", "rename moved.md here.md"]


async def test_own_writes_are_not_delivered_and_foreign_ones_to_the_same_file_are(
    root: Path, caller: Caller, watching: Watch
) -> None:
    (root / "old.md").write_text("old")
    async with watching() as watcher:
        await caller.until_known("old.md")
        async with watcher.own_write({"own.md": b"own", "old.md": None}):
            (root / "own.md").write_bytes(b"own")
            (root / "old.md").unlink()
        caller.known = {"own.md": stamp_of(b"own")}
        (root / "mark.md").write_text("mark")
        assert await caller.until_known("own.md", "mark.md") == ["add mark.md"]
        async with watcher.own_write({"own.md": b"own again"}):
            (root / "own.md").write_bytes(b"own again")
            (root / "own.md").write_bytes(b"foreign")
        assert told(await soon(caller.batches.get())) == ["change own.md"]


async def test_after_a_storm_of_changes_the_caller_knows_exactly_what_is_there(
    root: Path, caller: Caller, watching: Watch
) -> None:
    chance = random.Random(7)
    names = [f"{folder}{name}.md" for folder in ("", "x/", "y/") for name in "abcd"]
    for folder in ("x", "y"):
        (root / folder).mkdir()

    def storm() -> None:
        for number in range(600):
            path, other = root / chance.choice(names), root / chance.choice(names)
            act = chance.choice(["write", "save", "delete", "rename"])
            if act == "write":
                path.write_text(f"text {number}")
            elif act == "save":
                save_by_rename(path, f"text {number}")
            elif path.exists() and act == "delete":
                path.unlink()
            elif path.exists():
                path.rename(other)
            os.sched_yield()

    async with watching():
        await asyncio.to_thread(storm)
        there = {name: stamp_of((root / name).read_bytes()).digest for name in names if (root / name).exists()}
        while {path: stamp.digest for path, stamp in caller.known.items()} != there:
            await soon(caller.batches.get())
    assert caller.states.get_nowait().state == "stopped"  # and it never failed


async def test_a_callback_that_raises_gets_everything_again(root: Path, caller: Caller, watching: Watch) -> None:
    async with watching() as watcher:
        caller.failures = 2
        (root / "a.md").write_text("one")
        state = await caller.state("failed")
        assert state.last_error is not None
        assert "no space left" in state.last_error
        assert await caller.until_known("a.md") == ["add a.md"]
        state = await caller.state("watching")
        assert (state.failures, state.last_error, watcher.state.files) == (0, None, 1)


async def test_a_root_that_vanishes_is_a_failure_and_not_a_deletion_of_its_files(
    root: Path, caller: Caller, watching: Watch
) -> None:
    (root / "a.md").write_text("one")
    (root / "b.md").write_text("two")
    async with watching():
        await caller.until_known("a.md", "b.md")
        root.rename(root.with_name("elsewhere"))
        state = await caller.state("failed")
        assert "cannot be reached" in str(state.last_error)
        assert set(caller.known) == {"a.md", "b.md"}
        root.mkdir()
        (root / "a.md").write_text("one")
        await caller.state("watching")
        assert await caller.until_known("a.md") == ["delete b.md"]


async def test_without_inotify_the_files_are_still_compared_and_the_failure_is_shown(
    root: Path, caller: Caller, watching: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: str) -> None:
        raise OSError(errno.ENOSPC, "OS file watch limit reached")

    with monkeypatch.context() as patched:
        patched.setattr(watch, "_open_notify", refuse)
        opening = asyncio.create_task(_enter(watching()))
        assert "watch limit" in str((await caller.state("failed")).last_error)
        (root / "a.md").write_text("one")
        assert await caller.until_known("a.md") == ["add a.md"]
        assert not opening.done()
    context = await soon(opening)
    await context.__aexit__(None, None, None)


async def _enter(context: AbstractAsyncContextManager[Watcher]) -> AbstractAsyncContextManager[Watcher]:
    await context.__aenter__()
    return context


async def test_what_an_unreadable_folder_holds_stays_known(
    root: Path, caller: Caller, watching: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root reads every folder, so the refusal is made."""
    (root / "closed").mkdir()
    (root / "closed" / "a.md").write_text("one")
    async with watching():
        await caller.until_known("closed/a.md")
    real = os.scandir

    def refuse(path: Path) -> Awaitable[None]:
        if Path(path).name == "closed":
            raise PermissionError(errno.EACCES, "permission denied")
        return real(path)  # type: ignore[return-value]

    monkeypatch.setattr(os, "scandir", refuse)
    async with watching() as watcher:
        (root / "mark.md").write_text("mark")
        assert await caller.until_known("closed/a.md", "mark.md") == ["add mark.md"]
        assert watcher.state.unreadable == ("closed",)


async def test_a_stopped_watcher_leaves_no_thread_and_no_task(root: Path, caller: Caller, watching: Watch) -> None:
    for hang in (False, True):
        with case(hang):
            async with watching() as watcher:
                if hang:
                    started = asyncio.Event()

                    async def never(_: Changes, started: asyncio.Event = started) -> None:
                        started.set()
                        await asyncio.Event().wait()

                    watcher._changed = never
                    (root / "a.md").write_text("one")
                    await soon(started.wait())
            assert watcher.state.state == "stopped"
            assert not [thread for thread in threading.enumerate() if thread.name.startswith("ksi-watch")]
            assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("watcher")]
