"""Completions by the provider `command`: real programs, run by a daemon inside the test."""

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ksi_daemon.agents.run_folder import RunFolder
from ksi_daemon.agents.runner_process import marked_processes
from ksi_daemon.errors import Conflict, Forbidden, Invalid, NotFound, Unavailable
from ksi_daemon.principal import Principal
from ksi_daemon.testing import TestHub, running
from tests.cases import case
from tests.in_process import call

WAIT_S = 20.0


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[TestHub]:
    async with running(var_dir=tmp_path / "var", completions_at_once=4) as hub:
        yield hub


async def spawn(hub: TestHub, script: str, name: str = "bot", **more: Any) -> dict[str, Any]:
    options = {"command": ["/bin/sh", "-c", script]} | more.pop("options", {})
    answer: dict[str, Any] = await hub.call("agent:spawn", agent_id=name, provider="command", options=options, **more)
    return answer


async def ask(hub: TestHub, prompt: str, name: str = "bot", **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = await hub.call("completion:async", agent_id=name, prompt=prompt, **more)
    return answer


async def end_of(hub: TestHub, completion: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = await hub.call(
        "completion:wait", completion_id=completion["completion_id"], timeout_s=WAIT_S
    )
    return answer


def processes(hub: TestHub) -> list[int]:
    return [pid for pid, _ in marked_processes(hub.hub.completions._mark)]


async def until(condition: Any) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - processes and files have no event
            await asyncio.sleep(0.01)


async def test_a_prompt_becomes_an_answer_and_a_conversation_with_messages(hub: TestHub) -> None:
    """Section 3.3, Completion."""
    hub.subscribe("completion:*")
    spawned = await spawn(hub, "tr a-z A-Z", prompt="hello")
    done = await end_of(hub, spawned)
    assert (done["state"], done["text"], done["error"], done["pid"]) == ("done", "HELLO", None, None)
    assert [(await hub.next_notice()).event for _ in range(3)] == [
        "completion:started", "completion:progress", "completion:result",
    ]  # fmt: skip
    page = await hub.call("conversation:get", conversation_id=spawned["conversation_id"])
    assert [(each["role"], each["text"]) for each in page["page"]] == [("user", "hello"), ("assistant", "HELLO")]
    markdown = await hub.call("conversation:export", conversation_id=spawned["conversation_id"])
    assert "## 2. Answer" in markdown["content"]
    as_json = await hub.call("conversation:export", conversation_id=spawned["conversation_id"], format="json")
    assert [each["text"] for each in as_json["content"]["messages"]] == ["hello", "HELLO"]
    assert processes(hub) == []


async def test_a_program_gets_its_identity_by_environment_and_a_config_of_mode_0600(hub: TestHub) -> None:
    """K006, K007, K009, K010, K014, K024: also under umask 0."""
    script = 'cat "$KSI_MCP_CONFIG"; stat -c " %a" "$KSI_MCP_CONFIG" "$(dirname "$KSI_MCP_CONFIG")"; env | grep ^KSI_'
    before = os.umask(0)
    try:
        done = await end_of(hub, await spawn(hub, script, prompt="go", conversation_id="talk"))
    finally:
        os.umask(before)
    config, _, rest = done["text"].partition("\n}\n")
    entry = json.loads(config + "}")["mcpServers"]["ksi"]
    variables = dict(line.split("=", 1) for line in rest.splitlines() if line.startswith("KSI_"))
    assert rest.split()[:2] == ["600", "700"]
    assert entry["type"] == "streamable-http"
    assert entry["headers"] == {
        "X-KSI-Agent-ID": "bot",
        "X-KSI-Conversation-ID": "talk",
        "Authorization": f"Bearer {variables['KSI_TOKEN']}",
    }
    assert (entry["verifySsl"], entry["retry"]) == (False, {"maxAttempts": 3, "backoffMs": 1000})
    assert variables["KSI_AGENT_ID"] == "bot"
    assert variables["KSI_COMPLETION_ID"] == done["completion_id"]


async def test_the_token_and_the_config_end_with_the_completion(hub: TestHub) -> None:
    """K015, S03."""
    completion = await spawn(hub, "echo $KSI_TOKEN; exec sleep 1000", prompt="go")
    rights, folder = hub.hub.rights, hub.hub.completions.agents_folder / "bot" / completion["completion_id"]
    await until(
        lambda: rights.credentials.live("bot") and (folder / "stdout").exists() and (folder / "stdout").stat().st_size
    )
    assert (folder / "mcp.json").exists()
    hub.subscribe("agent:terminated")
    await hub.call("agent:terminate", agent_id="bot")
    assert (await hub.next_notice()).event == "agent:terminated"
    assert rights.credentials.live("bot") == []
    assert not (folder / "mcp.json").exists()
    assert processes(hub) == []
    assert (await hub.call("agent:get", agent_id="bot"))["state"] == "terminated"
    assert (await hub.call("completion:status", completion_id=completion["completion_id"]))["state"] == "cancelled"


def refuse(folder: RunFolder) -> None:
    raise PermissionError(13, "Permission denied", str(folder.path))


async def test_a_config_that_is_gone_or_cannot_be_deleted_does_not_keep_an_agent_alive(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S03: the token is dead all the same, and the leftover is in the log."""
    for name in ("gone", "stuck"):
        completion = await spawn(hub, "echo $KSI_TOKEN; exec sleep 1000", name, prompt="go")
        folder = hub.hub.completions.agents_folder / name / completion["completion_id"]
        await until(lambda: (folder / "stdout").exists() and (folder / "stdout").stat().st_size)  # noqa: B023
        if name == "gone":
            (folder / "mcp.json").unlink()
        else:
            monkeypatch.setattr(RunFolder, "delete_secrets", refuse)
        await hub.call("agent:terminate", agent_id=name)
        assert hub.hub.rights.credentials.live(name) == []
        assert processes(hub) == []
        state = (await hub.call("completion:status", completion_id=completion["completion_id"]))["state"]
        assert state == "cancelled"


async def test_terminating_ends_all_below_and_restarting_revives(hub: TestHub) -> None:
    """Cascade; the record stays; agent:remove deletes it."""
    await spawn(hub, "exec sleep 1000", "top", prompt="go")
    child = await spawn(hub, "exec sleep 1000", "child", parent_id="top", prompt="go")
    await until(lambda: len(processes(hub)) == 2)
    ended = await hub.call("agent:terminate", agent_id="top")
    assert (ended["agents"], ended["completions"]) == (["top", "child"], 2)
    assert processes(hub) == []
    with pytest.raises(Conflict, match="terminated"):
        await ask(hub, "go", "top")
    await hub.call("agent:restart", agent_id="top")
    await hub.call("agent:restart", agent_id="child")
    assert (await hub.call("agent:get", agent_id="child"))["state"] == "idle"
    with pytest.raises(Conflict, match="children"):
        await hub.call("agent:remove", agent_id="top")
    await hub.call("agent:remove", agent_id="child")
    with pytest.raises(NotFound):
        await hub.call("completion:status", completion_id=child["completion_id"])
    assert not (hub.hub.completions.agents_folder / "child").exists()


async def test_completions_of_one_conversation_run_one_after_the_other(hub: TestHub, tmp_path: Path) -> None:
    """The queue is the lock of a conversation. Conversation locks."""
    (tmp_path / "log").touch()
    script = f'read p; echo "begin $p" >> {tmp_path}/log; sleep 0.05; echo "end $p" >> {tmp_path}/log'
    await spawn(hub, script)
    asked = [await ask(hub, f"{number}\n", conversation_id="talk") for number in range(4)]
    assert (await hub.call("completion:status", completion_id=asked[3]["completion_id"]))["place"] == 3
    for each in asked:
        assert (await end_of(hub, each))["state"] == "done"
    expected = [f"{word} {number}" for number in range(4) for word in ("begin", "end")]
    assert (tmp_path / "log").read_text().splitlines() == expected


async def test_a_waiting_completion_and_a_running_one_are_cancelled(hub: TestHub) -> None:
    await spawn(hub, "exec sleep 1000")
    first, second = [await ask(hub, "go", conversation_id="talk") for _ in range(2)]
    await until(lambda: processes(hub))
    for completion in (second, first):
        assert (await hub.call("completion:cancel", completion_id=completion["completion_id"]))["state"] == "cancelled"
    assert processes(hub) == []
    messages = (await hub.call("conversation:get", conversation_id="talk"))["page"]
    assert [each["completion_id"] for each in messages] == [first["completion_id"]]


async def test_only_passing_failures_are_tried_again(
    hub: TestHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 75 is a passing one; each attempt has a token of its own."""
    monkeypatch.setattr("ksi_daemon.completion.completions.RETRY_PAUSES_S", (0.01,))
    script = f"echo $KSI_TOKEN >> {tmp_path}/tokens; [ $(wc -l < {tmp_path}/tokens) = 3 ] || exit 75; echo yes"
    done = await end_of(hub, await spawn(hub, script, prompt="go"))
    assert (done["state"], done["text"], done["attempt"]) == ("done", "yes\n", 3)
    assert len(set((tmp_path / "tokens").read_text().split())) == 3
    failed = await end_of(hub, await spawn(hub, "echo no >&2; exit 4", "other", prompt="go"))
    assert (failed["state"], failed["attempt"]) == ("failed", 1)
    assert failed["error"] == {"code": "program_failed", "message": "the program exited with 4: no"}


async def test_deadlines_of_the_first_output_and_of_the_whole(hub: TestHub) -> None:
    await spawn(hub, "exec sleep 1000")
    silent = await end_of(hub, await ask(hub, "go", first_output_s=0.2))
    assert silent["error"]["code"] == "timed_out"
    assert "printed nothing" in silent["error"]["message"]
    await spawn(hub, "echo x; exec sleep 1000", "talker")
    asked = await ask(hub, "go", "talker", first_output_s=0.2, timeout_s=0.9)
    await until(lambda: hub.hub.completions.text_so_far(asked["completion_id"]))
    assert (await hub.call("completion:status", completion_id=asked["completion_id"]))["text"] == "x\n"
    long = await end_of(hub, asked)
    assert "did not end within 0.9 s" in long["error"]["message"]
    assert long["text"] == "x\n"
    assert processes(hub) == []


async def test_a_resumed_conversation_is_said_to_the_program_and_the_token(hub: TestHub) -> None:
    """The first completion of a conversation does not resume, later ones do if the program says so."""
    await spawn(hub, 'echo "${KSI_RESUMES:-no}"', options={"resumes": True})
    texts = [(await end_of(hub, await ask(hub, "go", conversation_id="talk")))["text"] for _ in range(2)]
    assert texts == ["no\n", "1\n"]
    tokens = hub.hub.rights.credentials.of("bot")
    assert [token.resumes for token in tokens] == [False, True]


async def test_usage_that_a_program_reports_is_added_up(hub: TestHub) -> None:
    """K017 with the fields of the specification; the log line is checked on a real daemon."""
    usage = {"input_tokens": 17, "cache_creation_tokens": 3314, "cache_read_tokens": 45662, "output_tokens": 306}
    script = f"echo '{json.dumps(usage)}' > $KSI_USAGE_FILE"
    done = await end_of(hub, await spawn(hub, script, prompt="go"))
    assert done["usage"] == usage | {"cost_usd": None}
    sums = (await hub.call("completion:token_usage"))["usage"]
    assert [(each["group"], each["cache_creation_tokens"], each["completions"]) for each in sums] == [("bot", 3314, 1)]
    await hub.call("agent:remove", agent_id="bot")
    assert (await hub.call("completion:token_usage", by="handshake"))["usage"][0]["group"] == "none"


async def test_a_frozen_agent_begins_nothing_until_it_is_unfrozen(hub: TestHub) -> None:
    await spawn(hub, "echo yes")
    await hub.call("agent:freeze", agent_id="bot")
    asked = await ask(hub, "go")
    waited = await hub.call("completion:wait", completion_id=asked["completion_id"], timeout_s=0.1)
    assert waited["state"] == "queued"
    assert (await hub.call("agent:get", agent_id="bot"))["state"] == "frozen"
    await hub.call("agent:unfreeze", agent_id="bot")
    assert (await end_of(hub, asked))["state"] == "done"


async def test_what_cannot_be_spawned_is_refused_with_the_reason(hub: TestHub, tmp_path: Path) -> None:
    echo = {"command": ["/bin/echo"]}
    refused: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({}, Invalid, "what is to run it"),
        ({"provider": "nope"}, Invalid, "provider: Input should be"),
        ({"provider": "command"}, Invalid, "do not fit the provider command: command: Field required"),
        ({"provider": "command", "options": {"command": ["/no/such"]}}, Unavailable, "not installed"),
        ({"provider": "command", "options": echo, "workspace": "relative"}, Invalid, "not an existing folder"),
        ({"provider": "command", "options": echo, "profile": "king"}, Invalid, "profile"),
    ]
    for wanted, error, words in refused:
        with case(wanted), pytest.raises(error, match=words):
            await hub.call("agent:spawn", agent_id="bot", **wanted)
    await hub.call("agent:register", agent_id="guest")
    with pytest.raises(Conflict, match="connects by itself"):
        await ask(hub, "go", "guest")
    assert not (hub.hub.completions.agents_folder / "bot").exists()


async def test_an_agent_spawns_below_itself_only_and_chooses_no_program(hub: TestHub, tmp_path: Path) -> None:
    """Children never exceed their parent, in rights or in what is executed. A08."""
    (tmp_path / "work").mkdir()
    await spawn(hub, "echo me", "boss", profile="trusted", workspace=str(tmp_path / "work"))
    await spawn(hub, "echo me", "stranger")
    boss = Principal(kind="agent", name="boss", agent_id="boss")

    async def as_boss(event: str, **data: Any) -> Any:
        return await call(hub.hub.router, event, data, principal=boss)

    refused: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"options": {"command": ["/bin/sh"]}}, Forbidden),
        ({"parent_id": "stranger"}, NotFound),
        ({"workspace": "/etc"}, Forbidden),
    ]
    for wanted, error in refused:
        with case(wanted), pytest.raises(error):
            await as_boss("agent:spawn", agent_id="kid", **wanted)
    made = await as_boss("agent:spawn", agent_id="kid", profile="trusted", prompt="go")
    assert (made["parent_id"], made["workspace"]) == ("boss", str(tmp_path / "work"))
    assert (await as_boss("completion:wait", completion_id=made["completion_id"]))["text"] == "me\n"
    seen = (await as_boss("agent:tree"))["agents"]
    assert [(node["agent_id"], node["depth"]) for node in seen] == [("boss", 0), ("kid", 1)]
    other = await ask(hub, "go", "stranger")
    await end_of(hub, other)
    for event, data in [
        ("completion:status", {"completion_id": other["completion_id"]}),
        ("completion:async", {"agent_id": "stranger", "prompt": "x"}),
        ("conversation:get", {"conversation_id": other["conversation_id"]}),
        ("agent:terminate", {"agent_id": "stranger"}),
        ("agent:logs", {"agent_id": "stranger"}),
        ("completion:token_usage", {"agent_id": "stranger"}),
    ]:
        with case(event), pytest.raises(NotFound):
            await as_boss(event, **data)
    listed = await as_boss("completion:list")
    assert {each["agent_id"] for each in listed["completions"]} == {"kid"}


async def test_logs_are_read_in_pages_without_cutting_characters(hub: TestHub) -> None:
    script = "for i in $(seq 40000); do printf 'ü'; done; echo oops >&2"
    completion = await spawn(hub, script, prompt="go")
    await end_of(hub, completion)
    text, offset = "", 0
    while True:
        page = await hub.call("agent:logs", agent_id="bot", offset=offset)
        if page["next_offset"] == offset:
            break
        text, offset = text + page["text"], page["next_offset"]
    assert text == "ü" * 40_000
    assert (await hub.call("agent:logs", agent_id="bot", stream="stderr"))["text"] == "oops\n"


async def test_a_long_answer_and_a_long_conversation_can_be_read(hub: TestHub) -> None:
    """Promise 6: what is cut says so, and nothing is unreadable for being long."""
    script = "head -c 3000000 /dev/zero | tr '\\0' x"
    for _ in range(4):
        done = await end_of(hub, await spawn_once(hub, script))
        assert done["text"].startswith("x" * 1_000)
        assert "cut from 3,000,000 characters" in done["text"]
    seen: list[int] = []
    after: Any = 0
    while after is not None:
        page = await hub.call("conversation:get", conversation_id="talk", after=after)
        seen += [each["seq"] for each in page["page"]]
        after = page["next_after"]
    assert seen == list(range(1, 9))
    text = ""
    after = 0
    while after is not None:
        part = await hub.call("conversation:export", conversation_id="talk", after=after)
        text, after = text + part["content"], part["next_after"]
    assert text.count("\n## ") == 8
    assert text.count("# Conversation talk of bot") == 1
    assert (await hub.call("agent:logs", agent_id="bot", offset=2_999_990))["text"] == "x" * 10


async def spawn_once(hub: TestHub, script: str) -> dict[str, Any]:
    if "bot" not in hub.hub.rights.agents:
        await spawn(hub, script)
    return await ask(hub, "go", conversation_id="talk")


async def test_a_folder_of_an_agent_belongs_to_its_owner_only(hub: TestHub) -> None:
    await end_of(hub, await spawn(hub, "true", prompt="go"))
    for path in [hub.hub.completions.agents_folder, *hub.hub.completions.agents_folder.rglob("*")]:
        with case(path):
            mode = stat.S_IMODE(path.lstat().st_mode)
            assert mode == (0o700 if path.is_dir() else 0o600)
