"""Runs completions: queues them, starts their programs, watches them, and remembers what became of each over restarts.

Every step is durable before the next is made, and the operating system says what really runs: after a crash, programs that live are
watched again, those that ended meanwhile are read, those that never began are started, and the others are reported as interrupted.
"""

import asyncio
import hashlib
import os
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ksi_daemon.agents.run_folder import (
    WORKSPACE,
    RunFolder,
    delete_all,
    delete_old,
    launch_record,
    make_workspace,
    whole_characters,
)
from ksi_daemon.agents.runner_process import (
    MARK,
    RunnerProcess,
    RunnerStarter,
    find_runner,
    kill,
    marked_processes,
)
from ksi_daemon.completion.attempt import CANCELLED, GRACE_S, STOPPED, Attempt
from ksi_daemon.completion.provider import Failure, Job, Outcome, Progress, Provider
from ksi_daemon.completion.providers import find_provider
from ksi_daemon.completion.schedule import Schedule, Waiting
from ksi_daemon.errors import AuditUnavailable, Conflict, KsiError, NotFound, TooMany
from ksi_daemon.gate.rights import Rights
from ksi_daemon.identifiers import new_id, time_of
from ksi_daemon.principal import Principal
from ksi_daemon.storage.agents import Agent, Credential
from ksi_daemon.storage.completions import CompletionStore, StoredCompletion, TokenUsage, Used
from ksi_daemon.storage.mcp_sessions import HandshakeStore

WAITING_LIMIT = 10_000
WAITING_LIMIT_OF_AGENT = 1_000
STDOUT_LIMIT_BYTES = 64 * 1024 * 1024
STDERR_LIMIT_BYTES = 4 * 1024 * 1024
RETRY_AFTER_S = 10.0
RETRY_PAUSES_S = (2.0, 10.0, 60.0)
TOKEN_OUTLIVES_S = 60.0
PROGRESS_CHARACTERS = 2_000
ANSWER_CHARACTERS = 200_000  # the rest is in the output that is kept of the last runs
SESSION_LOST = "session_lost"  # a provider's code: the conversation cannot be continued, so begin it anew

FINAL = frozenset({"done", "failed", "cancelled", "interrupted"})

Notify = Callable[[str, dict[str, Any], Principal], object]
Record = Callable[[str, dict[str, Any], Principal], Awaitable[None]]


class Completions:
    """All completions of one daemon. `notify` sends a notice as the agent, `record` writes a row of the audit; `url` is where programs connect."""

    def __init__(
        self,
        store: CompletionStore,
        rights: Rights,
        handshakes: HandshakeStore,
        *,
        var_dir: Path,
        url: Callable[[], str],
        most_at_once: Callable[[], int],
        notify: Notify,
        record: Record,
        log: Any,
    ) -> None:
        self.store = store
        self.agents_folder = var_dir / "agents"
        self._rights = rights
        self._handshakes = handshakes
        self._url = url
        self._notify = notify
        self._record = record
        self._log = log
        self._mark = hashlib.sha256(os.fsencode(var_dir.resolve())).hexdigest()[:16] + "/"
        self._schedule = Schedule(most_at_once, self._may_begin)
        self._starter = RunnerStarter()
        self._attempts: dict[str, Attempt] = {}
        self._ended: dict[str, asyncio.Event] = {}  # of those that wait or run
        self._tasks: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._to_stop: dict[str, Failure] = {}  # those whose program is being started
        self._open = False  # programs are started only between `start` and `stop`
        self._stop_all: Failure | None = None
        self._keep_running = False

    # --- what callers ask for

    async def request(
        self,
        agent_id: str,
        prompt: str,
        *,
        conversation_id: str | None,
        model: str | None,
        timeout_s: float,
        first_output_s: float | None,
        attempts: int,
        by: str,
    ) -> StoredCompletion:
        """Queue a completion. It is stored before this returns."""
        agent = self._rights.agent(agent_id)
        provider = self.provider_of(agent)
        provider.program(agent.options)
        if agent.terminated_at is not None:
            raise Conflict(f"{agent_id} is terminated", hint=f"ksi agents restart {agent_id}")
        if self._schedule.waiting >= WAITING_LIMIT:
            raise TooMany(f"{WAITING_LIMIT:,} completions wait already", retry_after_s=RETRY_AFTER_S)
        if self._schedule.waiting_of(agent_id) >= WAITING_LIMIT_OF_AGENT:
            raise TooMany(
                f"{WAITING_LIMIT_OF_AGENT:,} completions of {agent_id} wait already", retry_after_s=RETRY_AFTER_S
            )
        completion_id = new_id()
        completion = StoredCompletion(
            completion_id=completion_id,
            agent_id=agent_id,
            conversation_id=conversation_id or new_id(),
            state="queued",
            prompt=prompt,
            requested_by=by,
            created_at=time_of(completion_id),
            model=model,
            timeout_s=timeout_s,
            first_output_s=first_output_s,
            attempts=attempts,
        )
        await self.store.add(completion)
        self._ended[completion_id] = asyncio.Event()
        self._schedule.add(_waiting(completion))
        self.wake()
        return completion

    async def get(self, completion_id: str) -> StoredCompletion:
        """One completion, or `NotFound`."""
        completion = await self.store.get(completion_id)
        if completion is None:
            raise NotFound(
                f"there is no completion {ascii(completion_id)[:80]}", hint="completion:list shows the last ones"
            )
        return completion

    async def wait(self, completion_id: str, timeout_s: float) -> StoredCompletion:
        """A completion when it has ended, or as it is when the time is up."""
        completion = await self.get(completion_id)
        ended = self._ended.get(completion_id)
        if ended is None:
            return completion
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await ended.wait()
        return await self.get(completion_id)

    async def cancel(self, completion_id: str) -> StoredCompletion:
        """End a completion, whether it waits or runs; returns it as it is then."""
        completion = await self.get(completion_id)
        await self._end([completion_id], CANCELLED)
        return completion if completion.state in FINAL else await self.get(completion_id)

    async def end_agents(self, agent_ids: Iterable[str], failure: Failure = CANCELLED) -> int:
        """End all completions of some agents, waiting ones and running ones; returns how many."""
        chosen = set(agent_ids)
        found = self._schedule.all_of(chosen)
        await self._end(found, failure)
        return len(found)

    async def remove_agent(self, agent_id: str) -> None:
        """Delete everything of an agent that has no completion any more."""
        await self.store.delete_agent(agent_id)
        delete_all(self.agents_folder, agent_id)

    async def output(
        self, agent_id: str, completion_id: str | None, stream: str, offset: int | None, limit: int
    ) -> dict[str, Any]:
        """A page of what a completion's program printed."""
        completion = await self.store.last_of(agent_id) if completion_id is None else await self.get(completion_id)
        if completion is None or completion.agent_id != agent_id:
            raise NotFound(f"{agent_id} has no such completion", hint=f"completion:list agent_id={agent_id}")
        folder = self._folder(completion)
        size = folder.output_size(stream)
        begin = max(0, size - limit) if offset is None else offset
        data = folder.read_output(stream, begin, limit)
        if begin + len(data) < size:  # a character that is cut at the end comes with the next page
            data = whole_characters(data)
        return {
            "agent_id": agent_id,
            "completion_id": completion.completion_id,
            "state": completion.state,
            "text": data.decode("utf-8", "replace"),
            "next_offset": begin + len(data),
            "size": size,
        }

    def workspace_of(self, agent: Agent) -> Path:
        """Where an agent works: in the folder that it was given, or in one of its own, always the same."""
        return Path(agent.workspace) if agent.workspace else self.agents_folder / agent.agent_id / WORKSPACE

    def pids(self, agent_id: str) -> list[int]:
        """The processes of an agent that live now."""
        return [
            attempt.pid
            for attempt in self._attempts.values()
            if attempt.completion.agent_id == agent_id and attempt.pid is not None
        ]

    def pid(self, completion_id: str) -> int | None:
        """The process of a completion, while it lives."""
        attempt = self._attempts.get(completion_id)
        return None if attempt is None else attempt.pid

    def waiting_of(self, agent_id: str) -> int:
        """How many completions of an agent wait."""
        return self._schedule.waiting_of(agent_id)

    def text_so_far(self, completion_id: str) -> str:
        """What the program of a completion that is under way has printed of its answer."""
        attempt = self._attempts.get(completion_id)
        return "" if attempt is None else attempt.printed

    def place(self, completion_id: str) -> int | None:
        """How many completions of its conversation are before a waiting one."""
        return self._schedule.place(completion_id)

    def provider_of(self, agent: Agent) -> Provider:
        """What runs an agent's completions, or `Conflict` for an agent that connects by itself."""
        if agent.provider is None:
            raise Conflict(
                f"{agent.agent_id} connects by itself: the daemon does not know how to run it",
                hint="spawn an agent with a provider: ksi agents spawn NAME --provider claude",
            )
        return find_provider(agent.provider)

    @property
    def counts(self) -> tuple[int, int]:
        """How many wait and how many run."""
        return self._schedule.waiting, self._schedule.under_way

    def wake(self) -> None:
        """Begin what may begin: something ended, was added, or an agent may act again."""
        if not self._open:
            return
        while (chosen := self._schedule.next(time.time())) is not None:
            self._spawn(self._begin(chosen), chosen.completion_id)
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        retry_at = self._schedule.next_retry(time.time())
        if retry_at is not None:
            self._retry = asyncio.get_running_loop().call_later(max(0.0, retry_at - time.time()), self.wake)

    # --- start and stop

    async def start(self) -> None:
        """Take over what an earlier daemon left, and begin."""
        under_way: list[tuple[StoredCompletion, RunnerProcess | None]] = []
        for completion in await self.store.unfinished():
            self._ended[completion.completion_id] = asyncio.Event()
            runner = None if completion.state == "queued" else find_runner(self._folder(completion).path)
            if completion.state == "queued":
                self._schedule.add(_waiting(completion))
            elif runner is None and self._folder(completion).take_away():  # its program never began
                again = msgspec.structs.replace(completion, state="queued", attempt=completion.attempt - 1)
                await self.store.save(again)
                self._schedule.put_back(_waiting(again))
            else:
                self._schedule.began(_waiting(completion))
                under_way.append((completion, runner))
        await self._sweep({completion.completion_id for completion, runner in under_way if runner is not None})
        self._open = True
        for completion, runner in under_way:
            self._spawn(self._watch(completion, runner), completion.completion_id)
        self.wake()

    async def _sweep(self, living: set[str]) -> None:
        """End what belongs to no run that lives: processes, secrets in files, tokens."""
        for pid, mark in marked_processes(self._mark):
            if mark.rpartition("/")[2] not in living:
                self._log.warning("a process of a completion that has ended was killed", pid=pid, run=mark)
                kill(pid)
        if self.agents_folder.is_dir():
            for agent in self.agents_folder.iterdir():
                for run in agent.iterdir() if agent.is_dir() and not agent.is_symlink() else ():
                    if run.name not in living and run.name != WORKSPACE:
                        self._delete_secrets(RunFolder(self.agents_folder, agent.name, run.name))
        for credential in self._rights.credentials.all():
            ours = credential.created_by == "daemon" and credential.completion_id is not None
            if ours and credential.completion_id not in living:
                await self._rights.credentials.end(credential.credential_id)

    async def stop(self, *, keep_running: bool) -> None:
        """Begin nothing more. Programs are ended, or left for the next daemon."""
        self._open, self._keep_running = False, keep_running
        self._stop_all = None if keep_running else STOPPED
        if self._retry is not None:
            self._retry.cancel()
        for attempt in list(self._attempts.values()):
            self._leave(attempt)
        await asyncio.gather(*self._tasks, return_exceptions=True)  # each logs its own failure
        self._starter.close()

    def _leave(self, attempt: Attempt) -> None:
        """The daemon stops: end a program, or leave it running."""
        if self._keep_running:
            attempt.abandon()
        elif self._stop_all is not None:
            attempt.stop(self._stop_all)

    # --- one completion

    async def _begin(self, waiting: Waiting) -> None:
        """Start an attempt and watch it to its end."""
        if not self._open:
            return  # it is stored as queued
        completion = await self.get(waiting.completion_id)
        agent = self._rights.agents.get(completion.agent_id)
        if agent is None:
            await self._finish(completion, Outcome(failure=CANCELLED))
            return
        try:
            begun, runner = await self._start_program(completion, agent)
        except (KsiError, OSError) as error:
            hint = error.hint if isinstance(error, KsiError) else None
            await self._finish(completion, Outcome(failure=Failure("program_not_started", str(error), hint)))
            return
        self._announce("started", begun, {"attempt": begun.attempt})
        await self._watch(begun, runner)

    async def _start_program(
        self, completion: StoredCompletion, agent: Agent
    ) -> tuple[StoredCompletion, RunnerProcess | None]:
        """The completion as it is under way, and its runner; None if that has ended already."""
        provider = self.provider_of(agent)
        conversation = await self.store.conversation(completion.agent_id, completion.conversation_id)
        resumes = None if conversation is None else conversation.session
        now = time.time()
        credential_id = new_id()
        credential, secret = await self._rights.credentials.add(
            Credential(
                credential_id=credential_id,
                agent_id=agent.agent_id,
                digest="",
                label="completion",
                conversation_id=completion.conversation_id,
                completion_id=completion.completion_id,
                resumes=resumes is not None,
                created_at=now,
                created_by="daemon",
                expires_at=now + (completion.timeout_s or 86_400.0) + GRACE_S + TOKEN_OUTLIVES_S,
            )
        )
        begun = msgspec.structs.replace(
            completion,
            state="running",
            attempt=completion.attempt + 1,
            started_at=now,
            resumes=resumes,
            credential_id=credential.credential_id,
        )
        folder = self._folder(begun)
        try:
            job = self._job(begun, agent, secret)
            launch = provider.launch(job)
            workspace = self.workspace_of(agent)
            if agent.workspace is None:
                make_workspace(self.agents_folder, agent.agent_id)
            elif not workspace.is_dir():
                raise Conflict(
                    f"its workspace {workspace} is gone", hint="make the folder again, or spawn another agent"
                )
            folder.create(
                {
                    **launch.files,
                    "stdin": launch.stdin,
                    "launch.json": launch_record(
                        launch.argv,
                        workspace,
                        stdout_limit=STDOUT_LIMIT_BYTES,
                        stderr_limit=STDERR_LIMIT_BYTES,
                        grace_s=GRACE_S,
                    ),
                }
            )
            await self._record(
                "completion:started",
                {"completion_id": begun.completion_id, "attempt": begun.attempt, "program": launch.argv[0]},
                _principal(begun),
            )
            await self.store.begin(begun)
            runner = await self._starter.start(folder.path, self._environment(begun, secret) | launch.environment)
        except BaseException:
            await self._end_token(begun)
            self._delete_secrets(folder)
            unknown = find_runner(folder.path)
            if unknown is not None:  # it was started all the same
                unknown.send(signal.SIGTERM)
                unknown.abandon()
            raise
        return begun, runner

    async def _watch(self, completion: StoredCompletion, runner: RunnerProcess | None) -> None:
        """Wait for the end of a program, and go on from what became of it."""
        agent = self._rights.agents.get(completion.agent_id)
        if agent is None:
            await self._finish(completion, Outcome(failure=CANCELLED))
            return
        reader = self.provider_of(agent).reader(self._job(completion, agent, ""))
        attempt = Attempt(completion, self._folder(completion), reader, runner)
        self._attempts[completion.completion_id] = attempt
        failure = self._to_stop.pop(completion.completion_id, None)
        if failure is not None:
            attempt.stop(failure)
        self._leave(attempt)
        try:
            outcome = await attempt.outcome(lambda progress, before: self._report(completion, progress, before))
        finally:
            self._attempts.pop(completion.completion_id, None)
        if outcome is not None:
            await self._finish(completion, outcome)

    async def _finish(self, completion: StoredCompletion, outcome: Outcome) -> None:
        """An attempt has ended: retry it, or store what became of the completion and say so."""
        await self._end_token(completion)
        self._delete_secrets(self._folder(completion))
        failure = outcome.failure
        used = None if outcome.usage is None else await self._used(completion, outcome.usage)
        if completion.resumes is not None:
            if failure is not None and failure.code == SESSION_LOST:
                await self.store.forget_session(completion.agent_id, completion.conversation_id)
            if (failure is None and not outcome.resumed) or (failure is not None and failure.code == SESSION_LOST):
                await self._handshakes.clear(completion.agent_id, completion.conversation_id)
        if failure is not None and failure.retryable and completion.attempt < completion.attempts and self._open:
            await self._retry_later(completion, failure, used)
            return
        ended = msgspec.structs.replace(
            completion,
            state=_final_state(failure),
            ended_at=time.time(),
            text=_kept_answer(outcome.text),
            resumed=outcome.resumed,
            usage=outcome.usage,
            error=None if failure is None else _error(failure),
        )
        await self.store.finish(ended, session=outcome.session, used=used)
        with suppress(AuditUnavailable):  # its alarm says so; the end is stored, and the started row stays
            await self._record(
                "completion:ended", {"completion_id": ended.completion_id, "state": ended.state}, _principal(ended)
            )
        self._schedule.end(ended.completion_id)
        self._to_stop.pop(ended.completion_id, None)
        event = self._ended.pop(ended.completion_id, None)
        if event is not None:
            event.set()
        facts: dict[str, Any] = {"state": ended.state}
        if ended.error is not None:
            facts["error"] = ended.error
        else:
            facts["characters"] = len(outcome.text)
        word = {"done": "result", "cancelled": "cancelled"}.get(ended.state, "failed")
        self._announce(word, ended, facts)
        delete_old(self.agents_folder, ended.agent_id, set(self._attempts))
        self.wake()

    async def _retry_later(self, completion: StoredCompletion, failure: Failure, used: Used | None) -> None:
        pause_s = RETRY_PAUSES_S[min(completion.attempt, len(RETRY_PAUSES_S)) - 1]
        if failure.code == SESSION_LOST:
            pause_s = 0.0
        again = msgspec.structs.replace(
            completion, state="queued", not_before=time.time() + pause_s, error=_error(failure)
        )
        await self.store.finish(again, used=used)
        self._log.warning(
            "an attempt of a completion failed and is made again",
            agent=again.agent_id,
            completion=again.completion_id,
            attempt=again.attempt,
            again_in_s=pause_s,
            problem=failure.message,
        )
        self._schedule.put_back(_waiting(again))
        self.wake()

    async def _end(self, completion_ids: list[str], failure: Failure) -> None:
        """End completions that wait or run, and wait until they have ended."""
        waiting_for: list[Awaitable[Any]] = []
        for completion_id in completion_ids:
            ended = self._ended.get(completion_id)
            if ended is None:
                continue
            if self._schedule.remove(completion_id):
                completion = await self.get(completion_id)
                await self._finish(completion, Outcome(failure=failure))
                continue
            attempt = self._attempts.get(completion_id)
            if attempt is not None:
                attempt.stop(failure)
            else:
                self._to_stop[completion_id] = failure
            waiting_for.append(ended.wait())
        if waiting_for:
            await asyncio.gather(*waiting_for)

    # --- small parts

    def _spawn(self, work: Coroutine[Any, Any, None], completion_id: str) -> None:
        task = asyncio.create_task(self._guarded(work, completion_id), name=f"completion {completion_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Coroutine[Any, Any, None], completion_id: str) -> None:
        """A failure of ours ends this completion only, and is said in its record."""
        try:
            await work
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the completion must not stay "running" for ever
            self._log.error("a completion failed inside the daemon", completion=completion_id, exc_info=error)
            attempt = self._attempts.pop(completion_id, None)
            if attempt is not None:
                attempt.stop(CANCELLED)
            failure = Failure("internal", "the daemon failed to run it; its log says why")
            await self._finish(await self.get(completion_id), Outcome(failure=failure))

    def _may_begin(self, agent_id: str) -> bool:
        """Not an agent that is frozen, or below one that is. One that is gone may: its completion ends at once."""
        return not any(agent.frozen for agent in self._rights.lineage(agent_id))

    def _folder(self, completion: StoredCompletion) -> RunFolder:
        return RunFolder(self.agents_folder, completion.agent_id, completion.completion_id)

    def _mark_of(self, completion: StoredCompletion) -> str:
        return f"{self._mark}{completion.agent_id}/{completion.completion_id}"

    def _job(self, completion: StoredCompletion, agent: Agent, token: str) -> Job:
        return Job(
            agent_id=completion.agent_id,
            conversation_id=completion.conversation_id,
            completion_id=completion.completion_id,
            prompt=completion.prompt,
            model=completion.model,
            resumes=completion.resumes,
            options=agent.options,
            folder=self._folder(completion).path,
            url=self._url(),
            token=token,
        )

    def _environment(self, completion: StoredCompletion, token: str) -> dict[str, str]:
        """The daemon's own variables without KSI's, and what the program must know."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("KSI_")}
        folder = self._folder(completion).path
        given = {
            "KSI_TOKEN": token,
            "KSI_MCP_URL": self._url(),
            "KSI_MCP_CONFIG": str(folder / "mcp.json"),
            "KSI_USAGE_FILE": str(folder / "usage.json"),
            "KSI_AGENT_ID": completion.agent_id,
            "KSI_CONVERSATION_ID": completion.conversation_id,
            "KSI_COMPLETION_ID": completion.completion_id,
            MARK: self._mark_of(completion),
        }
        if completion.model is not None:
            given["KSI_MODEL"] = completion.model
        if completion.resumes is not None:
            given["KSI_RESUMES"] = "1"
        return inherited | given

    def _delete_secrets(self, folder: RunFolder) -> None:
        """Delete the config of a run that has ended. What cannot be deleted is harmless, because its token is dead, but named."""
        try:
            folder.delete_secrets()
        except OSError as error:
            self._log.error("the files of a run could not be deleted", folder=str(folder.path), problem=str(error))

    async def _end_token(self, completion: StoredCompletion) -> None:
        if completion.credential_id is not None and self._rights.credentials.find(completion.credential_id) is not None:
            await self._rights.credentials.end(completion.credential_id)

    async def _used(self, completion: StoredCompletion, usage: TokenUsage) -> Used:
        """What an attempt used, in the log too."""
        shown = await self._handshakes.get(completion.agent_id, completion.conversation_id, completion.completion_id)
        used = Used(
            usage=usage,
            handshake=None if shown is None else shown.kind,
            listing_bytes=0 if shown is None else shown.bytes * shown.listings,
        )
        self._log.info(
            "Completion token usage",
            has_mcp=shown is not None,
            input_tokens=usage.input_tokens,
            cache_creation_tokens=usage.cache_creation_tokens,
            cache_read_tokens=usage.cache_read_tokens,
            output_tokens=usage.output_tokens,
            cost_usd=usage.cost_usd,
            handshake=used.handshake,
            listing_bytes=used.listing_bytes,
            agent=completion.agent_id,
            conversation=completion.conversation_id,
            completion=completion.completion_id,
        )
        return used

    def _report(self, completion: StoredCompletion, progress: list[Progress], before: int) -> None:
        """What was printed since the last look, as one notice."""
        text = "".join(piece.text for piece in progress if piece.kind == "text")
        tools = [piece.text for piece in progress if piece.kind == "tool"]
        shown = text[-PROGRESS_CHARACTERS:]
        at = before + len(text) - len(shown)
        self._announce("progress", completion, {"text": shown, "at": at, "tools": tools[-20:]})

    def _announce(self, word: str, completion: StoredCompletion, facts: dict[str, Any]) -> None:
        data = {
            "completion_id": completion.completion_id,
            "agent_id": completion.agent_id,
            "conversation_id": completion.conversation_id,
            **facts,
        }
        self._notify(f"completion:{word}", data, _principal(completion))


def _principal(completion: StoredCompletion) -> Principal:
    """The agent that a completion is of."""
    return Principal(
        kind="agent",
        name=completion.agent_id,
        agent_id=completion.agent_id,
        conversation_id=completion.conversation_id,
        completion_id=completion.completion_id,
    )


def _waiting(completion: StoredCompletion) -> Waiting:
    return Waiting(completion.completion_id, completion.agent_id, completion.conversation_id, completion.not_before)


def _kept_answer(text: str) -> str:
    """An answer that can be shown in one result; a cut is marked."""
    if len(text) <= ANSWER_CHARACTERS:
        return text
    return f"{text[:ANSWER_CHARACTERS]}\n[cut from {len(text):,} characters; agent:logs has what the program printed]\n"


def _final_state(failure: Failure | None) -> Any:
    if failure is None:
        return "done"
    return failure.code if failure.code in ("cancelled", "interrupted") else "failed"


def _error(failure: Failure) -> dict[str, Any]:
    error = {"code": failure.code, "message": failure.message}
    return error if failure.hint is None else error | {"hint": failure.hint}
