"""Data files inside installed packages: found without importing the package, and trusted only by their hash."""

import hashlib
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from ksi_daemon.errors import Unavailable


@dataclass(frozen=True, slots=True)
class PackageFile:
    """One file of one distribution, pinned."""

    distribution: str
    path: str
    sha256: str

    def read(self) -> bytes:
        """The content; `Unavailable` when the file is missing or not the one that was pinned."""
        try:
            listed = files(self.distribution) or []
        except PackageNotFoundError as error:
            raise Unavailable(f"the package {self.distribution} is not installed", hint="run scripts/setup") from error
        found = next((Path(str(file.locate())) for file in listed if str(file) == self.path), None)
        if found is None or not found.is_file():
            raise Unavailable(f"the package {self.distribution} has no file {self.path}", hint="install it again")
        content = found.read_bytes()
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise Unavailable(
                f"{self.path} of the package {self.distribution} is not the file that this program was checked with",
                hint="install the version that requirements.lock names",
            )
        return content
