"""The long form of the cross-talk test runs, counts and judges."""

import json
import subprocess
import sys

from scripts.cross_talk.__main__ import Agent
from tests.live.daemon_process import ROOT


def test_a_run_ends_with_every_answer_its_callers_own_and_on_record() -> None:
    """L08: the suite's form, with a tenth of the calls."""
    command = [sys.executable, "-m", "scripts.cross_talk", "--agents", "50", "--calls", "100", "--json"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert finished.returncode == 0, finished.stderr
    figures = json.loads(finished.stdout)
    assert (figures["calls"], figures["own"], figures["recorded"], figures["violations"]) == (5_000, 5_000, 5_000, [])


def test_an_answer_of_another_agent_another_request_or_none_is_noticed() -> None:
    """L08"""
    agent = Agent(0, "agent-0", "none", "2026")
    result = {"content": [], "structuredContent": {"text": "agent-0 1 ab"}}
    own = {"jsonrpc": "2.0", "id": 1, "result": result}
    crossed = [
        {**own, "id": 2},
        {**own, "result": {"structuredContent": {"text": "agent-1 1 ab"}}},
        {"jsonrpc": "2.0", "id": 1, "error": {"code": 429}},
    ]
    agent.judge(200, json.dumps(own).encode(), 1, "agent-0 1 ab")
    assert (agent.own, agent.wrong) == (1, [])
    for answer in crossed:
        agent.judge(200, json.dumps(answer).encode(), 1, "agent-0 1 ab")
    agent.judge(500, json.dumps(own).encode(), 1, "agent-0 1 ab")
    agent.judge(200, b"", 1, "agent-0 1 ab")
    agent.judge(200, json.dumps(own).encode() + b"\n" + json.dumps(own).encode(), 1, "agent-0 1 ab")
    assert (agent.own, len(agent.wrong)) == (1, 6)
