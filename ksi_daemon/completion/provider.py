"""What a provider is: it says which program runs a completion, and reads what that program printed.

Providers start nothing and wait for nothing: the program's process, its files and its end are the same for all of them.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

import msgspec
from pydantic import BaseModel, ConfigDict

from ksi_daemon.agents.client_config import Client, Connection, render
from ksi_daemon.agents.run_folder import CONFIG, Ended
from ksi_daemon.errors import Unavailable
from ksi_daemon.storage.completions import TokenUsage


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a completion."""

    agent_id: str
    conversation_id: str
    completion_id: str
    prompt: str
    model: str | None
    resumes: str | None  # the provider's session to continue
    options: Mapping[str, Any]  # of the agent, as its provider's options accept them
    folder: Path  # of the run
    url: str
    token: str = ""  # empty for a job of an earlier daemon, which is only read

    @property
    def config(self) -> Path:
        """The MCP configuration's file."""
        return self.folder / CONFIG

    def rendered_config(self, client: Client, *, token_outside: bool) -> str:
        """The MCP configuration that one client reads."""
        connection = Connection(
            entry_name="ksi",
            url=self.url,
            agent_id=self.agent_id,
            token=self.token,
            token_outside=token_outside,
            conversation_id=self.conversation_id,
        )
        return render(client, connection).text


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """A program to run. `argv` must hold no secret: everybody on the machine can read it."""

    argv: list[str]
    stdin: str = ""
    environment: dict[str, str] = {}  # beside the variables that every program gets
    files: dict[str, str] = {}  # in the run's folder, deleted when it has ended


class Progress(msgspec.Struct, frozen=True):
    """Something that a program printed while it runs: a piece of its answer, or a tool that it calls."""

    kind: str  # text, tool
    text: str


class Failure(msgspec.Struct, frozen=True):
    """Why an attempt failed, and whether another one may succeed."""

    code: str
    message: str
    hint: str | None = None
    retryable: bool = False


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an attempt."""

    text: str = ""
    failure: Failure | None = None
    session: str | None = None  # by which the provider can continue this conversation
    resumed: bool = False  # whether the model really had the conversation's history
    usage: TokenUsage | None = None


class OutputReader(Protocol):
    """Reads one program's output, in pieces of any size."""

    def feed(self, data: bytes) -> list[Progress]:
        """More of stdout."""
        ...

    def end(self, ended: Ended, stderr: str) -> Outcome:
        """The program has ended; `stderr` is the end of what it wrote there."""
        ...


class Options(BaseModel):
    """Options of an agent's provider. A child inherits its parent's; only the operator may choose a program."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Provider(Protocol):
    """One kind of program that runs completions."""

    name: ClassVar[str]
    options: ClassVar[type[Options]]
    chosen_by_agents: ClassVar[frozenset[str]]  # options that an agent may choose for its children

    def program(self, options: Mapping[str, Any]) -> str:
        """The program's path, or `Unavailable` with how to install it."""
        ...

    def launch(self, job: Job) -> Launch:
        """How to run it."""
        ...

    def reader(self, job: Job) -> OutputReader:
        """What reads its output."""
        ...


def find_program(name: str, *, install: str) -> str:
    """A program's path by the daemon's PATH."""
    found = shutil.which(name)
    if found is None:
        raise Unavailable(f"the program {name!r} is not installed, or not in the daemon's PATH", hint=install)
    return found


def failure_of_program(ended: Ended, stderr: str) -> Failure | None:
    """Why a program failed, as far as its process tells; None if it exited with 0."""
    said = f": {stderr.strip()[-500:]}" if stderr.strip() else ""
    if ended.problem is not None:
        return Failure("program_not_started", f"the program could not be started: {ended.problem}")
    if ended.signal is not None:
        return Failure("program_killed", f"the program was ended by signal {ended.signal}{said}")
    if ended.code:
        return Failure("program_failed", f"the program exited with {ended.code}{said}")
    return None
