"""`scripts/eval-handshake`: has a daemon list all tools in full and thin to a trusted agent, and counts the tokens of both."""

import argparse
import http.client
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ksi_daemon.mcp.tools import BYTES_PER_TOKEN
from scripts.benchmarks.hub.daemon_process import ask, daemon, scratch_var

SHARE_LIMIT = 0.40  # of the thin list in the full one
ESTIMATE_FACTOR = 1.25  # between the daemon's estimate and any count, either way
KINDS = ("full", "thin")
COUNTER = Path(__file__).with_name("token_counts.py")
LIMIT_S = 120


def listed(port: int, token: str, kind: str) -> list[dict[str, Any]]:
    """Every page of the list of tools, as a client gets it."""
    tools: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        params = {} if cursor is None else {"cursor": cursor}
        result = _request(port, token, kind, {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params})
        tools += result["tools"]
        cursor = result.get("nextCursor")
        if cursor is None:
            return tools


def _request(port: int, token: str, kind: str, body: dict[str, Any]) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", "X-KSI-Handshake": kind}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        connection.request("POST", "/mcp", json.dumps(body), headers)
        answer = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    if "result" not in answer:
        raise SystemExit(f"eval-handshake: {body['method']} was refused: {answer['error']['message']}")
    result: dict[str, Any] = answer["result"]
    return result


def lists() -> dict[str, list[dict[str, Any]]]:
    """The full and the thin list of a daemon of its own, with the shipped plugins."""
    with scratch_var() as var_dir, daemon(var_dir):
        token = ask(var_dir, "agent:register", {"agent_id": "reader", "profile": "trusted"})["token"]
        port = int((var_dir / "run" / "http_port").read_text(encoding="ascii"))
        return {kind: listed(port, token, kind) for kind in KINDS}


def counted(texts: dict[str, str]) -> dict[str, dict[str, int]]:
    """The tokens of each text, by each tokenizer."""
    done = subprocess.run(
        [os.environ["KSI_EVAL_TOKENIZERS"], COUNTER], input=json.dumps(texts), check=True, stdout=subprocess.PIPE,
        text=True, timeout=LIMIT_S,
    )  # fmt: skip
    counts: dict[str, dict[str, int]] = json.loads(done.stdout)
    return counts


def figures(tools: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """One row for the bytes, one for the daemon's estimate, one for each tokenizer."""
    texts = {kind: json.dumps(shown, ensure_ascii=False, separators=(",", ":")) for kind, shown in tools.items()}
    sizes = {kind: len(text.encode()) for kind, text in texts.items()}
    estimate = {kind: round(size / BYTES_PER_TOKEN) for kind, size in sizes.items()}
    rows: list[dict[str, Any]] = [
        {"count": "bytes", **sizes},
        {"count": f"estimate (bytes/{BYTES_PER_TOKEN})", **estimate},
    ]
    for name, count in counted(texts).items():
        rows.append({"count": name, **count, "estimated": {kind: estimate[kind] / count[kind] for kind in KINDS}})
    return [{**row, "share": row["thin"] / row["full"]} for row in rows]


def complaints(rows: list[dict[str, Any]]) -> list[str]:
    """The limits that are missed, in words."""
    found = [
        f"the thin list is above {SHARE_LIMIT:.0%} of the full one by {row['count']}"
        for row in rows
        if row["share"] > SHARE_LIMIT
    ]
    return found + [
        f"the daemon's estimate of the {kind} list is off by more than a factor of {ESTIMATE_FACTOR} by {row['count']}"
        for row in rows
        for kind, estimated in row.get("estimated", {}).items()
        if max(estimated, 1 / estimated) > ESTIMATE_FACTOR
    ]


def show(rows: list[dict[str, Any]], tools: int) -> None:
    """Print the table."""
    print(f"{f'{tools} tools':<22}{'full':>9}{'thin':>9}{'thin/full':>11}   estimate/count, full and thin")
    for row in rows:
        against = "   {full:.2f} and {thin:.2f}".format(**row["estimated"]) if "estimated" in row else ""
        print(f"{row['count']:<22}{row['full']:>9,}{row['thin']:>9,}{row['share']:>11.1%}{against}")


def main() -> int:
    """Returns the exit code: 1 when a limit is missed."""
    parser = argparse.ArgumentParser(prog="scripts/eval-handshake", description="Count the tokens of lists of tools.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    arguments = parser.parse_args()
    tools = lists()
    rows = figures(tools)
    show(rows, len(tools["full"]))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    found = complaints(rows)
    print("".join(f"missed: {complaint}\n" for complaint in found), end="", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
