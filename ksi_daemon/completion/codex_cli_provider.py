"""Runs completions with the Codex CLI: `codex exec --json`, with the hub given as an MCP server it cannot do without."""

import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec
from pydantic import Field, field_validator

from ksi_daemon.agents.client_config import TOKEN_VARIABLE
from ksi_daemon.agents.run_folder import Ended
from ksi_daemon.completion.arguments import SESSION, FlagOrValue, Value, checked_model, checked_session
from ksi_daemon.completion.json_lines import JsonLines, count_in, text_in
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
from ksi_daemon.storage.completions import TokenUsage

INSTALL = "npm install -g @openai/codex"
LOG_IN = "run `codex login` as the daemon's user, or set OPENAI_API_KEY in the daemon's environment"
SERVER = "ksi"  # the entry's name in the configuration
CONFIG_TOML = "config.toml"
OUR_FLAGS = frozenset({"--json", "--experimental-json", "--last", "--all", "--ephemeral", "-C", "--cd", "-", "--"})
SESSION_LOST = "no rollout found for thread id"
NOT_CONNECTED = "required MCP servers failed to initialize"
NOT_LOGGED_IN = re.compile(r"status 40[13]\b|not logged in|codex login|missing environment variable", re.IGNORECASE)
TEMPORARY = re.compile(
    r"status(?: code)?:? (?:408|409|429|5\d\d)\b|high demand|overloaded|rate limit|stream disconnected|error sending request"
    r"|timed? ?out|connection (?:failed|refused|reset)",
    re.IGNORECASE,
)


class CodexOptions(Options):
    """Options of the provider `codex`."""

    model: Value | None = Field(None, description="The model.")
    sandbox: Literal["read-only", "workspace-write", "danger-full-access"] = Field(
        "read-only", description="What the commands that the model runs may write."
    )
    arguments: tuple[FlagOrValue, ...] = Field((), max_length=200, description="More arguments of `codex exec`.")
    program: Value = Field("codex", description="The program: a name in PATH, or a path.")

    @field_validator("arguments")
    @classmethod
    def _none_of_ours(cls, arguments: tuple[str, ...]) -> tuple[str, ...]:
        taken = [argument for argument in arguments if argument.split("=")[0] in OUR_FLAGS]
        if taken:
            raise ValueError(f"{', '.join(taken)}: these are set by the daemon")
        return arguments


class Thread(msgspec.Struct, frozen=True, array_like=True):
    """A thread of Codex with the tokens that it had used. Codex reports the sum over all runs of a thread, so the sum
    before a run is kept as a part of the session.
    """

    thread_id: str
    input_tokens: int = 0  # with those read from and written to the cache
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0

    def as_session(self) -> str:
        """The session that stands for it."""
        return ":".join(map(str, msgspec.to_builtins(self)))

    @classmethod
    def from_session(cls, session: str) -> "Thread":
        """The thread of a session."""
        thread_id, *counts = session.split(":")
        whole = len(counts) == 4 and all(count.isdecimal() and count.isascii() for count in counts)
        return cls(checked_session(thread_id), *(map(int, counts) if whole else ()))

    def usage_since(self, before: "Thread") -> TokenUsage | None:
        """What was used since then; None if nothing was."""
        if before.input_tokens > self.input_tokens or before.output_tokens > self.output_tokens:
            before = Thread(self.thread_id)  # it counts from 0 again
        cached = max(0, self.cached_tokens - before.cached_tokens)
        written = max(0, self.cache_write_tokens - before.cache_write_tokens)
        usage = TokenUsage(
            input_tokens=max(0, self.input_tokens - before.input_tokens - cached - written),
            cache_creation_tokens=written,
            cache_read_tokens=cached,
            output_tokens=self.output_tokens - before.output_tokens,
        )
        return None if usage == TokenUsage() else usage


class CodexProvider:
    """Codex. A thread that it no longer has is the failure `session_lost`, which is retryable: whoever runs the
    completion forgets the session first, so that the next attempt begins the conversation anew.
    """

    name: ClassVar[str] = "codex"
    options: ClassVar[type[Options]] = CodexOptions
    chosen_by_agents: ClassVar[frozenset[str]] = frozenset({"model"})

    def program(self, options: Mapping[str, Any]) -> str:
        """The path of `codex`."""
        return find_program(CodexOptions.model_validate(options).program, install=INSTALL)

    def launch(self, job: Job) -> Launch:
        """The prompt goes by stdin, the token by the environment, and the MCP server by settings in the arguments: a file
        would have to take the place of the user's own.
        """
        options = CodexOptions.model_validate(job.options)
        argv = [self.program(job.options), "exec", "--json", "--skip-git-repo-check", "-s", options.sandbox]
        model = job.model or options.model
        if model is not None:
            argv += ["-m", checked_model(model)]
        for name, value in _server_settings(job).items():
            argv += ["-c", f"mcp_servers.{SERVER}.{name}={value}"]
        argv += options.arguments
        if job.resumes is not None:
            argv += ["resume", Thread.from_session(job.resumes).thread_id]
        files = {
            job.config.name: job.rendered_config("generic", token_outside=True),
            CONFIG_TOML: job.rendered_config("codex", token_outside=True),
        }
        return Launch(argv=[*argv, "-"], stdin=job.prompt, files=files)

    def reader(self, job: Job) -> "ThreadEvents":
        """Reads its events."""
        return ThreadEvents(job)


def _server_settings(job: Job) -> dict[str, str]:
    """The MCP server's settings, as TOML. Without `required`, Codex goes on when it cannot connect, and does not say so."""
    headers = {"X-KSI-Agent-ID": job.agent_id, "X-KSI-Conversation-ID": job.conversation_id}
    return {
        "url": _toml(job.url),
        "bearer_token_env_var": _toml(TOKEN_VARIABLE),
        "http_headers": f"{{{', '.join(f'{_toml(name)} = {_toml(value)}' for name, value in headers.items())}}}",
        "default_tools_approval_mode": _toml("approve"),
        "required": "true",
        "enabled": "true",
    }


def _toml(text: str) -> str:
    """A string of TOML; those of JSON are, but for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


class ThreadEvents:
    """Reads the events that `codex exec --json` prints."""

    def __init__(self, job: Job) -> None:
        self._before = None if job.resumes is None else Thread.from_session(job.resumes)
        self._lines = JsonLines()
        self._thread: Thread | None = None
        self._answer = ""  # the last message
        self._finished = False
        self._error: str | None = None

    def feed(self, data: bytes) -> list[Progress]:
        """The messages and tool calls on the lines that are now complete."""
        return [progress for event in self._lines.feed(data) for progress in self._read(event)]

    def end(self, ended: Ended, stderr: str) -> Outcome:
        """The last message, or why there is none."""
        for event in self._lines.end():
            self._read(event)
        thread, before = self._thread, self._before
        resumed = thread is not None and before is not None and thread.thread_id == before.thread_id
        usage = None
        if thread is not None:
            start = before if resumed and before is not None else Thread(thread.thread_id)
            usage = thread.usage_since(start) if self._finished else None
            thread = thread if self._finished else start
        return Outcome(
            text=self._answer,
            failure=self._failure(ended, stderr),
            session=None if thread is None else thread.as_session(),
            resumed=resumed,
            usage=usage,
        )

    def _read(self, event: dict[str, Any]) -> list[Progress]:
        match event.get("type"), text_in(event, "item", "type"):
            case "thread.started", _:
                thread_id = text_in(event, "thread_id")
                self._thread = Thread(thread_id) if SESSION.fullmatch(thread_id) else None
            case "item.completed", "agent_message":
                self._answer = text_in(event, "item", "text")
                return [Progress("text", self._answer)]
            case "item.started", "mcp_tool_call":
                return [Progress("tool", f"{text_in(event, 'item', 'server')}.{text_in(event, 'item', 'tool')}")]
            case "item.started", "command_execution":
                return [Progress("tool", "shell")]
            case "turn.completed", _:
                self._finished = True
                self._error = None  # an earlier one was overcome
                if self._thread is not None:
                    self._thread = Thread(
                        self._thread.thread_id,
                        count_in(event, "usage", "input_tokens"),
                        count_in(event, "usage", "cached_input_tokens"),
                        count_in(event, "usage", "cache_write_input_tokens"),
                        count_in(event, "usage", "output_tokens"),
                    )
            case "turn.failed", _:
                self._error = text_in(event, "error", "message")
            case "error", _:
                self._error = text_in(event, "message")
        return []

    def _failure(self, ended: Ended, stderr: str) -> Failure | None:
        if self._thread is None and SESSION_LOST in stderr:
            lost = "" if self._before is None else f" {self._before.thread_id}"
            return Failure("session_lost", f"Codex no longer has the thread{lost}", retryable=self._before is not None)
        if self._thread is None and NOT_CONNECTED in stderr:
            return Failure(
                "mcp_not_connected",
                f"Codex could not connect to KSI: {stderr[stderr.index(NOT_CONNECTED) :].strip()[:500]}",
                hint="see the daemon's log for refused requests of this agent: ksi logs",
            )
        if self._error is not None:
            return _failure_in(self._error[:1_000])
        failure = failure_of_program(ended, stderr)
        if failure is None and not self._finished:
            return Failure("no_result", "Codex did not finish its turn")
        if failure is not None and NOT_LOGGED_IN.search(stderr):
            return Failure("not_logged_in", failure.message, hint=LOG_IN)
        return failure


def _failure_in(message: str) -> Failure:
    """What went wrong by the error's message."""
    if NOT_LOGGED_IN.search(message):
        return Failure("not_logged_in", f"Codex may not use the model: {message}", hint=LOG_IN)
    if TEMPORARY.search(message):
        return Failure("model_unavailable", f"the model did not answer: {message}", retryable=True)
    return Failure("model_failed", f"Codex could not finish its turn: {message}")
