"""Calls under way: at most so many per agent, at most so many in all, and a queue that is fair between agents.

A call that finds no slot waits for a bounded time; when one becomes free the agents take turns, however many calls each of them has
waiting. Deadlines of running calls are left to others.
"""

import asyncio
from collections import deque

from ksi_daemon.errors import TooMany

CALLS_LIMIT = 1_000  # of all agents together; reached only when many agents are at limits of their own
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
    """The slots of one event loop. `total` is shared by all agents."""

    def __init__(
        self, total: int = CALLS_LIMIT, *, wait_limit_s: float = WAIT_LIMIT_S, waiting_limit: int = WAITING_LIMIT
    ) -> None:
        self.total = total
        self.wait_limit_s = wait_limit_s
        self.waiting_limit = waiting_limit
        self.running = 0
        self._agents: dict[str, _Agent] = {}
        self._turns: deque[str] = deque()  # agents with calls waiting, the next one first

    def __len__(self) -> int:
        """How many agents have calls under way or waiting; no other is kept."""
        return len(self._agents)

    def in_use(self, agent: str) -> int:
        """The agent's calls under way."""
        known = self._agents.get(agent)
        return 0 if known is None else known.running

    def waiting(self, agent: str) -> int:
        """The agent's calls in the queue."""
        known = self._agents.get(agent)
        return 0 if known is None else len(known.waiting)

    async def enter(self, agent: str, limit: int) -> "Slot":
        """Take a slot, waiting for one if need be. Raises `TooMany`."""
        state = self._agents.get(agent)
        if state is None:
            state = self._agents[agent] = _Agent(limit)
        elif state.limit != limit:
            state.limit = limit
            self._hand_out()
        if state.running < limit and self._has_free_slot():
            state.running += 1
            self.running += 1
        else:
            await self._wait(agent, state)
        return Slot(self, agent)

    def leave(self, agent: str) -> None:
        """Give the slot back; the next in turn gets it."""
        state = self._agents[agent]
        state.running -= 1
        self.running -= 1
        self._hand_out()
        self._forget_if_idle(agent, state)

    async def _wait(self, agent: str, state: _Agent) -> None:
        if len(state.waiting) >= self.waiting_limit or self.wait_limit_s <= 0:
            self._forget_if_idle(agent, state)
            raise self._full(state)
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        if not state.waiting:
            self._turns.append(agent)
        state.waiting.append(turn)
        timer = loop.call_later(self.wait_limit_s, _give_up, turn)
        try:
            await turn
        except (asyncio.CancelledError, TimeoutError) as error:
            if turn in state.waiting:
                self._leave_queue(agent, state, turn)
            elif turn.done() and not turn.cancelled() and turn.exception() is None:
                self.leave(agent)  # the slot was given at the moment of the cancellation
            self._forget_if_idle(agent, state)
            if isinstance(error, TimeoutError):
                raise self._full(state) from None
            raise
        finally:
            timer.cancel()

    def _hand_out(self) -> None:
        """Give free slots to those who wait, one agent after the other."""
        passed_over = 0
        while self._turns and self._has_free_slot() and passed_over < len(self._turns):
            agent = self._turns.popleft()
            state = self._agents[agent]
            if state.running >= state.limit:
                self._turns.append(agent)
                passed_over += 1
                continue
            turn = state.waiting.popleft()
            if state.waiting:
                self._turns.append(agent)
            if not turn.done():
                state.running += 1
                self.running += 1
                turn.set_result(None)
            passed_over = 0

    def _has_free_slot(self) -> bool:
        return self.running < self.total

    def _leave_queue(self, agent: str, state: _Agent, turn: asyncio.Future[None]) -> None:
        state.waiting.remove(turn)
        if not state.waiting:
            self._turns.remove(agent)

    def _forget_if_idle(self, agent: str, state: _Agent) -> None:
        if not state.running and not state.waiting and self._agents.get(agent) is state:
            del self._agents[agent]

    def _full(self, state: _Agent) -> TooMany:
        if state.running >= state.limit:
            return TooMany(
                f"{state.limit} calls are under way already, and no more than that are allowed at once",
                retry_after_s=RETRY_AFTER_S,
                hint="wait until one of them has answered",
            )
        return TooMany(
            "as many calls are under way as the daemon allows at once",
            retry_after_s=RETRY_AFTER_S,
            hint="try again a little later",
        )


class Slot:
    """One call's slot."""

    __slots__ = ("_agent", "_released", "_slots")

    def __init__(self, slots: Slots, agent: str) -> None:
        self._slots = slots
        self._agent = agent
        self._released = False

    def release(self) -> None:
        """Give the slot back; a second time does nothing."""
        if not self._released:
            self._released = True
            self._slots.leave(self._agent)


def _give_up(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_exception(TimeoutError())
