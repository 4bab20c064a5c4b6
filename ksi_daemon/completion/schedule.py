"""Decides which completion begins next: one at a time in each conversation, in order, and the agents take turns."""

import itertools
from collections import deque
from collections.abc import Callable, Collection

import msgspec


class Waiting(msgspec.Struct, frozen=True):
    """A completion that waits for its turn."""

    completion_id: str
    agent_id: str
    conversation_id: str
    not_before: float = 0.0  # when it may be tried again

    @property
    def conversation(self) -> tuple[str, str]:
        """Conversations of different agents are different, also with the same id."""
        return self.agent_id, self.conversation_id


class Schedule:
    """What waits and what is under way. Pure: it starts nothing and knows no time but what it is given."""

    def __init__(self, most_at_once: Callable[[], int], may_begin: Callable[[str], bool]) -> None:
        self._most_at_once = most_at_once
        self._may_begin = may_begin  # an agent: not one that is frozen
        self._waiting: dict[tuple[str, str], deque[Waiting]] = {}
        self._under_way: dict[str, Waiting] = {}
        self._last_turn: dict[str, int] = {}  # of each agent
        self._turns = itertools.count()

    def add(self, waiting: Waiting) -> None:
        """Put it behind the others of its conversation."""
        self._waiting.setdefault(waiting.conversation, deque()).append(waiting)

    def put_back(self, waiting: Waiting) -> None:
        """It is tried again: before the others of its conversation."""
        self.end(waiting.completion_id)
        self._waiting.setdefault(waiting.conversation, deque()).appendleft(waiting)

    def began(self, waiting: Waiting) -> None:
        """It is under way already: taken over from an earlier daemon."""
        self._under_way[waiting.completion_id] = waiting

    def remove(self, completion_id: str) -> bool:
        """Take out one that waits; False if it does not."""
        for conversation, line in self._waiting.items():
            for waiting in line:
                if waiting.completion_id == completion_id:
                    line.remove(waiting)
                    if not line:
                        del self._waiting[conversation]
                    return True
        return False

    def end(self, completion_id: str) -> None:
        """It is not under way any more."""
        self._under_way.pop(completion_id, None)

    def place(self, completion_id: str) -> int | None:
        """How many of its conversation are before it, the one under way too; None if it does not wait."""
        for conversation, line in self._waiting.items():
            for place, waiting in enumerate(line):
                if waiting.completion_id == completion_id:
                    return place + any(other.conversation == conversation for other in self._under_way.values())
        return None

    def next(self, now: float) -> Waiting | None:
        """The completion that begins now, if any may."""
        if len(self._under_way) >= self._most_at_once():
            return None
        busy = {waiting.conversation for waiting in self._under_way.values()}
        running: dict[str, int] = {}
        for waiting in self._under_way.values():
            running[waiting.agent_id] = running.get(waiting.agent_id, 0) + 1
        heads = [
            line[0]
            for conversation, line in self._waiting.items()
            if conversation not in busy and line[0].not_before <= now and self._may_begin(line[0].agent_id)
        ]
        if not heads:
            return None
        chosen = min(
            heads,
            key=lambda head: (
                running.get(head.agent_id, 0),
                self._last_turn.get(head.agent_id, -1),
                head.completion_id,
            ),
        )
        self._last_turn[chosen.agent_id] = next(self._turns)
        self.remove(chosen.completion_id)
        self._under_way[chosen.completion_id] = chosen
        return chosen

    def next_retry(self, now: float) -> float | None:
        """When the next completion that waits for its second attempt may begin."""
        times = [line[0].not_before for line in self._waiting.values() if line[0].not_before > now]
        return min(times, default=None)

    def all_of(self, agent_ids: Collection[str]) -> list[str]:
        """Those that wait or are under way, of these agents."""
        every = [*self._under_way.values(), *(waiting for line in self._waiting.values() for waiting in line)]
        return [waiting.completion_id for waiting in every if waiting.agent_id in agent_ids]

    def waiting_of(self, agent_id: str) -> int:
        """How many of an agent wait."""
        return sum(len(line) for (owner, _), line in self._waiting.items() if owner == agent_id)

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(len(line) for line in self._waiting.values())

    @property
    def under_way(self) -> int:
        """How many run."""
        return len(self._under_way)
