"""The provider `claude`: its arguments, and outcomes read from output of the shape that Claude Code 2.1.328 prints."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ksi_daemon.completion.claude_cli_litellm_provider import ClaudeOptions, ClaudeProvider
from ksi_daemon.completion.provider import Progress
from ksi_daemon.errors import Invalid, Unavailable
from ksi_daemon.storage.completions import TokenUsage
from tests.completion.jobs import SECRET, ended, job, lines, program, read

SESSION = "e35f592e-d9be-4552-89e5-c81c367434e8"
LOST = f"No conversation found with session ID: {SESSION}"


def init(status: str = "connected", session: str = SESSION) -> dict[str, Any]:
    servers = [
        {"name": "other", "status": "failed", "source": "user"},
        {"name": "ksi", "status": status, "source": "dynamic"},
    ]
    return {"type": "system", "subtype": "init", "session_id": session, "mcp_servers": servers, "model": "stub"}


def assistant(*content: dict[str, Any], model: str = "stub", parent: str | None = None) -> dict[str, Any]:
    message = {"role": "assistant", "model": model, "content": list(content), "usage": {"input_tokens": 11}}
    return {"type": "assistant", "message": message, "parent_tool_use_id": parent, "session_id": SESSION}


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def call(tool: str = "mcp__ksi__ksi_system_echo") -> dict[str, Any]:
    return {"type": "tool_use", "id": "toolu_1", "name": tool, "input": {"text": "hello"}}


def answered(*, error: bool = False) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": "toolu_1", "content": '{"text":"hello"}', "is_error": error}
    return {"type": "user", "message": {"role": "user", "content": [block]}, "session_id": SESSION}


def result(answer: str = "It says hellö.", **more: Any) -> dict[str, Any]:
    usage = {
        "input_tokens": 22,
        "cache_creation_input_tokens": 2000,
        "cache_read_input_tokens": 100,
        "output_tokens": 14,
    }
    return {
        "type": "result", "subtype": "success", "is_error": False, "result": answer, "session_id": SESSION,
        "api_error_status": None, "usage": usage, "total_cost_usd": 0.020776, **more,
    }  # fmt: skip


def models(cost: float = 0.5) -> dict[str, Any]:
    counts = {"inputTokens": 22, "outputTokens": 14, "cacheReadInputTokens": 100, "cacheCreationInputTokens": 2000}
    side = {"inputTokens": 5, "outputTokens": 1, "costUSD": 0.25}
    return {"model_usage_since_last_result": {"stub": {**counts, "costUSD": cost}, "small": side}}


WHOLE = (init(), assistant(call()), answered(), assistant(text("It says hellö.")), result())


def failed(answer: str, status: int | None) -> bytes:
    """What it prints when the model's API refuses; `subtype` is success all the same."""
    return lines(
        init(),
        assistant(text(answer), model="<synthetic>"),
        result(answer, is_error=True, api_error_status=status, usage={"input_tokens": 0}, total_cost_usd=0),
    )


def test_the_arguments_hold_the_configuration_and_neither_the_token_nor_the_prompt(tmp_path: Path) -> None:
    claude = program(tmp_path, "claude")
    launch = ClaudeProvider().launch(job(tmp_path, program=claude))
    assert launch.argv == [
        claude, "-p", "--output-format", "stream-json", "--verbose", "--mcp-config", str(tmp_path / "mcp.json"),
        "--strict-mcp-config", "--allowedTools", "mcp__ksi",
    ]  # fmt: skip
    assert launch.stdin == "-p look around"
    assert SECRET not in str(launch)
    server = json.loads(launch.files["mcp.json"])["mcpServers"]["ksi"]
    assert server["type"] == "streamable-http"
    assert server["headers"] == {
        "X-KSI-Agent-ID": "scout",
        "X-KSI-Conversation-ID": "trip",
        "Authorization": "Bearer ${KSI_TOKEN}",
    }


def test_options_become_arguments_and_the_system_prompt_a_file(tmp_path: Path) -> None:
    options = {
        "model": "sonnet",
        "append_system_prompt": "--be brief\nand kind",
        "allowed_tools": ["Read", "Bash(git log *)"],
        "disallowed_tools": ["WebFetch"],
        "permission_mode": "acceptEdits",
        "arguments": ["--max-budget-usd", "1"],
        "program": program(tmp_path, "claude"),
    }
    launch = ClaudeProvider().launch(job(tmp_path, SESSION, "opus", **options))
    assert launch.argv[8:] == [
        "--allowedTools", "mcp__ksi", "Read", "Bash(git log *)", "--disallowedTools", "WebFetch", "--model", "opus",
        "--permission-mode", "acceptEdits", "--append-system-prompt-file", str(tmp_path / "system_prompt.txt"),
        "--resume", SESSION, "--max-budget-usd", "1",
    ]  # fmt: skip
    assert launch.files["system_prompt.txt"] == "--be brief\nand kind"


@pytest.mark.parametrize(
    "options",
    [
        {"model": "--dangerously-skip-permissions"},
        {"model": "a\nb"},
        {"model": ""},
        {"allowed_tools": ["--mcp-config"]},
        {"disallowed_tools": ["-p"]},
        {"permission_mode": "everything"},
        {"arguments": ["--mcp-config=other.json"]},
        {"arguments": ["--resume"]},
        {"arguments": ["a\0b"]},
        {"program": "-claude"},
        {"unknown": 1},
    ],
)
def test_options_that_could_become_other_arguments_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ClaudeOptions.model_validate(options)


def test_a_model_or_a_session_that_is_a_flag_is_refused(tmp_path: Path) -> None:
    claude = program(tmp_path, "claude")
    with pytest.raises(Invalid, match="model"):
        ClaudeProvider().launch(job(tmp_path, asked_model="--verbose", program=claude))
    with pytest.raises(Invalid, match="session"):
        ClaudeProvider().launch(job(tmp_path, "--continue", program=claude))


def test_an_agent_chooses_only_harmless_options() -> None:
    assert ClaudeProvider.chosen_by_agents == {"model", "append_system_prompt"}
    assert ClaudeProvider.chosen_by_agents < set(ClaudeOptions.model_fields)


def test_a_missing_program_says_how_to_install_it(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as caught:
        ClaudeProvider().program({"program": str(tmp_path / "claude")})
    assert caught.value.hint == "npm install -g @anthropic-ai/claude-code"


@pytest.mark.parametrize("piece", [1, 7, 1_000_000])
def test_a_whole_run_is_read_from_pieces_of_any_size(tmp_path: Path, piece: int) -> None:
    output = b"warning: not JSON\n[1]\n{broken\n\xff\xfe\n" + lines(*WHOLE)
    outcome, progress = read(ClaudeProvider().reader(job(tmp_path)), output, piece=piece)
    assert outcome.failure is None
    assert (outcome.text, outcome.session, outcome.resumed) == ("It says hellö.", SESSION, False)
    assert progress == [Progress("tool", "mcp__ksi__ksi_system_echo"), Progress("text", "It says hellö.")]
    assert outcome.usage == TokenUsage(
        input_tokens=22, cache_creation_tokens=2000, cache_read_tokens=100, output_tokens=14, cost_usd=0.020776
    )


def test_a_last_line_without_an_end_counts(tmp_path: Path) -> None:
    outcome, _ = read(ClaudeProvider().reader(job(tmp_path)), lines(*WHOLE).rstrip())
    assert outcome.text == "It says hellö."


def test_a_line_of_many_megabytes_is_read_in_small_pieces_in_little_time(tmp_path: Path) -> None:
    long = "ü" * 8_000_000
    output = lines(init(), assistant(text(long)), result(long))
    began = time.process_time()
    outcome, _ = read(ClaudeProvider().reader(job(tmp_path)), output, piece=4_096)
    assert outcome.text == long
    assert time.process_time() - began < 10


def test_only_the_same_session_is_a_resumed_one(tmp_path: Path) -> None:
    resumed, _ = read(ClaudeProvider().reader(job(tmp_path, SESSION)), lines(*WHOLE))
    assert resumed.resumed
    other = init(session="7d2a2471-fde0-4640-8cba-6e5ae77d2afb")
    anew, _ = read(ClaudeProvider().reader(job(tmp_path, SESSION)), lines(other, *WHOLE[1:]))
    assert not anew.resumed
    assert anew.session == "7d2a2471-fde0-4640-8cba-6e5ae77d2afb"


def test_usage_is_of_this_run_and_of_all_its_models(tmp_path: Path) -> None:
    """The result's `total_cost_usd` adds up over the session's runs."""
    outcome, _ = read(ClaudeProvider().reader(job(tmp_path, SESSION)), lines(*WHOLE[:-1], result(**models())))
    assert outcome.usage == TokenUsage(
        input_tokens=27, cache_creation_tokens=2000, cache_read_tokens=100, output_tokens=15, cost_usd=0.75
    )
    without, _ = read(ClaudeProvider().reader(job(tmp_path, SESSION)), lines(*WHOLE))
    assert without.usage is not None
    assert without.usage.cost_usd is None


@pytest.mark.parametrize(("status", "retryable"), [("failed", False), ("needs-auth", False), ("pending", True)])
def test_success_without_a_connection_to_ksi_is_a_failure(tmp_path: Path, status: str, retryable: bool) -> None:
    output = lines(init(status), assistant(call()), answered(error=True), result())
    outcome, _ = read(ClaudeProvider().reader(job(tmp_path)), output)
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.failure.retryable) == ("mcp_not_connected", retryable)
    assert status in outcome.failure.message


def test_a_list_of_servers_without_ksi_is_no_connection(tmp_path: Path) -> None:
    outcome, _ = read(ClaudeProvider().reader(job(tmp_path)), lines({**init(), "mcp_servers": []}, result()))
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.failure.retryable) == ("mcp_not_connected", False)


def test_a_connection_that_came_later_is_known_by_a_tool_that_answered(tmp_path: Path) -> None:
    outcome, _ = read(ClaudeProvider().reader(job(tmp_path)), lines(init("pending"), *WHOLE[1:]))
    assert outcome.failure is None


def test_output_without_a_first_event_is_not_trusted(tmp_path: Path) -> None:
    outcome, _ = read(ClaudeProvider().reader(job(tmp_path)), lines(result()))
    assert outcome.failure is not None
    assert outcome.failure.code == "no_result"


def test_a_lost_session_is_named_so_that_the_next_attempt_begins_anew(tmp_path: Path) -> None:
    lost = result("", subtype="error_during_execution", is_error=True, errors=[LOST], usage={}, total_cost_usd=0)
    del lost["result"]
    outcome, _ = read(ClaudeProvider().reader(job(tmp_path, SESSION)), lines(lost), code=1, stderr=f"{LOST}\n")
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.failure.retryable) == ("session_lost", True)
    assert (outcome.session, outcome.resumed, outcome.usage) == (None, False, None)


@pytest.mark.parametrize(
    ("answer", "status", "code", "retryable"),
    [
        ("API Error: 529 Overloaded. This is usually temporary", 529, "model_unavailable", True),
        ("API Error: 500 scripted failure", 500, "model_unavailable", True),
        ("API Error: Request rejected (429) · scripted failure", 429, "model_unavailable", True),
        ("API Error: 503 upstream", None, "model_unavailable", True),
        ("API Error: Connection error.", None, "model_unavailable", True),
        (
            "API Error: Connection refused — a firewall may be blocking it (ECONNREFUSED)",
            None,
            "model_unavailable",
            True,
        ),
        ("API Error: 400 scripted failure", 400, "model_failed", False),
        ("Failed to authenticate. API Error: 401 scripted failure", 401, "not_logged_in", False),
        ("Not logged in · Please run /login", None, "not_logged_in", False),
    ],
)
def test_an_error_of_the_model_says_whether_another_attempt_may_succeed(
    tmp_path: Path, answer: str, status: int | None, code: str, retryable: bool
) -> None:
    outcome, progress = read(ClaudeProvider().reader(job(tmp_path)), failed(answer, status), code=1)
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.failure.retryable) == (code, retryable)
    assert answer in outcome.failure.message
    assert (outcome.failure.hint is not None) == (code == "not_logged_in")
    assert (outcome.text, outcome.usage, progress) == ("", None, [])


def test_a_run_that_reached_a_limit_is_a_failure(tmp_path: Path) -> None:
    limit = result("", subtype="error_max_turns", is_error=False)
    outcome, _ = read(ClaudeProvider().reader(job(tmp_path)), lines(init(), limit))
    assert outcome.failure is not None
    assert outcome.failure.code == "model_failed"
    assert "error_max_turns" in outcome.failure.message


def test_a_killed_program_leaves_what_it_had_answered(tmp_path: Path) -> None:
    reader = ClaudeProvider().reader(job(tmp_path))
    reader.feed(lines(init(), assistant(text("So far"))))
    outcome = reader.end(ended(None, 9), "")
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.text) == ("program_killed", "So far")


def test_a_program_that_prints_nothing_is_a_failure(tmp_path: Path) -> None:
    outcome, _ = read(ClaudeProvider().reader(job(tmp_path)), b"")
    assert outcome.failure is not None
    assert outcome.failure.code == "no_result"
    outcome, _ = read(ClaudeProvider().reader(job(tmp_path)), b"", code=1, stderr="error: unknown option")
    assert outcome.failure is not None
    assert "unknown option" in outcome.failure.message


@pytest.mark.parametrize(
    "event",
    [
        {"type": "assistant", "message": "text"},
        {"type": "assistant", "message": {"content": "text"}},
        {"type": "user", "message": {"content": [None, {"tool_use_id": []}]}},
        {"type": ["result"]},
        {"type": "result", "usage": [], "errors": 7, "result": 3, "api_error_status": "529", "total_cost_usd": "1"},
        {"type": "system", "subtype": "init", "session_id": "--flag", "mcp_servers": "ksi"},
        {"type": "result", "model_usage_since_last_result": {"stub": 1, "other": {"costUSD": True}}},
    ],
)
def test_values_of_other_types_do_no_harm(tmp_path: Path, event: dict[str, Any]) -> None:
    deep = b'{"type":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
    outcome, _ = read(ClaudeProvider().reader(job(tmp_path)), deep + lines(event, *WHOLE))
    assert outcome.failure is None
    assert outcome.text == "It says hellö."
    broken, _ = read(ClaudeProvider().reader(job(tmp_path)), lines(event))
    assert broken.failure is not None
