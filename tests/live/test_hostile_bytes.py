"""Clients that send halves, floods, garbage or nothing cost the daemon little and other clients nothing."""

import random
import resource
import socket
import threading
import time
from contextlib import ExitStack, suppress

from tests.live.daemon_process import Connection, Daemon, until


def _still_serves(daemon: Daemon) -> None:
    assert daemon.call("system:echo", {"text": "still here"}) == {"text": "still here"}


def test_a_line_that_comes_in_single_bytes_is_served_when_it_is_whole(daemon: Daemon) -> None:
    """J08"""
    daemon.start()
    with daemon.connect() as connection:
        for byte in b'{"event":"system:echo","data":{"text":"slowly"},"id":1}\n':
            connection.write(bytes([byte]))
        assert connection.next()["data"] == {"text": "slowly"}


def test_half_lines_that_never_end_hold_up_nobody(daemon: Daemon) -> None:
    """J08"""
    daemon.start()
    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(daemon.connect()).write(b'{"event":"system:echo","da')
        _still_serves(daemon)
    until(lambda: daemon.call("system:status")["connections"] == 1, what="the half clients are forgotten")


def test_a_half_line_before_the_end_of_the_input_is_not_run(daemon: Daemon) -> None:
    """J08"""
    daemon.start()
    with daemon.connect() as connection:
        connection.write(b'{"event":"state:set","data":{"key":"half","value":1},"id":1}')
        connection.socket.shutdown(socket.SHUT_WR)
        assert _until_closed(connection) in ([], [None])
    assert daemon.call("state:list")["entries"] == []


def _until_closed(connection: Connection) -> list[object]:
    """The ids of all answers until the daemon hangs up."""
    ids: list[object] = []
    try:
        while True:
            ids.append(connection.next()["id"])
    except EOFError:
        return ids


def test_a_client_that_has_said_everything_still_gets_all_its_answers(daemon: Daemon) -> None:
    """J08: what `socat` and `nc -N` do"""
    daemon.start()
    with daemon.connect() as connection:
        for _ in range(200):
            connection.post("system:echo", {"text": "x"})
        connection.socket.shutdown(socket.SHUT_WR)
        assert sorted(_until_closed(connection), key=str) == sorted(range(1, 201), key=str)


def test_a_hundred_megabytes_without_an_end_of_line_are_refused_once_and_not_kept(daemon: Daemon) -> None:
    """J08 L062"""
    daemon.start()
    _still_serves(daemon)
    before = daemon.settled_bytes()
    peak = before
    with daemon.connect() as connection:
        piece = b"x" * 1_000_000
        for _ in range(100):
            connection.write(piece)
            peak = max(peak, daemon.resident_bytes())
        connection.write(b"\n")
        answer = connection.next()
        assert answer["error"]["code"] == "too_large"
        assert connection.call("system:echo", {"text": "the connection stays"}) == {"text": "the connection stays"}
    assert peak - before <= 20_000_000


def test_a_line_at_the_limit_is_served_and_one_byte_more_is_refused(daemon: Daemon) -> None:
    """J08 L062"""
    daemon.start()
    with daemon.connect() as connection:
        frame = b'{"event":"system:validate","data":{"event":"system:echo","data":{"text":"%b"}},"id":1}'
        fitting = frame % (b"x" * (1_000_000 - len(frame) + 2))
        assert len(fitting) == 1_000_000
        assert connection.ask(fitting)["ok"] is True
        longer = frame % (b"x" * (1_000_001 - len(frame) + 2))
        assert connection.ask(longer)["error"]["code"] == "too_large"
        assert connection.ask(fitting)["ok"] is True


def test_ten_megabytes_of_garbage_are_answered_line_by_line_and_the_daemon_lives(daemon: Daemon) -> None:
    """J08"""
    daemon.start()
    garbage = random.Random(8).randbytes(2_000_000)
    expected = sum(1 for line in garbage.split(b"\n")[:-1] if line.strip())
    with daemon.connect() as connection:
        sender = threading.Thread(target=connection.write, args=(garbage,))
        sender.start()
        answers = [connection.next() for _ in range(expected)]
        sender.join()
    assert {answer["error"]["code"] for answer in answers} == {"invalid"}
    _still_serves(daemon)


def test_a_thousand_connections_at_once_are_all_served(daemon: Daemon) -> None:
    """J08"""
    daemon.start()
    with ExitStack() as stack:
        clients = [stack.enter_context(daemon.connect()) for _ in range(1_000)]
        requests = [client.post("system:echo", {"text": "all of us"}) for client in clients]
        began = time.monotonic()
        assert all(client.answer(request)["ok"] for client, request in zip(clients, requests, strict=True))
        assert time.monotonic() - began <= 10
        assert daemon.call("system:status")["connections"] == 1_001
        assert daemon.health_s() <= 0.5
    until(lambda: daemon.call("system:status")["connections"] == 1, what="all are forgotten")


def test_a_thousand_clients_that_vanish_mid_call_leave_nothing_behind(daemon: Daemon) -> None:
    """J08"""
    daemon.start()
    for _ in range(1_000):
        with daemon.connect() as connection:
            connection.write(
                b'{"event":"message:subscribe","data":{"patterns":["*"]},"id":1}\n{"event":"system:health"}\n{"ev'
            )
    until(lambda: daemon.call("system:status")["connections"] == 1, what="all are forgotten")
    assert daemon.call("message:subscriptions")["subscriptions"] == []
    assert daemon.call("system:status")["calls_in_flight"] == 0


def test_one_connection_with_ten_thousand_requests_under_way_does_not_starve_another(daemon: Daemon) -> None:
    """J08"""
    daemon.start()
    with daemon.connect() as greedy:
        flood = b'{"event":"system:discover","data":{"detail":true},"id":1}\n' * 2_000
        sender = threading.Thread(target=_ignoring_hang_up, args=(greedy, flood))
        sender.start()
        times = sorted(daemon.health_s() for _ in range(9))
        assert times[4] <= 0.5
    sender.join()
    _still_serves(daemon)


def _ignoring_hang_up(connection: Connection, raw: bytes) -> None:
    try:
        connection.write(raw)
    except OSError:
        return


def test_when_files_run_out_the_daemon_lives_and_serves_again_afterwards(daemon: Daemon) -> None:
    """J08"""
    daemon.start()
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (128, 128))
    with ExitStack() as stack:
        with suppress(BlockingIOError):  # the kernel's own queue is full too
            for _ in range(300):
                stack.enter_context(daemon.connect())
        assert daemon.alive
    until(lambda: _connections(daemon) == 1, within_s=10, what="it serves again")
    assert len(daemon.log_lines()) <= 100 + len(daemon.logged("call"))


def _connections(daemon: Daemon) -> int | None:
    """How many it has, this one included; None while it cannot be asked."""
    try:
        count: int = daemon.call("system:status")["connections"]
    except (OSError, EOFError):
        return None
    return count
