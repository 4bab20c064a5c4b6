"""The blocking client against a fake daemon: answers, deadlines, restarts and notices."""

import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ksi_client import Notice, SyncClient, errors
from tests.client.fake_daemon import FakeDaemon, HangUp, Silence, fail

WAIT_S = 10


def raising(error: Exception) -> Callable[[dict[str, Any]], Any]:
    """An answer that raises."""

    def answer(_: dict[str, Any]) -> Any:
        raise error

    return answer


def test_an_event_is_sent_and_its_data_returned(daemon: FakeDaemon) -> None:
    with SyncClient() as client:
        assert client.send("system:echo", {"text": "hi"}, timeout_s=5, correlation_id="c-1") == {"text": "hi"}
    assert daemon.requests[0]["correlation_id"] == "c-1"
    assert daemon.requests[0]["timeout_s"] == 5


def test_one_connection_serves_call_after_call_also_after_a_failed_one(daemon: FakeDaemon) -> None:
    daemon.answers["a:fails"] = fail(code="conflict", message="no")
    with SyncClient() as client:
        with pytest.raises(errors.Conflict):
            client.send("a:fails")
        assert [client.send("system:echo", {"n": n}) for n in range(50)] == [{"n": n} for n in range(50)]
    assert len({request["id"] for request in daemon.requests}) == 51


def test_without_a_daemon_the_error_says_what_why_and_what_next(var: Path) -> None:
    with SyncClient() as client, pytest.raises(errors.Unreachable) as raised:
        client.send("system:echo")
    assert str(var / "run" / "ksi.sock") in str(raised.value)
    assert "does not exist" in str(raised.value)
    assert raised.value.hint == "ksi start"
    assert raised.value.exit_code == 5


def test_a_socket_left_over_by_a_dead_daemon_is_named_as_such(daemon: FakeDaemon) -> None:
    daemon.stop()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(daemon.path))
    with SyncClient() as client, pytest.raises(errors.Unreachable, match="left over"):
        client.send("system:echo")
    daemon.path.unlink()
    daemon.start()


def test_a_call_that_is_never_answered_times_out_and_the_next_one_works(daemon: FakeDaemon) -> None:
    daemon.answers["a:slow"] = raising(Silence())
    with SyncClient() as client:
        with pytest.raises(errors.TimedOut, match=r"a:slow did not answer within 0\.05 s"):
            client.send("a:slow", timeout_s=0.05)
        assert client.send("system:echo", {"text": "still here"}) == {"text": "still here"}


def test_a_call_sent_and_not_answered_is_never_sent_twice(daemon: FakeDaemon) -> None:
    daemon.answers["a:once"] = raising(HangUp())
    with SyncClient() as client, pytest.raises(errors.ConnectionLost, match="may have run") as raised:
        client.send("a:once")
    assert isinstance(raised.value, errors.Unavailable)
    assert [request["event"] for request in daemon.requests] == ["a:once"]


def test_a_restart_between_two_calls_is_not_noticed(daemon: FakeDaemon) -> None:
    with SyncClient() as client:
        client.send("system:echo")
        daemon.stop()
        returning = threading.Timer(0.2, daemon.start)
        returning.start()
        assert client.send("system:echo", {"text": "back"}) == {"text": "back"}
        returning.join(WAIT_S)


def test_without_reconnect_a_restart_is_an_error(daemon: FakeDaemon) -> None:
    with SyncClient(reconnect=False) as client:
        client.send("system:echo")
        daemon.stop()
        with pytest.raises(errors.Unreachable):
            client.send("system:echo")
        daemon.start()


def test_an_oversize_request_is_refused_here_and_the_connection_stays(daemon: FakeDaemon) -> None:
    with SyncClient() as client:
        with pytest.raises(errors.TooLarge):
            client.send("system:echo", {"text": "x" * 1_000_000})
        assert client.send("system:echo", {"text": "y"}) == {"text": "y"}
    assert len(daemon.requests) == 1


def test_a_long_answer_arrives_whole(daemon: FakeDaemon) -> None:
    daemon.answers["a:long"] = lambda _: {"text": "x" * 3_000_000}
    with SyncClient() as client:
        assert len(client.send("a:long")["text"]) == 3_000_000


def test_a_socket_path_beyond_the_kernels_limit_is_reached(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["a-folder-with-a-long-name"] * 6) / "ksi.sock"
    assert len(str(deep)) > 107
    with FakeDaemon(deep), SyncClient(deep) as client:
        assert client.send("system:echo", {"text": "deep"}) == {"text": "deep"}
        with client.subscribe("*") as notices:
            assert notices.dropped == 0


def test_notices_arrive_in_order_and_drops_are_counted(daemon: FakeDaemon) -> None:
    told: list[str] = []
    with SyncClient() as client, client.subscribe("a:*", on_status=told.append) as notices:
        daemon.publish("a:one", n=1)
        daemon.push({"dropped": 12})
        daemon.push({"dropped": 3})
        daemon.publish("a:two", n=2)
        stream = iter(notices)
        first, second = next(stream), next(stream)
    assert isinstance(first, Notice)
    assert [(first.event, first.data), (second.event, second.data)] == [("a:one", {"n": 1}), ("a:two", {"n": 2})]
    assert notices.dropped == 15
    assert told[0].startswith("12 notices dropped")


def test_a_subscription_is_made_again_after_a_restart(daemon: FakeDaemon) -> None:
    told: list[str] = []
    with SyncClient() as client, client.subscribe("a:*", on_status=told.append) as notices:
        daemon.stop()

        def come_back() -> None:
            daemon.start()
            assert daemon.subscribed.wait(WAIT_S)
            daemon.publish("a:again")

        returning = threading.Timer(0.1, come_back)
        returning.start()
        assert next(iter(notices)).event == "a:again"
        returning.join(WAIT_S)
    assert notices.reconnects == 1
    assert [request["data"] for request in daemon.requests] == [{"patterns": ["a:*"]}] * 2
    assert "connection lost" in told[0]


def test_a_refused_subscription_raises_its_error(daemon: FakeDaemon) -> None:
    daemon.answers["message:subscribe"] = fail(code="invalid", message="bad pattern")
    with SyncClient() as client, pytest.raises(errors.Invalid, match="bad pattern"):
        client.subscribe("***")
