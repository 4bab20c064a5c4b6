"""Slots: how many calls at once, who waits, and whose turn it is."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from ksi_daemon.errors import TooMany
from ksi_daemon.gate.slots import Slots

Held = tuple[asyncio.Task[None], asyncio.Event]


async def settle() -> None:
    """Let everything that can run, run: no time passes."""
    for _ in range(10):
        await asyncio.sleep(0)


@asynccontextmanager
async def a_slot(slots: Slots, agent: str, limit: int) -> AsyncIterator[None]:
    slot = await slots.enter(agent, limit)
    try:
        yield
    finally:
        slot.release()


@pytest.fixture
def order() -> list[str]:
    return []


@pytest.fixture
def hold(order: list[str]) -> Callable[..., Awaitable[Held]]:
    """Start a call that keeps its slot until its event is set; `order` has the agents as they came in."""

    async def start(slots: Slots, agent: str, limit: int = 1) -> Held:
        done = asyncio.Event()

        async def call() -> None:
            async with a_slot(slots, agent, limit):
                order.append(agent)
                await done.wait()

        task = asyncio.create_task(call())
        await settle()
        return task, done

    return start


Hold = Callable[..., Awaitable[Held]]


async def finish(*calls: Held) -> None:
    for _, done in calls:
        done.set()
    for task, _ in calls:
        await task
    await settle()


async def test_calls_above_the_agents_limit_wait_for_its_own_calls_only(hold: Hold, order: list[str]) -> None:
    slots = Slots()
    first, second, third = [await hold(slots, "a", 2) for _ in range(3)]
    assert (slots.in_use("a"), slots.waiting("a")) == (2, 1)
    other = await hold(slots, "b", 2)
    assert order == ["a", "a", "b"]
    await finish(first)
    assert (slots.in_use("a"), slots.waiting("a")) == (2, 0)
    await finish(second, third, other)
    assert (slots.running, len(slots)) == (0, 0)


async def test_free_slots_go_round_between_agents_however_many_calls_one_has_waiting(
    hold: Hold, order: list[str]
) -> None:
    """L05."""
    slots = Slots(total=2)
    calls = [await hold(slots, "noisy", 50) for _ in range(40)]
    calls += [await hold(slots, name, 50) for name in ("q1", "q2", "q1")]
    by_agent = {"noisy": deque(calls[:40]), "q1": deque([calls[40], calls[42]]), "q2": deque([calls[41]])}
    for turn in range(6):
        await finish(by_agent[order[turn]].popleft())  # the one who has been inside for the longest leaves
    assert order[2:] == ["noisy", "q1", "q2", "noisy", "q1", "noisy"]
    await finish(*calls)
    assert (slots.running, len(slots)) == (0, 0)


async def test_an_agent_at_its_own_limit_does_not_hold_up_the_queue(hold: Hold, order: list[str]) -> None:
    slots = Slots(total=2)
    a1 = await hold(slots, "a", 1)
    b1 = await hold(slots, "b", 2)
    a2 = await hold(slots, "a", 1)
    b2 = await hold(slots, "b", 2)
    await finish(b1)
    assert order == ["a", "b", "b"]
    await finish(a1, a2, b2)
    assert len(slots) == 0


async def test_waiting_ends_in_too_many_with_a_time_and_a_hint(hold: Hold) -> None:
    slots = Slots(wait_limit_s=0.001)
    held = await hold(slots, "a")
    with pytest.raises(TooMany, match="1 calls are under way") as refused:
        await slots.enter("a", 1)
    assert refused.value.retry_after_s > 0
    assert refused.value.hint
    assert slots.waiting("a") == 0
    full = Slots(total=1, wait_limit_s=0.001)
    other = await hold(full, "b")
    with pytest.raises(TooMany, match="as the daemon allows"):
        await full.enter("a", 1)
    await finish(held, other)
    assert (len(slots), len(full)) == (0, 0)


@pytest.mark.parametrize("slots", [Slots(waiting_limit=2), Slots(wait_limit_s=0)])
async def test_a_queue_that_is_full_refuses_at_once(hold: Hold, slots: Slots) -> None:
    held = [await hold(slots, "a")]
    if slots.wait_limit_s:
        held += [await hold(slots, "a") for _ in range(2)]
    with pytest.raises(TooMany):
        await slots.enter("a", 1)
    await finish(*held)
    assert len(slots) == 0


async def test_a_cancelled_waiter_leaves_the_queue_and_loses_no_slot(hold: Hold, order: list[str]) -> None:
    slots = Slots()
    first = await hold(slots, "a")
    gone, _ = await hold(slots, "a")
    third = await hold(slots, "a")
    gone.cancel()
    await settle()
    assert slots.waiting("a") == 1
    await finish(first)
    assert order == ["a", "a"]
    await finish(third)
    assert len(slots) == 0


async def test_a_slot_given_at_the_moment_of_cancellation_goes_to_the_next(hold: Hold) -> None:
    slots = Slots()
    _, first_done = first = await hold(slots, "a")
    unlucky, _ = await hold(slots, "a")
    third = await hold(slots, "a")
    first_done.set()
    await asyncio.sleep(0)  # the first call leaves and hands its slot over; the second has not run yet
    unlucky.cancel()
    with suppress(asyncio.CancelledError):
        await unlucky
    await settle()
    assert (slots.in_use("a"), slots.waiting("a")) == (1, 0)
    await finish(first, third)
    assert (slots.running, len(slots)) == (0, 0)


async def test_a_slot_is_given_back_once_however_often_it_is_released() -> None:
    """A call that is abandoned releases it early, and again when it ends."""
    slots = Slots()
    first, second = await slots.enter("a", 2), await slots.enter("a", 2)
    first.release()
    first.release()
    assert (slots.running, slots.in_use("a")) == (1, 1)
    second.release()
    assert (slots.running, len(slots)) == (0, 0)


async def test_a_raised_limit_lets_waiting_calls_in_with_the_next_call(hold: Hold) -> None:
    slots = Slots()
    calls = [await hold(slots, "a", 1) for _ in range(3)]
    calls.append(await hold(slots, "a", 4))
    assert (slots.in_use("a"), slots.waiting("a")) == (4, 0)
    await finish(*calls)


async def test_whatever_happens_no_limit_is_passed_and_no_slot_is_lost() -> None:
    """L05: 600 calls of 12 agents, every third cancelled at some moment."""
    slots, most = Slots(total=5), 0
    running: dict[str, int] = {}

    async def call(agent: str, steps: int) -> None:
        nonlocal most
        async with a_slot(slots, agent, 2):
            running[agent] = running.get(agent, 0) + 1
            most = max(most, sum(running.values()))
            assert running[agent] <= 2
            try:
                for _ in range(steps):
                    await asyncio.sleep(0)
            finally:
                running[agent] -= 1

    tasks = [asyncio.create_task(call(f"agent{n * 7 % 12}", n % 5)) for n in range(600)]
    for number, task in enumerate(tasks):
        if number % 3 == 0:
            task.cancel()
        if number % 10 == 0:
            await asyncio.sleep(0)
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(end) for end in ended} <= {type(None), asyncio.CancelledError}
    assert most == 5
    assert (slots.running, len(slots)) == (0, 0)
