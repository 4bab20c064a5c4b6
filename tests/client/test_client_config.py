"""Merging one server into the file of an MCP client: what is kept, and what is refused."""

import json
import tomllib
from pathlib import Path

import pytest

from ksi_client.command.client_config import config_file, merged
from ksi_client.command.fault import Fault
from tests.cases import case

PATH = Path("some.file")
JSON_ENTRY = {"type": "streamable-http", "url": "http://127.0.0.1:1/mcp", "headers": {"X-KSI-Agent-ID": "ada"}}
CODEX_ENTRY = {
    "url": "http://127.0.0.1:1/mcp",
    "http_headers": {"X-KSI-Agent-ID": "ada"},
    "bearer_token_env_var": "KSI_TOKEN",
}


def merged_json(text: str | None) -> str:
    return merged(PATH, text, client="claude-code", entry_name="ksi", entry=JSON_ENTRY)


def merged_toml(text: str | None) -> str:
    return merged(PATH, text, client="codex", entry_name="ksi", entry=CODEX_ENTRY)


def test_a_json_file_keeps_its_other_entries_their_order_and_its_indent() -> None:
    """K006."""
    for text in (None, "", " \n"):
        assert json.loads(merged_json(text)) == {"mcpServers": {"ksi": JSON_ENTRY}}
    before = '{\n    "zebra": 1.5,\n    "mcpServers": {"b": {"command": "é"}, "ksi": {"old": 1}, "a": {}},\n    "x": null\n}\n'
    after = merged_json(before)
    assert after.startswith('{\n    "zebra": 1.5,')
    assert list(json.loads(after)["mcpServers"]) == ["b", "ksi", "a"]
    assert json.loads(after) == json.loads(before) | {"mcpServers": {"b": {"command": "é"}, "ksi": JSON_ENTRY, "a": {}}}
    assert merged_json(after) == after


def test_a_json_file_that_does_not_parse_or_would_lose_something_is_refused() -> None:
    for text in (
        "{", "[]", "null", '{"mcpServers": []}', '{"mcpServers": null}', "// comment\n{}", '{"a": 1, "a": 2}',
        '{"a": NaN}', '{"a": 1e999}', '{"a": "\\ud800"}', "[" * 100_000, "\ufeff{}",
    ):  # fmt: skip
        with case(text), pytest.raises(Fault, match=r"some\.file cannot be merged as JSON") as refused:
            merged_json(text)
        assert refused.value.exit_code == 65
        assert refused.value.hint is not None


def test_a_file_of_vscode_keeps_its_other_servers_and_inputs() -> None:
    """K006."""
    entry = {"type": "http", "url": "http://127.0.0.1:1/mcp"}
    asked = {"type": "promptString", "id": "ksi-token", "password": True}

    def merged_vscode(text: str, inputs: list[dict[str, object]]) -> str:
        return merged(PATH, text, client="vscode", entry_name="ksi", entry=entry, inputs=inputs)

    assert json.loads(merged_vscode("", [asked])) == {"servers": {"ksi": entry}, "inputs": [asked]}
    assert json.loads(merged_vscode("", [])) == {"servers": {"ksi": entry}}
    mine, stale = {"id": "mine"}, {"id": "ksi-token", "type": "pickString"}
    before = json.dumps({"inputs": [stale, mine], "servers": {"a": {"command": "x"}, "ksi": {}}})
    after = merged_vscode(before, [asked])
    assert json.loads(after) == {"inputs": [mine, asked], "servers": {"a": {"command": "x"}, "ksi": entry}}
    assert merged_vscode(after, [asked]) == after
    for text in ('{"servers": []}', '{"inputs": {}}', '{"inputs": [1]}'):
        with case(text), pytest.raises(Fault, match="cannot be merged as JSON"):
            merged_vscode(text, [asked])


def test_a_toml_file_keeps_its_other_entries_their_order_and_comments() -> None:
    others = [
        "",
        '# mine\nmodel = "x" # why\n\n[profiles.fast]\nmodel = "y"\n',
        "[mcp_servers.other]\ncommand = 'x' # hi\n\n[zz]\nq = 1\n",
        "[mcp_servers.a]\nx = 1\n[zz]\nq = 1\n[mcp_servers.b]\nx = 2\n",
        "mcp_servers = {a = {x = 1}} # inline\nb = 1\n",
        "[mcp_servers]\na = {x = 1}\n[z]\nq = 1\n",
        "a = 1\r\n[b]\r\nc = 2\r\n",
    ]
    for text in others:
        with case(text):
            after = merged_toml(text)
            expected = tomllib.loads(text)
            expected.setdefault("mcp_servers", {})["ksi"] = CODEX_ENTRY
            assert tomllib.loads(after) == expected
            kept = [line for line in text.splitlines() if line and "inline" not in line]
            assert [line for line in after.splitlines() if line in kept] == kept
            assert merged_toml(after) == after


def test_an_entry_of_codex_is_replaced_in_its_place_and_comments_around_it_stay() -> None:
    before = (
        "# first\n[mcp_servers.a]\nx = 1\n\n# ours\n[mcp_servers.ksi]\nurl = 'old' # old\nenabled = true\n"
        "# next\n[mcp_servers.b]\nx = 2\n"
    )
    after = merged_toml(before)
    assert list(tomllib.loads(after)["mcp_servers"]) == ["a", "ksi", "b"]
    assert tomllib.loads(after)["mcp_servers"]["ksi"] == CODEX_ENTRY
    assert [line for line in after.splitlines() if line.startswith("#")] == ["# first", "# ours", "# next"]


def test_a_toml_file_that_does_not_parse_or_has_no_place_for_an_entry_is_refused() -> None:
    for text in (
        "a = ", "a = 1\na = 2\n", "mcp_servers = 3\n", "[[mcp_servers]]\na = 1\n", "[mcp_servers]\nksi = 3\n",
        "mcp_servers.a.x = 1\nb = 2\n",
    ):  # fmt: skip
        with case(text), pytest.raises(Fault, match=r"some\.file cannot be merged as TOML") as refused:
            merged_toml(text)
        assert refused.value.exit_code == 65


def test_each_client_has_its_file_and_another_may_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CODEX_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert config_file("claude-code", None) == tmp_path / ".mcp.json"
    assert config_file("cursor", None) == tmp_path / ".cursor" / "mcp.json"
    assert config_file("vscode", None) == tmp_path / ".vscode" / "mcp.json"
    assert config_file("codex", None) == tmp_path / "home" / ".codex" / "config.toml"
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    assert config_file("codex", None) == tmp_path / "codex" / "config.toml"
    assert config_file("generic", Path("~/x.json")) == tmp_path / "home" / "x.json"
    with pytest.raises(Fault, match="no file that is known"):
        config_file("generic", None)
    with pytest.raises(Fault, match="no client 'emacs'"):
        config_file("emacs", None)
