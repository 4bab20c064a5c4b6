"""Renders the configuration with which an MCP client connects as one agent: JSON, or TOML for Codex.

Pure text: making the token and writing the file are left to others.
"""

import json
from typing import Any, Literal

import msgspec

Client = Literal["claude-code", "codex", "generic"]
TransportType = Literal["streamable-http", "http"]
Format = Literal["json", "toml"]

TOKEN_VARIABLE = "KSI_TOKEN"  # noqa: S105 - the name of a variable
SERVERS_KEY: dict[Format, str] = {"json": "mcpServers", "toml": "mcp_servers"}
READS_TOKEN_FROM_ENVIRONMENT: dict[Client, bool] = {
    "claude-code": False,
    "codex": True,
    "generic": False,
}


class RenderedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A whole file with one server in it, and that server's entry as data."""

    format: Format
    text: str
    entry: dict[str, Any]


def render(
    client: Client,
    *,
    entry_name: str,
    url: str,
    agent_id: str,
    token: str,
    token_in_environment: bool,
    transport_type: TransportType = "streamable-http",
    conversation_id: str | None = None,
) -> RenderedConfig:
    """Render the configuration. With `token_in_environment` the token is not in it."""
    headers = {"X-KSI-Agent-ID": agent_id}
    if conversation_id is not None:
        headers["X-KSI-Conversation-ID"] = conversation_id
    if client == "codex":
        entry = _codex_entry(url, headers, None if token_in_environment else token)
        return RenderedConfig(format="toml", text=_toml(entry_name, entry), entry=entry)
    headers["Authorization"] = f"Bearer ${{{TOKEN_VARIABLE}}}" if token_in_environment else f"Bearer {token}"
    entry = {
        "type": transport_type,  # Claude Code silently ignores a server without it
        "url": url,
        "headers": headers,
        "verifySsl": False,
        "retry": {"maxAttempts": 3, "backoffMs": 1000},
    }
    text = json.dumps({SERVERS_KEY["json"]: {entry_name: entry}}, indent=2) + "\n"
    return RenderedConfig(format="json", text=text, entry=entry)


def _codex_entry(url: str, headers: dict[str, str], token: str | None) -> dict[str, Any]:
    if token is None:
        return {"url": url, "http_headers": headers, "bearer_token_env_var": TOKEN_VARIABLE}
    return {"url": url, "http_headers": headers | {"Authorization": f"Bearer {token}"}}


def _toml(entry_name: str, entry: dict[str, Any]) -> str:
    import tomlkit  # loaded at the first use: the daemon's start does not wait for it

    table = tomlkit.table()
    for name, value in entry.items():
        if isinstance(value, dict):
            inline = tomlkit.inline_table()
            inline.update(value)
            table[name] = inline
        else:
            table[name] = value
    servers = tomlkit.table(is_super_table=True)
    servers[entry_name] = table
    document = tomlkit.document()
    document[SERVERS_KEY["toml"]] = servers
    return tomlkit.dumps(document)
