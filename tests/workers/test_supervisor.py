"""Long-lived work: what fails is logged, shown as an alarm and started again; leaving the scope ends it."""

import asyncio
from typing import Any

import pytest

from ksi_daemon.errors import TimedOut
from ksi_daemon.testing import running
from ksi_daemon.workers.supervisor import HEALTHY_AFTER_S, PAUSES_S, Supervisor
from tests.in_process import Clock, soon, take_clock, until


class FakeLog:
    def __init__(self) -> None:
        self.errors: list[dict[str, Any]] = []

    def error(self, _message: str, **facts: Any) -> None:
        self.errors.append(facts)


class Flaky:
    """Work that fails as often as it is told to, and then runs until it is cancelled."""

    def __init__(self, *failures: BaseException | None) -> None:
        self.failures = list(failures)
        self.started = 0
        self.cancelled = False

    async def run(self) -> None:
        self.started += 1
        if self.failures:
            failure = self.failures.pop(0)
            if failure is None:
                return
            raise failure
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise


async def test_work_that_fails_is_started_again_with_growing_pauses_and_raises_an_alarm() -> None:
    log, clock, pauses = FakeLog(), Clock(), []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0)

    supervisor = Supervisor(log, clock=clock, sleep=sleep)
    flaky = Flaky(
        ValueError("one"), None, asyncio.CancelledError(), SystemExit(3), ValueError("five"), ValueError("six")
    )
    supervisor.start("the sweep", flaky.run)
    await until(lambda: flaky.started == 7)
    assert pauses == [*PAUSES_S, PAUSES_S[-1], PAUSES_S[-1]]
    assert [facts["work"] for facts in log.errors] == ["the sweep"] * 6
    assert supervisor.alarms() == ["the sweep failed and was started again: ValueError: six"]
    clock.now_s += HEALTHY_AFTER_S
    assert supervisor.alarms() == []
    await soon(supervisor.stop())
    assert flaky.cancelled


async def test_after_a_healthy_time_the_pauses_begin_anew() -> None:
    clock, pauses = Clock(), []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0)

    runs = 0

    async def work() -> None:
        nonlocal runs
        runs += 1
        if runs > 4:
            await asyncio.Event().wait()
        clock.now_s += HEALTHY_AFTER_S
        raise ValueError("after an hour")

    supervisor = Supervisor(FakeLog(), clock=clock, sleep=sleep)
    supervisor.start("slow", work)
    await until(lambda: runs == 5)
    assert pauses == [PAUSES_S[0]] * 4
    await soon(supervisor.stop())


async def test_deadlines_are_kept_after_the_sweep_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """D07: a sweep that dies unnoticed leaves every later call without a deadline."""
    async with running() as hub:
        deadlines = hub.hub.router.deadlines
        clock, original = take_clock(hub), deadlines.sweep

        def broken() -> None:
            monkeypatch.setattr(deadlines, "sweep", original)
            raise RuntimeError("a defect in the sweep")

        monkeypatch.setattr(deadlines, "sweep", broken)
        await until(lambda: deadlines.sweep == original)
        alarms = (await hub.call("system:health"))["alarms"]
        assert alarms == ["the deadline sweep failed and was started again: RuntimeError: a defect in the sweep"]

        async def wait_too_long() -> None:
            with deadlines.within(1):
                clock.now_s += 2
                await soon(asyncio.Event().wait())

        with pytest.raises(TimedOut):
            await wait_too_long()


async def test_work_whose_clean_up_fails_is_logged_and_does_not_keep_the_supervisor_from_stopping() -> None:
    """L03: it was started again while it was being stopped, and the daemon waited for it until its exit timer."""
    log, started = FakeLog(), 0

    async def work() -> None:
        nonlocal started
        started += 1
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("no space for the last write")

    supervisor = Supervisor(log, clock=Clock(), sleep=asyncio.sleep)
    supervisor.start("the last write", work)
    await until(lambda: started)
    await soon(supervisor.stop())
    assert started == 1
    assert [str(facts["exc_info"]) for facts in log.errors] == ["no space for the last write"]
