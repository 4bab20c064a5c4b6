"""Runs one real client as an agent of a hub of its own: two completions of one conversation, then two that meet a failure."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ksi_client.errors import KsiError
from ksi_client.sync_client import SyncClient
from scripts.real_clients.clients import CLIENTS, KEY, RealClient
from scripts.real_clients.installation import installed
from scripts.real_clients.model_stub import ModelStub

ROOT = Path(__file__).parents[2]
TOOL, SAID = "ksi_system_echo", "hello from a tool"
LIMIT_S = 90.0  # for one completion
AGENT, CONVERSATION = "scout", "trip"


class Report:
    """Prints what was found, and counts what was not as it should be."""

    def __init__(self) -> None:
        self.failed = 0

    def check(self, what: str, right: bool, found: object = "") -> None:
        """One line; `found` is shown when it is not right."""
        print(f"{'ok    ' if right else 'failed'}  {what}{'' if right else f': {found}'}", flush=True)
        self.failed += not right


@contextmanager
def hub(folder: Path, environment: dict[str, str]) -> Iterator[SyncClient]:
    """A daemon with these variables and no others, stopped at the end."""
    settings = {"KSI_VAR_DIR": str(folder / "var"), "KSI_CONFIG": str(folder / "ksi.toml"), "KSI_PORT": "0"}
    with (folder / "daemon.stderr").open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "ksi_daemon"],
            env={**environment, **settings, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
    try:
        with SyncClient(folder / "var" / "run" / "ksi.sock", timeout_s=LIMIT_S + 10) as client:
            _wait_for_start(client, process, folder)
            yield client
    finally:
        process.terminate()
        process.wait(30)


def _wait_for_start(client: SyncClient, process: "subprocess.Popen[bytes]", folder: Path) -> None:
    until = time.monotonic() + 30
    while True:
        try:
            client.send("system:status", timeout_s=5)
            return
        except KsiError as error:
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit((folder / "daemon.stderr").read_text(encoding="utf-8")) from error
            time.sleep(0.05)


def wait(ksi: SyncClient, completion_id: str) -> dict[str, Any]:
    """A completion when it has ended."""
    shown: dict[str, Any] = ksi.send("completion:wait", {"completion_id": completion_id, "timeout_s": LIMIT_S})
    return shown


def ask(ksi: SyncClient, prompt: str, **more: Any) -> dict[str, Any]:
    """The next completion of the conversation."""
    request = {"agent_id": AGENT, "conversation_id": CONVERSATION, "prompt": prompt, **more}
    return wait(ksi, ksi.send("completion:async", request)["completion_id"])


def size_of_tools(client: RealClient, bodies: list[dict[str, Any]]) -> str:
    """How much of KSI's tools the model was sent by the first of these requests."""
    tools = client.hub_tools(bodies[0]) if bodies else []
    return f"{len(tools)} tools, {len(json.dumps(tools)):,} bytes"


def run(client: RealClient, bin_folder: Path, variables: dict[str, str], report: Report) -> None:
    """One hub, one agent, four completions."""
    stub = ModelStub(TOOL, {"text": SAID})
    with tempfile.TemporaryDirectory(prefix="ksi-e2e-") as name, stub.serving():
        folder = Path(name)
        home, workspace = folder / "home", folder / "workspace"
        home.mkdir()
        workspace.mkdir()
        environment = {
            "PATH": f"{bin_folder}{os.pathsep}/usr/local/bin{os.pathsep}/usr/bin{os.pathsep}/bin",
            "HOME": str(home),
            "LANG": "C.UTF-8",
            **client.prepare(home, stub.url),
            **variables,
        }
        with hub(folder, environment) as ksi:
            _two_completions(ksi, client, stub, workspace, report)
            _a_lost_session(ksi, home / client.sessions, report)
            _a_model_that_fails(ksi, stub, report)
            ksi.send("agent:terminate", {"agent_id": AGENT})
            left = [
                path.name for path in (folder / "var" / "agents").rglob("*") if path.name in ("mcp.json", "config.toml")
            ]
            report.check("no configuration is left", not left, left)
        report.check("the model saw no key but the dummy", stub.keys <= {KEY, f"Bearer {KEY}"}, stub.keys)
        _show_log(folder, report)


def _two_completions(ksi: SyncClient, client: RealClient, stub: ModelStub, workspace: Path, report: Report) -> None:
    spawned = ksi.send(
        "agent:spawn",
        {
            "agent_id": AGENT, "profile": "standard", "provider": client.provider, "options": client.options,
            "workspace": str(workspace),
            "prompt": "First question: say hello.", "conversation_id": CONVERSATION,
        },
    )  # fmt: skip
    first = wait(ksi, spawned["completion_id"])
    report.check("the first completion is done", first["state"] == "done" and not first["resumed"], first)
    report.check("its tool's result reached the model", _said(stub) == 1, stub.tool_results())
    report.check("its answer has the tool's result", SAID in first["text"], first["text"])
    report.check("the agent's options reached the model", client.reaches_model in json.dumps(stub.bodies), stub.bodies)
    before = len(stub.bodies)
    second = ask(ksi, "Second question: again.")
    report.check("the second completion resumed it", second["state"] == "done" and second["resumed"], second)
    report.check("its tool's result reached the model", _said(stub) == 2, stub.tool_results())
    history = any("First question" in json.dumps(body) for body in stub.bodies[before:])
    report.check("the model was sent the first question again", history)
    same = first["usage"] is not None and _tokens(first) == _tokens(second)
    report.check("both used the same tokens", same, (first["usage"], second["usage"]))
    session = ksi.send("mcp:get_session", {"agent_id": AGENT, "conversation_id": CONVERSATION})
    rows = {row["completion_id"]: row for row in session["completions"]}
    shown_lists = [rows.get(shown["completion_id"], {}) for shown in (first, second)]
    found = [row.get("kind") for row in shown_lists]
    expected = ["full", "thin" if shown_lists[0].get("delivered") else "full"]  # a client may hang up too early to know
    report.check(f"handshakes: {found[0]}, then {found[1]}", found == expected, session)
    print(f"        KSI's tools in the first completion's first request: {size_of_tools(client, stub.bodies)}")
    print(f"        in the second's: {size_of_tools(client, stub.bodies[before:])}")
    print(f"        usage: {json.dumps(first['usage'])}; {json.dumps(second['usage'])}")


def _a_lost_session(ksi: SyncClient, sessions: Path, report: Report) -> None:
    shutil.rmtree(sessions)
    third = ask(ksi, "Third question: once more.")
    anew = third["state"] == "done" and not third["resumed"] and third["attempt"] == 2
    report.check("with the client's session gone the conversation begins anew", anew, third)


def _a_model_that_fails(ksi: SyncClient, stub: ModelStub, report: Report) -> None:
    stub.fails_with = 529
    fourth = ask(ksi, "Fourth question.", attempts=1)
    stub.fails_with = None
    code = (fourth["error"] or {}).get("code")
    report.check("an overloaded model is a failure", (fourth["state"], code) == ("failed", "model_unavailable"), fourth)


def _said(stub: ModelStub) -> int:
    return sum(SAID in result for result in stub.tool_results())


def _tokens(shown: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in shown["usage"].items() if name != "cost_usd"}


def _show_log(folder: Path, report: Report) -> None:
    found = [
        line
        for path in sorted((folder / "var").rglob("*"))
        if path.is_file() and path.suffix in (".log", ".jsonl")
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines()
        if "Completion token usage" in line
    ]
    report.check("the log has the usage of each completion that used tokens", len(found) == 3, found)
    for line in found[:2]:
        print(f"        {line}")


def main() -> int:
    """Returns the exit code: 1 when something was not as it should be."""
    parser = argparse.ArgumentParser(prog="scripts/e2e-CLIENT", description=__doc__)
    parser.add_argument("client", choices=CLIENTS)
    parser.add_argument("--version", help="another release of the client, as npm names it")
    arguments = parser.parse_args()
    client, report = CLIENTS[arguments.client], Report()
    bin_folder = installed(client.package, arguments.version or client.version)
    for what, variables in client.runs.items():
        print(f"{client.package} {arguments.version or client.version}, {what}")
        run(client, bin_folder, variables, report)
    if report.failed:
        print(f"{report.failed} failed")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
