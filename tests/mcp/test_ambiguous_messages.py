"""Messages that two parsers could read differently, and documents that no parser should meet: refused in every era."""

import base64
import json
from typing import Any

from tests.agents_at_work import limit
from tests.cases import case
from tests.mcp.test_sessions import opened
from tests.mcp_hub import META, McpHub, serving_mcp

REFUSED_S = 2.0  # generous for the 200 ms of the catalogue: the machine may be busy
ECHO = {"name": "ksi_system_echo", "arguments": {"text": "x"}}
VERSION = "io.modelcontextprotocol/protocolVersion"


def sentinel(name: str) -> str:
    return f"=?base64?{base64.b64encode(name.encode()).decode()}?="


def call_bytes(params: str = '{"name":"ksi_system_echo","arguments":{"text":"x"}}', *, more: str = "") -> bytes:
    """A call whose params are written by hand."""
    return f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}{more}}}'.encode()


async def in_every_era(hub: McpHub, token: str, session: dict[str, str], body: bytes) -> set[int]:
    """The statuses of one body without a session, in one, and in the revision of 2026."""
    now = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "ksi_system_echo"}
    replies = [await hub.post(token, body, headers=headers) for headers in ({}, session, now)]
    for reply in replies:
        assert "Traceback" not in reply.text
        assert reply.elapsed.total_seconds() < REFUSED_S
    return {reply.status_code for reply in replies}


async def agent(hub: McpHub) -> tuple[str, dict[str, str]]:
    """An agent without limits, and a session of it."""
    token = await hub.agent()
    limit(hub.hub, calls_per_minute=None, concurrent_calls=None)
    return token, await opened(hub, token)


MISMATCHES: list[dict[str, str]] = [
    {"mcp-method": "tools/list"},
    {"mcp-method": "TOOLS/CALL"},
    {"mcp-method": "tools/call,tools/list"},
    {"mcp-method": ""},
    {"mcp-name": "ksi_system_health"},
    {"mcp-name": "KSI_SYSTEM_ECHO"},
    {"mcp-name": "ksi_system_echo,ksi_state_set"},
    {"mcp-name": '"ksi_system_echo"'},
    {"mcp-name": "ksi_system_ech%6F"},
    {"mcp-name": ""},
    {"mcp-name": sentinel("ksi_system_health")},
    {"mcp-name": sentinel("ksi_system_echo") + "x"},
    {"mcp-name": "=?base64?!!!?="},
    {"mcp-name": "=?base64?/w==?="},
    {"mcp-name": sentinel("ksi_system_echo").replace("?=", "=?=")},
    {"mcp-name": "=?BASE64?" + sentinel("ksi_system_echo")[9:]},
    {"mcp-name": sentinel(sentinel("ksi_system_echo"))},
    {"mcp-protocol-version": "2025-06-18"},
    {"mcp-protocol-version": "2026-07-29"},
    {"mcp-protocol-version": ""},
]


async def test_headers_that_contradict_the_body_are_refused() -> None:
    """H07"""
    async with serving_mcp() as hub:
        token, session = await agent(hub)
        right = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "ksi_system_echo"}
        body = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {**ECHO, "_meta": META}}
        older = {**body, "params": ECHO}
        for name in ("ksi_system_echo", sentinel("ksi_system_echo")):
            assert (await hub.post(token, body, headers={**right, "mcp-name": name})).status_code == 200
            for headers in ({}, session):
                assert (await hub.post(token, older, headers={**headers, "mcp-name": name})).status_code == 200
        sent: list[tuple[Any, list[tuple[str, str]]]] = [
            (body, list({**right, **wrong}.items())) for wrong in MISMATCHES
        ]
        for name, correct in right.items():
            sent.append((body, [(key, value) for key, value in right.items() if key != name]))
            for value in (correct, "other"):
                sent += [(body, [*right.items(), (name, value)]), (body, [(name, value), *right.items()])]
        for wrong in MISMATCHES:
            if "mcp-protocol-version" not in wrong:
                sent += [(older, [*headers.items(), *wrong.items()]) for headers in ({}, session)]
        for name in ("mcp-method", "mcp-name"):
            sent += [(older, [*headers.items(), *[(name, right[name])] * 2]) for headers in ({}, session)]
        fixed = [("authorization", f"Bearer {token}"), ("content-type", "application/json"),
                 ("accept", "application/json, text/event-stream")]  # fmt: skip
        for message, headers_sent in sent:
            with case(headers_sent):
                reply = await hub.http.post(hub.url, json=message, headers=[*fixed, *headers_sent])
                assert (reply.status_code, reply.json()["error"]["code"]) == (400, -32020)
                assert reply.json()["id"] == 7
        assert len(sent) >= 20


async def test_a_key_that_occurs_twice_is_refused_at_any_level() -> None:
    """J01"""
    async with serving_mcp() as hub:
        token, session = await agent(hub)
        for body in (
            call_bytes('{"name":"ksi_system_echo","name":"ksi_state_set","arguments":{}}'),
            call_bytes('{"name":"ksi_system_echo","n\\u0061me":"ksi_state_set","arguments":{}}'),
            call_bytes('{"name":"ksi_system_echo","arguments":{"text":"a","text":"a"}}'),
            call_bytes('{"name":"ksi_system_echo","arguments":{"text":"a"},"arguments":{"text":"b"}}'),
            call_bytes('{"name":"ksi_system_echo","arguments":{"text":[[{"a":1,"b":{"c":1,"c":2}}]]}}'),
            call_bytes(more=',"method":"tools/list"'),
            call_bytes(more=',"id":2'),
            call_bytes(more=',"params":{}'),
            call_bytes(f'{{"_meta":{{"{VERSION}":"2026-07-28","{VERSION}":"2025-06-18"}}}}'),
        ):
            with case(body):
                assert await in_every_era(hub, token, session, body) == {400}


async def test_a_key_that_only_looks_like_the_right_one_is_refused() -> None:
    """J02"""
    async with serving_mcp() as hub:
        token, session = await agent(hub)
        rest = ',"arguments":{"text":"x"}}'
        kelvin, long_s = "\N{KELVIN SIGN}", "\N{LATIN SMALL LETTER LONG S}"
        bodies = [call_bytes('{"name":"ksi_system_echo","' + key + '":"ksi_state_set"' + rest)
                  for key in ("Name", "NAME", "name\\u0000", "name ", "\\u200bname", "\\uff4eame", "na\\u00adme", "_name")]  # fmt: skip
        bodies += [call_bytes('{"name":"ksi_system_echo","' + key + '":{}' + rest)
                   for key in ("Arguments", "argument_s", f"argument{long_s}", "meta", "_Meta", "_meta\\u0000", "request_id")]  # fmt: skip
        bodies += [call_bytes(more=f',"{key}":1') for key in ("Method", "METHOD", "ID", "Params", f"param{long_s}",
                                                              "method\\u0000", "jsonRPC", "_", "", kelvin, "result", "error")]  # fmt: skip
        bodies += [call_bytes('{"_meta":{"' + key + '":"x"},"name":"ksi_system_echo"' + rest)
                   for key in (VERSION.upper(), VERSION + "\\u0000", "progress_token", "ProgressToken")]  # fmt: skip
        bodies += [b"\xef\xbb\xbf" + call_bytes(), b"\xff\xfe" + call_bytes().decode().encode("utf-16-le")]
        for body in bodies:
            with case(body):
                assert await in_every_era(hub, token, session, body) == {400}
        arguments = {"value": {"Name": 1, "name": 2, "name\0": 3, "Kk": 4}, "key": "odd keys of one's own"}
        writer = await hub.agent("writer", "trusted")
        assert (await hub.call(writer, "ksi_state_set", **arguments)).status_code == 200
        assert (await hub.hub.call("state:get", key=arguments["key"]))["value"] == arguments["value"]
        unknown = await hub.call(writer, "ksi_state_set", **arguments, Key="other")
        assert unknown.json()["result"]["isError"]


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


async def test_deep_nesting_is_refused_quickly() -> None:
    """J03"""
    async with serving_mcp() as hub:
        token, session = await agent(hub)
        for depth in (64, 65, 100, 2_000, 100_000):
            with case(depth):
                arguments = f'{{"name":"ksi_system_echo","arguments":{{"text":{nested(depth)}}}}}'
                assert await in_every_era(hub, token, session, call_bytes(arguments)) == {400}
                assert await in_every_era(hub, token, session, nested(depth).encode()) == {400}
                assert await in_every_era(hub, token, session, b'{"a":' * depth + b"1" + b"}" * depth) == {400}


async def test_anything_but_one_message_is_refused() -> None:
    """J04"""
    async with serving_mcp() as hub:
        token, session = await agent(hub)
        one = call_bytes()
        for body in (b"[]", b"[" + one + b"]", b"[" + b",".join([one] * 5_000) + b"]", one + one, one + b"\n" + one,
                     one + b"x", one + b"\x00", b"\x00" + one, one + b",", one[:-1], b"", b" ", b"null", b"true", b"1", b'"x"',
                     b"{}x", b"tools/call", b"<xml/>", b"\x1f\x8b" + one):  # fmt: skip
            with case(body):
                assert await in_every_era(hub, token, session, body) == {400}


async def test_odd_numbers_and_characters_are_refused_or_come_back_unchanged() -> None:
    """J05"""
    async with serving_mcp() as hub:
        token, session = await agent(hub)
        for value in ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 10_000, "01", "+1", "0x1", "1.", ".5", "1_0",
                      '"\\ud800"', '"\\udc00\\ud800"', '"\\x41"', '"a\tb"', "'a'"):  # fmt: skip
            with case(value):
                arguments = f'{{"name":"ksi_system_echo","arguments":{{"text":{value}}}}}'
                assert await in_every_era(hub, token, session, call_bytes(arguments)) == {400}
        bad = call_bytes('{"name":"ksi_system_echo","arguments":{"text":"?"}}')
        for octets in (b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf5\x80\x80\x80"):
            assert await in_every_era(hub, token, session, bad.replace(b"?", octets)) == {400}
        writer = await hub.agent("writer", "trusted")
        kept: list[Any] = [
            0,
            -1,
            2**53 + 1,
            2**63 - 1,
            -(2**63),
            0.1,
            1e308,
            5e-324,
            "a\0b",
            "\u2028",
            "\U0001f600",
            "e\u0301",
        ]
        for number, value in enumerate(kept):
            with case(value):
                name = f"value.{number}"
                stored = await hub.call(writer, "ksi_state_set", key=name, value=value)
                assert "error" not in stored.json()
                assert not stored.json()["result"].get("isError")
                read = (await hub.call(writer, "ksi_state_get", key=name)).json()["result"]
                assert read["structuredContent"]["value"] == value
                assert json.loads(read["content"][0]["text"])["value"] == value


async def test_an_id_is_echoed_exactly_or_refused() -> None:
    """J06"""
    async with serving_mcp() as hub:
        token, session = await agent(hub)
        now = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/list"}
        body: dict[str, Any] = {"jsonrpc": "2.0", "method": "tools/list", "params": {"_meta": META}}
        for one in (0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63), "", "1", "a" * 128, "\0", "\u2028", "\U0001f600", " 1 "):
            with case(one):
                for _ in range(2):  # the same one again is fine: each reply belongs to its request
                    assert (await hub.post(token, {**body, "id": one}, headers=now)).json()["id"] == one
                plain = {"jsonrpc": "2.0", "id": one, "method": "tools/list"}
                assert (await hub.post(token, plain)).json()["id"] == one
                reply = await hub.post(token, plain, headers=session)
                [data] = [line for line in reply.text.split("\r\n") if line.startswith('data: {"')]
                assert json.loads(data.removeprefix("data: "))["id"] == one
        for text in ("null", "1.5", "1.0", "true", "{}", "[]", "[1]", str(2**63), str(-(2**63) - 1), '"' + "a" * 129 + '"',
                     '"' + "a" * 1_000_000 + '"'):  # fmt: skip
            with case(text):
                odd = call_bytes().replace(b'"id":1', b'"id":' + text.encode())
                assert await in_every_era(hub, token, session, odd) == {400}
