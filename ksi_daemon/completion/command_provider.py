"""Runs completions with any program: the prompt is its stdin, its stdout is the answer.

KSI_MCP_CONFIG       the MCP configuration's file          KSI_AGENT_ID          who it is
KSI_MCP_URL          where the MCP server is               KSI_CONVERSATION_ID   the line of completions
KSI_TOKEN            its secret, for this run only         KSI_COMPLETION_ID     this run
KSI_MODEL            the model that was asked for          KSI_RESUMES           1 if it continues the conversation
"""

import codecs
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
from pydantic import Field

from ksi_daemon.agents.run_folder import Ended
from ksi_daemon.completion.provider import (
    Failure,
    Job,
    Launch,
    Options,
    Outcome,
    Progress,
    failure_of_program,
    find_program,
)
from ksi_daemon.errors import Invalid, KsiError
from ksi_daemon.hygiene.beneath import read_beneath
from ksi_daemon.storage.completions import TokenUsage

TEMPORARY_FAILURE = 75  # EX_TEMPFAIL of sysexits.h
RESERVED_VARIABLES = "KSI_"
USAGE_FILE = "usage.json"
USAGE_LIMIT_BYTES = 10_000


class CommandOptions(Options):
    """Options of the provider `command`."""

    command: tuple[str, ...] = Field(min_length=1, max_length=200, description="The program and its arguments.")
    environment: dict[str, str] = Field({}, max_length=100, description="More environment variables.")
    resumes: bool = Field(False, description="Whether the program itself keeps the history of each conversation.")
    token_in_environment: bool = Field(
        False,
        description="Whether the configuration says ${KSI_TOKEN} in place of the token; the program must expand it.",
    )


class CommandProvider:
    """Any program."""

    name: ClassVar[str] = "command"
    options: ClassVar[type[Options]] = CommandOptions
    chosen_by_agents: ClassVar[frozenset[str]] = frozenset()

    def program(self, options: Mapping[str, Any]) -> str:
        """The program's path."""
        return find_program(
            CommandOptions.model_validate(options).command[0], install="install it, or give its whole path"
        )

    def launch(self, job: Job) -> Launch:
        """The command as it is."""
        options = CommandOptions.model_validate(job.options)
        reserved = [name for name in options.environment if name.startswith(RESERVED_VARIABLES)]
        if reserved:
            raise Invalid(
                f"the variables {', '.join(reserved)} are the daemon's", hint="choose names that do not begin with KSI_"
            )
        return Launch(
            argv=[self.program(job.options), *options.command[1:]],
            stdin=job.prompt,
            environment=dict(options.environment),
            files={job.config.name: job.rendered_config("generic", token_outside=options.token_in_environment)},
        )

    def reader(self, job: Job) -> "PlainText":
        """Stdout is the answer."""
        return PlainText(job)


class PlainText:
    """The answer is all that the program prints."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._parts: list[str] = []

    def feed(self, data: bytes) -> list[Progress]:
        """A piece of the answer."""
        text = self._decoder.decode(data)
        self._parts.append(text)
        return [Progress("text", text)] if text else []

    def end(self, ended: Ended, stderr: str) -> Outcome:
        """The answer, or why there is none."""
        text = "".join(self._parts) + self._decoder.decode(b"", final=True)
        failure = failure_of_program(ended, stderr)
        if failure is not None:
            failure = Failure(failure.code, failure.message, retryable=ended.code == TEMPORARY_FAILURE)
        resumes = CommandOptions.model_validate(self._job.options).resumes
        return Outcome(
            text=text,
            failure=failure,
            session=self._job.conversation_id if resumes else None,
            resumed=self._job.resumes is not None,
            usage=self._usage(),
        )

    def _usage(self) -> TokenUsage | None:
        """What the program says that it used; None if it says nothing that can be read."""
        try:
            found = read_beneath(self._job.folder, USAGE_FILE, limit_bytes=USAGE_LIMIT_BYTES)
            return msgspec.json.decode(found, type=TokenUsage)
        except (KsiError, OSError, msgspec.DecodeError):
            return None
