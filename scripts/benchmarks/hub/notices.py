"""Notices a second to ten async subscribers, beside pyee's asyncio emitter and beside bare asyncio queues.

A notice counts when all ten have handled it. Batches fit the mailboxes, so that nothing may be dropped.
"""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from statistics import median
from typing import Any

import uvloop
from pyee.asyncio import AsyncIOEventEmitter

from ksi_daemon.plugin import Context, Notice, Plugin
from ksi_daemon.principal import DAEMON
from ksi_daemon.testing import running
from scripts.benchmarks.figure import Figure, ratio

SUBSCRIBERS = 10
BATCH = 500  # half of the default inbox
EVENT = "crowd:said"
DATA = {"word": "hello", "number": 1}

Send = Callable[[int], None]


class Finish:
    """Counts what was handled and tells when a batch is done."""

    def __init__(self) -> None:
        self.left = 0
        self.done = asyncio.Event()

    def expect(self, handled: int) -> None:
        """A new batch begins."""
        self.left = handled
        self.done.clear()

    def count(self) -> None:
        """One subscriber has handled one notice."""
        self.left -= 1
        if self.left == 0:
            self.done.set()


def measure(quick: bool) -> list[Figure]:
    """Both ratios, from rounds in which the three take turns."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measure(rounds=3 if quick else 15, batches=1 if quick else 10))


async def _measure(rounds: int, batches: int) -> list[Figure]:
    finish = Finish()
    rates: dict[str, list[float]] = {"hub": [], "pyee": [], "queues": []}
    async with _hub(finish) as through_hub, _pyee(finish) as through_pyee, _queues(finish) as through_queues:
        ways = {"hub": through_hub, "pyee": through_pyee, "queues": through_queues}
        for send in ways.values():
            await _rate(send, finish, 1)
        gc.collect()
        gc.freeze()
        for _ in range(rounds):
            for name, send in ways.items():
                rates[name].append(await _rate(send, finish, batches))
                await asyncio.sleep(0.15)  # the journal writes its lines here
        gc.unfreeze()
    detail = ", ".join(f"{name} {median(rate):,.0f}/s" for name, rate in rates.items())
    return [
        Figure("notices to 10 / pyee", ratio(rates["hub"], rates["pyee"]), "×", 1.0, "at least", detail),
        Figure("notices to 10 / asyncio queues", ratio(rates["hub"], rates["queues"]), "×", 0.2, "at least"),
    ]


async def _rate(send: Send, finish: Finish, batches: int) -> float:
    began = time.perf_counter()
    for _ in range(batches):
        finish.expect(BATCH * SUBSCRIBERS)
        send(BATCH)
        await asyncio.wait_for(finish.done.wait(), 60)
    return BATCH * batches / (time.perf_counter() - began)


@asynccontextmanager
async def _hub(finish: Finish) -> AsyncIterator[Send]:
    plugin = Plugin("listeners")

    async def hear(ctx: Context, notice: Notice) -> None:
        finish.count()

    for _ in range(SUBSCRIBERS):
        plugin.on(EVENT)(hear)
    async with running(plugin) as hub:
        router = hub.hub.router

        def send(count: int) -> None:
            for _ in range(count):
                router.notify(EVENT, DATA, principal=DAEMON)

        yield send
        if router.bus.dropped:
            raise RuntimeError(f"{router.bus.dropped} notices were dropped: the rate would be a lie")


@asynccontextmanager
async def _pyee(finish: Finish) -> AsyncIterator[Send]:
    emitter = AsyncIOEventEmitter(asyncio.get_running_loop())

    def listener() -> Callable[[Any], Any]:
        async def hear(data: Any) -> None:
            finish.count()

        return hear

    for _ in range(SUBSCRIBERS):  # ten functions: pyee keeps one of equal ones
        emitter.on(EVENT, listener())

    def send(count: int) -> None:
        for _ in range(count):
            emitter.emit(EVENT, DATA)

    yield send


@asynccontextmanager
async def _queues(finish: Finish) -> AsyncIterator[Send]:
    queues: list[asyncio.Queue[Any]] = [asyncio.Queue() for _ in range(SUBSCRIBERS)]

    async def hear(data: Any) -> None:
        finish.count()

    async def consume(queue: asyncio.Queue[Any]) -> None:
        while True:
            await hear(await queue.get())

    def send(count: int) -> None:
        for _ in range(count):
            for queue in queues:
                queue.put_nowait(DATA)

    consumers = [asyncio.create_task(consume(queue)) for queue in queues]
    yield send
    for consumer in consumers:
        consumer.cancel()
    await asyncio.gather(*consumers, return_exceptions=True)
