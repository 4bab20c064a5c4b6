"""Rights and limits while many agents call as fast as they can."""

import asyncio
import json
import random
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.live.daemon_process import WAIT_S, Daemon, until

# Each effect is one line of a file: which call, and when it began on the clock that all processes share.
EFFECTS = '''
@plugin.handles("effects:run")
async def run(ctx: Context, params: Nothing) -> Done:
    """Leave a trace."""
    with open(os.environ["EFFECTS"], "a") as file:
        file.write(f"{ctx.call_id} {time.monotonic()}\\n")
    await asyncio.sleep(0)
    return Done()

@plugin.handles("effects:fail")
async def fail(ctx: Context, params: Nothing) -> Done:
    """Break."""
    raise ValueError("as always")
'''
CALLERS = 8
ROUNDS = 100
REVOKING_S = 12.0


def _effects(daemon: Daemon) -> dict[str, float]:
    """What has really happened: call id -> when."""
    path = daemon.folder / "effects"
    lines = path.read_text().splitlines() if path.exists() else []
    return {line.split()[0]: float(line.split()[1]) for line in lines}


def _start(daemon: Daemon) -> None:
    daemon.plugin("effects", EFFECTS)
    daemon.start(EFFECTS=str(daemon.folder / "effects"))


class Line:
    """One client of the socket in asyncio: a request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, path: Path) -> "Line":
        return cls(*await asyncio.open_unix_connection(path))

    async def send(self, event: str, data: dict[str, Any] | None = None, **extra: Any) -> dict[str, Any]:
        self._writer.write(json.dumps({"event": event, "data": data or {}, "id": 1, **extra}).encode() + b"\n")
        while True:
            answer: dict[str, Any] = json.loads(await asyncio.wait_for(self._reader.readline(), WAIT_S))
            if "id" in answer:
                return answer

    async def call(self, event: str, data: dict[str, Any] | None = None, **extra: Any) -> dict[str, Any]:
        answer = await self.send(event, data, **extra)
        assert answer["ok"], answer
        result: dict[str, Any] = answer["data"]
        return result

    def close(self) -> None:
        self._writer.close()


class Load:
    """Callers that each send one request after the other until they are told to stop; what they were answered."""

    def __init__(self, path: Path, tokens: list[str]) -> None:
        self.codes: Counter[str] = Counter()
        self._over = False
        self._tasks = [asyncio.create_task(self._call(path, token)) for token in tokens]

    async def _call(self, path: Path, token: str) -> None:
        line = await Line.open(path)
        while not self._over:
            answer = await line.send("effects:run", token=token)
            self.codes["ok" if answer["ok"] else answer["error"]["code"]] += 1
        line.close()

    async def end(self) -> Counter[str]:
        """Wait for the last answers; a caller that had failed fails here."""
        self._over = True
        await asyncio.gather(*self._tasks)
        return self.codes


def test_no_call_that_was_recorded_after_a_revoke_has_run(daemon: Daemon) -> None:
    """P02: judged by the order of the record: an intent after the revoke's outcome, and before the next grant, has no effect"""
    daemon.settings["rate_limit"] = "off"
    _start(daemon)
    token = daemon.add_agent("alice", "standard")
    grant = {"agent_id": "alice", "resource": "events/effects:run"}

    async def storm() -> tuple[int, Counter[str]]:
        chance = random.Random(7)
        load = Load(daemon.socket_path, [token] * CALLERS)
        operator = await Line.open(daemon.socket_path)
        deadline = time.monotonic() + REVOKING_S
        rounds = 0
        while rounds < ROUNDS and time.monotonic() < deadline:
            await operator.call("permission:grant", grant)
            await asyncio.sleep(chance.uniform(0, 0.03))  # the random moment itself
            await operator.call("permission:revoke", grant)
            await asyncio.sleep(chance.uniform(0, 0.01))
            rounds += 1
        codes = await load.end()
        operator.close()
        return rounds, codes

    rounds, codes = asyncio.run(storm())
    assert daemon.stop() == 0
    assert rounds >= 30
    assert codes["ok"] > rounds
    assert codes["forbidden"] > rounds
    ran = _effects(daemon)
    open_since_revoke = False
    wrong = []
    intents = set()
    for row in daemon.audit_rows("event IN ('effects:run', 'permission:grant', 'permission:revoke')"):
        if row["event"] == "permission:revoke" and row["phase"] == "outcome":
            open_since_revoke = True
        elif row["event"] == "permission:grant" and row["phase"] == "intent":
            open_since_revoke = False
        elif row["event"] == "effects:run" and row["phase"] == "intent":
            intents.add(row["call_id"])
            if open_since_revoke and row["call_id"] in ran:
                wrong.append(row["seq"])
    assert wrong == []
    assert set(ran) <= intents, "an effect without an intent"


def test_freezing_all_agents_stops_every_new_dispatch_at_once(daemon: Daemon) -> None:
    """P09"""
    daemon.settings["rate_limit"] = "off"
    _start(daemon)
    tokens = [daemon.add_agent(f"agent{number}") for number in range(5)]

    async def storm() -> tuple[float, float, Counter[str]]:
        load = Load(daemon.socket_path, tokens * 3)
        operator = await Line.open(daemon.socket_path)
        await asyncio.sleep(0.5)  # the load itself
        asked = time.monotonic()
        frozen = await operator.call("agent:freeze", {"all": True})
        answered = time.monotonic()
        assert len(frozen["agents"]) == 5
        await asyncio.sleep(0.4)
        codes = await load.end()
        operator.close()
        return asked, answered, codes

    asked, answered, codes = asyncio.run(storm())
    began = _effects(daemon).values()
    assert len(began) > 100, "the load must have been real"
    assert max(began) <= answered, "a call was begun after the brake was acknowledged"
    assert answered - asked <= 1.0, "alone it takes a few ms; the promise is 200 ms, this machine may be shared"
    assert codes["forbidden"] > 0
    daemon.kill()
    daemon.start(EFFECTS=str(daemon.folder / "effects"))
    assert all(one["frozen"] for one in daemon.call("agent:list")["agents"]), "a restart does not let go of the brake"
    daemon.call("agent:unfreeze", {"all": True})
    assert daemon.call("effects:run", token=tokens[0]) == {"done": True}


def test_a_noisy_agent_is_refused_and_the_others_hardly_notice(daemon: Daemon) -> None:
    """L05 U01"""
    _start(daemon)
    noisy, quiet = daemon.add_agent("noisy", "researcher"), daemon.add_agent("quiet")
    waits: dict[str, list[float]] = {"alone": [], "beside": []}

    async def measure(kind: str) -> None:
        line = await Line.open(daemon.socket_path)
        for _ in range(60):
            began = time.monotonic()
            await line.call("effects:run", token=quiet)
            waits[kind].append(time.monotonic() - began)
            await asyncio.sleep(0.01)
        line.close()

    async def storm() -> Counter[str]:
        await measure("alone")
        load = Load(daemon.socket_path, [noisy] * 40)  # each waits for its answer, and refusals are answered slowly
        await measure("beside")
        return await load.end()

    codes = asyncio.run(storm())
    offered = sum(codes.values())
    assert offered > 300
    assert set(codes) == {"ok", "too_many"}
    assert codes["too_many"] / offered >= 0.9
    assert statistics.median(waits["beside"]) <= max(3 * statistics.median(waits["alone"]), 0.05)
    with daemon.connect() as connection:
        refusal = connection.send("effects:run", token=noisy)["error"]
    assert 0 < refusal["retry_after_s"] <= 60

    def counted() -> int:
        rows = daemon.audit_rows("agent_id = 'noisy' AND phase = 'outcome'")
        return sum(int(row["count"]) for row in rows if row["status"] == "too_many")

    until(lambda: counted() == codes["too_many"] + 1, within_s=5, what="every refusal is counted")


def test_a_plugin_that_keeps_failing_is_left_alone_and_the_others_serve(daemon: Daemon) -> None:
    """L07"""
    _start(daemon)
    daemon_codes = []
    token = daemon.add_agent("alice")
    with daemon.connect() as connection:
        for _ in range(12):
            error = connection.send("effects:fail", token=token)["error"]
            daemon_codes.append(error["code"])
        assert daemon_codes == ["internal"] * 5 + ["circuit_open"] * 7
        assert 25 < error["retry_after_s"] <= 30
        assert connection.send("effects:run", token=token)["error"]["code"] == "circuit_open", (
            "it is the plugin's breaker"
        )
        assert connection.call("state:set", {"key": "k", "value": 1}, token=token)["created"] is True
    assert any("effects keeps failing" in alarm for alarm in daemon.call("system:status")["alarms"])
    assert _effects(daemon) == {}
