"""What `router.call` costs beside the least it could do: validate the params and await a function that does nothing."""

import asyncio
import gc
import time
from statistics import median

import uvloop

from ksi_daemon.plugin import Context, Field, Params, Plugin, Result
from ksi_daemon.principal import Principal
from ksi_daemon.testing import TestHub, running
from scripts.benchmarks.figure import Figure, ratio

plugin = Plugin("trivial")
OPERATOR = Principal(kind="operator", name="bench")
DATA = {"text": "hello"}
EVENT = "trivial:echo"


class Echo(Params):
    text: str = Field(max_length=100, description="What to say back.")


class Echoed(Result):
    text: str


@plugin.handles(EVENT, reads=True)
async def echo(ctx: Context, params: Echo) -> Echoed:
    """Say the text back."""
    return Echoed(text=params.text)


async def nothing() -> None:
    """The awaited no-op."""


def measure(quick: bool) -> list[Figure]:
    """The ratio, from interleaved rounds in one process with the hub's own loop, journal and collector settings."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measure(rounds=3 if quick else 31, calls=500 if quick else 5_000))


async def _measure(rounds: int, calls: int) -> list[Figure]:
    async with running(plugin) as hub:
        await _router_s(hub, calls)
        await _least_s(calls)
        gc.collect()
        gc.freeze()  # as the daemon does once it is ready
        routed, least = [], []
        for _ in range(rounds):
            routed.append(await _router_s(hub, calls))
            least.append(await _least_s(calls))
            await asyncio.sleep(0.15)  # the journal writes its lines between the rounds, not inside one of them
        gc.unfreeze()
    per_call, per_least = (median(times) / calls * 1e6 for times in (routed, least))
    detail = f"{per_call:.2f} µs beside {per_least:.2f} µs, {rounds} rounds of {calls:,}"
    return [Figure("router.call / (validation + no-op)", ratio(routed, least), "×", 5.0, detail=detail)]


async def _router_s(hub: TestHub, calls: int) -> float:
    call = hub.hub.router.call
    began = time.perf_counter()
    for _ in range(calls):
        await call(EVENT, DATA, principal=OPERATOR)
    return time.perf_counter() - began


async def _least_s(calls: int) -> float:
    validate = Echo.model_validate
    began = time.perf_counter()
    for _ in range(calls):
        validate(DATA)
        await nothing()
    return time.perf_counter() - began
