"""Binds the one HTTP port and runs uvicorn on it inside the daemon's own loop and lifetime."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from ksi_daemon.errors import BadSettings, StartError
from ksi_daemon.routing.slow_readers import SlowReaders
from ksi_daemon.web.http_protocol import HttpConfig, HttpLimits


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Do nothing: the daemon handles signals."""
        yield


def bind(host: str, port: int, remembered: Path) -> socket.socket:
    """The listening socket. Port 0 takes the last port again if it is free, else any."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    wanted = [_last_port(remembered), 0] if port == 0 else [port]
    for number in wanted:
        if number is None:
            continue
        # asyncio's own loop sets TCP_NODELAY only where the protocol is named; without it each reply waits 40 ms
        listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, number))
            listener.listen(2048)
        except OSError as error:
            listener.close()
            if number == wanted[-1]:
                raise StartError(
                    f"{host}:{number} cannot be used for HTTP: {error.strerror}. Another program may use it: "
                    "choose another with KSI_PORT=…, or KSI_PORT=0 for any free port."
                ) from error
            continue
        _remember_port(remembered, listener.getsockname()[1])
        return listener
    raise StartError(f"no port to listen on at {host}")


@asynccontextmanager
async def serving(
    app: ASGIApp, listener: socket.socket, *, slow_readers: SlowReaders, limits: HttpLimits | None = None
) -> AsyncIterator[None]:
    """Serve HTTP until left; connections get a second to finish."""
    config = HttpConfig(
        app,
        limits or HttpLimits(),
        slow_readers,
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,  # any local program could claim another address
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]), name="http")
    await server.listening.wait()
    try:
        yield
    finally:
        server.should_exit = True
        with suppress(asyncio.CancelledError):
            await task


def _last_port(remembered: Path) -> int | None:
    try:
        port = int(remembered.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return port if 0 < port < 65_536 else None


def _remember_port(remembered: Path, port: int) -> None:
    try:
        handle = os.open(remembered, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise BadSettings(
            f"{remembered} cannot be written ({error.strerror}). Remove it, or fix the mode of its folder."
        ) from error
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(str(port))
