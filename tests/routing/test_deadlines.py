"""One sweep for all deadlines: what is overdue is cancelled, everything else is left alone."""

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksi_daemon.errors import TimedOut
from ksi_daemon.routing.deadlines import Deadlines
from tests.in_process import Clock, soon, until


async def hang(deadlines: Deadlines, limit_s: float) -> None:
    with deadlines.within(limit_s):
        await asyncio.Event().wait()


async def test_a_scope_that_ends_in_time_leaves_nothing_behind() -> None:
    deadlines = Deadlines(clock=Clock())
    with deadlines.within(1):
        await asyncio.sleep(0)
    assert deadlines.running == set()
    deadlines.sweep()


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=8), st.floats(0.1, 100))
def test_a_sweep_ends_exactly_what_is_overdue(limits_s: list[float], passed_s: float) -> None:
    async def walk() -> None:
        clock = Clock()
        clock.now_s = 0.0
        deadlines = Deadlines(clock=clock)
        tasks = [asyncio.create_task(hang(deadlines, limit_s)) for limit_s in limits_s]
        await asyncio.sleep(0)
        clock.now_s += passed_s
        deadlines.sweep()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [task.done() for task in tasks] == [passed_s >= limit_s for limit_s in limits_s]
        assert all(isinstance(task.exception(), TimedOut) for task in tasks if task.done())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert deadlines.running == set()

    asyncio.run(walk())


@pytest.mark.parametrize("error", [TimeoutError("mine"), ValueError("mine")])
async def test_any_other_exception_passes_through_as_it_is(error: Exception) -> None:
    """Trap 3: ask the deadline whether it expired."""
    with pytest.raises(type(error), match="mine"), Deadlines(clock=Clock()).within(1):
        raise error


async def test_an_exception_raised_instead_of_the_cancellation_is_the_one_that_counts() -> None:
    clock = Clock()
    deadlines = Deadlines(clock=clock)

    async def clumsy() -> None:
        with deadlines.within(1):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise ValueError("while cleaning up") from None

    task = asyncio.create_task(clumsy())
    await asyncio.sleep(0)
    clock.now_s += 1
    deadlines.sweep()
    with pytest.raises(ValueError, match="cleaning up"):
        await soon(task)
    assert task.cancelling() == 0


async def test_a_cancellation_from_outside_stays_a_cancellation_even_when_the_deadline_passed_too() -> None:
    clock = Clock()
    deadlines = Deadlines(clock=clock)
    for outside_first in (True, False):
        task = asyncio.create_task(hang(deadlines, 1))
        await asyncio.sleep(0)
        clock.now_s += 1
        if outside_first:
            task.cancel()
        deadlines.sweep()
        if not outside_first:
            task.cancel()
        await asyncio.wait([task], timeout=5)
        assert task.cancelled()


async def test_a_scope_that_answers_late_without_noticing_keeps_its_task_usable() -> None:
    clock = Clock()
    deadlines = Deadlines(clock=clock)
    inside = asyncio.Event()

    async def late() -> str:
        with deadlines.within(1):
            inside.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        await asyncio.sleep(0)  # a cancellation left behind would strike here
        return "went on"

    task = asyncio.create_task(late())
    await soon(inside.wait())
    clock.now_s += 1
    deadlines.sweep()
    assert await soon(task) == "went on"
    assert task.cancelling() == 0


async def test_the_sweeper_sweeps_by_itself_until_it_is_cancelled() -> None:
    clock = Clock()
    deadlines = Deadlines(clock=clock)
    sweeper = asyncio.create_task(deadlines.run())
    task = asyncio.create_task(hang(deadlines, 1))
    await until(lambda: deadlines.running)
    clock.now_s += 1
    with pytest.raises(TimedOut):
        await soon(task)
    sweeper.cancel()
    await asyncio.wait([sweeper], timeout=5)
    assert sweeper.cancelled()
