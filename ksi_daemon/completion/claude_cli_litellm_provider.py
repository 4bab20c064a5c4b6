"""Runs completions with Claude Code: `claude -p` with the hub as its only MCP server, its output read as stream-json.

Programs that use LiteLLM reach these agents as the model `claude-cli/<model>`: see ksi_client/litellm_provider.py.
"""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from ksi_daemon.agents.run_folder import Ended
from ksi_daemon.completion.arguments import SESSION, FlagOrValue, Value, checked_model, checked_session
from ksi_daemon.completion.json_lines import JsonLines, count_in, objects_in, text_in
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

INSTALL = "npm install -g @anthropic-ai/claude-code"
LOG_IN = "run `claude` once as the daemon's user and log in, or set ANTHROPIC_API_KEY in the daemon's environment"
SERVER = "ksi"  # the entry's name in the configuration
OUR_TOOLS = f"mcp__{SERVER}"
SYSTEM_PROMPT = "system_prompt.txt"
OUR_FLAGS = frozenset({
    "-p", "--print", "--output-format", "--input-format", "--verbose", "--mcp-config", "--strict-mcp-config", "-r",
    "--resume", "-c", "--continue", "--session-id", "--fork-session", "--no-session-persistence", "--",
})  # fmt: skip
CONNECTING = ("pending", "connecting")
SESSION_LOST = "No conversation found with session ID"
NOT_LOGGED_IN = re.compile(r"not logged in|/login|invalid api key|failed to authenticate|oauth token", re.IGNORECASE)
STATUS = re.compile(r"(?:API Error: |\()([45]\d\d)\b")
TEMPORARY = re.compile(
    r"overloaded|rate limit|timed out|connection (?:error|failed|refused|reset|closed)|\bECONN|\bETIMEDOUT",
    re.IGNORECASE,
)


class ClaudeOptions(Options):
    """Options of the provider `claude`."""

    model: Value | None = Field(None, description="The model: an alias such as `opus`, or a full name.")
    append_system_prompt: str | None = Field(
        None, max_length=100_000, description="Text added to the end of the system prompt."
    )
    allowed_tools: tuple[Value, ...] = Field(
        (), max_length=200, description="Tools it may use beside those of KSI, as `Read` or `Bash(git log *)`."
    )
    disallowed_tools: tuple[Value, ...] = Field((), max_length=200, description="Tools it may not use.")
    permission_mode: (
        Literal["acceptEdits", "auto", "bypassPermissions", "default", "dontAsk", "manual", "plan"] | None
    ) = Field(None, description="What it may do without a person's approval.")
    arguments: tuple[FlagOrValue, ...] = Field((), max_length=200, description="More arguments of `claude`.")
    program: Value = Field("claude", description="The program: a name in PATH, or a path.")

    @field_validator("arguments")
    @classmethod
    def _none_of_ours(cls, arguments: tuple[str, ...]) -> tuple[str, ...]:
        taken = [argument for argument in arguments if argument.split("=")[0] in OUR_FLAGS]
        if taken:
            raise ValueError(f"{', '.join(taken)}: these flags are set by the daemon")
        return arguments


class ClaudeProvider:
    """Claude Code. A session that it no longer has is the failure `session_lost`, which is retryable: whoever runs the
    completion forgets the session first, so that the next attempt begins the conversation anew.
    """

    name: ClassVar[str] = "claude"
    options: ClassVar[type[Options]] = ClaudeOptions
    chosen_by_agents: ClassVar[frozenset[str]] = frozenset({"model", "append_system_prompt"})

    def program(self, options: Mapping[str, Any]) -> str:
        """The path of `claude`."""
        return find_program(ClaudeOptions.model_validate(options).program, install=INSTALL)

    def launch(self, job: Job) -> Launch:
        """The prompt goes by stdin and the token by the environment, which Claude Code puts into the configuration."""
        options = ClaudeOptions.model_validate(job.options)
        files = {job.config.name: job.rendered_config("claude-code", token_outside=True)}
        argv = [self.program(job.options), "-p", "--output-format", "stream-json", "--verbose"]
        argv += ["--mcp-config", str(job.config), "--strict-mcp-config", "--allowedTools", OUR_TOOLS]
        argv += options.allowed_tools
        if options.disallowed_tools:
            argv += ["--disallowedTools", *options.disallowed_tools]
        model = job.model or options.model
        if model is not None:
            argv += ["--model", checked_model(model)]
        if options.permission_mode is not None:
            argv += ["--permission-mode", options.permission_mode]
        if options.append_system_prompt:
            files[SYSTEM_PROMPT] = options.append_system_prompt
            argv += ["--append-system-prompt-file", str(job.folder / SYSTEM_PROMPT)]
        if job.resumes is not None:
            argv += ["--resume", checked_session(job.resumes)]
        return Launch(argv=[*argv, *options.arguments], stdin=job.prompt, files=files)

    def reader(self, job: Job) -> "StreamJson":
        """Reads stream-json."""
        return StreamJson(job)


class StreamJson:
    """Reads the events that `claude --output-format stream-json` prints.

    Neither its exit code nor the result's `subtype` tells whether it was connected to KSI: only the first event does.
    """

    def __init__(self, job: Job) -> None:
        self._resumes = job.resumes
        self._lines = JsonLines()
        self._session: str | None = None
        self._connection: str | None = None  # the status of KSI among its MCP servers
        self._pending_calls: set[str] = set()  # of tools of KSI
        self._called = False  # a tool of KSI answered
        self._result: dict[str, Any] | None = None
        self._models: list[dict[str, Any]] = []  # what each model used, by each result
        self._texts: list[str] = []

    def feed(self, data: bytes) -> list[Progress]:
        """The texts and tool calls on the lines that are now complete."""
        return [progress for event in self._lines.feed(data) for progress in self._read(event)]

    def end(self, ended: Ended, stderr: str) -> Outcome:
        """The result's text, or why there is none."""
        for event in self._lines.end():
            self._read(event)
        failure = self._failure(ended, stderr)
        answer = text_in(self._result, "result") if self._result is not None else "".join(self._texts)
        if failure is not None and self._result is not None and self._result.get("is_error"):
            answer = ""  # it is the error's text
        return Outcome(
            text=answer,
            failure=failure,
            session=self._session,
            resumed=self._resumes is not None and self._session == self._resumes,
            usage=self._usage(),
        )

    def _read(self, event: dict[str, Any]) -> list[Progress]:
        match event.get("type"), event.get("subtype"):
            case "system", "init":
                session = text_in(event, "session_id")
                self._session = session if SESSION.fullmatch(session) else None
                statuses = [text_in(s, "status") for s in objects_in(event, "mcp_servers") if s.get("name") == SERVER]
                self._connection = statuses[0] if statuses else "not in its list of servers"
            case "assistant", _:
                return self._read_answer(event)
            case "user", _:
                for block in objects_in(event, "message", "content"):
                    if text_in(block, "tool_use_id") in self._pending_calls and not block.get("is_error"):
                        self._called = True
            case "result", _:
                self._result = event
                models = event.get("model_usage_since_last_result")
                self._models += [m for m in models.values() if isinstance(m, dict)] if isinstance(models, dict) else []
        return []

    def _read_answer(self, event: dict[str, Any]) -> list[Progress]:
        if text_in(event, "message", "model") == "<synthetic>":
            return []  # the text of an error, which the result has too
        found: list[Progress] = []
        for block in objects_in(event, "message", "content"):
            if block.get("type") == "tool_use":
                tool = text_in(block, "name")
                found.append(Progress("tool", tool))
                if tool.startswith(f"{OUR_TOOLS}__"):
                    self._pending_calls.add(text_in(block, "id"))
            elif block.get("type") == "text" and not event.get("parent_tool_use_id"):
                text = text_in(block, "text")
                self._texts.append(text)
                found.append(Progress("text", text))
        return found

    def _failure(self, ended: Ended, stderr: str) -> Failure | None:
        result = self._result
        errors = result.get("errors") if result is not None else None
        if SESSION_LOST in f"{errors} {stderr}":
            return Failure(
                "session_lost",
                f"Claude Code no longer has the session {self._resumes}",
                retryable=self._resumes is not None,
            )
        if self._connection not in ("connected", None) and not self._called:
            return Failure(
                "mcp_not_connected",
                f"Claude Code was not connected to KSI: its MCP server is {self._connection!r:.100}",
                hint="see the daemon's log for refused requests of this agent: ksi logs",
                retryable=self._connection in CONNECTING,
            )
        if result is not None and (result.get("is_error") or text_in(result, "subtype") != "success"):
            return _failure_in(result)
        failure = failure_of_program(ended, stderr)
        if failure is None and (result is None or self._connection is None):
            return Failure("no_result", f"Claude Code printed no {'result' if result is None else 'first event'}")
        return failure

    def _usage(self) -> TokenUsage | None:
        """The tokens of this run by all models. `modelUsage` and `total_cost_usd` add up over all runs of the session."""
        parts = [_usage_of_model(model) for model in self._models]
        if not parts and self._result is not None:
            cost = self._result.get("total_cost_usd") if self._resumes is None else None
            parts = [
                TokenUsage(
                    input_tokens=count_in(self._result, "usage", "input_tokens"),
                    cache_creation_tokens=count_in(self._result, "usage", "cache_creation_input_tokens"),
                    cache_read_tokens=count_in(self._result, "usage", "cache_read_input_tokens"),
                    output_tokens=count_in(self._result, "usage", "output_tokens"),
                    cost_usd=_amount(cost),
                )
            ]
        costs = [part.cost_usd for part in parts if part.cost_usd is not None]
        usage = TokenUsage(
            input_tokens=sum(part.input_tokens for part in parts),
            cache_creation_tokens=sum(part.cache_creation_tokens for part in parts),
            cache_read_tokens=sum(part.cache_read_tokens for part in parts),
            output_tokens=sum(part.output_tokens for part in parts),
            cost_usd=sum(costs) if len(costs) == len(parts) else None,
        )
        used = usage.input_tokens + usage.cache_creation_tokens + usage.cache_read_tokens + usage.output_tokens
        return usage if used else None


def _usage_of_model(model: dict[str, Any]) -> TokenUsage:
    return TokenUsage(
        input_tokens=count_in(model, "inputTokens"),
        cache_creation_tokens=count_in(model, "cacheCreationInputTokens"),
        cache_read_tokens=count_in(model, "cacheReadInputTokens"),
        output_tokens=count_in(model, "outputTokens"),
        cost_usd=_amount(model.get("costUSD")),
    )


def _amount(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else None


def _failure_in(result: dict[str, Any]) -> Failure:
    """What went wrong by the result."""
    errors = result.get("errors")
    message = (text_in(result, "result") or "; ".join(map(str, errors if isinstance(errors, list) else [])))[:1_000]
    status = count_in(result, "api_error_status")
    found = STATUS.search(message)
    if not status and found is not None:
        status = int(found[1])
    if status in (401, 403) or NOT_LOGGED_IN.search(message):
        return Failure("not_logged_in", f"Claude Code may not use the model: {message}", hint=LOG_IN)
    if status in (408, 409, 429) or status >= 500 or TEMPORARY.search(message):
        return Failure("model_unavailable", f"the model did not answer: {message}", retryable=True)
    subtype = text_in(result, "subtype")
    ending = subtype if subtype.startswith("error") else "an error"  # it may be success
    return Failure("model_failed", f"Claude Code ended with {ending}: {message}")
