"""Watches the files below a root and delivers what became of them in batches. An event only says where to look.

What counts is the difference between the files and what the caller knows. So events of one file coalesce by themselves, a lost
event costs time but no change, and every start and every retry begins with a comparison of everything.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ksi_daemon.errors import Unavailable, bounded
from ksi_daemon.retrieval.file_scan import FileChoice, FileStamp, Scan, scan, stamp_of, with_digests

if TYPE_CHECKING:
    from watchfiles._rust_notify import RustNotify

EVERYTHING = ""
PLACES_LIMIT = 1_000  # with more, everything is compared
STOP_LIMIT_S = 2.0
DELETED_EVENT = 3


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """`rename_window_s` is how long a deletion waits for the same file to appear elsewhere before it is delivered."""

    choice: FileChoice = field(default_factory=FileChoice)
    quiet_ms: int = 100  # a batch ends after so long without an event,
    batch_limit_ms: int = 200  # or after so long at most
    rename_window_s: float = 5.0
    tick_ms: int = 1_000  # how often the root is checked and due deletions are delivered
    compare_every_s: float = 600.0  # in case the system lost events
    pauses_s: tuple[float, ...] = (0.5, 2.0, 10.0, 60.0)  # before each retry; the last one repeats


@dataclass(frozen=True, slots=True)
class Rename:
    """A file that is elsewhere now, recognised by its inode or its content."""

    old: str
    new: str
    stamp: FileStamp


@dataclass(frozen=True, slots=True)
class Changes:
    """One batch. Apply renames and deletions first. A file deleted and made anew is among the added."""

    added: Mapping[str, FileStamp]
    changed: Mapping[str, FileStamp]
    renamed: tuple[Rename, ...]
    deleted: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.renamed or self.deleted)


@dataclass(frozen=True, slots=True)
class WatchState:
    """`failed` until a retry succeeds; the files are then compared again before each pause, where that is possible."""

    state: Literal["starting", "watching", "failed", "stopped"]
    files: int = 0
    failures: int = 0  # since it last worked
    last_error: str | None = None
    unreadable: tuple[str, ...] = ()  # folders that may not be read: what was known below them stays


Known = Callable[[], Awaitable[Mapping[str, FileStamp]]]
Changed = Callable[[Changes], Awaitable[None]]
Notify = Callable[[WatchState], Awaitable[None]]


class Watcher:
    """One watched root. Made by `watch_files`."""

    def __init__(
        self, root: Path, known: Known, changed: Changed, notify: Notify | None, settings: WatchSettings
    ) -> None:
        self.root = root.resolve()
        self.state = WatchState("starting")
        self._ask_known, self._changed, self._notify, self._settings = known, changed, notify, settings
        self._known: dict[str, FileStamp] = {}
        self._places: set[str] = set()  # where to look
        self._unlinked: set[str] = set()  # of which a deletion was seen
        self._missing: dict[str, float] = {}  # when a deletion is delivered
        self._looking = asyncio.Lock()
        self._stop = asyncio.Event()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="ksi-watch")

    @asynccontextmanager
    async def own_write(self, contents: Mapping[str, bytes | None]) -> AsyncIterator[None]:
        """Write (None: delete) these files inside; they are not reported, unless somebody else changes them as well."""
        async with self._looking:
            yield
            for path, content in contents.items():
                self._missing.pop(path, None)
                if content is None:
                    self._known.pop(path, None)
                else:
                    self._known[path] = stamp_of(content)

    # --- running

    async def run(self) -> None:
        """Watch until `stop`. Every failure is shown in the state and followed by a pause and a retry."""
        while not self._stop.is_set():
            try:
                await self._watch()
            except Exception as error:  # noqa: BLE001 - shown in the state, and tried again
                failures = self.state.failures + 1
                text = bounded(f"{type(error).__name__}: {error}")
                await self._show(replace(self.state, state="failed", failures=failures, last_error=text))
                await self._pause(self._settings.pauses_s[min(failures, len(self._settings.pauses_s)) - 1])

    async def stop(self, running: asyncio.Task[None]) -> None:
        """End the thread and the task. A callback that does not end by itself is cancelled."""
        self._stop.set()
        _, late = await asyncio.wait([running], timeout=STOP_LIMIT_S)
        for task in late:
            task.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await asyncio.to_thread(self._executor.shutdown)
        await self._show(replace(self.state, state="stopped"))

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        identity = await asyncio.to_thread(_identity, self.root)
        self._known = dict(await self._ask_known())
        self._missing.clear()
        self._unlinked.clear()
        self._places = {EVERYTHING}
        try:  # first the events, then the comparison: nothing falls between
            notify = await loop.run_in_executor(self._executor, _open_notify, str(self.root))
        except Exception:
            await self._look()
            raise
        try:
            await self._look()
            await self._show(replace(self.state, state="watching", failures=0, last_error=None))
            compare_at = loop.time() + self._settings.compare_every_s
            while await self._wait(notify):
                if await asyncio.to_thread(_identity, self.root) != identity:
                    raise Unavailable("the watched folder was replaced by another")
                if loop.time() >= compare_at:
                    self._places.add(EVERYTHING)
                    compare_at = loop.time() + self._settings.compare_every_s
                await self._look()
        finally:  # on its own thread: a wait that was cancelled may not have ended yet
            await loop.run_in_executor(self._executor, notify.close)

    async def _wait(self, notify: RustNotify) -> bool:
        """Collect the events of one batch, or of one tick; False when the watcher stops."""
        settings = self._settings
        events = await asyncio.get_running_loop().run_in_executor(
            self._executor, notify.watch, settings.batch_limit_ms, settings.quiet_ms, settings.tick_ms, self._stop
        )
        if isinstance(events, str):
            return events == "timeout"
        prefix = f"{self.root}/"
        for kind, place in events:
            if not place.startswith(prefix):
                continue
            path = place.removeprefix(prefix)
            if not settings.choice.ignores(path):
                self._places.add(path)
                if kind == DELETED_EVENT:
                    self._unlinked.add(path)
        return True

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            return

    async def _show(self, state: WatchState) -> None:
        told = state != self.state
        self.state = state
        if told and self._notify is not None:
            try:
                await self._notify(state)
            except Exception as error:  # noqa: BLE001 - a failing listener must not stop the retries
                self.state = replace(state, last_error=bounded(f"the notification failed: {error!r}"))

    # --- comparing

    async def _look(self) -> None:
        """Compare the noted places with what is known, and deliver the difference."""
        async with self._looking:
            before = dict(self._known)
            places, self._places = self._places, set()
            unlinked, self._unlinked = self._unlinked, set()
            changes = await self._difference(places, unlinked)
        if not changes:
            return
        await self._changed(changes)
        self._accept(changes, before)

    async def _difference(self, places: set[str], unlinked: set[str]) -> Changes:
        if len(places) > PLACES_LIMIT:
            places = {EVERYTHING}
        found = await asyncio.to_thread(scan, self.root, self._settings.choice, places) if places else Scan()
        await asyncio.to_thread(_identity, self.root)  # a root that went away is a failure, not many deletions
        if EVERYTHING in places:
            self.state = replace(self.state, files=len(found.files), unreadable=tuple(sorted(found.unreadable)))
        now = asyncio.get_running_loop().time()
        for path in self._gone(places, found):
            self._missing.setdefault(path, now + self._settings.rename_window_s)
        doubtful = [path for path, stamp in found.files.items() if not self._is_known(path, stamp)]
        stamps, unsettled = await asyncio.to_thread(with_digests, self.root, found.files, doubtful)
        self._places |= unsettled
        added: dict[str, FileStamp] = {}
        changed: dict[str, FileStamp] = {}
        for path, stamp in sorted(stamps.items()):
            known = self._known.get(path)
            if known is not None and stamp.digest and known.digest == stamp.digest:
                self._known[path] = stamp  # touched, or our own
            elif known is None or path in unlinked or path in self._missing:
                added[path] = stamp
            else:
                changed[path] = stamp
        for path in found.files:
            self._missing.pop(path, None)
        renamed = self._renames({path: stamp for path, stamp in added.items() if path not in self._known})
        for rename in renamed:
            del self._missing[rename.old], added[rename.new]
        deleted = tuple(sorted(path for path, due in self._missing.items() if due <= now))
        return Changes(added, changed, renamed, deleted)

    def _is_known(self, path: str, stamp: FileStamp) -> bool:
        known = self._known.get(path)
        return known is not None and known.same_file(stamp)

    def _gone(self, places: set[str], found: Scan) -> list[str]:
        """Known files at or below the places that are not there any more."""
        if places <= self._known.keys():
            candidates = list(places)
        else:
            candidates = [
                path for path in self._known if EVERYTHING in places or not places.isdisjoint(_with_folders(path))
            ]
        return [path for path in candidates if path not in found.files and found.knows(path)]

    def _renames(self, new: Mapping[str, FileStamp]) -> tuple[Rename, ...]:
        """New files that are missing ones: the same inode unchanged, else a content that only one file of each side has."""
        renames: list[Rename] = []
        missing = {path: self._known[path] for path in sorted(self._missing) if path in self._known}
        by_file = {(stamp.inode, stamp.size, stamp.mtime_ns): path for path, stamp in missing.items() if stamp.inode}
        rest: dict[str, FileStamp] = {}
        for path, stamp in new.items():
            old = by_file.pop((stamp.inode, stamp.size, stamp.mtime_ns), None)
            if old is None:
                rest[path] = stamp
            else:
                del missing[old]
                renames.append(Rename(old, path, stamp))
        was, now_is = _only_ones(missing), _only_ones(rest)
        renames += [Rename(was[digest], path, rest[path]) for digest, path in now_is.items() if digest in was]
        return tuple(sorted(renames, key=lambda rename: rename.new))

    def _accept(self, changes: Changes, before: Mapping[str, FileStamp]) -> None:
        """What was delivered is known from now on, except where an own write came in between."""
        now_is: dict[str, FileStamp | None] = {**changes.added, **changes.changed}
        now_is |= dict.fromkeys((*changes.deleted, *(rename.old for rename in changes.renamed)))
        now_is |= {rename.new: rename.stamp for rename in changes.renamed}
        for path, stamp in now_is.items():
            self._missing.pop(path, None)
            if self._known.get(path) is not before.get(path):
                self._places.add(path)
            elif stamp is None:
                self._known.pop(path, None)
            else:
                self._known[path] = stamp
        self.state = replace(self.state, files=len(self._known))


def _only_ones(stamps: Mapping[str, FileStamp]) -> dict[str, str]:
    """The path of each content that is not empty and that exactly one file has."""
    paths: dict[str, list[str]] = {}
    for path, stamp in stamps.items():
        if stamp.digest and stamp.size:
            paths.setdefault(stamp.digest, []).append(path)
    return {digest: several[0] for digest, several in paths.items() if len(several) == 1}


def _with_folders(path: str) -> list[str]:
    """A path and every folder above it."""
    parts = path.split("/")
    return ["/".join(parts[:length]) for length in range(1, len(parts) + 1)]


def _identity(root: Path) -> tuple[int, int]:
    try:
        status = os.stat(root)
    except OSError as error:
        raise Unavailable(f"the watched folder {root.name} cannot be reached: {error.strerror}") from error
    if not root.is_dir():
        raise Unavailable(f"{root.name} is not a folder")
    return status.st_dev, status.st_ino


def _open_notify(root: str) -> RustNotify:
    from watchfiles._rust_notify import RustNotify

    return RustNotify(
        [root], False, False, 0, True, True
    )  # no debug output, no polling; recursive; unreadable ones are skipped


@asynccontextmanager
async def watch_files(
    root: Path, *, known: Known, changed: Changed, notify: Notify | None = None, settings: WatchSettings | None = None
) -> AsyncIterator[Watcher]:
    """Watch while this scope lasts.

    `known` is asked at the start and at each retry for the files that the caller knows, by path relative to the root;
    `changed` gets every batch, one at a time, and must have stored it when it returns; `notify` gets each new state.
    """
    watcher = Watcher(root, known, changed, notify, settings or WatchSettings())
    running = asyncio.create_task(watcher.run(), name=f"watcher of {watcher.root.name}")
    try:
        yield watcher
    finally:
        await watcher.stop(running)
