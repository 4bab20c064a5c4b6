"""Runs programs of agents, each below a runner: a process of its own, which outlives the daemon. Started as a script.

The first process waits for requests on a socket and forks a runner for each, which costs a millisecond instead of the start of an
interpreter; it ends with the daemon. A runner writes its program's output to files of bounded size, adopts and reaps all that the
program leaves behind, ends them on SIGTERM, and writes last how the program ended. Standard library only.

    launch.json   argv, cwd, limits (read)            stdin            what the program reads (read)
    began         the program may have run; locked by the runner as long as it lives
    ended.json    code, signal, problem, dropped, left: complete or absent             stdout, stderr

A request is its length in four bytes and JSON: the folder and the program's environment. The answer is the runner's pid in four
bytes, with a pidfd.
"""

import ctypes
import errno
import fcntl
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
READ_BYTES = 65_536
KILL_EVERY_S = 0.05
GIVE_UP_AFTER_S = 10.0  # on processes that cannot be killed


class Output:
    """One stream of the program, copied to a file until the file is full; the rest is counted."""

    def __init__(self, path: str, limit: int) -> None:
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.reading, False)
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_APPEND, 0o600)
        self.room = limit
        self.dropped = 0
        self.open = True

    def copy(self) -> bool:
        """Copy what is there; False if there is nothing."""
        try:
            data = os.read(self.reading, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self.open = False
            return False
        kept = data[: self.room]
        self.dropped += len(data) - len(kept)
        while kept:
            try:
                written = os.write(self.file, kept)
            except OSError:  # a full disk: the program goes on, and what is lost is counted
                self.dropped += len(kept)
                break
            self.room -= written
            kept = kept[written:]
        return True


def serve(requests: socket.socket) -> None:
    """Fork a runner for each request, until the daemon is gone."""
    os.setsid()
    os.umask(0o077)
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):  # it ends when the daemon does
        signal.signal(ignored, signal.SIG_IGN)
    while True:
        head = receive(requests, 4)
        body = receive(requests, int.from_bytes(head, "big"))
        if not head or not body:
            return
        reap(0)
        runner = os.fork()
        if runner == 0:
            requests.close()
            request = json.loads(body)
            try:
                run(request["folder"], request["environment"])
            finally:
                os._exit(0)
        socket.send_fds(requests, [runner.to_bytes(4, "big")], [pidfd := os.pidfd_open(runner)])
        os.close(pidfd)


def receive(requests: socket.socket, size: int) -> bytes:
    """So many bytes; none at the end."""
    data = b""
    while len(data) < size:
        piece = requests.recv(size - len(data))
        if not piece:
            return b""
        data += piece
    return data


def run(folder: str, environment: dict[str, str]) -> None:
    """Run one program to its end."""
    os.setsid()
    signals, wakeup = os.pipe()
    for end in (signals, wakeup):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    stopping: list[float] = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(time.monotonic()))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    os.chdir(folder)
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with open("launch.json", encoding="utf-8") as file:
        launch = json.load(file)
    outputs = [Output("stdout", launch["stdout_limit"]), Output("stderr", launch["stderr_limit"])]
    begin()
    program, problem = start(libc, launch, environment, outputs)
    status = supervise(program, outputs, signals, stopping, launch["grace_s"])
    code = None if status is None or problem else os.waitstatus_to_exitcode(status)
    ended = {
        "code": code if code is not None and code >= 0 else None,
        "signal": -code if code is not None and code < 0 else None,
        "problem": problem,
        "stopped": bool(stopping),
        "dropped": {"stdout": outputs[0].dropped, "stderr": outputs[1].dropped},
        "left": sorted(descendants()) if status is None else [],
    }
    with open("ended.json.new", "x", encoding="utf-8") as file:
        json.dump(ended, file)
    os.rename("ended.json.new", "ended.json")


def begin() -> None:
    """From here on the program may have run. Fails when a daemon has taken the folder away to start it again.

    The lock is held before the file has its name, so that a file without a lock is that of a runner that is gone.
    """
    began = os.open("began.new", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    fcntl.lockf(began, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.rename("began.new", "began")


def start(
    libc: ctypes.CDLL, launch: dict[str, Any], environment: dict[str, str], outputs: list[Output]
) -> tuple[int, str | None]:
    """The program's process, and why it could not be started."""
    failures, failed = os.pipe()
    program = os.fork()
    if program == 0:
        try:
            become(libc, launch, environment, outputs)
        except OSError as error:
            os.write(failed, f"{error.filename or launch['cwd']}: {error.strerror}".encode()[:2_000])
        finally:
            os._exit(127)
    os.close(failed)
    for output in outputs:
        os.close(output.writing)
    problem = os.read(failures, 2_000).decode("utf-8", "replace")  # at the exec the other end is closed
    os.close(failures)
    return program, problem or None


def become(libc: ctypes.CDLL, launch: dict[str, Any], environment: dict[str, str], outputs: list[Output]) -> None:
    """Turn this process into the program. It dies with the runner."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.setpgid(0, 0)
    stdin = os.open("stdin", os.O_RDONLY)
    for number, source in enumerate((stdin, outputs[0].writing, outputs[1].writing)):
        os.dup2(source, number)
    for name in ("SIGPIPE", "SIGXFSZ", "SIGINT", "SIGHUP", "SIGTERM", "SIGCHLD"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    os.umask(0o022)
    os.chdir(launch["cwd"])
    os.execvpe(launch["argv"][0], launch["argv"], environment)  # noqa: S606 - the agent's program, without a shell


def supervise(program: int, outputs: list[Output], signals: int, stopping: list[float], grace_s: float) -> int | None:
    """Copy output, and end the rest when the program has ended or is to stop; its wait status."""
    poller = select.poll()
    watched = {output.reading: output for output in outputs}
    for descriptor in (signals, *watched):
        poller.register(descriptor, select.POLLIN)
    status: int | None = None
    kill_after: float | None = None  # of what is left
    asked = False
    while True:
        for descriptor, _ in poller.poll(None if kill_after is None else KILL_EVERY_S * 1000):
            if descriptor == signals:
                while True:
                    try:
                        os.read(signals, 512)
                    except BlockingIOError:
                        break
            else:
                watched[descriptor].copy()
                if not watched[descriptor].open:
                    poller.unregister(descriptor)
        ended, left = reap(program)
        status = status if ended is None else ended
        if not left:
            break
        now = time.monotonic()
        if (stopping or status is not None) and not asked:
            asked = True
            kill_after = now + grace_s
            send(signal.SIGTERM)
        if kill_after is not None and now >= kill_after:
            send(signal.SIGKILL)
            if now >= kill_after + GIVE_UP_AFTER_S:
                break
    for output in outputs:
        while output.copy():  # until there is no more; somebody who is not ours may hold the other end
            pass
    return status


def reap(program: int) -> tuple[int | None, bool]:
    """The program's wait status if it has ended, and whether any process is left."""
    status = None
    while True:
        try:
            pid, ended = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status, False
        if pid == 0:
            return status, True
        if pid == program:
            status = ended


def send(number: int) -> None:
    """Signal all descendants."""
    for pid in descendants():
        try:
            os.kill(pid, number)
        except OSError as error:
            if error.errno not in (errno.ESRCH, errno.EPERM):
                raise


def descendants() -> set[int]:
    """Every process below this one. What lost its parent is ours: this process is its subreaper."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
            except OSError:
                continue
            if state not in (b"Z", b"X"):
                children.setdefault(int(parent), []).append(int(name))
    found: set[int] = set()
    waiting = [os.getpid()]
    while waiting:
        below = set(children.get(waiting.pop(), ())) - found
        found |= below
        waiting += below
    return found


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
