"""agent:register, list, get, remove, freeze and unfreeze, as an operator uses them."""

import asyncio
import json
import sys
import tomllib

import pytest

from ksi_daemon.errors import Conflict, Forbidden, Invalid, NotFound, Unauthenticated
from ksi_daemon.testing import running
from tests.agents_at_work import add_agent, call_as, rows
from tests.cases import case


async def test_an_agent_is_added_with_its_first_token_and_announced_without_it() -> None:
    """K018: whom a token names is who calls."""
    async with running() as hub:
        hub.subscribe("agent:*", "permission:changed")
        made = await hub.call("agent:register", agent_id="bot", note="for tests")
        assert made.keys() == {"agent_id", "profile", "token", "credential_id", "url"}
        assert (made["agent_id"], made["profile"]) == ("bot", "standard")
        notices = {notice.event: notice for notice in [await hub.next_notice(), await hub.next_notice()]}
        assert notices["agent:registered"].data == {"agent_id": "bot", "profile": "standard"}
        assert notices["permission:changed"].data == {"agents": ["bot"]}
        principal = hub.hub.rights.credentials.principal(made["token"], transport="socket")
        assert (principal.agent_id, principal.credential_id) == ("bot", made["credential_id"])


async def test_the_record_of_adding_an_agent_does_not_hold_its_token() -> None:
    """A11, S05."""
    async with running() as hub:
        made = await hub.call("agent:register", agent_id="bot")
        found = await rows(hub, event="agent:register")
        assert [row["type"] for row in found] == ["admin", "admin"]
        assert made["token"] not in str(found)


async def test_a_name_is_taken_once_whatever_its_case() -> None:
    """P10."""
    async with running() as hub:
        tries = [hub.call("agent:register", agent_id=name) for name in ("bot", "Bot", "BOT")]
        made = await asyncio.gather(*tries, return_exceptions=True)
        assert sum(isinstance(one, Conflict) for one in made) == 2
        for name in ("b\u043et", "bot ", "böt", ""):
            with pytest.raises(Invalid):
                await hub.call("agent:register", agent_id=name)
        with pytest.raises(Invalid, match="no profile 'nonsense'"):
            await hub.call("agent:register", agent_id="new", profile="nonsense")
        with pytest.raises(NotFound):
            await hub.call("agent:register", agent_id="new", parent_id="nobody")
        assert [one["agent_id"] for one in (await hub.call("agent:list"))["agents"]] == ["bot"]


async def test_list_and_get_show_everything_but_secrets() -> None:
    async with running() as hub:
        made = await hub.call("agent:register", agent_id="bot", note="why", profile="restricted")
        await add_agent(hub, "child", parent_id="bot")
        await hub.call("permission:grant", agent_id="bot", resource="events/notes:*", for_s=60)
        bot, child = (await hub.call("agent:list"))["agents"]
        assert (bot["profile"], bot["note"], bot["frozen"], bot["tokens"], bot["grants"]) == (
            "restricted", "why", False, 1, 1,
        )  # fmt: skip
        assert (bot["last_used_at"], child["parent_id"]) == (None, "bot")
        assert child["last_used_at"].endswith("Z")
        details = await hub.call("agent:get", agent_id="bot")
        assert details["children"] == ["child"]
        assert details["credentials"] == [
            {"credential_id": made["credential_id"], "kind": "token", "label": "first", "ended": None}
        ]
        sources = {rule["resource"]: rule["source"] for rule in details["rules"]}
        assert sources["events/system:echo"] == "profile restricted"
        assert sources["events/notes:*"].startswith("grant ")
        assert made["token"] not in str(details)
        with pytest.raises(NotFound):
            await hub.call("agent:get", agent_id="nobody")


async def test_a_removed_agent_is_nobody_and_its_name_starts_afresh() -> None:
    """A05."""
    async with running() as hub:
        made = await hub.call("agent:register", agent_id="bot")
        await hub.call("permission:grant", agent_id="bot", resource="events/config:*")
        hub.subscribe("agent:removed")
        assert await hub.call("agent:remove", agent_id="bot") == {"agent_id": "bot", "removed": True}
        assert (await hub.next_notice()).data == {"agent_id": "bot"}
        with pytest.raises(Unauthenticated):
            hub.hub.rights.credentials.principal(made["token"], transport="socket")
        with pytest.raises(NotFound):
            await hub.call("agent:remove", agent_id="bot")
        await hub.call("agent:register", agent_id="bot")
        assert (await hub.call("permission:get_agent", agent_id="bot"))["grants"] == []


async def test_an_agent_with_children_stays() -> None:
    async with running() as hub:
        await add_agent(hub)
        await add_agent(hub, "child", parent_id="bot")
        with pytest.raises(Conflict, match="child"):
            await hub.call("agent:remove", agent_id="bot")


async def test_the_brake_stops_one_or_all_and_is_let_go() -> None:
    """P09."""
    async with running() as hub:
        bots = [await add_agent(hub, f"bot{number}") for number in range(3)]
        hub.subscribe("agent:frozen", "agent:unfrozen")
        assert await hub.call("agent:freeze", agent_id="bot1") == {"agents": ["bot1"]}
        await call_as(hub, bots[0], "system:health")
        with pytest.raises(Forbidden, match="frozen"):
            await call_as(hub, bots[1], "system:health")
        assert sorted((await hub.call("agent:freeze", all=True))["agents"]) == ["bot0", "bot1", "bot2"]
        for bot in bots:
            with pytest.raises(Forbidden, match="frozen"):
                await call_as(hub, bot, "system:health")
        assert all(one["frozen"] for one in (await hub.call("agent:list"))["agents"])
        await hub.call("agent:unfreeze", all=True)
        for bot in bots:
            await call_as(hub, bot, "system:health")
        heard = [(await hub.next_notice()).event for _ in range(3)]
        assert heard == ["agent:frozen", "agent:frozen", "agent:unfrozen"]


@pytest.mark.parametrize("data", [{}, {"agent_id": "bot", "all": True}])
async def test_the_brake_wants_to_know_whom(data: dict[str, object]) -> None:
    async with running() as hub:
        await add_agent(hub)
        for event in ("agent:freeze", "agent:unfreeze"):
            with pytest.raises(Invalid, match="either"):
                await hub.call(event, **data)


OWN_CHILDREN = {"agent:spawn", "agent:tree", "agent:terminate", "agent:restart", "agent:logs"}


async def test_no_agent_manages_agents() -> None:
    """U09, K040: whatever it was granted. What it may do with agents below itself is in tests/completion."""
    async with running() as hub:
        bot = await add_agent(hub, profile="trusted")
        for namespace in ("agent", "token", "permission", "session", "audit"):
            await hub.call("permission:grant", agent_id="bot", resource=f"events/{namespace}:*")
        closed = [
            event
            for event in hub.hub.router.routes
            if event.split(":")[0] in ("agent", "token", "permission", "session", "audit") and event not in OWN_CHILDREN
        ]
        assert len(closed) > 20
        for event in closed:
            with pytest.raises(Forbidden, match="no such tool"):
                await call_as(hub, bot, event)
        refused = await rows(hub, agent="bot", status="forbidden")
        assert {row["event"] for row in refused} == set(closed)


async def test_a_config_for_claude_code_is_the_documented_json_with_a_token_that_works() -> None:
    """K006, K007, K008, K009: type, url and agent header as in the specification."""
    async with running() as hub:
        hub.hub.control.url = "http://127.0.0.1:8080"
        await add_agent(hub)
        made = await hub.call("agent:config", agent_id="bot")
        secret = made["entry"]["headers"]["Authorization"].removeprefix("Bearer ")
        assert made["entry"] == {
            "type": "streamable-http",
            "url": "http://127.0.0.1:8080/mcp",
            "headers": {"X-KSI-Agent-ID": "bot", "Authorization": f"Bearer {secret}"},
            "verifySsl": False,
            "retry": {"maxAttempts": 3, "backoffMs": 1000},
        }
        assert json.loads(made["text"]) == {"mcpServers": {"ksi": made["entry"]}}
        assert (made["format"], made["token"], made["token_variable"]) == ("json", None, None)
        principal = hub.hub.rights.credentials.principal(secret, transport="http")
        assert (principal.agent_id, principal.credential_id) == ("bot", made["credential_id"])
        assert (await hub.call("token:list", agent_id="bot"))["tokens"][-1]["label"] == "claude-code"
        assert secret not in str(await rows(hub, event="agent:config"))


async def test_a_config_names_a_conversation_only_on_request_and_its_token_is_bound_to_it() -> None:
    """K010."""
    async with running() as hub:
        await add_agent(hub)
        made = await hub.call(
            "agent:config", agent_id="bot", client="generic", type="http", conversation_id="conv-1", entry_name="hub"
        )
        (entry,) = json.loads(made["text"])["mcpServers"].values()
        assert json.loads(made["text"])["mcpServers"].keys() == {"hub"}
        assert (entry["type"], entry["headers"]["X-KSI-Conversation-ID"]) == ("http", "conv-1")
        token = entry["headers"]["Authorization"].removeprefix("Bearer ")
        assert hub.hub.rights.credentials.principal(token, transport="http").conversation_id == "conv-1"


async def test_with_the_secret_in_the_environment_it_is_beside_the_text_and_not_in_it() -> None:
    async with running() as hub:
        await add_agent(hub)
        made = await hub.call("agent:config", agent_id="bot", token_in_environment=True)
        assert made["entry"]["headers"]["Authorization"] == "Bearer ${KSI_TOKEN}"
        assert made["token_variable"] == "KSI_TOKEN"
        assert made["token"] not in made["text"]
        assert hub.hub.rights.credentials.principal(made["token"], transport="http").agent_id == "bot"


async def test_a_config_for_codex_is_toml_and_names_the_variable_unless_asked_otherwise() -> None:
    async with running() as hub:
        hub.hub.control.url = "http://127.0.0.1:8080"
        await add_agent(hub)
        made = await hub.call("agent:config", agent_id="bot", client="codex")
        assert made["format"] == "toml"
        assert tomllib.loads(made["text"]) == {"mcp_servers": {"ksi": made["entry"]}}
        assert made["entry"] == {
            "url": "http://127.0.0.1:8080/mcp",
            "http_headers": {"X-KSI-Agent-ID": "bot"},
            "bearer_token_env_var": "KSI_TOKEN",
        }
        assert made["token"] not in made["text"]
        made = await hub.call("agent:config", agent_id="bot", client="codex", token_in_environment=False)
        assert made["entry"]["http_headers"]["Authorization"].startswith("Bearer ksi_")
        assert (made["token"], "bearer_token_env_var" in made["entry"]) == (None, False)


async def test_configs_for_cursor_and_vscode_keep_the_token_out_of_the_file_unless_asked_otherwise() -> None:
    """K006: Cursor replaces ${env:…}, VS Code asks for an input and keeps it."""
    async with running() as hub:
        hub.hub.control.url = "http://127.0.0.1:8080"
        await add_agent(hub)
        for client, key, reference in (
            ("cursor", "mcpServers", "${env:KSI_TOKEN}"), ("vscode", "servers", "${input:hub-token}"),
        ):  # fmt: skip
            with case(client):
                made = await hub.call("agent:config", agent_id="bot", client=client, entry_name="hub")
                remote = {
                    "url": "http://127.0.0.1:8080/mcp",
                    "headers": {"X-KSI-Agent-ID": "bot", "Authorization": f"Bearer {reference}"},
                }
                assert made["entry"] == ({"type": "http"} if client == "vscode" else {}) | remote
                document = json.loads(made["text"])
                assert document.pop(key) == {"hub": made["entry"]}
                assert document == ({"inputs": made["inputs"]} if made["inputs"] else {})
                assert made["token"] not in made["text"]
                assert hub.hub.rights.credentials.principal(made["token"], transport="http").agent_id == "bot"
                inside = await hub.call("agent:config", agent_id="bot", client=client, token_in_environment=False)
                assert inside["entry"]["headers"]["Authorization"].startswith("Bearer ksi_")
                assert (inside["token"], inside["inputs"], "inputs" in inside["text"]) == (None, [], False)
        asked = await hub.call("agent:config", agent_id="bot", client="vscode")
        assert (asked["token_variable"], asked["token_input"]) == (None, "ksi-token")
        assert asked["inputs"] == [
            {"type": "promptString", "id": "ksi-token", "description": "KSI token of the agent bot", "password": True}
        ]


async def test_each_client_can_start_the_bridge_instead_and_gives_it_the_token_in_its_environment() -> None:
    """L080: the token is never on a command line, where every process of the machine could read it."""
    async with running() as hub:
        hub.hub.control.url = "http://127.0.0.1:8080"
        await add_agent(hub)
        for client, outside in (
            ("claude-code", {"env": {"KSI_TOKEN": "${KSI_TOKEN}"}}),
            ("codex", {"env_vars": ["KSI_TOKEN"]}),
            ("cursor", {"env": {"KSI_TOKEN": "${env:KSI_TOKEN}"}}),
            ("vscode", {"env": {"KSI_TOKEN": "${input:ksi-token}"}}),
            ("generic", {"env": {"KSI_TOKEN": "${KSI_TOKEN}"}}),
        ):
            with case(client):
                wanted = {"agent_id": "bot", "client": client, "type": "stdio", "conversation_id": "c-1"}
                made = await hub.call("agent:config", **wanted, token_in_environment=True)
                assert made["entry"] == outside | ({} if client == "codex" else {"type": "stdio"}) | {
                    "command": sys.executable,
                    "args": [
                        "-P", "-m", "ksi_client", "mcp", "stdio", "--url", "http://127.0.0.1:8080/mcp",
                        "--agent", "bot", "--conversation", "c-1",
                    ],
                }  # fmt: skip
                assert made["token"] not in made["text"]
                made = await hub.call("agent:config", **wanted, token_in_environment=False)
                assert made["entry"]["env"]["KSI_TOKEN"].startswith("ksi_")
                assert "ksi_" not in "".join(made["entry"]["args"]).replace("ksi_client", "")


async def test_a_config_is_the_operators_to_ask_for_and_only_for_an_agent_that_exists() -> None:
    async with running() as hub:
        bot = await add_agent(hub, profile="trusted")
        with pytest.raises(Forbidden):
            await call_as(hub, bot, "agent:config", agent_id="bot")
        with pytest.raises(NotFound):
            await hub.call("agent:config", agent_id="nobody")
        for wrong in ({"client": "emacs"}, {"type": "sse"}, {"conversation_id": "a\r\nb"}, {"entry_name": "a.b"}):
            with case(wrong), pytest.raises(Invalid):
                await hub.call("agent:config", agent_id="bot", **wrong)


async def test_an_agent_can_be_added_without_a_first_token() -> None:
    async with running() as hub:
        made = await hub.call("agent:register", agent_id="bot", first_token=False)
        assert (made["token"], made["credential_id"]) == (None, None)
        assert (await hub.call("token:list"))["tokens"] == []
