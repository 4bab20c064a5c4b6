"""The configuration files of MCP clients: where each client reads its own, and how one server is merged into it.

Every other entry is kept, in TOML with its comments and order. What cannot be merged safely is refused.
"""

import json
import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from ksi_client.command.fault import BAD_DATA, USAGE, Fault

CLIENTS = ("claude-code", "codex", "cursor", "vscode", "generic")
TRANSPORT_TYPES = ("streamable-http", "http", "stdio")
PROJECT_FILES = {
    "claude-code": Path(".mcp.json"),
    "cursor": Path(".cursor/mcp.json"),
    "vscode": Path(".vscode/mcp.json"),
}
DEFAULT_INDENT = "  "


def config_file(client: str, chosen: Path | None) -> Path:
    """The file that a client reads, or the chosen one."""
    refuse_unknown_client(client)
    if chosen is None and client == "generic":
        raise Fault("a generic client has no file that is known here", exit_code=USAGE, hint="name it: --file PATH")
    if chosen is None:
        codex_folder = Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex")
        chosen = codex_folder / "config.toml" if client == "codex" else PROJECT_FILES[client]
    absolute = chosen.expanduser().absolute()
    return absolute.parent.resolve() / absolute.name  # the name itself may be a link, which is refused later


def refuse_unknown_client(client: str) -> None:
    """A usage error for a client that is not one of CLIENTS."""
    if client not in CLIENTS:
        raise Fault(f"there is no client {client!r}", exit_code=USAGE, hint=f"one of {', '.join(CLIENTS)}")


def servers_key(client: str) -> str:
    """The key of the file under which the servers are."""
    return {"codex": "mcp_servers", "vscode": "servers"}.get(client, "mcpServers")


def refuse_unknown_type(transport: str) -> None:
    """A usage error for a transport that is not one of TRANSPORT_TYPES."""
    if transport not in TRANSPORT_TYPES:
        raise Fault(f"there is no type {transport!r}", exit_code=USAGE, hint=f"one of {', '.join(TRANSPORT_TYPES)}")


def merged(
    path: Path,
    text: str | None,
    *,
    client: str,
    entry_name: str,
    entry: dict[str, Any],
    inputs: Sequence[dict[str, Any]] = (),
) -> str:
    """The file's text with this entry and its inputs, new or in place of those of the same name. The path is for messages only."""
    if client == "codex":
        return _merged_toml(path, text or "", entry_name, entry)
    return _merged_json(path, text or "", servers_key(client), {entry_name: entry}, inputs)


def _merged_json(
    path: Path, text: str, key: str, servers: dict[str, Any], inputs: Sequence[dict[str, Any]] = ()
) -> str:
    try:
        document = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse) if text.strip() else {}
        if not isinstance(document, dict) or not isinstance(document.setdefault(key, {}), dict):
            raise ValueError(f"the file, or its {key}, is not an object")
        document[key] |= servers
        if inputs:
            document["inputs"] = _with_inputs(document.get("inputs", []), inputs)
        indent = re.match(r"\s*\{\s*?\n([ \t]+)", text)
        new = json.dumps(document, indent=indent[1] if indent else DEFAULT_INDENT, ensure_ascii=False, allow_nan=False)
        new.encode()  # fails for half a surrogate pair
    except (ValueError, RecursionError) as error:
        _refuse_to_merge(path, "JSON", error)
    return new + "\n"


def _with_inputs(present: Any, wanted: Sequence[dict[str, Any]]) -> list[Any]:
    if not isinstance(present, list) or not all(isinstance(one, dict) for one in present):
        raise ValueError("its inputs is not a list of objects")
    ids = {one["id"] for one in wanted}
    return [one for one in present if one.get("id") not in ids] + list(wanted)


def _merged_toml(path: Path, text: str, entry_name: str, entry: dict[str, Any]) -> str:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        expected = tomllib.loads(text)
        if not isinstance(expected.setdefault("mcp_servers", {}), dict):
            raise ValueError("its mcp_servers is not a table")
        expected["mcp_servers"][entry_name] = entry
        document = tomlkit.parse(text)
        _put(document, entry_name, entry)
        new = tomlkit.dumps(document)
        if tomllib.loads(new) != expected:
            raise ValueError("its tables are written in a way that leaves no safe place for a new one")
    except (ValueError, TypeError, TOMLKitError, RecursionError) as error:
        _refuse_to_merge(path, "TOML", error)
    return new


def _put(document: Any, entry_name: str, entry: dict[str, Any]) -> None:
    """Set the entry. One that is there is changed in place, because it holds the comments that follow it."""
    import tomlkit
    from tomlkit.items import InlineTable

    if "mcp_servers" not in document:
        document["mcp_servers"] = tomlkit.table(is_super_table=True)
    servers = document["mcp_servers"]
    if entry_name not in servers:
        servers[entry_name] = tomlkit.inline_table() if isinstance(servers, InlineTable) else tomlkit.table()
    table = servers[entry_name]
    for name in [name for name in table if name not in entry]:
        del table[name]
    for name, value in entry.items():
        if isinstance(value, dict):
            inline = tomlkit.inline_table()
            inline.update(value)
            table[name] = inline
        else:
            table[name] = value


def _refuse_to_merge(path: Path, kind: str, error: Exception) -> NoReturn:
    raise Fault(
        f"{path} cannot be merged as {kind}: {error}. It is left as it is",
        exit_code=BAD_DATA,
        hint="repair it and run this again; or add the entry by hand: ksi agents config AGENT --client CLIENT prints it",
    ) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key occurs twice in one object, and one of the two would be lost")
    return made


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
