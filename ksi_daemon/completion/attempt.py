"""One attempt of a completion under way: reads what its program prints, holds it to its deadlines, and says what became of it."""

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from ksi_daemon.agents.run_folder import Ended, RunFolder
from ksi_daemon.agents.runner_process import RunnerProcess, find_runner
from ksi_daemon.completion.provider import Failure, Outcome, OutputReader, Progress
from ksi_daemon.storage.completions import StoredCompletion

LOOK_EVERY_S = 0.2
PIECE_BYTES = 256 * 1024
PRINTED_CHARACTERS = 200_000
STDERR_BYTES = 4_000  # the end of it, for messages
GRACE_S = 3.0  # between SIGTERM and SIGKILL

CANCELLED = Failure("cancelled", "the completion was cancelled")
STOPPED = Failure("interrupted", "the daemon was stopped", hint="send the prompt again")
LOST = Failure("interrupted", "the program's runner was killed, and the program with it", hint="send the prompt again")


class Attempt:
    """A program that runs, or ran while no daemon watched (`runner` is None)."""

    def __init__(
        self, completion: StoredCompletion, folder: RunFolder, reader: OutputReader, runner: RunnerProcess | None
    ) -> None:
        self.completion = completion
        self.folder = folder
        self.stopped_for: Failure | None = None
        self.printed = ""  # the beginning of the answer so far
        self._characters = 0  # of all of it
        self._reader = reader
        self._runner = runner
        self._read = 0
        self._abandoned = asyncio.Event()
        self._began = time.monotonic() - max(0.0, time.time() - (completion.started_at or time.time()))

    @property
    def pid(self) -> int | None:
        """The runner's process, while it lives."""
        return None if self._runner is None or self._runner.has_ended else self._runner.pid

    def stop(self, failure: Failure) -> None:
        """End the program. The first reason counts."""
        if self.stopped_for is None:
            self.stopped_for = failure
        if self._runner is not None:
            self._runner.send(signal.SIGTERM)

    def abandon(self) -> None:
        """Leave the program running, for the next daemon."""
        self._abandoned.set()

    async def outcome(self, on_progress: Callable[[list[Progress], int], None]) -> Outcome | None:
        """Wait for the program's end; None if it was abandoned. What was printed before this daemon began is not reported again."""
        await self._read_more(lambda progress, before: None)
        while True:
            ended = self._runner is None or self._runner.has_ended
            await self._read_more(on_progress)
            if ended:
                break
            if self._abandoned.is_set():
                assert self._runner is not None
                self._runner.abandon()
                return None
            self._check_deadlines()
            await self._wait()
        record = self.folder.ended()
        if record is None and (runner := find_runner(self.folder.path)) is not None:
            self._runner = runner  # another one than it was thought to be
            return await self.outcome(on_progress)
        if record is None:
            return Outcome(failure=self.stopped_for or LOST)
        outcome = self._reader.end(record, self._last_of_stderr())
        if self.stopped_for is not None and (record.stopped or outcome.failure is not None):
            outcome = msgspec.structs.replace(outcome, failure=self.stopped_for)
        elif record.dropped["stdout"]:
            outcome = msgspec.structs.replace(outcome, failure=_too_much(record))
        return outcome

    async def _wait(self) -> None:
        assert self._runner is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_EVERY_S):
                await self._runner.wait()

    async def _read_more(self, on_progress: Callable[[list[Progress], int], None]) -> None:
        """Report what is new, with how many characters of the answer came before."""
        while self.folder.output_size("stdout") > self._read:
            data = self.folder.read_output("stdout", self._read, PIECE_BYTES)
            self._read += len(data)
            if progress := self._reader.feed(data):
                text = "".join(piece.text for piece in progress if piece.kind == "text")
                self.printed += text[: max(0, PRINTED_CHARACTERS - len(self.printed))]
                on_progress(progress, self._characters)
                self._characters += len(text)
            await asyncio.sleep(0)

    def _check_deadlines(self) -> None:
        completion, lasted_s = self.completion, time.monotonic() - self._began
        if completion.timeout_s is not None and lasted_s >= completion.timeout_s:
            self.stop(_timed_out(f"it did not end within {completion.timeout_s:g} s"))
        elif completion.first_output_s is not None and not self._read and lasted_s >= completion.first_output_s:
            self.stop(_timed_out(f"it printed nothing within {completion.first_output_s:g} s"))

    def _last_of_stderr(self) -> str:
        size = self.folder.output_size("stderr")
        data = self.folder.read_output("stderr", max(0, size - STDERR_BYTES), STDERR_BYTES)
        return data.decode("utf-8", "replace")


def _timed_out(what: str) -> Failure:
    return Failure("timed_out", f"the program was ended: {what}", hint="give it longer: timeout_s, first_output_s")


def _too_much(ended: Ended) -> Failure:
    return Failure("too_large", f"the program printed {ended.dropped['stdout']:,} bytes more than are kept")
