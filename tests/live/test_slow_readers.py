"""A client that hears more than it reads is told what it lost, and cut when it does not read at all."""

import time

from tests.live.daemon_process import Connection, Daemon, until

LARGE = {"text": "x" * 50_000}


def _publish(connection: Connection, count: int, data: dict[str, str]) -> list[dict[str, int]]:
    requests = [connection.post("message:publish", {"event": "load:item", "data": data}) for _ in range(count)]
    return [connection.answer(request)["data"] for request in requests]


def test_a_client_that_never_reads_is_cut_after_ten_seconds_and_others_hear_everything(daemon: Daemon) -> None:
    """D04"""
    daemon.start()
    with daemon.connect() as deaf, daemon.connect() as keen, daemon.connect() as sender:
        deaf.call("message:subscribe", {"patterns": ["load:*"]})
        keen.call("message:subscribe", {"patterns": ["load:*"]})
        began = time.monotonic()
        for _ in range(60):
            _publish(sender, 1, LARGE)
            assert keen.notice()["data"] == LARGE
        assert daemon.health_s() <= 0.5
        until(lambda: daemon.logged("a client that does not read was disconnected"), within_s=15, what="it is cut")
        assert 9 <= time.monotonic() - began <= 15
        [line] = daemon.logged("a client that does not read was disconnected")
        assert line["unread_bytes"] > 500_000
        assert keen.dropped == 0
        assert len(daemon.call("message:subscriptions")["subscriptions"]) == 1
        _publish(sender, 1, LARGE)
        assert keen.notice()["data"] == LARGE


def test_what_a_slow_reader_missed_is_told_so_that_nothing_is_unaccounted_for(daemon: Daemon) -> None:
    """D04"""
    daemon.start(KSI_NOTICE_INBOX="20")
    with daemon.connect() as slow, daemon.connect() as sender:
        slow.call("message:subscribe", {"patterns": ["load:*"]})
        answers = [answer for _ in range(10) for answer in _publish(sender, 20, LARGE)]
        refused = sum(answer["dropped"] for answer in answers)
        assert refused > 0, "it must have been too slow"
        [subscription] = daemon.call("message:subscriptions")["subscriptions"]
        assert subscription["dropped"] == refused
        heard = 0
        while heard + slow.dropped < 200:
            slow.notice()
            heard += 1
        assert slow.dropped == refused
        assert heard == 200 - refused
        [subscription] = daemon.call("message:subscriptions")["subscriptions"]
        assert (subscription["delivered"], subscription["dropped"], subscription["waiting"]) == (heard, refused, 0)
        assert daemon.call("system:health")["dropped_notices"] == refused


def test_a_client_that_does_not_read_its_answers_is_not_read_from_either(daemon: Daemon) -> None:
    """D04"""
    daemon.start()
    before = daemon.settled_bytes()
    with daemon.connect() as deaf:
        deaf.socket.settimeout(2)
        request = b'{"event":"system:echo","data":{"text":"%b"},"id":1}\n' % (b"x" * 90_000)
        sent = 0
        try:
            while sent < 100_000_000:
                deaf.write(request)
                sent += len(request)
        except TimeoutError:
            pass
        assert sent < 30_000_000, "it went on reading what it could not answer"
        assert daemon.resident_bytes() - before <= 40_000_000
        assert daemon.health_s() <= 0.5


def test_a_subscriber_that_hangs_up_is_forgotten_at_once(daemon: Daemon) -> None:
    """D04"""
    daemon.start()
    for _ in range(20):
        with daemon.connect() as connection:
            connection.call("message:subscribe", {"patterns": ["nobody:*"]})
    until(lambda: daemon.call("message:subscriptions")["subscriptions"] == [], within_s=5, what="all are forgotten")
    assert daemon.call("system:status")["connections"] == 1


def test_large_notices_do_not_stay_in_memory(daemon: Daemon) -> None:
    """D04"""
    daemon.start()
    huge = {"text": "x" * 900_000}
    with daemon.connect() as slow, daemon.connect() as sender:
        slow.call("message:subscribe", {"patterns": ["load:*"]})
        _publish(sender, 5, huge)
        before = daemon.resident_bytes()
        for _ in range(40):
            _publish(sender, 5, huge)
        assert daemon.resident_bytes() - before <= 100_000_000
