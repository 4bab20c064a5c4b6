"""Replacing a file that then holds a secret: its mode, its backup, and what is refused."""

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ksi_client.command import secret_file
from ksi_client.command.fault import Fault
from ksi_client.command.secret_file import Replaced, SecretFile
from tests.cases import case


@pytest.fixture
def open_umask() -> Iterator[None]:
    """A umask that takes nothing away."""
    before = os.umask(0)
    yield
    os.umask(before)


def replace(path: Path, text: str) -> Replaced:
    with SecretFile(path) as file:
        return file.replace(text)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.usefixtures("open_umask")
def test_a_thousand_configs_are_private_at_every_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S01: 0600 from the first byte, in folders with 0700, whatever the umask."""
    monkeypatch.setattr(os, "fsync", lambda _: None)  # durability is not looked at here
    top = tmp_path / "made"
    seen: set[tuple[bool, int]] = set()
    done = threading.Event()

    def look() -> None:
        for folder, _, names in os.walk(top):
            for name in ("", *names):
                try:
                    found = os.lstat(os.path.join(folder, name))
                except FileNotFoundError:
                    continue
                seen.add((stat.S_ISDIR(found.st_mode), stat.S_IMODE(found.st_mode)))

    def keep_looking() -> None:
        while not done.is_set():
            look()

    watcher = threading.Thread(target=keep_looking)
    watcher.start()
    try:
        for number in range(1_000):
            replace(top / str(number % 50) / "deep" / "config.json", f"secret {number}")
    finally:
        done.set()
        watcher.join(30)
    look()
    assert seen == {(True, 0o700), (False, 0o600)}


@pytest.mark.usefixtures("open_umask")
def test_a_new_file_is_private_when_it_is_created_and_before_it_has_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S01."""
    opened: list[tuple[int, int]] = []
    original = os.open

    def watched(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        handle = original(path, flags, mode, dir_fd=dir_fd)
        if flags & os.O_CREAT:
            assert flags & os.O_EXCL
            assert flags & os.O_NOFOLLOW
            found = os.fstat(handle)
            opened.append((stat.S_IMODE(found.st_mode), found.st_size))
        return handle

    monkeypatch.setattr(os, "open", watched)
    replace(tmp_path / "new.json", "secret")
    replace(tmp_path / "new.json", "secret 2")
    assert opened == [(0o600, 0)] * 3  # the file, then its backup and its successor


def test_what_was_there_is_kept_in_a_private_backup_and_an_open_mode_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("before")
    path.chmod(0o644)
    done = replace(path, "after")
    assert path.read_text() == "after"
    assert done.backup is not None
    assert done.backup.read_text() == "before"
    assert (done.mode_before, mode(path), mode(done.backup)) == (0o644, 0o600, 0o600)
    backups = {replace(path, f"again {number}").backup for number in range(3)}
    assert len({done.backup, *backups}) == 4
    assert len(list(tmp_path.iterdir())) == 5


def test_a_file_that_is_not_an_ordinary_one_of_this_user_is_refused_and_untouched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S02."""
    target = tmp_path / "target"
    target.write_text("mine")
    other_name = tmp_path / "other name"
    other_name.write_text("linked twice")
    (tmp_path / "hard").hardlink_to(other_name)
    (tmp_path / "soft").symlink_to(target)
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    before = {path.name: path.lstat() for path in tmp_path.iterdir()}
    for name, problem in [
        ("hard", "2 names"),
        ("soft", "symbolic link"),
        ("dangling", "symbolic link"),
        ("pipe", "not an ordinary file"),
        ("folder", "not an ordinary file"),
    ]:
        with case(name), pytest.raises(Fault, match=problem):
            replace(tmp_path / name, "secret")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(Fault, match="belongs to another user"):
        replace(target, "secret")
    after = {path.name: path.lstat() for path in tmp_path.iterdir()}
    assert {name: found.st_mtime_ns for name, found in after.items()} == {
        name: found.st_mtime_ns for name, found in before.items()
    }
    assert (target.read_text(), other_name.read_text()) == ("mine", "linked twice")


def test_a_link_put_there_between_reading_and_writing_is_refused_and_not_followed(tmp_path: Path) -> None:
    """S02."""
    target = tmp_path / "target"
    target.write_text("mine")
    path = tmp_path / "config.json"
    for before in (None, "old"):
        with case(before):
            path.unlink(missing_ok=True)
            if before is not None:
                path.write_text(before)
            with SecretFile(path) as file:
                path.unlink(missing_ok=True)
                path.symlink_to(target)
                with pytest.raises(Fault, match="changed by another program"):
                    file.replace("secret")
            assert path.is_symlink()
            assert target.read_text() == "mine"
            assert {found.name for found in tmp_path.iterdir()} == {"target", "config.json"}


def test_a_failed_write_leaves_the_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.json"
    path.write_text("before")

    def no_space(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(Fault, match=r"No space left on device; it is unchanged"):
        replace(path, "after")
    assert [(found.name, found.read_text()) for found in tmp_path.iterdir()] == [("config.json", "before")]


def test_a_file_that_is_no_text_or_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(Fault, match="not UTF-8"):
        replace(path, "after")
    monkeypatch.setattr(secret_file, "SIZE_LIMIT_BYTES", 1)
    with pytest.raises(Fault, match="larger than 1 bytes"):
        replace(path, "after")
    with pytest.raises(Fault, match="cannot be used"):
        replace(path / "below a file", "after")
    assert path.read_bytes() == b"\xff\xfe"
