"""Clients that begin lines and never finish them are bounded together, and those that do finish theirs are served."""

from contextlib import ExitStack, suppress

from tests.live.daemon_process import Daemon, until

CLIENTS = 300
GROWTH_LIMIT_BYTES = 150_000_000


def test_hundreds_of_lines_that_are_never_finished_do_not_fill_the_memory(daemon: Daemon) -> None:
    """D04 L062"""
    daemon.start()
    begun = b'{"event":"system:echo","data":{"text":"' + b"x" * 900_000
    with ExitStack() as stack:
        before = daemon.resting_bytes()
        honest = stack.enter_context(daemon.connect())
        for number in range(CLIENTS):
            client = stack.enter_context(daemon.connect())
            with suppress(BrokenPipeError, ConnectionResetError):
                client.write(begun)
            if number % 50 == 0:
                assert len(honest.call("system:echo", {"text": "x" * 90_000})["text"]) == 90_000
        until(
            lambda: len(daemon.logged("a client that does not finish its line was disconnected")) >= CLIENTS - 80,
            what="those that began first are cut",
        )
        assert daemon.resident_bytes() - before <= GROWTH_LIMIT_BYTES
        assert daemon.call("system:status")["connections"] <= 80
        assert honest.call("system:echo", {"text": "well"})["text"] == "well"
