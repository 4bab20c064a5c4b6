"""Calls under way: at most so many per agent, at most so many in all, and a queue that is fair between agents.

A call that finds no slot waits for a bounded time; when one becomes free the agents take turns, however many calls each of them has
waiting. Deadlines of running calls are left to others.
"""

import asyncio
from collections import deque
from types import TracebackType

from ksi_daemon.errors import TooMany

WAIT_LIMIT_S = 5.0
WAITING_LIMIT = 100  # calls of one agent that may wait; more are refused at once
RETRY_AFTER_S = 1.0


class _Agent:
    __slots__ = ("limit", "running", "waiting")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.running = 0
        self.waiting: deque[asyncio.Future[None]] = deque()


class Slots:
    """The slots of one event loop. `total` is shared by all agents; None means that only their own limits count."""

    def __init__(
        self, total: int | None = None, *, wait_limit_s: float = WAIT_LIMIT_S, waiting_limit: int = WAITING_LIMIT
    ) -> None:
        self.total = total
        self.wait_limit_s = wait_limit_s
        self.waiting_limit = waiting_limit
        self.running = 0
        self._agents: dict[str, _Agent] = {}
        self._turns: deque[str] = deque()  # agents with calls waiting, the next one first

    def __len__(self) -> int:
        """Agents with calls under way or waiting: nobody else is remembered."""
        return len(self._agents)

    def slot(self, agent: str, limit: int | None) -> "Slot":
        """`async with slots.slot(agent, limit):` around one call; no limit, no waiting."""
        return Slot(self, agent, limit)

    def in_use(self, agent: str) -> int:
        """The agent's calls under way."""
        known = self._agents.get(agent)
        return 0 if known is None else known.running

    def waiting(self, agent: str) -> int:
        """The agent's calls in the queue."""
        known = self._agents.get(agent)
        return 0 if known is None else len(known.waiting)

    async def enter(self, agent: str, limit: int) -> None:
        """Take a slot, waiting for one if need be. Raises `TooMany`."""
        here = self._agents.get(agent)
        if here is None:
            here = self._agents[agent] = _Agent(limit)
        elif here.limit != limit:
            here.limit = limit
            self._hand_out()
        if here.running < limit and self._has_room():
            here.running += 1
            self.running += 1
            return
        await self._wait(agent, here)

    def leave(self, agent: str) -> None:
        """Give the slot back; the next in turn gets it."""
        here = self._agents[agent]
        here.running -= 1
        self.running -= 1
        self._hand_out()
        self._forget_if_idle(agent, here)

    async def _wait(self, agent: str, here: _Agent) -> None:
        if len(here.waiting) >= self.waiting_limit or self.wait_limit_s <= 0:
            self._forget_if_idle(agent, here)
            raise self._full(here)
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        if not here.waiting:
            self._turns.append(agent)
        here.waiting.append(turn)
        timer = loop.call_later(self.wait_limit_s, _give_up, turn)
        try:
            await turn
        except (asyncio.CancelledError, TimeoutError) as error:
            if turn in here.waiting:
                self._leave_queue(agent, here, turn)
            elif turn.done() and not turn.cancelled() and turn.exception() is None:
                self.leave(agent)  # the slot came at the moment of the cancellation: nobody else would give it back
            self._forget_if_idle(agent, here)
            if isinstance(error, TimeoutError):
                raise self._full(here) from None
            raise
        finally:
            timer.cancel()

    def _hand_out(self) -> None:
        """Give free slots to those who wait, one agent after the other."""
        passed_over = 0
        while self._turns and self._has_room() and passed_over < len(self._turns):
            agent = self._turns.popleft()
            here = self._agents[agent]
            if here.running >= here.limit:
                self._turns.append(agent)
                passed_over += 1
                continue
            turn = here.waiting.popleft()
            if here.waiting:
                self._turns.append(agent)
            if not turn.done():
                here.running += 1
                self.running += 1
                turn.set_result(None)
            passed_over = 0

    def _has_room(self) -> bool:
        return self.total is None or self.running < self.total

    def _leave_queue(self, agent: str, here: _Agent, turn: asyncio.Future[None]) -> None:
        here.waiting.remove(turn)
        if not here.waiting:
            self._turns.remove(agent)

    def _forget_if_idle(self, agent: str, here: _Agent) -> None:
        if not here.running and not here.waiting and self._agents.get(agent) is here:
            del self._agents[agent]

    def _full(self, here: _Agent) -> TooMany:
        if here.running >= here.limit:
            return TooMany(
                f"{here.limit} calls are under way already, and no more than that are allowed at once",
                retry_after_s=RETRY_AFTER_S,
                hint="wait until one of them has answered",
            )
        return TooMany(
            "the hub is busy with as many calls as it takes at once",
            retry_after_s=RETRY_AFTER_S,
            hint="try again a little later",
        )


class Slot:
    """The scope of one call."""

    __slots__ = ("_agent", "_limit", "_slots")

    def __init__(self, slots: Slots, agent: str, limit: int | None) -> None:
        self._slots = slots
        self._agent = agent
        self._limit = limit

    async def __aenter__(self) -> None:
        if self._limit is not None:
            await self._slots.enter(self._agent, self._limit)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._limit is not None:
            self._slots.leave(self._agent)


def _give_up(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_exception(TimeoutError())
