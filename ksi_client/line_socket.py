"""A blocking unix socket that reads and writes whole lines before a deadline. Does not parse them."""

import socket
import time
from pathlib import Path

from ksi_client.paths import connectable
from ksi_client.protocol import RECEIVE_LIMIT_BYTES


class LineSocket:
    """A connected socket that reads and writes whole lines before a deadline."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with connectable(path) as address:
                self._socket.connect(address)
        except BaseException:
            self._socket.close()
            raise
        self._unread = bytearray()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def ended(self) -> bool:
        """Whether the peer has closed the connection, without waiting."""
        self._socket.settimeout(0)
        try:
            return self._socket.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def write(self, line: bytes, deadline: float) -> None:
        """Hand the whole line to the kernel, or raise; TimeoutError when the deadline passes first."""
        self._wait_at_most(deadline)
        self._socket.sendall(line)

    def read(self, deadline: float | None) -> bytes:
        """The next line, without its newline. Raises OSError when the connection ends; a deadline of None waits forever."""
        searched = 0
        while (end := self._unread.find(b"\n", searched)) < 0:
            searched = len(self._unread)
            if searched > RECEIVE_LIMIT_BYTES:
                raise ConnectionError(f"a line of over {RECEIVE_LIMIT_BYTES:,} bytes")
            self._wait_at_most(deadline)
            piece = self._socket.recv(65536)
            if not piece:
                raise ConnectionError("the daemon closed the connection")
            self._unread += piece
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        return line

    def _wait_at_most(self, deadline: float | None) -> None:
        if deadline is None or deadline == float("inf"):
            self._socket.settimeout(None)
            return
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._socket.settimeout(left_s)
