"""A daemon of its own for every live test, ended by its pid whatever happens."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.daemon_process import Daemon, short_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty private folder with a short path."""
    with short_folder() as made:
        yield made


@pytest.fixture
def daemon(folder: Path) -> Iterator[Daemon]:
    """A daemon that is not started yet; afterwards it is gone, and it never wrote a traceback to its terminal."""
    one = Daemon(folder)
    try:
        yield one
    finally:
        one.end()
    if (folder / "stderr").exists():
        assert "Traceback" not in one.errors
