"""Every line that is no good request is answered with a plain refusal, and the connection stays."""

import json
import math
import socket
import time
from typing import Any

import pytest

from tests.live.daemon_process import Connection, Daemon, Refused


def _nested(depth: int) -> bytes:
    """A request whose data is `depth` deep, counting `data` itself."""
    inner = b"[" * (depth - 1) + b"]" * (depth - 1)
    return b'{"event":"state:set","data":{"key":"deep","value":' + (inner or b"1") + b'},"id":7}'


def _still_serves(connection: Connection) -> None:
    assert connection.call("system:echo", {"text": "still here"}) == {"text": "still here"}


def test_data_nested_deeper_than_sixty_four_is_refused_quickly(daemon: Daemon) -> None:
    """J03"""
    daemon.start()
    with daemon.connect() as connection:
        _still_serves(connection)
        for depth in (65, 100, 2_000, 100_000):
            began = time.monotonic()
            answer = connection.ask(_nested(depth))
            assert time.monotonic() - began <= 0.25, depth  # 50 ms on a quiet machine
            assert answer["error"]["code"] == "invalid", depth
            _still_serves(connection)


def test_data_nested_sixty_four_deep_is_kept_and_comes_back(daemon: Daemon) -> None:
    """J03"""
    daemon.start()
    with daemon.connect() as connection:
        assert connection.ask(_nested(64))["ok"] is True
        assert connection.call("state:get", {"key": "deep"})["value"] == json.loads("[" * 63 + "]" * 63)


def test_a_hundred_thousand_open_brackets_are_refused_quickly(daemon: Daemon) -> None:
    """J03"""
    daemon.start()
    with daemon.connect() as connection:
        _still_serves(connection)
        for opening in (b'{"a":', b"[", b'{"event":"system:echo","data":{"text":', b'{"data":['):
            began = time.monotonic()
            answer = connection.ask(opening * (900_000 // len(opening)))
            assert time.monotonic() - began <= 0.5, opening
            assert answer["error"]["code"] == "invalid", opening
            _still_serves(connection)


ECHO = b'{"event":"system:echo","data":{"text":"x"},"id":1}'
DUPLICATES = {
    "event": b'{"event":"system:echo","event":"system:shutdown","data":{"text":"x"},"id":7}',
    "escaped": b'{"event":"system:echo","\\u0065vent":"system:shutdown","data":{"text":"x"},"id":7}',
    "in data": b'{"event":"state:set","data":{"key":"a","key":"b","value":1},"id":7}',
    "in a value": b'{"event":"state:set","data":{"key":"a","value":[{"x":1,"x":2}]},"id":7}',
}
NOT_ONE_OBJECT = {
    "array": b"[]",
    "batch": b"[" + ECHO + b"," + ECHO + b"]",
    "batch of 10,000": b"[" + b",".join([ECHO] * 10_000) + b"]",
    "two documents": ECHO + ECHO,
    "two documents with a space": ECHO + b" " + ECHO,
    "trailing junk": ECHO + b"junk",
    "trailing comma": b'{"event":"system:echo","data":{"text":"x"},}',
    "number": b"1",
    "string": b'"system:echo"',
    "null": b"null",
    "comment": b"/* x */" + ECHO,
    "single quotes": b"{'event':'system:echo'}",
    "byte order mark": b"\xef\xbb\xbf" + ECHO,
    "half": ECHO[:20],
    "unknown field": b'{"event":"system:echo","data":{"text":"x"},"admin":true}',
    "data is a list": b'{"event":"system:echo","data":[1]}',
    "data is null": b'{"event":"system:echo","data":null}',
    "event is a number": b'{"event":1}',
    "event is missing": b'{"data":{}}',
    "control character": b'{"event":"system:echo","data":{"text":"a\x01b"}}',
    "not UTF-8": b'{"event":"system:echo","data":{"text":"\xff"}}',
    "overlong UTF-8": b'{"event":"system:echo","data":{"text":"\xc0\xaf"}}',
    "surrogate as UTF-8": b'{"event":"system:echo","data":{"text":"\xed\xa0\x80"}}',
}


@pytest.fixture
def served(daemon: Daemon) -> Daemon:
    return daemon.start()


def test_a_line_that_is_not_one_request_is_refused_and_nothing_of_it_runs(served: Daemon) -> None:
    """J04"""
    with served.connect() as connection:
        for name, line in NOT_ONE_OBJECT.items():
            began = time.monotonic()
            answer = connection.ask(line)
            assert time.monotonic() - began <= 0.5, name  # 200 ms on a quiet machine
            assert answer["ok"] is False, name
            assert answer["error"]["code"] == "invalid", name
            _still_serves(connection)


def test_a_key_that_comes_twice_runs_at_most_once_and_is_answered_once(served: Daemon) -> None:
    """J04"""
    with served.connect() as connection:
        connection.write(b'{"event":"state:set","event":"system:echo","data":{"text":"x"},"id":1}\n')
        assert connection.next()["id"] in (1, None)
        _still_serves(connection)


HOSTILE_VALUES = {
    "NaN": b"NaN",
    "Infinity": b"Infinity",
    "-Infinity": b"-Infinity",
    "1e999": b"1e999",
    "-1e999": b"-1e999",
    "10,000 digits": b"9" * 10_000,
    "a fraction of 10,000 digits": b"0." + b"9" * 10_000,
    "an exponent of 10,000 digits": b"1e" + b"9" * 10_000,
    "2**64": b"18446744073709551616",
    "2**64 - 1": b"18446744073709551615",
    "2**63": b"9223372036854775808",
    "-2**63": b"-9223372036854775808",
    "-2**63 - 1": b"-9223372036854775809",
    "-10**30": b"-1000000000000000000000000000000",
    "-0": b"-0",
    "-0.0": b"-0.0",
    "1e-400": b"1e-400",
    "leading zero": b"01",
    "leading plus": b"+1",
    "hexadecimal": b"0x10",
    "lone high surrogate": b'"\\ud800"',
    "lone low surrogate": b'"\\udc00"',
    "surrogates the wrong way round": b'"\\udc00\\ud800"',
    "a proper pair": b'"\\ud83d\\ude00"',
    "NUL": b'"a\\u0000b"',
    "NUL as a name": b'{"\\u0000":1}',
    "lone surrogate as a name": b'{"\\ud800":1}',
    "right-to-left override": b'"\\u202e"',
    "last code point": b'"\\udbff\\udfff"',
    "no character": b'"\\uffff"',
    "empty name": b'{"":""}',
}


@pytest.mark.parametrize("place", ["value", "metadata"])
def test_a_hostile_value_is_refused_or_comes_back_unchanged(served: Daemon, place: str) -> None:
    """J05"""
    wrong: list[str] = []
    with served.connect() as connection:
        for name, raw in HOSTILE_VALUES.items():
            data = b'"value":%b' % raw if place == "value" else b'"value":1,"metadata":{"fact":%b}' % raw
            answer = connection.ask(b'{"event":"state:set","data":{"key":"k",%b},"id":1}' % data)
            if not answer["ok"]:
                if answer["error"]["code"] != "invalid":
                    wrong.append(f"{name}: {answer['error']}")
                continue
            read = connection.call("state:get", {"key": "k"})
            kept = read["value"] if place == "value" else read["metadata"]["fact"]
            if not _same(kept, json.loads(raw)):
                wrong.append(f"{name}: sent {raw[:50]!r}, came back as {kept!r:.50}")
        _still_serves(connection)
    assert wrong == []


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    return type(left) is type(right) and bool(left == right)


PLACES = [
    ("state:get", b'{"key":%b}'),
    ("state:get", b'{"key":"k","namespace":%b}'),
    ("state:delete", b'{"key":%b}'),
    ("state:list", b'{"pattern":%b}'),
    ("state:list", b'{"namespace":%b}'),
    ("state:list", b'{"after":["a",%b]}'),
    ("state:list", b'{"limit":%b}'),
    ("system:echo", b'{"text":%b}'),
    ("system:help", b'{"event":%b}'),
    ("system:discover", b'{"namespace":%b}'),
    ("system:validate", b'{"event":"state:set","data":%b}'),
    ("message:publish", b'{"event":"odd:thing","data":{"x":%b}}'),
    ("message:publish", b'{"event":%b}'),
    ("message:subscribe", b'{"patterns":[%b]}'),
    ("message:unsubscribe", b'{"patterns":[%b]}'),
    ("monitor:get_events", b'{"since":%b}'),
    ("monitor:get_events", b'{"until":%b}'),
    ("monitor:get_events", b'{"event_patterns":[%b]}'),
    ("monitor:get_correlation_chain", b'{"correlation_id":%b}'),
    ("plugin:inspect", b'{"name":%b}'),
    ("plugin:reload", b'{"name":%b}'),
]


def test_a_hostile_value_never_breaks_a_core_event(served: Daemon) -> None:
    """J05"""
    times = {
        "far past": b'"0001-01-01T00:00:00+23:59"',
        "far future": b'"9999-12-31T23:59:59-23:59"',
        "1e308": b"1e308",
        "-1e308": b"-1e308",
    }
    broken: list[str] = []
    with served.connect() as connection:
        for event, data in PLACES:
            for name, raw in (HOSTILE_VALUES | times).items():
                answer = connection.ask(b'{"event":"%b","data":%b,"id":1}' % (event.encode(), data % raw))
                if not answer["ok"] and answer["error"]["code"] in ("internal", "cancelled"):
                    broken.append(f"{event} {data!r} {name}: {answer['error']['message']}")
        _still_serves(connection)
    assert broken == []


IDS: dict[str, tuple[bytes, list[Any]]] = {
    "null": (b"null", [None]),
    "float": (b"1.5", [None]),
    "whole float": (b"1.0", [None, 1]),
    "object": (b'{"a":1}', [None]),
    "array": (b"[1]", [None]),
    "true": (b"true", [None]),
    "1 MB string": (b'"' + b"x" * 900_000 + b'"', [None]),
    "129 characters": (b'"' + b"x" * 129 + b'"', [None]),
    "128 characters": (b'"' + b"x" * 128 + b'"', ["x" * 128]),
    "empty": (b'""', [""]),
    "negative": (b"-5", [-5]),
    "zero": (b"0", [0]),
    "-2**63": (b"-9223372036854775808", [-(2**63)]),
    "2**63 - 1": (b"9223372036854775807", [2**63 - 1]),
    "2**63": (b"9223372036854775808", [2**63, None]),
    "2**64": (b"18446744073709551616", [None, 2**64]),
    "10**40": (b"1" + b"0" * 40, [None, 10**40]),
    "1e999": (b"1e999", [None]),
    "NUL": (b'"\\u0000"', ["\x00"]),
    "lone surrogate": (b'"\\ud800"', [None]),
    "emoji": ('"😀"'.encode(), ["😀"]),
}


def test_an_id_is_echoed_exactly_or_the_line_is_refused(served: Daemon) -> None:
    """J06"""
    wrong: list[str] = []
    with served.connect() as connection:
        for name, (raw, echoes) in IDS.items():
            answer = connection.ask(b'{"event":"system:echo","data":{"text":"x"},"id":%b}' % raw)
            if answer["id"] not in echoes or (not answer["ok"] and answer["error"]["code"] != "invalid"):
                wrong.append(f"{name}: {str(answer)[:200]}")
            if answer["ok"] and type(answer["id"]) is not type(json.loads(raw)) and name != "whole float":
                wrong.append(f"{name}: accepted and echoed as {answer['id']!r:.50}")
        _still_serves(connection)
    assert wrong == []


def test_a_repeated_id_gets_an_answer_each_time(served: Daemon) -> None:
    """J06"""
    with served.connect() as connection:
        connection.write(b'{"event":"system:echo","data":{"text":"x"},"id":"same"}\n' * 100)
        assert [connection.next()["id"] for _ in range(100)] == ["same"] * 100


def test_a_bad_request_with_a_good_id_is_refused_under_that_id(served: Daemon) -> None:
    """J06"""
    with served.connect() as connection:
        assert connection.ask(b'{"event":5,"id":"mine"}')["id"] == "mine"
        assert connection.ask(b'{"event":"nobody:home","id":9}')["id"] == 9


def test_a_request_with_a_bad_extra_field_is_refused(served: Daemon) -> None:
    """J06"""
    times = [b'"timeout_s":%b' % raw for raw in (b"-1", b"0", b"1e999", b'"5"', b"true")]
    chains = [b'"correlation_id":%b' % raw for raw in (b'""', b'"%b"' % (b"x" * 65), b"5", b"{}")]
    with served.connect() as connection:
        for extra in times + chains:
            answer = connection.ask(b'{"event":"system:echo","data":{"text":"x"},"id":1,%b}' % extra)
            assert answer["error"]["code"] == "invalid", extra
            _still_serves(connection)


def test_unknown_events_are_refused_with_a_hint_and_without_an_echo_of_megabytes(served: Daemon) -> None:
    """J04"""
    with served.connect() as connection, pytest.raises(Refused) as refused:
        connection.call("x" * 900_000)
    assert refused.value.code == "unknown_event"
    assert len(str(refused.value.error)) < 1_000


def test_the_same_key_twice_is_refused_wherever_it_is(daemon: Daemon) -> None:
    """J01: which of the two is meant is anybody's guess, and parsers guess differently"""
    daemon.start()
    with daemon.connect() as connection:
        for name, line in DUPLICATES.items():
            answer = connection.ask(line)
            assert (answer["ok"], answer["id"]) == (False, 7), name
            assert "occurs twice in one object" in answer["error"]["message"], name
        assert connection.call("state:list", {})["entries"] == []
        _still_serves(connection)


def test_ids_are_bounded_as_documented(daemon: Daemon) -> None:
    """J06"""
    daemon.start()
    with daemon.connect() as connection:
        good: list[Any] = ["x" * 128, "", 0, -(2**63), 2**63 - 1, None]
        bad: list[Any] = ["x" * 129, 2**63, -(2**63) - 1, 10**40, 1.5, True, [], {}]
        for request_id in good + bad:
            asked: dict[str, Any] = {"event": "system:echo", "data": {"text": "x"}, "id": request_id}
            answer = connection.ask(json.dumps(asked).encode())
            if request_id in good and request_id is not True:
                assert (answer["ok"], answer["id"]) == (True, request_id)
            else:
                assert (answer["ok"], answer["id"], answer["error"]["code"]) == (False, None, "invalid"), request_id


def test_lines_that_are_no_requests_are_counted_exactly_in_the_audit(daemon: Daemon) -> None:
    """J03, J04, U01: bad JSON, an unknown field, too long, too deep, a key twice; few with rows of their own, all in the count"""
    daemon.start()
    kinds = [b"not json", b'{"event":"system:echo","admin":true}', b"x" * 1_000_001, _nested(65), *DUPLICATES.values()]
    with daemon.connect() as connection:
        for line in kinds:
            assert connection.ask(line)["ok"] is False
        for _ in range(400):
            assert connection.ask(b"{")["ok"] is False
    assert daemon.stop() == 0
    rows = daemon.audit_rows("type = 'error' AND call_id IS NULL")
    assert sum(int(row["count"]) for row in rows) == len(kinds) + 400
    assert {row["status"] for row in rows} == {"invalid", "too_large"}
    assert {(row["transport"], row["principal"]) for row in rows} == {("socket", "operator")}
    assert len(rows) <= 350


def test_a_line_that_is_refused_is_answered_also_after_the_end_of_the_input(daemon: Daemon) -> None:
    """J08: `printf … | socat` closes its side at once and still reads; the refusal is on its way to the audit meanwhile"""
    daemon.start()
    too_long = b"x" * 1_000_001
    for lines, codes in (
        ([b"not json"], ["invalid"]),
        ([too_long], ["too_large"]),
        ([too_long, ECHO, b"{", too_long], ["invalid", "ok", "too_large", "too_large"]),
    ):
        for _ in range(15):
            with daemon.connect() as connection:
                connection.write(b"\n".join(lines) + b"\n")
                connection.socket.shutdown(socket.SHUT_WR)
                answers = [json.loads(line) for line in connection.socket.makefile("rb")]
            assert sorted(answer.get("error", {}).get("code", "ok") for answer in answers) == codes
