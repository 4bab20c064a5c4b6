"""The two clients: their packages, the variables and files with which they use the model stub, and what they send it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Protocol

KEY = "dummy-key"


class RealClient(Protocol):
    """One client, and how it is set up."""

    provider: str
    package: str
    version: str  # the release these scripts are known to work with
    runs: ClassVar[dict[str, dict[str, str]]]  # by what they show: more variables
    options: ClassVar[dict[str, Any]]  # of the agent's provider
    reaches_model: str  # a part of them
    sessions: str  # where it keeps its sessions, below HOME

    def prepare(self, home: Path, model_url: str) -> dict[str, str]:
        """Write its settings; returns its variables."""
        ...

    def hub_tools(self, body: dict[str, Any]) -> list[Any]:
        """KSI's tools in a request to the model."""
        ...


class ClaudeCode:
    """Claude Code. It defers the definitions of tools unless ENABLE_TOOL_SEARCH is false."""

    provider = "claude"
    package = "@anthropic-ai/claude-code"
    version = "2.1.328"
    runs: ClassVar[dict[str, dict[str, str]]] = {"tools in full": {"ENABLE_TOOL_SEARCH": "false"}, "tools deferred": {}}
    options: ClassVar[dict[str, Any]] = {"model": "opus", "append_system_prompt": "--answer in one sentence"}
    reaches_model = "--answer in one sentence"
    sessions = ".claude/projects"

    def prepare(self, home: Path, model_url: str) -> dict[str, str]:
        """It needs no settings but variables."""
        del home
        return {
            "ANTHROPIC_BASE_URL": model_url,
            "ANTHROPIC_API_KEY": KEY,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_RETRIES": "0",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "DISABLE_TELEMETRY": "1",
        }

    def hub_tools(self, body: dict[str, Any]) -> list[Any]:
        """Those with our prefix."""
        return [tool for tool in body.get("tools", []) if str(tool.get("name", "")).startswith("mcp__ksi__")]


class Codex:
    """Codex. It sends the definitions of tools in full, inside of a namespace."""

    provider = "codex"
    package = "@openai/codex"
    version = "0.169.0"
    runs: ClassVar[dict[str, dict[str, str]]] = {"tools in full": {}}
    options: ClassVar[dict[str, Any]] = {"model": "gpt-of-this-agent", "sandbox": "workspace-write"}
    reaches_model = "gpt-of-this-agent"
    sessions = ".codex/sessions"

    def prepare(self, home: Path, model_url: str) -> dict[str, str]:
        """The model's API is a setting in its file."""
        settings = {"name": "stub", "base_url": f"{model_url}/v1", "wire_api": "responses", "env_key": "STUB_KEY"}
        text = ['model = "gpt-stub"', 'model_provider = "stub"', "[analytics]", "enabled = false"]
        text += ["[model_providers.stub]", "request_max_retries = 0", "stream_max_retries = 0"]
        text += [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
        (home / ".codex").mkdir()
        (home / ".codex" / "config.toml").write_text("\n".join(text) + "\n", encoding="utf-8")
        return {"STUB_KEY": KEY}

    def hub_tools(self, body: dict[str, Any]) -> list[Any]:
        """Those in our namespace."""
        return list(_namespaced(body.get("tools", [])))


def _namespaced(tools: list[dict[str, Any]]) -> Iterator[Any]:
    for tool in tools:
        if tool.get("type") == "namespace" and tool.get("name") == "mcp__ksi":
            yield from tool.get("tools", [])


CLIENTS: dict[str, RealClient] = {"claude": ClaudeCode(), "codex": Codex()}
