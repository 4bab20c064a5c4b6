"""Opening beneath a folder: nothing leads out, nothing hangs, with the kernel's help and without it."""

import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ksi_daemon.errors import Conflict, Forbidden, Invalid, KsiError, NotFound, TooLarge
from ksi_daemon.hygiene import beneath
from ksi_daemon.hygiene.beneath import create_beneath, kernel_can_open_beneath, open_beneath, read_beneath
from tests.cases import case

SWAPS = 2_000  # 20,000 by hand found nothing either


@pytest.fixture(params=["openat2", "folder by folder"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test runs both ways; where the kernel has no openat2 both are the second."""
    if request.param == "folder by folder":
        monkeypatch.setattr(beneath, "kernel_can_open_beneath", lambda: False)
    return str(request.param)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "note").write_text("inside")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "note").write_text("secret")
    return root


@pytest.fixture
def open_files() -> Iterator[None]:
    before = os.listdir("/proc/self/fd")
    yield
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_file_is_read_and_created_beneath(root: Path, open_files: None) -> None:
    assert read_beneath(root, "sub/note", limit_bytes=100) == b"inside"
    create_beneath(root, "sub/new", b"x" * 3_000_000)
    assert (root / "sub" / "new").stat().st_mode & 0o777 == 0o600
    assert len(read_beneath(str(root), "sub/new", limit_bytes=3_000_000)) == 3_000_000
    folder = open_beneath(root, "sub", os.O_RDONLY | os.O_DIRECTORY)
    assert read_beneath(folder, "note", limit_bytes=6) == b"inside"
    os.close(folder)


def test_a_file_is_truncated_only_when_it_is_a_good_one(root: Path) -> None:
    os.link(root.parent / "outside" / "note", root / "sub" / "second-name")
    with pytest.raises(Forbidden, match="another hard link"):
        open_beneath(root, "sub/second-name", os.O_WRONLY | os.O_TRUNC)
    assert (root.parent / "outside" / "note").read_text() == "secret"
    os.close(open_beneath(root, "sub/note", os.O_WRONLY | os.O_TRUNC))
    assert (root / "sub" / "note").read_bytes() == b""


def test_a_path_that_climbs_or_starts_at_the_root_is_refused(root: Path, open_files: None) -> None:
    """X01, X05."""
    cases = ["../outside/note", "/etc/passwd", "sub/../../outside/note", "..", "sub/..", "/"]
    for path in cases:
        with case(path):
            with pytest.raises(Forbidden):
                open_beneath(root, path)
            with pytest.raises(Forbidden):
                create_beneath(root, path, b"x", parents=True)


def test_text_that_cannot_be_a_path_is_invalid(root: Path, open_files: None) -> None:
    """X04: nothing is dropped or folded between the check and the use."""
    for path in ["", "a\0b", "x" * 5_000, "a//b", "./a", "a/", "\ud800", "x" * 300]:
        with case(path), pytest.raises(Invalid):
            open_beneath(root, path)


def test_only_the_very_same_bytes_are_opened(root: Path) -> None:
    """X04."""
    for name in ["note ", "note.", "'note'", "NOTE", "%6eote", "note\u200b"]:
        with case(name):
            with pytest.raises(NotFound):
                open_beneath(root, f"sub/{name}")
            create_beneath(root, f"sub/{name}", b"mine")
            assert read_beneath(root, "sub/note", limit_bytes=10) == b"inside"
            assert name in os.listdir(root / "sub")


def test_symbolic_links_are_refused_wherever_they_are_and_lead(root: Path, open_files: None) -> None:
    """X02: file, folder, chain, loop, inside and outside, and the links that /proc makes up."""
    (root / "to-file").symlink_to("../outside/note")
    (root / "to-folder").symlink_to("../outside")
    (root / "inside").symlink_to("sub")
    (root / "chain").symlink_to("to-folder")
    (root / "loop").symlink_to("loop")
    (root / "proc").symlink_to("/proc/self/root")
    for path in ("to-file", "to-folder/note", "inside/note", "chain/note", "loop", "loop/x", "proc/etc/passwd"):
        with pytest.raises(Forbidden):
            read_beneath(root, path, limit_bytes=100)
        with pytest.raises(Forbidden):
            open_beneath(root, path, os.O_WRONLY | os.O_CREAT)
    for path in ("to-folder/new", "inside/new", "chain/new"):
        with pytest.raises(Forbidden):
            create_beneath(root, path, b"x", parents=True)
    with pytest.raises(Conflict):
        create_beneath(root, "to-file", b"x")
    with pytest.raises(Forbidden):
        open_beneath("/proc/self", "root/etc/passwd")
    assert sorted(os.listdir(root.parent / "outside")) == ["note"]
    assert (root.parent / "outside" / "note").read_text() == "secret"


@pytest.mark.timeout(10)
def test_pipes_sockets_and_devices_are_refused_without_waiting(root: Path, open_files: None) -> None:
    """X02: no hang."""
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "socket"))
        for path in ("pipe", "socket"):
            for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
                with pytest.raises(Forbidden, match="neither a file nor a folder"):
                    open_beneath(root, path, flags)
    with pytest.raises(Forbidden, match="neither a file nor a folder"):
        open_beneath("/dev", "zero")


def test_hard_links_are_refused_unless_allowed(root: Path) -> None:
    """X02."""
    os.link(root.parent / "outside" / "note", root / "hard")
    with pytest.raises(Forbidden, match="another hard link"):
        read_beneath(root, "hard", limit_bytes=100)
    assert read_beneath(root, "hard", limit_bytes=100, allow_hard_links=True) == b"secret"


def test_a_file_over_the_limit_is_too_large_and_never_cut(root: Path) -> None:
    """L062."""
    assert read_beneath(root, "sub/note", limit_bytes=6) == b"inside"
    with pytest.raises(TooLarge, match="more than 5 bytes"):
        read_beneath(root, "sub/note", limit_bytes=5)


def test_error_messages_do_not_name_the_root_folder(root: Path, open_files: None) -> None:
    (root / "locked").mkdir(mode=0)
    cases: list[tuple[type[KsiError], str]] = [(NotFound, "nothing"), (NotFound, "sub/note/x"), (Invalid, "sub")]
    for kind, path in cases:
        with pytest.raises(kind) as refused:
            open_beneath(root, path)
        assert str(root) not in refused.value.message
    with pytest.raises(Conflict, match="already exists"):
        create_beneath(root, "sub/note", b"x")
    with pytest.raises(NotFound):
        create_beneath(root, "new/deep/file", b"x")
    with pytest.raises(Invalid):
        open_beneath(root, "sub", os.O_WRONLY)
    with pytest.raises(FileNotFoundError):
        open_beneath(root / "gone", "x")


def test_missing_folders_are_made_when_asked_for(root: Path, open_files: None) -> None:
    create_beneath(root, "new/deep/file", b"x", parents=True)
    create_beneath(root, "new/deep/other", b"y", parents=True)
    assert (root / "new").stat().st_mode & 0o777 == 0o700
    with pytest.raises(NotFound):
        create_beneath(root, "sub/note/x", b"x", parents=True)


def test_a_write_that_fails_leaves_no_file(root: Path, monkeypatch: pytest.MonkeyPatch, open_files: None) -> None:
    def full_disk(handle: int, *_: object, **__: object) -> None:
        os.close(handle)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdopen", full_disk)
    with pytest.raises(OSError, match="No space"):
        create_beneath(root, "sub/new", b"x")
    monkeypatch.undo()
    assert os.listdir(root / "sub") == ["note"]


SWAPPER = """
import os, sys
sub, aside, outside, swaps = *sys.argv[1:4], int(sys.argv[4])
for _ in range(swaps):
    os.rename(sub, aside)
    os.symlink(outside, sub)
    os.unlink(sub)
    os.rename(aside, sub)
"""


def test_a_parent_swapped_for_a_symbolic_link_at_any_moment_lets_nothing_out(root: Path, open_files: None) -> None:
    """X03: reads and new files while another process swaps the folder as fast as it can, 2,000 times each way."""
    outside = root.parent / "outside"
    outcomes: Counter[str] = Counter()

    def attempt(what: str, number: int) -> None:
        if what == "read":
            assert read_beneath(root, "sub/note", limit_bytes=100) == b"inside"
        elif what == "create":
            create_beneath(root, f"sub/new{number}", b"x")
        else:
            os.close(open_beneath(root, f"sub/opened{number}", os.O_CREAT | os.O_WRONLY))

    command: list[str | Path] = [sys.executable, "-c", SWAPPER, root / "sub", root / "aside", outside, str(SWAPS)]
    with subprocess.Popen(command) as swapper:
        number = 0
        while swapper.poll() is None:
            number += 1
            for what in ("read", "create", "open"):
                try:
                    attempt(what, number)
                    outcomes[what] += 1
                except (Forbidden, NotFound) as error:
                    outcomes[error.code] += 1
    assert swapper.returncode == 0
    assert os.listdir(outside) == ["note"]
    assert min(outcomes[what] for what in ("read", "create", "open")) > 0, outcomes
    assert outcomes["forbidden"] + outcomes["not_found"] > 0, outcomes


def test_this_kernel_is_asked_only_once() -> None:
    assert kernel_can_open_beneath() == kernel_can_open_beneath()
    assert kernel_can_open_beneath.cache_info().misses <= 1
