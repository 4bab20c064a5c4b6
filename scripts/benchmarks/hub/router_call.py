"""What `router.call` costs beside the least it could do: validate the params and await a function that does nothing.

Judged is a handler that does nothing either; one that builds its result, as real ones do, is shown beside it. Time is that of
the loop's own thread, so that other programs of the machine do not count.
"""

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


class Text(Params):
    text: str = Field(max_length=100, description="Any text.")


class Echoed(Result):
    text: str


READY = Echoed(text="hello")


@plugin.handles("trivial:nothing", reads=True)
async def do_nothing(ctx: Context, params: Text) -> Echoed:
    """Answer with a result that is there already."""
    return READY


@plugin.handles("trivial:echo", reads=True)
async def echo(ctx: Context, params: Text) -> Echoed:
    """Say the text back."""
    return Echoed(text=params.text)


async def nothing() -> None:
    """The awaited no-op."""


def measure(quick: bool) -> list[Figure]:
    """The ratio, from interleaved rounds in one process with the daemon's own loop, journal and collector settings."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measure(rounds=3 if quick else 31, calls=500 if quick else 5_000))


async def _measure(rounds: int, calls: int) -> list[Figure]:
    seconds: dict[str, list[float]] = {"trivial:nothing": [], "trivial:echo": [], "least": []}
    async with running(plugin) as hub:
        hub.hub.router.recorder = None  # what the audit costs is a figure of its own: `bench rights`
        gc.collect()
        gc.freeze()  # as the daemon does once it is ready
        for number in range(rounds + 1):
            for name, taken in seconds.items():
                took_s = await (_least_s(calls) if name == "least" else _router_s(hub, name, calls))
                if number:  # the first round only warms up
                    taken.append(took_s)
            await asyncio.sleep(0.15)  # the journal writes its lines between the rounds, not inside one of them
        gc.unfreeze()
    least = seconds.pop("least")
    figures = []
    for name, taken in seconds.items():
        per_call, per_least = (median(times) / calls * 1e6 for times in (taken, least))
        detail = f"{per_call:.2f} µs beside {per_least:.2f} µs, {rounds} rounds of {calls:,}"
        judged = name == "trivial:nothing"
        title = f"router.call{'' if judged else ' that builds a result'} / (validation + no-op)"
        figures.append(Figure(title, ratio(taken, least), "×", 5.0 if judged else None, detail=detail))
    return figures


async def _router_s(hub: TestHub, event: str, calls: int) -> float:
    call = hub.hub.router.call
    began = time.thread_time()
    for _ in range(calls):
        await call(event, DATA, principal=OPERATOR)
    return time.thread_time() - began


async def _least_s(calls: int) -> float:
    validate = Text.model_validate
    began = time.thread_time()
    for _ in range(calls):
        validate(DATA)
        await nothing()
    return time.thread_time() - began
