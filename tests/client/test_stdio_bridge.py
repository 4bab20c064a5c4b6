"""`ksi mcp stdio` as a process, against an MCP server on loopback that replies as each test says."""

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.cases import case
from tests.client.conftest import Ksi
from tests.client.scripted_hub import (
    INITIALIZED,
    SESSION,
    Exchange,
    ScriptedHub,
    Stdio,
    request,
    request_2026,
    result,
)
from tests.client.test_lightness import loaded_by

pytestmark = pytest.mark.usefixtures("var")

LIST_CHANGED = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
PROGRESS = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 0.5}}


def test_a_session_is_opened_used_and_ended_with_the_identity_of_the_environment() -> None:
    """Requests carry the token, the identity headers and the session (L002, L080)."""
    with ScriptedHub() as hub, Stdio("--url", hub.url, "--agent", "ada", "--conversation", "c-1") as stdio:
        stdio.open()
        assert stdio.call(request("a", "tools/list"))["result"] == {"params": {}}
        stdio.note("no notices in this session: the hub answered with HTTP status 405")
        assert stdio.end()[:2] == (0, [])
        initialize, *later = [hub.next() for _ in range(hub.seen.qsize())]
        assert initialize.message["method"] == "initialize"
        assert "mcp-session-id" not in initialize.headers
        assert sorted(one.message["method"] for one in later) == [
            "DELETE", "GET", "notifications/initialized", "tools/list",
        ]  # fmt: skip
        for exchange in (initialize, *later):
            assert exchange.path == "/mcp"
            assert exchange.headers["authorization"] == "Bearer ksi_secret"
            assert exchange.headers["x-ksi-agent-id"] == "ada"
            assert exchange.headers["x-ksi-conversation-id"] == "c-1"
        for exchange in later:
            assert exchange.headers["mcp-session-id"] == SESSION
            assert exchange.headers["mcp-protocol-version"] == "2025-06-18"


def test_piped_messages_of_a_session_keep_their_order() -> None:
    """A script may write all lines at once and close its end: nothing overtakes initialize or a notification."""
    with ScriptedHub() as hub, Stdio("--url", hub.url) as stdio:
        opening = request(0, "initialize", protocolVersion="2025-06-18", capabilities={})
        stdio.send(opening, INITIALIZED, request(1, "tools/list"))
        code, lines, _ = stdio.end()
        assert (code, [line["id"] for line in lines]) == (0, [0, 1])
        methods = [hub.next().message["method"] for _ in range(hub.seen.qsize())]
        in_order = [method for method in methods if method != "GET"]  # which may not have been sent yet
        assert in_order == ["initialize", "notifications/initialized", "tools/list", "DELETE"]


def test_a_request_of_2026_carries_its_routing_headers_and_no_session() -> None:
    """The revision, the method and the name are repeated in headers, encoded where HTTP could not carry them."""
    names = {"plain": "plain", "größe": "=?base64?Z3LDtsOfZQ==?=", "=?base64?YQ==?=": "=?base64?PT9iYXNlNjQ/WVE9PT89?="}
    with ScriptedHub() as hub, Stdio("--url", hub.url + "/", "--view", "roux") as stdio:
        stdio.open()
        assert hub.next().path == "/mcp/roux"
        for name, header in names.items():
            with case(name):
                assert stdio.call(request_2026(name, "tools/call", name=name))["id"] == name
                while (exchange := hub.next()).message["method"] != "tools/call":
                    pass
                assert exchange.headers["mcp-protocol-version"] == "2026-07-28"
                assert exchange.headers["mcp-method"] == "tools/call"
                assert exchange.headers["mcp-name"] == header
                assert "mcp-session-id" not in exchange.headers


def test_notices_in_a_streamed_answer_come_before_it_and_every_message_is_one_line() -> None:
    """Progress is passed on; an indented answer becomes one line; slow and quick requests run at once (L002)."""
    go_on = threading.Event()

    def post(exchange: Exchange) -> None:
        if exchange.message["id"] == "quick":
            exchange.reply(result(exchange.message, text="a\nb"))
            return
        exchange.stream()
        exchange.event(PROGRESS)
        assert go_on.wait(20)
        exchange.event(result(exchange.message, done=True))
        exchange.wait_for_close()

    with ScriptedHub() as hub, Stdio("--url", hub.url) as stdio:
        hub.post = post
        assert stdio.call(request_2026("slow", "tools/call", name="x")) == PROGRESS
        assert stdio.call(request_2026("quick", "tools/call", name="x"))["result"] == {"text": "a\nb"}
        go_on.set()
        assert stdio.next() == {"jsonrpc": "2.0", "id": "slow", "result": {"done": True}}


def test_the_stream_of_a_session_brings_notices_and_is_opened_again_with_a_hint_to_list_again() -> None:
    """What changed while no stream was open is unknown, so the client is told that the list may have changed (L002)."""
    opened: list[Exchange] = []

    def get(exchange: Exchange) -> None:
        opened.append(exchange)
        exchange.stream()
        exchange.event({**PROGRESS, "params": {"stream": len(opened)}})
        if len(opened) == 1:
            exchange.break_off()
        else:
            exchange.wait_for_close()

    with ScriptedHub() as hub, Stdio("--url", hub.url) as stdio:
        hub.get = get
        stdio.open()
        assert stdio.next()["params"] == {"stream": 1}
        assert stdio.next() == LIST_CHANGED
        assert stdio.next()["params"] == {"stream": 2}
        assert stdio.end()[0] == 0


def test_the_servers_own_request_reaches_the_client_and_its_answer_the_server() -> None:
    """An old-era server asks on the stream of a session; the answer is posted and not answered."""

    def get(exchange: Exchange) -> None:
        exchange.stream()
        exchange.event(request("s-1", "roots/list"))
        exchange.wait_for_close()

    with ScriptedHub() as hub, Stdio("--url", hub.url) as stdio:
        hub.get = get
        stdio.open()
        assert stdio.next()["method"] == "roots/list"
        stdio.send({"jsonrpc": "2.0", "id": "s-1", "result": {"roots": []}})
        while "result" not in (exchange := hub.next()).message:
            pass
        assert exchange.headers["mcp-session-id"] == SESSION
        assert stdio.end()[:2] == (0, [])


def test_cancelling_closes_the_connection_since_2026_and_is_posted_in_a_session() -> None:
    """A cancelled request is not answered in either era (L002)."""
    cancelled = threading.Event()

    def post(exchange: Exchange) -> None:
        message = exchange.message
        if message["method"] == "notifications/cancelled":
            exchange.reply(None, status=202)
            cancelled.set()
        elif message["method"] != "tools/call":
            hub.answer(exchange)
        elif "_meta" in message["params"]:
            exchange.wait_for_close()
            cancelled.set()
        else:
            assert cancelled.wait(20)
            exchange.reply(result(message, late=True))

    with ScriptedHub() as hub, Stdio("--url", hub.url) as stdio:
        hub.post = post
        stdio.open()
        for call in (request_2026(1, "tools/call", name="x"), request("1", "tools/call", name="x")):
            with case(call["id"]):
                cancelled.clear()
                stdio.send(call)
                while hub.next().message["method"] != "tools/call":
                    pass
                stdio.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": call["id"]}})
                assert cancelled.wait(20)
                assert stdio.call(request("p", "ping"))["id"] == "p"
        posted = [exchange.message["method"] for exchange in list(hub.seen.queue)]
        assert posted.count("notifications/cancelled") == 1
        assert stdio.end()[:2] == (0, [])


def test_a_subscription_survives_its_stream_and_says_that_lists_may_have_changed() -> None:
    """The client sees one acknowledgement; a stream that breaks or ends is asked for again (L002)."""
    streams: list[Exchange] = []
    accepted = {"toolsListChanged": True}

    def post(exchange: Exchange) -> None:
        streams.append(exchange)
        exchange.stream()
        acknowledged = {"method": "notifications/subscriptions/acknowledged", "params": {"notifications": accepted}}
        exchange.event({"jsonrpc": "2.0", **acknowledged})
        if len(streams) == 1:
            exchange.break_off()
        elif len(streams) == 2:
            exchange.event(result(exchange.message))
        else:
            exchange.event({**PROGRESS, "params": {"stream": 3}})
            exchange.wait_for_close()

    with ScriptedHub() as hub, Stdio("--url", hub.url) as stdio:
        hub.post = post
        stdio.send(request_2026(7, "subscriptions/listen", notifications=accepted))
        assert stdio.next()["method"] == "notifications/subscriptions/acknowledged"
        for _ in range(2):
            changed = stdio.next()
            assert changed["method"] == "notifications/tools/list_changed"
            assert changed["params"]["_meta"] == {"io.modelcontextprotocol/subscriptionId": 7}
        assert stdio.next()["params"] == {"stream": 3}
        assert stdio.end()[:2] == (0, [])


def test_a_session_that_the_hub_forgot_is_opened_again_and_the_request_repeated() -> None:
    """The client's own initialize is replayed once, however many requests meet the 404 (L002)."""
    sessions = ["first", "second"]
    lock, both_waiting = threading.Lock(), threading.Barrier(2)

    def post(exchange: Exchange) -> None:
        message = exchange.message
        with lock:
            live = sessions[0]
        if message["method"] == "initialize":
            opened = {"protocolVersion": "2025-06-18", "capabilities": {}}
            exchange.reply(result(message, **opened), mcp_session_id=live)
        elif exchange.headers["mcp-session-id"] == live:
            hub.answer(exchange)
        else:
            both_waiting.wait(20)
            exchange.reply({"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "gone"}}, status=404)

    with ScriptedHub() as hub, Stdio("--url", hub.url) as stdio:
        hub.post = post
        stdio.open()
        assert hub.methods(2) == ["initialize", "notifications/initialized"]
        assert stdio.call(request(1, "ping"))["id"] == 1
        with lock:
            del sessions[0]
        stdio.send(request(2, "tools/call", name="x"), request(3, "tools/call", name="x"))
        answers = [stdio.next(), stdio.next()]
        assert sorted(answer["id"] for answer in answers) == [2, 3]
        assert all(answer["result"] == {"params": {"name": "x"}} for answer in answers)
        assert "opened again" in stdio.note("opened again")
        posted = [exchange.message["method"] for exchange in list(hub.seen.queue)]
        assert (posted.count("initialize"), posted.count("notifications/initialized")) == (1, 1)


def test_a_session_that_cannot_be_opened_again_gives_the_hubs_reason() -> None:
    """A request whose session is lost is answered with what the hub says to initialize."""
    refusal = {"jsonrpc": "2.0", "id": None, "error": {"code": 403, "message": "no longer"}}
    with ScriptedHub() as hub, Stdio("--url", hub.url) as stdio:
        stdio.open()

        def post(exchange: Exchange) -> None:
            exchange.reply(refusal, status=403 if exchange.message["method"] == "initialize" else 404)

        assert hub.methods(3)
        hub.post = post
        assert stdio.call(request(5, "tools/list")) == {**refusal, "id": 5}


def test_what_may_have_run_is_not_sent_again_and_what_only_reads_is() -> None:
    """A call whose connection ends is answered with the outcome unknown; a listing is repeated (L002)."""
    calls: list[str] = []

    def post(exchange: Exchange) -> None:
        calls.append(exchange.message["method"])
        if len(calls) < 3:
            exchange.break_off()
        else:
            hub.answer(exchange)

    with ScriptedHub() as hub, Stdio("--url", hub.url) as stdio:
        hub.post = post
        error = stdio.call(request(1, "tools/call", name="x"))["error"]
        assert (error["code"], error["data"]["outcome"]) == (-32000, "unknown")
        assert "may have run" in error["message"]
        assert stdio.call(request(2, "tools/list"))["id"] == 2
        assert calls == ["tools/call", "tools/list", "tools/list"]


def test_a_call_waits_for_a_hub_that_is_away_and_runs_once(free_port: int) -> None:
    """Connection refused: the request was surely not sent, so it is sent when the hub is there (L002)."""
    with Stdio("--url", f"http://127.0.0.1:{free_port}/mcp", "--wait", "60s") as stdio:
        stdio.send(request(1, "tools/call", name="x"))
        stdio.note("no hub answers")
        with ScriptedHub(free_port) as hub:
            assert stdio.next()["id"] == 1
            assert hub.methods(1) == ["tools/call"]
            assert hub.seen.empty()
            assert stdio.end()[0] == 0


def test_a_call_that_waits_can_be_cancelled_and_one_that_waits_too_long_was_not_run(free_port: int) -> None:
    """Without a hub the answer says that nothing was done, and the exit code is that of every command (L002)."""
    with Stdio("--url", f"http://127.0.0.1:{free_port}", "--wait", "0.2s") as stdio:
        error = stdio.call(request(1, "tools/call", name="x"))["error"]
        assert (error["code"], error["data"]["outcome"]) == (-32000, "not_run")
        stdio.send(request(2, "tools/call", name="x"))
        stdio.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}})
        assert stdio.end()[:2] == (5, [])


def test_a_refused_token_is_explained_once_on_stderr_and_in_every_answer() -> None:
    """Exit code 4, as every command when the daemon refuses (L080)."""
    refusal = {"code": 401, "message": "this token is not valid", "data": {"code": "unauthenticated"}}

    def post(exchange: Exchange) -> None:
        exchange.reply({"jsonrpc": "2.0", "id": None, "error": refusal}, status=401)

    with ScriptedHub() as hub, Stdio("--url", hub.url, KSI_TOKEN="") as stdio:
        hub.post = post
        for number in range(2):
            assert stdio.call(request(number, "initialize")) == {"jsonrpc": "2.0", "id": number, "error": refusal}
        assert "authorization" not in hub.next().headers
        code, _, notes = stdio.end()
        assert (
            code,
            notes.count("refuses the token in KSI_TOKEN, or the identity given with it: this token is not valid"),
        ) == (4, 1)
        assert "ksi tokens create" in notes


def test_an_identity_that_contradicts_the_token_is_explained_and_a_refused_call_is_not_taken_for_it() -> None:
    """403 for a listing is about who calls; for a call it can be about the tool alone."""
    refusal = {"code": 403, "message": "identity_mismatch"}

    def post(exchange: Exchange) -> None:
        exchange.reply({"jsonrpc": "2.0", "id": exchange.message["id"], "error": refusal}, status=403)

    with ScriptedHub() as hub, Stdio("--url", hub.url, "--agent", "other") as stdio:
        hub.post = post
        assert stdio.call(request_2026(1, "tools/call", name="x"))["error"] == refusal
        assert stdio.notes.empty()
        assert stdio.call(request_2026(2, "tools/list"))["error"] == refusal
        code, _, notes = stdio.end()
        assert (code, notes.count("identity_mismatch")) == (4, 1)


def test_an_event_that_is_no_message_does_not_reach_the_client() -> None:
    """Output holds only JSON-RPC whatever the other side sends."""

    def post(exchange: Exchange) -> None:
        exchange.stream()
        exchange.chunk(b"event: message\ndata: hello\n\ndata: 5\ndata:\n\nid: 1\ndata:\n\n")
        exchange.event(result(exchange.message, ok=True))
        exchange.wait_for_close()

    with ScriptedHub() as hub, Stdio("--url", hub.url) as stdio:
        hub.post = post
        assert stdio.call(request_2026(1, "tools/list"))["result"] == {"ok": True}
        code, lines, notes = stdio.end()
        assert (code, lines, notes.count("left out")) == (0, [], 2)


def test_a_reply_that_is_not_mcp_is_an_error_that_names_the_status() -> None:
    with ScriptedHub() as hub, Stdio("--url", hub.url) as stdio:
        hub.post = lambda exchange: exchange.reply(["no"], status=502)
        error = stdio.call(request(1, "tools/list"))["error"]
        assert error["code"] == -32603
        assert "502" in error["message"]


def test_lines_that_are_no_messages_are_answered_and_the_next_is_served() -> None:
    """Broken JSON, a batch, a line that is too long, an id in use: each is one error and changes nothing else (L002)."""
    release = threading.Event()

    def post(exchange: Exchange) -> None:
        assert release.wait(20)
        hub.answer(exchange)

    cases: list[tuple[Any, int]] = [(b"{", -32700), (b"[]", -32600), (b"5", -32600), (b" " * 4_300_000 + b"{}", -32600)]
    with ScriptedHub() as hub, Stdio("--url", hub.url) as stdio:
        hub.post = post
        for line, code in cases:
            with case(line[:5]):
                answer = stdio.call(line)
                assert (answer["id"], answer["error"]["code"]) == (None, code)
        stdio.send(b"", request(1, "ping"))
        assert stdio.call(request(1, "ping"))["error"]["code"] == -32600
        release.set()
        assert stdio.next()["result"] == {"params": {}}


def test_a_client_that_does_not_read_any_more_ends_the_bridge() -> None:
    """A closed pipe is no error: the command ends with 0 and says nothing, although its input is still open."""
    with ScriptedHub() as hub:
        words = [sys.executable, "-m", "ksi_client", "mcp", "stdio", "--url", hub.url]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            process.stdin.write(json.dumps(request(1, "ping")).encode() + b"\n")
            process.stdin.flush()
            assert process.wait(20) == 0
            assert process.stderr.read() == b""


def test_wrong_options_are_refused_before_anything_is_read(ksi: Ksi, tmp_path: Path) -> None:
    """Exit code 2 and what to do; a token is never sent unencrypted to another machine (L080)."""
    for words, why in (
        (("--url", "ftp://127.0.0.1/mcp"), "is not an address"),
        (("--url", "http://127.0.0.1/mcp?x=1"), "is not an address"),
        (("--url", "http://127.0.0.1:99999/mcp"), "--url"),
        (("--url", "http://user@127.0.0.1/mcp"), "user name"),
        (("--url", "http://192.0.2.1/mcp"), "unencrypted"),
        (("--view", "a/b"), "--view"),
        (("--agent", "a b"), "--agent"),
        (("--conversation", ""), "--conversation"),
        (("--wait", "soon"), "--wait"),
    ):
        with case(words):
            done = ksi("mcp", "stdio", *words)
            assert (done.returncode, done.stdout) == (2, "")
            assert why in done.stderr
    assert ksi("mcp", "stdio", KSI_TOKEN="a\nb").returncode == 2


def test_the_bridge_loads_neither_the_sdk_nor_the_daemon(free_port: int) -> None:
    loaded = loaded_by(
        f"import sys; sys.argv = ['ksi', 'mcp', 'stdio', '--url', 'http://127.0.0.1:{free_port}/mcp']\n"
        "from ksi_client.command import main; assert main() == 0"
    )
    assert "ksi_client.mcp_stdio.bridge" in loaded
    assert loaded.isdisjoint({"mcp", "ksi_daemon", "pydantic", "rich", "httpx2", "msgspec", "sqlite3"})


def test_nothing_but_messages_is_written_to_its_output() -> None:
    """Notes and details go to stderr only."""
    with ScriptedHub() as hub, Stdio("--verbose", "--url", hub.url) as stdio:
        stdio.open()
        stdio.note("405")
        assert stdio.end()[:2] == (0, [])
