"""Renders the configuration with which an MCP client connects as one agent: JSON, or TOML for Codex.

Pure text: making the token and writing the file are left to others.
"""

import json
import sys
from typing import Any, Literal

import msgspec

Client = Literal["claude-code", "codex", "cursor", "vscode", "generic"]
TransportType = Literal["streamable-http", "http", "stdio"]
Format = Literal["json", "toml"]

TOKEN_VARIABLE = "KSI_TOKEN"  # noqa: S105 - the name of a variable
KEEPS_TOKEN_OUTSIDE: dict[Client, bool] = {
    "claude-code": False,
    "codex": True,
    "cursor": True,
    "vscode": True,
    "generic": False,
}


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """What a client needs to connect. With `token_outside` the configuration only says where the token comes from."""

    entry_name: str
    url: str
    agent_id: str
    token: str
    token_outside: bool
    transport_type: TransportType = "streamable-http"
    conversation_id: str | None = None

    def headers(self) -> dict[str, str]:
        """The headers that say who calls, without the token."""
        headers = {"X-KSI-Agent-ID": self.agent_id}
        if self.conversation_id is not None:
            headers["X-KSI-Conversation-ID"] = self.conversation_id
        return headers

    def command(self) -> dict[str, Any]:
        """The bridge, for a client that starts its server; -P, so that nothing is imported from the client's folder."""
        words = ["-P", "-m", "ksi_client", "mcp", "stdio", "--url", self.url, "--agent", self.agent_id]
        if self.conversation_id is not None:
            words += ["--conversation", self.conversation_id]
        return {"command": sys.executable, "args": words}


class RenderedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A whole file with one server in it, and that server's entry and the inputs it asks the user for as data."""

    format: Format
    text: str
    entry: dict[str, Any]
    inputs: list[dict[str, Any]]
    token_variable: str | None  # from which the client takes the token
    token_input: str | None  # the input for which the client asks the user


def render(client: Client, connection: Connection) -> RenderedConfig:
    """Render the configuration of a client."""
    outside = connection.token_outside
    if client == "codex":
        entry = _codex_entry(connection)
        return RenderedConfig(
            format="toml",
            text=_toml(connection.entry_name, entry),
            entry=entry,
            inputs=[],
            token_variable=TOKEN_VARIABLE if outside else None,
            token_input=None,
        )
    token_input = f"{connection.entry_name}-token" if client == "vscode" and outside else None
    entry = _json_entry(client, connection, _reference(client, connection, token_input))
    document: dict[str, Any] = {"servers" if client == "vscode" else "mcpServers": {connection.entry_name: entry}}
    inputs: list[dict[str, Any]] = []
    if token_input is not None:
        description = f"KSI token of the agent {connection.agent_id}"
        inputs = [{"type": "promptString", "id": token_input, "description": description, "password": True}]
        document["inputs"] = inputs
    return RenderedConfig(
        format="json",
        text=json.dumps(document, indent=2) + "\n",
        entry=entry,
        inputs=inputs,
        token_variable=TOKEN_VARIABLE if outside and token_input is None else None,
        token_input=token_input,
    )


def _reference(client: Client, connection: Connection, token_input: str | None) -> str:
    """The token, or what the client replaces with it."""
    if not connection.token_outside:
        return connection.token
    if token_input is not None:
        return f"${{input:{token_input}}}"
    return f"${{env:{TOKEN_VARIABLE}}}" if client == "cursor" else f"${{{TOKEN_VARIABLE}}}"


def _json_entry(client: Client, connection: Connection, token: str) -> dict[str, Any]:
    if connection.transport_type == "stdio":
        return {"type": "stdio", **connection.command(), "env": {TOKEN_VARIABLE: token}}
    remote = {"url": connection.url, "headers": {**connection.headers(), "Authorization": f"Bearer {token}"}}
    if client == "cursor":
        return remote
    if client == "vscode":
        return {"type": "http", **remote}
    return {
        "type": connection.transport_type,  # Claude Code silently ignores a server without it
        **remote,
        "verifySsl": False,
        "retry": {"maxAttempts": 3, "backoffMs": 1000},
    }


def _codex_entry(connection: Connection) -> dict[str, Any]:
    outside, token = connection.token_outside, connection.token
    if connection.transport_type == "stdio":
        given = {"env_vars": [TOKEN_VARIABLE]} if outside else {"env": {TOKEN_VARIABLE: token}}
        return {**connection.command(), **given}
    headers = connection.headers()
    if outside:
        return {"url": connection.url, "http_headers": headers, "bearer_token_env_var": TOKEN_VARIABLE}
    return {"url": connection.url, "http_headers": headers | {"Authorization": f"Bearer {token}"}}


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
    document["mcp_servers"] = servers
    return tomlkit.dumps(document)
