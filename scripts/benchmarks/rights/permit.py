"""What the gate costs a call: the question itself, and a whole call of an agent beside the same call of the operator.

Time is that of the loop's own thread, without the audit, which waits for the disk.
"""

import asyncio
import gc
import time

import uvloop

from ksi_daemon.principal import Principal
from ksi_daemon.testing import TestHub, running
from scripts.benchmarks.figure import Figure, ratio, spread

DATA = {"text": "hello"}
OPERATOR = Principal(kind="operator", name="bench")


def measure(quick: bool) -> list[Figure]:
    """Rounds of the three take turns."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measure(rounds=3 if quick else 21, calls=500 if quick else 5_000))


async def _measure(rounds: int, calls: int) -> list[Figure]:
    asked: list[float] = []
    by_agent: list[float] = []
    by_operator: list[float] = []
    async with running() as hub:
        made = await hub.call("agent:register", agent_id="bench", profile="trusted")
        agent = hub.hub.rights.credentials.principal(made["token"], transport="socket")
        hub.hub.router.recorder = None
        gc.collect()
        for number in range(rounds + 1):
            took = (_ask_s(hub, agent, calls), await _call_s(hub, agent, calls), await _call_s(hub, OPERATOR, calls))
            if number:  # the first round only warms up
                for taken, seconds in zip((asked, by_agent, by_operator), took, strict=True):
                    taken.append(seconds / calls * 1e6)
            await asyncio.sleep(0.15)  # the journal writes its lines between the rounds
    detail = f"agent {spread(by_agent, 2)} µs; operator {spread(by_operator, 2)} µs"
    return [
        Figure("gate.permit", min(asked), "µs", detail=spread(asked, 2)),
        Figure("router.call by an agent / by the operator", ratio(by_agent, by_operator), "×", detail=detail),
    ]


def _ask_s(hub: TestHub, agent: Principal, calls: int) -> float:
    router = hub.hub.router
    gate, handler = router.gate, router.routes["system:echo"].handler
    if gate is None:
        raise RuntimeError("this hub has no gate")
    began = time.thread_time()
    for _ in range(calls):
        gate.permit(agent, handler)
    return time.thread_time() - began


async def _call_s(hub: TestHub, principal: Principal, calls: int) -> float:
    call = hub.hub.router.call
    began = time.thread_time()
    for _ in range(calls):
        await call("system:echo", DATA, principal=principal)
    return time.thread_time() - began
