"""`ksi send` and `ksi events` as an operator uses them."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.cases import case
from tests.client.conftest import Ksi, on_terminal
from tests.client.fake_daemon import FakeDaemon


def test_values_follow_the_schema(daemon: FakeDaemon, ksi: Ksi) -> None:
    done = ksi("send", "system:echo", "text=5", "times=5", "loud=yes", "tags=a,b", "tags=c")
    assert json.loads(done.stdout) == {"text": "5", "times": 5, "loud": True, "tags": ["a", "b", "c"]}
    assert done.stderr == ""


def test_a_send_without_values_asks_for_no_schema(daemon: FakeDaemon, ksi: Ksi) -> None:
    ksi("send", "system:health", "--timeout", "3", "--correlation", "c-7")
    (request,) = daemon.requests
    assert (request["event"], request["correlation_id"], request["timeout_s"]) == ("system:health", "c-7", 3)


@pytest.mark.usefixtures("daemon")
def test_data_comes_from_the_line_a_file_or_stdin_and_words_win(ksi: Ksi, tmp_path: Path) -> None:
    data = '{"text": "from data", "times": 1}'
    (tmp_path / "data.json").write_text(data)
    for source, stdin in ((data, ""), (f"@{tmp_path}/data.json", ""), ("-", data)):
        done = ksi("send", "system:echo", "--data", source, "text=from word", stdin=stdin)
        assert json.loads(done.stdout) == {"text": "from word", "times": 1}


@pytest.mark.usefixtures("daemon")
def test_stdin_that_is_not_json_is_bad_data(ksi: Ksi) -> None:
    done = ksi("send", "system:echo", "--data", "-", stdin="nonsense")
    assert done.returncode == 65
    assert done.stderr.startswith("ksi: standard input is not JSON")


@pytest.mark.usefixtures("daemon")
def test_an_unknown_event_is_named_with_where_to_look(ksi: Ksi) -> None:
    done = ksi("send", "no:such", "a=1")
    assert done.returncode == 3
    assert "no:such" in done.stderr
    assert "next: ksi events ls" in done.stderr


@pytest.mark.usefixtures("daemon")
def test_on_a_terminal_the_answer_is_readable_and_hostile_text_harmless() -> None:
    hostile = "\x1b]0;owned\x07\x1b[2J\u202e[red]"
    code, shown = on_terminal("send", "system:echo", f"text={hostile}", "times=2")
    assert code == 0
    assert shown.splitlines() == ["text:  \\x1b]0;owned\\x07\\x1b[2J\\u202e[red]", "times: 2"]
    code, shown = on_terminal("send", "system:echo", f"text={hostile}", "--json")
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert json.loads(shown) == {"text": hostile}


def test_tables_on_a_terminal_are_drawn_in_colour_with_hostile_text_escaped(daemon: FakeDaemon) -> None:
    """W05"""
    daemon.answers["system:discover"] = lambda _: {
        "events": {
            "a:b\x1b[2J": {"summary": "[red]x[/red] \u202e\r\x9b2J", "plugin": "p\n", "reads": True, "kind": "call"}
        }
    }
    code, shown = on_terminal("events", "ls")
    assert code == 0
    assert "\x1b[36m" in shown
    assert "a:b\\x1b[2J" in shown
    assert "[red]x[/red] \\u202e\\x0d\\x9b2J" in shown
    assert "\x1b[2J" not in shown
    assert "\u202e" not in shown


@pytest.mark.usefixtures("daemon")
def test_events_are_listed_and_explained(ksi: Ksi) -> None:
    listed = ksi("events", "ls")
    assert listed.stdout.splitlines()[1].split() == ["state:changed", "notice", "state", "A", "value", "changed."]
    explained = ksi("events", "help", "system:echo")
    assert "Say it back." in explained.stdout
    assert "What to say." in explained.stdout
    assert ksi("events", "help", "no:such").returncode == 3


def push_when_subscribed(daemon: FakeDaemon, *messages: dict[str, Any]) -> None:
    """Send the lines right after the answer to the subscription."""
    notice = {"id": "n1", "event": "a:one", "data": {"k": "\x1b"}, "at": "2026-11-18T07:00:00.123456Z"}
    subscribe = daemon.answers["message:subscribe"]

    def answer(data: dict[str, Any]) -> Any:
        def push() -> None:
            daemon.subscribed.wait(10)
            for message in [*messages, {"notice": notice}]:
                daemon.push(message)

        threading.Thread(target=push, daemon=True).start()
        return subscribe(data)

    daemon.answers["message:subscribe"] = answer


def test_a_tail_prints_a_line_for_each_notice_and_drops_on_stderr(daemon: FakeDaemon, ksi: Ksi) -> None:
    push_when_subscribed(daemon, {"dropped": 12})
    done = ksi("events", "tail", "a:*", "b:*", "--count", "1", "--utc", "-q")
    assert done.stdout == '2026-11-18T07:00:00.123+00:00  a:one  {"k":"\\u001b"}\n'
    assert done.stderr == "ksi: 12 notices dropped: this reader is too slow (12 in all)\n"
    assert daemon.requests[0]["data"] == {"patterns": ["a:*", "b:*"]}


def test_times_are_local_unless_utc_is_asked_for(daemon: FakeDaemon, ksi_process: Ksi) -> None:
    push_when_subscribed(daemon)
    done = ksi_process("events", "tail", "--count", "1", TZ="Asia/Kolkata")
    assert done.stdout.startswith("2026-11-18T12:30:00.123+05:30  a:one")


@pytest.mark.parametrize("how", [("-o", "jsonl"), ("--json",)])
def test_a_tail_as_json_lines_is_the_notice_as_it_came(daemon: FakeDaemon, ksi: Ksi, how: tuple[str, ...]) -> None:
    push_when_subscribed(daemon)
    (line,) = ksi("events", "tail", "--count", "1", *how).stdout.splitlines()
    notice = json.loads(line)
    assert (notice["id"], notice["event"], notice["data"]) == ("n1", "a:one", {"k": "\x1b"})


def test_a_tail_since_then_shows_earlier_notices_once_and_no_calls(daemon: FakeDaemon, ksi: Ksi) -> None:
    push_when_subscribed(daemon)
    earlier = [
        {"kind": "call", "id": "c1", "event": "a:call"},
        {"kind": "notice", "id": "n0", "event": "a:zero"},
        {"kind": "notice", "id": "n1", "event": "a:one"},
    ]
    daemon.answers["monitor:get_events"] = lambda _: {"events": earlier}
    done = ksi("events", "tail", "--since", "10m", "--count", "2", "-o", "jsonl")
    assert [json.loads(line)["event"] for line in done.stdout.splitlines()] == ["a:zero", "a:one"]
    asked = next(request["data"] for request in daemon.requests if request["event"] == "monitor:get_events")
    assert (asked["since"], asked["event_patterns"], asked["reverse"]) == (600, ["*"], False)


BASH = {"_KSI_COMPLETE": "complete_bash"}


@pytest.mark.usefixtures("daemon")
def test_bash_completes_verbs_events_and_plugins(ksi: Ksi) -> None:
    cases = [
        ("ksi ev", ["events"]),
        ("ksi send sys", ["system:echo", "system:health"]),
        ("ksi send system : e", ["echo"]),
        ("ksi send system :", ["echo", "health"]),
        ("ksi send system:e", ["system:echo"]),
        ("ksi events help st", ["state:changed"]),
        ("ksi plugins reload we", ["weather"]),
    ]
    for words, offered in cases:
        with case(words, offered):
            done = ksi(COMP_WORDS=words.replace(" ", "\n"), COMP_CWORD=str(words.count(" ")), **BASH)
            assert (done.stdout.split(), done.stderr) == (offered, "")


def test_without_a_daemon_completion_offers_nothing_silently(ksi: Ksi) -> None:
    done = ksi(COMP_WORDS="ksi\nsend\nsys", COMP_CWORD="2", **BASH)
    assert (done.stdout.split(), done.stderr) == ([], "")
