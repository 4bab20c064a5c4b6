"""What is left of a folder when the power goes: a traced run is played back up to a moment, without what was not synced then.

Files that were made, renamed or removed count as such at once; what was written to them only after fsync or fdatasync returned.
"""

import random
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

CALLS = "pwrite64,write,fsync,fdatasync,ftruncate,openat,unlink,unlinkat,rename,renameat,renameat2"
LINE = re.compile(r"(?P<pid>\d+) +(?P<rest>.*)")
UNFINISHED = re.compile(r"(?P<start>.*) <unfinished \.\.\.>")
RESUMED = re.compile(r"<\.\.\. (?P<name>\w+) resumed>(?P<end>.*)")
DONE = re.compile(r"(?P<name>\w+)\((?P<arguments>.*)\) += (?P<result>-?\d+)")
PATH_OF_FD = re.compile(r"^\d+<(?P<path>[^>]*)>")
TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


@dataclass
class Step:
    """One system call that succeeded; `begun` is how many had ended when it began."""

    name: str
    arguments: str
    result: int
    begun: int


@dataclass
class File:
    """A file as it is, and as it would be after a power cut: `synced` with any of the `pending` changes."""

    current: bytearray = field(default_factory=bytearray)
    synced: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, int, bytes | None]] = field(default_factory=list)  # when, where, what; None cuts there

    def change(self, when: int, where: int, what: bytes | None) -> None:
        _apply(self.current, where, what)
        self.pending.append((when, where, what))

    def sync(self, begun: int) -> None:
        for when, where, what in self.pending:
            if when < begun:
                _apply(self.synced, where, what)
        self.pending = [one for one in self.pending if one[0] >= begun]


def trace(command: list[str], output: Path, environment: dict[str, str]) -> list[Step]:
    """Run a command to its end and read what it did."""
    strace = ["strace", "-f", "-y", "-xx", "-s", "200000", "-e", f"trace={CALLS}", "-o", str(output)]
    subprocess.run([*strace, *command], env=environment, check=True, timeout=120, capture_output=True)
    steps: list[Step] = []
    waiting: dict[str, tuple[str, int]] = {}
    for line in output.read_text(encoding="ascii").splitlines():
        match = LINE.fullmatch(line)
        if match is None:
            continue
        pid, rest, begun = match["pid"], match["rest"], len(steps)
        if unfinished := UNFINISHED.fullmatch(rest):
            waiting[pid] = (unfinished["start"], begun)
            continue
        if resumed := RESUMED.fullmatch(rest):
            start, begun = waiting.pop(pid)
            rest = start + resumed["end"]
        done = DONE.match(rest)
        if done is not None and int(done["result"]) >= 0:
            steps.append(Step(done["name"], done["arguments"], int(done["result"]), begun))
    return steps


def files_after(steps: list[Step], folder: Path) -> dict[str, File]:
    """The files under a folder after these steps."""
    files: dict[str, File] = {}
    for number, step in enumerate(steps):
        texts = [bytes.fromhex(text.replace("\\x", "")) for text in TEXT.findall(step.arguments)]
        if step.name == "openat":
            path = texts[0].decode()
            if path.startswith(str(folder)) and "O_CREAT" in step.arguments:
                files.setdefault(path, File())
            if path in files and "O_TRUNC" in step.arguments:
                files[path].change(number, 0, None)
        elif step.name.startswith("unlink"):
            files.pop(texts[-1].decode(), None)
        elif step.name.startswith("rename"):
            if (moved := files.pop(texts[0].decode(), None)) is not None:
                files[texts[1].decode()] = moved
        else:
            _change(files, number, step, texts)
    return files


def _change(files: dict[str, File], number: int, step: Step, texts: list[bytes]) -> None:
    match = PATH_OF_FD.match(step.arguments)
    path = "" if match is None else _plain(match["path"])
    file = files.get(path)
    if file is None:
        return
    last = step.arguments.rsplit(", ", 1)[-1]
    if step.name == "pwrite64":
        file.change(number, int(last), texts[0][: step.result])
    elif step.name == "write":
        file.change(number, len(file.current), texts[0][: step.result])
    elif step.name == "ftruncate":
        file.change(number, int(last), None)
    else:
        file.sync(step.begun)


def cut_power(steps: list[Step], folder: Path, target: Path, chance: random.Random) -> None:
    """Write what the disk may hold after the last of these steps: nothing unsynced, or any part of it."""
    keep = chance.choice([0.0, 0.5])
    for path, file in files_after(steps, folder).items():
        if path.endswith("-shm"):  # no file's content, only memory
            continue
        left = bytearray(file.synced)
        for _, where, what in file.pending:
            if chance.random() < keep:
                _apply(left, where, what)
        place = target / Path(path).relative_to(folder)
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        place.write_bytes(left)
        place.chmod(0o600)


def _apply(content: bytearray, where: int, what: bytes | None) -> None:
    if what is None:
        del content[where:]
        content.extend(bytes(where - len(content)))
        return
    content.extend(bytes(max(0, where - len(content))))
    content[where : where + len(what)] = what


def _plain(shown: str) -> str:
    """strace may show a descriptor's path in hex too."""
    return bytes.fromhex(shown.replace("\\x", "")).decode() if shown.startswith("\\x") else shown
