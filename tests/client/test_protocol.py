"""The lines of the operator socket, and the errors they carry."""

import json

import pytest

from ksi_client import errors
from ksi_client.notice import Notice
from ksi_client.protocol import LINE_LIMIT_BYTES, Answer, Dropped, backoff_s, decode_line, encode_request
from tests.cases import case

CODES = {
    "invalid": (errors.Invalid, 2),
    "unknown_event": (errors.UnknownEvent, 3),
    "not_found": (errors.NotFound, 3),
    "conflict": (errors.Conflict, 7),
    "forbidden": (errors.Forbidden, 4),
    "too_many": (errors.TooMany, 1),
    "too_large": (errors.TooLarge, 65),
    "too_deep": (errors.TooDeep, 1),
    "timed_out": (errors.TimedOut, 6),
    "cancelled": (errors.Cancelled, 1),
    "unavailable": (errors.Unavailable, 1),
    "internal": (errors.Internal, 1),
}


def test_every_error_code_becomes_its_own_class_with_its_exit_code() -> None:
    for code, (kind, exit_code) in CODES.items():
        with case(code):
            error = {
                "code": code,
                "message": "what",
                "hint": "next",
                "fields": [{"field": "text", "problem": "too long"}],
                "retry_after_s": 1.5,
                "call_id": "c1",
            }
            message = decode_line(json.dumps({"id": 7, "ok": False, "error": error}).encode())
            assert isinstance(message, Answer)
            with pytest.raises(kind) as raised:
                message.unwrap()
            caught = raised.value
            assert type(caught) is kind
            assert (caught.code, caught.exit_code, str(caught)) == (code, exit_code, "what")
            assert (caught.hint, caught.call_id, caught.retry_after_s) == ("next", "c1", 1.5)
            assert caught.fields == ({"field": "text", "problem": "too long"},)


def test_a_code_of_the_future_is_a_plain_error_that_names_it() -> None:
    error = errors.from_wire({"code": "too_purple", "message": "mauve at most"})
    assert type(error) is errors.KsiError
    assert str(error) == "too_purple: mauve at most"


def test_a_request_is_one_compact_line() -> None:
    line = encode_request("system:echo", {"text": "grüß\ndich"}, request_id=3, timeout_s=5, correlation_id="c")
    assert line.count(b"\n") == 1
    assert json.loads(line) == {
        "event": "system:echo",
        "data": {"text": "grüß\ndich"},
        "id": 3,
        "timeout_s": 5,
        "correlation_id": "c",
    }


def test_a_request_of_exactly_the_limit_goes_and_one_byte_more_does_not() -> None:
    padding = LINE_LIMIT_BYTES - len(encode_request("a:b", {"text": ""}, request_id=1, timeout_s=1))
    assert len(encode_request("a:b", {"text": "x" * padding}, request_id=1, timeout_s=1)) == LINE_LIMIT_BYTES
    with pytest.raises(errors.TooLarge, match="1,000,001 bytes"):
        encode_request("a:b", {"text": "x" * (padding + 1)}, request_id=1, timeout_s=1)


def test_what_json_cannot_say_is_refused_before_sending() -> None:
    for value in [float("nan"), float("inf"), {1, 2}, b"bytes"]:
        with case(value), pytest.raises(errors.Invalid, match="cannot be written as JSON"):
            encode_request("a:b", {"value": value}, request_id=1, timeout_s=1)


def test_notices_and_drop_counts_are_distinguished_from_answers() -> None:
    notice = decode_line(b'{"notice":{"id":"n","event":"a:done","data":{"x":1},"at":"t","depth":2,"new":1}}')
    assert notice == Notice(id="n", event="a:done", data={"x": 1}, at="t", depth=2)
    assert decode_line(b'{"dropped":12}') == Dropped(12)
    assert decode_line(b'{"id":null,"ok":true,"data":null}') == Answer(None, None, None)


def test_a_line_that_makes_no_sense_is_an_internal_error() -> None:
    for line in [b"", b"not json", b"[]", b"{}", b'{"ok":false}', b"[" * 100_000, b"\xff"]:
        with case(line), pytest.raises(errors.Internal):
            decode_line(line)


def test_pauses_between_tries_grow_and_stay_bounded() -> None:
    pauses = [backoff_s(attempt) for attempt in range(2000)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.05, 2.0)
