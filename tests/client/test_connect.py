"""`ksi agents config`, `ksi connect` and `ksi tools` against the real daemon."""

import json
import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from ksi_client import SyncClient
from ksi_client.command.connection_setup import LABEL_LIMIT, token_label
from tests.cases import case
from tests.client.conftest import Ksi
from tests.client.fake_daemon import FakeDaemon, fail
from tests.machine import needs_git

ECHO = ("send", "system:echo", "text=hi", "--token-env", "T")


def entry_in(path: Path) -> dict[str, Any]:
    """The entry ksi of a JSON file."""
    return dict(json.loads(path.read_text())["mcpServers"]["ksi"])


def token_of(entry: dict[str, Any]) -> str:
    return str(entry["headers"]["Authorization"]).removeprefix("Bearer ")


@pytest.mark.usefixtures("running")
def test_a_config_is_printed_as_the_client_wants_it_with_a_token_that_works(ksi: Ksi) -> None:
    """K006, K007, K008, K009, K010."""
    url = json.loads(ksi("status", "--json").stdout)["url"]
    ksi("agents", "add", "ada")
    done = ksi("agents", "config", "ada", "--client", "claude-code", "--conversation", "conv-1")
    entry = json.loads(done.stdout)["mcpServers"]["ksi"]
    token = token_of(entry)
    assert entry == {
        "type": "streamable-http",
        "url": url,
        "headers": {"X-KSI-Agent-ID": "ada", "X-KSI-Conversation-ID": "conv-1", "Authorization": f"Bearer {token}"},
        "verifySsl": False,
        "retry": {"maxAttempts": 3, "backoffMs": 1000},
    }
    assert "ksi tokens revoke" in done.stderr
    assert ksi(*ECHO, T=token).returncode == 0
    http = ksi("agents", "config", "ada", "--client", "generic", "--type", "http", "--entry", "hub", "--json")
    assert json.loads(json.loads(http.stdout)["text"])["mcpServers"]["hub"]["type"] == "http"
    codex = ksi("agents", "config", "ada", "--client", "codex", "--quiet")
    (exported,) = re.findall(r"^export KSI_TOKEN=(\S+)$", codex.stderr, re.MULTILINE)
    assert exported not in codex.stdout
    assert tomllib.loads(codex.stdout)["mcp_servers"]["ksi"]["bearer_token_env_var"] == "KSI_TOKEN"
    assert ksi(*ECHO, T=exported).returncode == 0
    for words, code in (
        (("nobody",), 3), (("ada", "--client", "emacs"), 2), (("ada", "--type", "sse"), 2), (("ada", "--file", "x"), 2),
        (("ada", "--client", "generic", "--write"), 2),
    ):  # fmt: skip
        with case(words):
            assert ksi("agents", "config", *words).returncode == code


@pytest.mark.usefixtures("running")
def test_a_config_is_merged_into_a_file_and_a_second_time_replaces_entry_and_token(ksi: Ksi, tmp_path: Path) -> None:
    path = tmp_path / ".mcp.json"
    path.write_text('{"mcpServers": {"other": {"command": "x"}}}')
    path.chmod(0o644)
    ksi("agents", "add", "ada")
    done = ksi("agents", "config", "ada", "--write")
    assert done.returncode == 0
    assert "0644" in done.stderr
    first = token_of(entry_in(path))
    assert first not in done.stdout + done.stderr
    assert json.loads(path.read_text())["mcpServers"]["other"] == {"command": "x"}
    written = json.loads(ksi("agents", "config", "ada", "--write", "--json").stdout)
    second = token_of(entry_in(path))
    assert (written["file"], len(written["revoked"])) == (str(path), 1)
    assert token_of(entry_in(Path(written["backup"]))) == first
    assert ksi(*ECHO, T=first).returncode == 4
    assert ksi(*ECHO, T=second).returncode == 0


@pytest.mark.usefixtures("running")
def test_no_token_is_left_behind_when_the_file_is_refused(ksi: Ksi, tmp_path: Path) -> None:
    """S02."""
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "target").write_text("{}")
    (tmp_path / "link.json").symlink_to(tmp_path / "target")
    ksi("agents", "add", "ada")
    for name, code in (("broken.json", 65), ("link.json", 1)):
        for words in (("agents", "config", "ada", "--write"), ("connect", "claude-code")):
            with case(name, words):
                done = ksi(*words, "--file", name)
                assert done.returncode == code
                assert "next:" in done.stderr
    with SyncClient() as client:
        assert [token["label"] for token in client.send("token:list")["tokens"]] == ["first"]
        assert [agent["agent_id"] for agent in client.send("agent:list")["agents"]] == ["ada"]
    assert (tmp_path / "target").read_text() == "{}"


@pytest.mark.usefixtures("running")
def test_connect_does_everything_in_one_step_and_its_undo_takes_everything_back(ksi: Ksi, tmp_path: Path) -> None:
    path = tmp_path / ".mcp.json"
    done = ksi("connect", "claude-code")
    assert done.returncode == 0, done.stderr
    entry = entry_in(path)
    assert entry["headers"]["X-KSI-Agent-ID"] == "claude-code"
    assert ksi(*ECHO, T=token_of(entry)).returncode == 0
    assert token_of(entry) not in done.stdout + done.stderr
    assert "ksi tools call ksi_system_echo text=hello --as claude-code" in done.stdout
    undo = [line.strip() for line in done.stdout.partition("undo it:\n")[2].splitlines()]
    assert undo == ["ksi agents rm claude-code --force", f"rm {path}"]
    for command in undo:
        words = shlex.split(command)
        assert ksi(*words[1:]).returncode == 0 if words[0] == "ksi" else not subprocess.call(words)
    assert not path.exists()
    assert json.loads(ksi("agents", "ls", "--json").stdout)["agents"] == []
    path.write_text('{"mine": 1}')
    undo = json.loads(ksi("connect", "claude-code", "--json").stdout)["undo"]
    assert subprocess.call(shlex.split(undo[1])) == 0
    assert path.read_text() == '{"mine": 1}'


@pytest.mark.usefixtures("running")
def test_connecting_the_same_file_again_keeps_the_agent_and_revokes_the_earlier_token(ksi: Ksi, tmp_path: Path) -> None:
    path = tmp_path / ".mcp.json"
    assert json.loads(ksi("connect", "claude-code", "--json").stdout)["agent_added"] is True
    first = token_of(entry_in(path))
    again = json.loads(ksi("connect", "claude-code", "--json").stdout)
    assert (again["agent_id"], again["agent_added"], len(again["revoked"])) == ("claude-code", False, 1)
    assert "delete the entry ksi of mcpServers" in again["undo"][1]
    assert ksi(*ECHO, T=first).returncode == 4
    assert ksi(*ECHO, T=token_of(entry_in(path))).returncode == 0
    other = json.loads(ksi("connect", "claude-code", "--file", "elsewhere/x.json", "--json").stdout)
    assert other["agent_id"] == "claude-code-2"
    assert (tmp_path / "elsewhere").stat().st_mode & 0o777 == 0o700
    assert ksi(*ECHO, T=token_of(entry_in(path))).returncode == 0


@pytest.mark.usefixtures("running")
def test_an_entry_that_a_stranger_wrote_does_not_choose_the_agent(ksi: Ksi, tmp_path: Path) -> None:
    ksi("agents", "add", "boss", "--profile", "trusted")
    (tmp_path / ".mcp.json").write_text('{"mcpServers": {"ksi": {"headers": {"X-KSI-Agent-ID": "boss"}}}}')
    assert ksi("connect", "claude-code").returncode == 0
    assert entry_in(tmp_path / ".mcp.json")["headers"]["X-KSI-Agent-ID"] == "claude-code"


@pytest.mark.usefixtures("running")
def test_connect_takes_a_name_a_profile_and_the_token_from_the_environment(
    ksi: Ksi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    done = ksi("connect", "codex", "--name", "helper", "--profile", "restricted")
    assert done.returncode == 0, done.stderr
    config = tomllib.loads((tmp_path / "codex" / "config.toml").read_text())
    assert config["mcp_servers"]["ksi"]["http_headers"] == {"X-KSI-Agent-ID": "helper"}
    (token,) = re.findall(r"^export KSI_TOKEN=(\S+)$", done.stderr, re.MULTILINE)
    assert ksi(*ECHO, T=token).returncode == 0
    assert ksi("connect", "codex", "--agent", "helper", "--profile", "trusted").returncode == 7
    claude = json.loads(ksi("connect", "claude-code", "--agent", "helper", "--env", "--json").stdout)
    assert (claude["agent_added"], claude["token_variable"]) == (False, "KSI_TOKEN")
    assert token_of(entry_in(tmp_path / ".mcp.json")) == "${KSI_TOKEN}"
    assert claude["undo"][0] == f"ksi tokens revoke {claude['credential_id']}"
    assert ksi("connect", "generic").returncode == 2
    assert ksi("connect", "generic", "--file", "any.json").returncode == 0


@pytest.mark.usefixtures("running")
def test_cursor_and_vscode_are_connected_in_their_own_files_without_the_token_in_them(ksi: Ksi, tmp_path: Path) -> None:
    """K006."""
    cursor = ksi("connect", "cursor")
    assert cursor.returncode == 0, cursor.stderr
    entry = entry_in(tmp_path / ".cursor" / "mcp.json")
    assert entry["headers"] == {"X-KSI-Agent-ID": "cursor", "Authorization": "Bearer ${env:KSI_TOKEN}"}
    (token,) = re.findall(r"^export KSI_TOKEN=(\S+)$", cursor.stderr, re.MULTILINE)
    assert ksi(*ECHO, T=token).returncode == 0
    vscode = ksi("connect", "vscode")
    document = json.loads((tmp_path / ".vscode" / "mcp.json").read_text())
    assert document["servers"]["ksi"]["headers"]["Authorization"] == "Bearer ${input:ksi-token}"
    assert [asked["id"] for asked in document["inputs"]] == ["ksi-token"]
    (token,) = re.findall(r"^token: (\S+)$", vscode.stderr, re.MULTILINE)
    assert ksi(*ECHO, T=token).returncode == 0
    assert "servers.ksi" in vscode.stdout
    assert ksi("connect", "vscode", "--type", "sse").returncode == 2
    again = json.loads(ksi("connect", "vscode", "--in-file", "--json").stdout)
    assert (again["agent_added"], len(again["revoked"]), again["token"]) == (False, 1, None)


@pytest.mark.usefixtures("running")
def test_the_command_of_a_stdio_config_serves_the_agent(ksi: Ksi, tmp_path: Path) -> None:
    """What is written into the file works as it stands, in a folder that is not ours (L080)."""
    (tmp_path / "ksi_client.py").write_text("raise SystemExit('a module of a stranger was run')\n")
    done = ksi("connect", "claude-code", "--type", "stdio")
    assert done.returncode == 0, done.stderr
    entry = entry_in(tmp_path / ".mcp.json")
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    arguments = {"name": "ksi_system_echo", "arguments": {"text": "hi"}}
    served = subprocess.run(
        [entry["command"], *entry["args"]],
        input=json.dumps(call | {"params": arguments}) + "\n",
        env=os.environ | entry["env"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (served.returncode, served.stderr) == (0, "")
    assert json.loads(served.stdout)["result"]["structuredContent"] == {"text": "hi"}


@needs_git
@pytest.mark.usefixtures("running")
def test_a_secret_in_a_git_work_tree_is_warned_about_unless_it_is_ignored(ksi: Ksi, tmp_path: Path) -> None:
    project = tmp_path / "project"
    subprocess.run(["git", "init", "--quiet", str(project)], check=True, timeout=20)
    path = str(project / ".mcp.json")
    assert "never commit it" in ksi("connect", "claude-code", "--file", path).stderr
    assert "never commit it" not in ksi("connect", "claude-code", "--file", path, "--env").stderr
    (project / ".gitignore").write_text(".mcp.json*\n")
    assert "never commit it" not in ksi("connect", "claude-code", "--file", path).stderr


@pytest.mark.usefixtures("running")
def test_tools_are_listed_shown_called_and_measured(ksi: Ksi) -> None:
    ksi("agents", "add", "ada", "--profile", "restricted")
    listed = json.loads(ksi("tools", "ls", "--as", "ada", "--json").stdout)
    (echo,) = [tool for tool in listed if tool["event"] == "system:echo"]
    assert echo | {"title": ""} == {
        "tool": "ksi_system_echo",
        "event": "system:echo",
        "title": "",
        "summary": "Return the text, to test a connection.",
        "reads": True,
    }
    assert "ksi_state_set" not in {tool["tool"] for tool in listed}
    assert "ksi_state_set" in ksi("tools", "ls").stdout
    for name in ("ksi_system_echo", "system:echo"):
        shown = json.loads(ksi("tools", "show", name, "--json").stdout)
        assert (shown["tool"], list(shown["inputSchema"]["properties"])) == ("ksi_system_echo", ["text"])
    assert '"text"' in ksi("tools", "show", "ksi_system_echo").stdout
    call = ("tools", "call", "ksi_system_echo", "text=5", "--as", "ada", "--json")
    assert json.loads(ksi(*call).stdout) == {"text": "5"}
    assert ksi("tools", "call", "ksi_state_set", "key=k", "value=v", "--as", "ada").returncode == 4
    rows = json.loads(ksi("audit", "query", "--agent", "ada", "--json").stdout)["rows"]
    assert ("state:set", "forbidden") in {(row["event"], row["status"]) for row in rows}
    for words in (("show",), ("call",)):
        unknown = ksi("tools", *words, "ksi_system_ecko")
        assert (unknown.returncode, "did you mean ksi_system_echo?" in unknown.stderr) == (3, True)
    assert ksi("tools", "show", "ksi_state_set", "--as", "ada").returncode == 3
    assert ksi("tools", "call", "ksi_system_echo", "txet=hi").returncode == 2
    stats = {row["event"]: row for row in json.loads(ksi("tools", "stats", "--json").stdout)}
    assert (stats["system:echo"]["tool"], stats["system:echo"]["calls"]) == ("ksi_system_echo", 1)
    assert stats["state:set"]["error_percent"] == 100.0
    assert "P99 MS" in ksi("tools", "stats").stdout


def test_without_a_daemon_nothing_is_made(ksi: Ksi, tmp_path: Path) -> None:
    done = ksi("connect", "claude-code", "--file", "new/config.json")
    assert (done.returncode, "ksi start" in done.stderr) == (5, True)
    assert not (tmp_path / "new").exists()


def test_what_fails_on_the_way_is_taken_back_or_named(daemon: FakeDaemon, ksi: Ksi, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    connect = ("connect", "generic", "--file", "config.json")
    daemon.answers["agent:config"], working = fail(code="conflict", message="too many"), daemon.answers["agent:config"]
    assert ksi(*connect).returncode == 7
    assert (daemon.requests[-1]["event"], daemon.requests[-1]["data"]) == ("agent:remove", {"agent_id": "generic"})
    daemon.answers["agent:remove"] = fail(code="internal", message="no disk")
    assert "ksi agents rm generic" in ksi(*connect).stderr
    assert not path.exists()
    daemon.answers["agent:config"] = working
    earlier = {"credential_id": "t1", "agent_id": "ada", "state": "live", "label": token_label("generic", path, "ksi")}
    daemon.answers["token:list"] = lambda _: {"tokens": [earlier]}
    daemon.answers["token:revoke"] = fail(code="internal", message="no disk")
    done = ksi(*connect)
    assert (done.returncode, "ksi tokens revoke t1" in done.stderr) == (0, True)
    assert entry_in(path) == {"url": "http://127.0.0.1:1/mcp"}
    assert daemon.requests[-1]["data"] == {"credential_id": "t1"}
    path.chmod(0o600)
    path.write_text("{}")
    daemon.answers["agent:config"] = lambda data: path.write_text("{ }") and working(data)
    done = ksi(*connect)
    assert (done.returncode, "ksi tokens revoke t3" in done.stderr) == (7, True)
    assert path.read_text() == "{ }"


def test_a_label_names_client_and_file_and_stays_within_the_limit() -> None:
    assert token_label("codex", Path("/a/config.toml"), "ksi") == "codex /a/config.toml"
    long = [token_label("codex", Path("/" + "x" * 200 + end), "ksi") for end in ("a", "b")]
    assert max(map(len, long)) <= LABEL_LIMIT
    assert long[0] != long[1]
    assert token_label("codex", Path("/a"), "hub") != token_label("codex", Path("/a"), "ksi")
