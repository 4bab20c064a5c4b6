"""The provider `codex`: its arguments, and outcomes read from output of the shape that Codex 0.169.0 prints."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ksi_daemon.completion.codex_cli_provider import CodexOptions, CodexProvider
from ksi_daemon.completion.provider import Progress
from ksi_daemon.errors import Invalid, Unavailable
from ksi_daemon.storage.completions import TokenUsage
from tests.completion.jobs import SECRET, ended, job, lines, program, read

THREAD = "01a1f604-912c-7ba1-b696-98a30168b213"
OTHER_THREAD = "01a1f607-13c2-7b70-9e47-9b34dc437cc7"


def started(thread: str = THREAD) -> dict[str, Any]:
    return {"type": "thread.started", "thread_id": thread}


def message(text: str) -> dict[str, Any]:
    return {"type": "item.completed", "item": {"id": "item_2", "type": "agent_message", "text": text}}


def completed(input_tokens: int = 2122, cached: int = 100, output_tokens: int = 14, written: int = 0) -> dict[str, Any]:
    usage = {
        "input_tokens": input_tokens, "cached_input_tokens": cached, "cache_write_input_tokens": written,
        "output_tokens": output_tokens, "reasoning_output_tokens": 0,
    }  # fmt: skip
    return {"type": "turn.completed", "usage": usage}


def failed(text: str) -> bytes:
    return lines(
        started(),
        {"type": "turn.started"},
        {"type": "error", "message": text},
        {"type": "turn.failed", "error": {"message": text}},
    )


CALL = {"id": "item_1", "type": "mcp_tool_call", "server": "ksi", "tool": "ksi_system_echo", "status": "in_progress"}
WHOLE = (
    started(),
    {"type": "item.completed", "item": {"id": "item_0", "type": "error", "message": "Model metadata not found."}},
    {"type": "turn.started"},
    {"type": "item.started", "item": CALL},
    {"type": "item.completed", "item": {**CALL, "status": "completed"}},
    message("It says hellö."),
    completed(),
)


def test_the_arguments_hold_the_server_and_neither_the_token_nor_the_prompt(tmp_path: Path) -> None:
    codex = program(tmp_path, "codex")
    launch = CodexProvider().launch(job(tmp_path, program=codex))
    assert launch.argv[:6] == [codex, "exec", "--json", "--skip-git-repo-check", "-s", "read-only"]
    assert launch.argv[-1] == "-"
    assert launch.stdin == "-p look around"
    assert SECRET not in str(launch)
    assert launch.argv[6:-1:2] == ["-c"] * 6
    settings = tomllib.loads("\n".join(launch.argv[7:-1:2]))
    headers = {"X-KSI-Agent-ID": "scout", "X-KSI-Conversation-ID": "trip"}
    assert settings["mcp_servers"]["ksi"] == {
        "url": "http://127.0.0.1:8080/mcp",
        "bearer_token_env_var": "KSI_TOKEN",
        "http_headers": headers,
        "default_tools_approval_mode": "approve",
        "required": True,
        "enabled": True,
    }
    written = tomllib.loads(launch.files["config.toml"])["mcp_servers"]["ksi"]
    assert (written["url"], written["http_headers"]) == ("http://127.0.0.1:8080/mcp", headers)
    assert "mcp.json" in launch.files


def test_a_resumed_thread_and_options_become_arguments(tmp_path: Path) -> None:
    codex = program(tmp_path, "codex")
    options = {"model": "small", "sandbox": "workspace-write", "arguments": ["--add-dir", "docs"], "program": codex}
    launch = CodexProvider().launch(job(tmp_path, f"{THREAD}:2122:100:0:14", "large", **options))
    assert launch.argv[4:8] == ["-s", "workspace-write", "-m", "large"]
    assert launch.argv[-5:] == ["--add-dir", "docs", "resume", THREAD, "-"]


@pytest.mark.parametrize(
    "options",
    [
        {"model": "-c"},
        {"sandbox": "none"},
        {"arguments": ["--last"]},
        {"arguments": ["--cd=/"]},
        {"arguments": ["a\nb"]},
        {"program": "-codex"},
        {"unknown": 1},
    ],
)
def test_options_that_could_become_other_arguments_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        CodexOptions.model_validate(options)


@pytest.mark.parametrize("session", ["--last", "-", "", "a b", "--all:1:2:3:4"])
def test_a_session_that_is_a_flag_is_refused(tmp_path: Path, session: str) -> None:
    with pytest.raises(Invalid, match="session"):
        CodexProvider().launch(job(tmp_path, session, program=program(tmp_path, "codex")))


def test_a_missing_program_says_how_to_install_it(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as caught:
        CodexProvider().program({"program": str(tmp_path / "codex")})
    assert caught.value.hint == "npm install -g @openai/codex"


@pytest.mark.parametrize("piece", [1, 7, 1_000_000])
def test_a_whole_run_is_read_from_pieces_of_any_size(tmp_path: Path, piece: int) -> None:
    outcome, progress = read(CodexProvider().reader(job(tmp_path)), b"not JSON\n" + lines(*WHOLE), piece=piece)
    assert outcome.failure is None
    assert (outcome.text, outcome.session, outcome.resumed) == ("It says hellö.", f"{THREAD}:2122:100:0:14", False)
    assert progress == [Progress("tool", "ksi.ksi_system_echo"), Progress("text", "It says hellö.")]
    assert outcome.usage == TokenUsage(input_tokens=2022, cache_read_tokens=100, output_tokens=14)


def test_the_usage_of_a_resumed_thread_is_what_this_run_added(tmp_path: Path) -> None:
    """Codex reports the sum over all runs of a thread."""
    reader = CodexProvider().reader(job(tmp_path, f"{THREAD}:2122:100:0:14"))
    outcome, _ = read(reader, lines(*WHOLE[:-1], completed(4244, 200, 28, 22)))
    assert outcome.resumed
    assert outcome.session == f"{THREAD}:4244:200:22:28"
    assert outcome.usage == TokenUsage(
        input_tokens=2000, cache_creation_tokens=22, cache_read_tokens=100, output_tokens=14
    )


@pytest.mark.parametrize("session", [f"{OTHER_THREAD}:2122:100:0:14", f"{THREAD}:9000:100:0:9000", f"{THREAD}:x:1:1:1"])
def test_usage_counts_from_zero_when_the_thread_does(tmp_path: Path, session: str) -> None:
    outcome, _ = read(CodexProvider().reader(job(tmp_path, session)), lines(*WHOLE))
    assert outcome.resumed == session.startswith(THREAD)
    assert outcome.usage == TokenUsage(input_tokens=2022, cache_read_tokens=100, output_tokens=14)


def test_a_lost_thread_is_named_so_that_the_next_attempt_begins_anew(tmp_path: Path) -> None:
    stderr = f"Error: thread/resume: thread/resume failed: no rollout found for thread id {THREAD} (code -32600)\n"
    outcome, _ = read(CodexProvider().reader(job(tmp_path, THREAD)), b"", code=1, stderr=stderr)
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.failure.retryable, outcome.session) == ("session_lost", True, None)


def test_a_run_without_a_connection_to_ksi_is_a_failure(tmp_path: Path) -> None:
    stderr = (
        "ERROR rmcp::transport::worker: worker quit with fatal: AuthRequired\nError: thread/start failed: Fatal error: "
        "Failed to initialize session: required MCP servers failed to initialize: ksi: handshaking failed: Auth required"
    )
    outcome, _ = read(CodexProvider().reader(job(tmp_path)), b"", code=1, stderr=stderr)
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.failure.retryable) == ("mcp_not_connected", False)
    assert "Auth required" in outcome.failure.message


@pytest.mark.parametrize(
    ("error", "code", "retryable"),
    [
        ("We’re currently experiencing high demand, which may cause temporary errors.", "model_unavailable", True),
        ("exceeded retry limit, last status: 429 Too Many Requests", "model_unavailable", True),
        ("stream disconnected before completion: connection closed", "model_unavailable", True),
        ("unexpected status 503 Service Unavailable: busy", "model_unavailable", True),
        ("unexpected status 401 Unauthorized: scripted failure", "not_logged_in", False),
        ('{"type": "error", "error": {"message": "The model does not exist"}}', "model_failed", False),
    ],
)
def test_an_error_of_the_model_says_whether_another_attempt_may_succeed(
    tmp_path: Path, error: str, code: str, retryable: bool
) -> None:
    outcome, _ = read(CodexProvider().reader(job(tmp_path)), failed(error), code=1)
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.failure.retryable) == (code, retryable)
    assert error in outcome.failure.message
    assert (outcome.failure.hint is not None) == (code == "not_logged_in")
    assert outcome.usage is None


def test_an_error_that_was_overcome_does_not_count(tmp_path: Path) -> None:
    output = lines(*WHOLE[:3], {"type": "error", "message": "Reconnecting... 1/5"}, *WHOLE[3:])
    outcome, _ = read(CodexProvider().reader(job(tmp_path)), output)
    assert outcome.failure is None


def test_a_program_that_does_not_finish_its_turn_is_a_failure(tmp_path: Path) -> None:
    outcome, _ = read(CodexProvider().reader(job(tmp_path)), lines(*WHOLE[:-1]))
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.text) == ("no_result", "It says hellö.")
    reader = CodexProvider().reader(job(tmp_path))
    reader.feed(lines(*WHOLE[:-1]))
    killed = reader.end(ended(None, 9), "")
    assert killed.failure is not None
    assert killed.failure.code == "program_killed"


@pytest.mark.parametrize(
    "event",
    [
        {"type": "thread.started", "thread_id": ["--flag"]},
        {"type": "turn.completed", "usage": None},
        {"type": "turn.failed", "error": "text"},
        {"type": "item.completed", "item": {"type": "agent_message", "text": 3}},
        {"type": {}, "item": []},
    ],
)
def test_values_of_other_types_do_no_harm(tmp_path: Path, event: dict[str, Any]) -> None:
    outcome, _ = read(CodexProvider().reader(job(tmp_path)), lines(event, *WHOLE))
    assert outcome.failure is None
    assert outcome.text == "It says hellö."
