"""Decides whether a list of tools is full or thin, for each completion once, and remembers it over restarts.

A model that was shown the complete schemas once need not be shown them again: later completions of the same conversation get a thin
list if the full one was really delivered, the agent may still see exactly the same, and the conversation is resumed with its history.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from ksi_daemon.principal import Principal
from ksi_daemon.storage.mcp_sessions import Completion, HandshakeKind, HandshakeStore

IDLE_LIMIT_S = 30 * 86_400.0
COMPLETIONS_KEPT = 1_000  # thin ones of one conversation
CLEAN_EVERY_S = 3_600.0
DELIVERY_WAIT_S = 5.0


class CompletionKey(msgspec.Struct, frozen=True):
    """Which completion a list is for, and whether its model has the conversation's history."""

    agent_id: str
    conversation_id: str
    completion_id: str
    resumes: bool


def completion_of(principal: Principal, session_id: str | None) -> CompletionKey | None:
    """The completion that a request belongs to: the token says it; else each session of a conversation is one."""
    conversation_id, agent_id = principal.conversation_id, principal.agent_id
    if conversation_id is None or agent_id is None:
        return None
    if principal.completion_id is not None:
        return CompletionKey(agent_id, conversation_id, principal.completion_id, principal.resumes)
    if session_id is not None:
        return CompletionKey(agent_id, conversation_id, session_id, resumes=True)
    return None


class Handshakes:
    """The handshakes of all conversations. Decisions about one conversation are made one after the other."""

    def __init__(self, store: HandshakeStore, *, clock: Callable[[], float] = time.time) -> None:
        self.store = store
        self._clock = clock
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._deliveries: dict[tuple[str, str], set[asyncio.Task[Any]]] = {}

    async def decide(
        self, key: CompletionKey, fingerprint: str, *, client: str, sizes: Callable[[HandshakeKind], tuple[int, int]]
    ) -> Completion:
        """What this completion is shown, on record. `sizes` returns the bytes and the tokens of each kind of list."""
        conversation = (key.agent_id, key.conversation_id)
        lock = self._locks.setdefault(conversation, asyncio.Lock())
        async with lock:
            if self._deliveries.get(conversation):  # an earlier reply is on its way: whether it arrives decides
                await asyncio.wait(self._deliveries[conversation], timeout=DELIVERY_WAIT_S)
            return await self._decide(key, fingerprint, client, sizes)

    async def _decide(
        self, key: CompletionKey, fingerprint: str, client: str, sizes: Callable[[HandshakeKind], tuple[int, int]]
    ) -> Completion:
        now = self._clock()
        known = await self.store.get(key.agent_id, key.conversation_id, key.completion_id)
        if known is not None and known.fingerprint == fingerprint:
            completion = msgspec.structs.replace(known, listings=known.listings + 1, listed_at=now)
        else:
            full = await self.store.last_full(key.agent_id, key.conversation_id)
            is_known = full is not None and full.fingerprint == fingerprint
            kind: HandshakeKind = "thin" if key.resumes and is_known else "full"
            size, tokens = sizes(kind)
            completion = Completion(
                agent_id=key.agent_id,
                conversation_id=key.conversation_id,
                completion_id=key.completion_id,
                kind=kind,
                fingerprint=fingerprint,
                listings=1,
                bytes=size,
                tokens=tokens,
                client=client,
                started_at=now if known is None else known.started_at,
                listed_at=now,
            )
        await self.store.save(completion)
        return completion

    def expect_delivery(
        self, completion: Completion, written: asyncio.Future[bool], flushed: Callable[[], Awaitable[bool]]
    ) -> None:
        """Note when the client's machine has taken the last byte of the list: it was `written`, and then `flushed`."""
        conversation = (completion.agent_id, completion.conversation_id)
        task = asyncio.create_task(
            self._note_delivery(completion, written, flushed), name="delivery of a list of tools"
        )
        waiting = self._deliveries.setdefault(conversation, set())
        waiting.add(task)

        def ended(_: object) -> None:
            waiting.discard(task)
            if not waiting and self._deliveries.get(conversation) is waiting:
                del self._deliveries[conversation]

        task.add_done_callback(ended)

    async def _note_delivery(
        self, completion: Completion, written: asyncio.Future[bool], flushed: Callable[[], Awaitable[bool]]
    ) -> None:
        if await written and await flushed():
            await self.store.mark_delivered(completion)

    async def settled(self) -> None:
        """Wait until it is known of every list sent so far whether it was delivered."""
        while self._deliveries:
            await asyncio.wait([task for tasks in self._deliveries.values() for task in tasks])

    async def clean_up(self) -> None:
        """Delete what is old, now and every hour, until cancelled."""
        while True:
            await self.store.drop_old(before=self._clock() - IDLE_LIMIT_S, keep=COMPLETIONS_KEPT)
            await asyncio.sleep(CLEAN_EVERY_S)
