"""What is done to daemons on purpose, in a short form by the tests and in a long one by `scripts/chaos`.

Each storm returns what it saw; whether that is good enough is for the caller to say.
"""

import asyncio
import json
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.live.daemon_process import WAIT_S, Daemon, until

KEYS_PER_WRITER = 8


@dataclass
class Attempt:
    """One of many daemons started at once, that did not get the var folder."""

    exit_code: int
    seconds: float
    message: str


@dataclass
class Race:
    """How starting many daemons at once on one var folder ended."""

    winners: int
    winner_pid: int
    losers: list[Attempt]


def start_together(folder: Path, count: int) -> Race:
    """Start `count` daemons at once on one var folder, wait until all but the winners have ended, then stop those."""
    runners: list[tuple[Daemon, float]] = []
    for number in range(count):
        place = folder / f"runner{number}"
        place.mkdir()
        daemon = Daemon(place)
        daemon.var = folder / "var"
        runners.append((daemon, time.monotonic()))
        daemon.spawn()
    try:
        losers: dict[int, Attempt] = {}

        def only_winners_are_left() -> bool:
            for index, (daemon, began) in enumerate(runners):
                if index not in losers and not daemon.alive:
                    seconds = time.monotonic() - began
                    losers[index] = Attempt(daemon.wait(), seconds, daemon.errors)
            return len(losers) >= count - 1

        until(only_winners_are_left, within_s=3 * WAIT_S, what="all but one have ended")
        left = [daemon for index, (daemon, _) in enumerate(runners) if index not in losers]
        serving = [daemon for daemon in left if until(daemon.answers, what="the winner serves")]
        return Race(len(serving), serving[0].pid if serving else 0, list(losers.values()))
    finally:
        for daemon, _ in runners:
            daemon.end()


@dataclass
class KillRound:
    """What one kill -9 under load cost."""

    acknowledged: int = 0
    lost: list[str] = field(default_factory=list)
    ready_s: float = 0.0
    damage: str = "ok"
    unrecorded: list[str] = field(default_factory=list)  # effects without an intent, replies without an outcome
    audit: str = "ok"  # or what its verification found


@dataclass
class Ledger:
    """What writers know: for each key the last value that was acknowledged, and the last that was tried."""

    acknowledged: dict[str, int] = field(default_factory=dict)
    tried: dict[str, int] = field(default_factory=dict)
    count: int = 0
    intended: set[tuple[str, int]] = field(default_factory=set)  # (key, value) for which the audit has an intent
    succeeded: set[tuple[str, int]] = field(default_factory=set)  # and those that it says ended well
    read_through: int = 0  # the last row of the audit that was looked at

    def read_audit(self, daemon: Daemon) -> None:
        """Take in what the audit says about our writes since the last time."""
        rows = daemon.audit_rows("seq > ? AND event = 'state:set'", self.read_through)
        writes: dict[str, tuple[str, int]] = {}
        for row in rows:
            if row["phase"] == "intent":
                sent = json.loads(row["arguments"])
                writes[row["call_id"]] = (sent["key"], sent["value"])
            elif row["status"] == "ok":
                self.succeeded.add(writes[row["call_id"]])
        self.intended.update(writes.values())
        self.read_through = max([self.read_through, *(row["seq"] for row in rows)])

    def unrecorded(self, found: dict[str, int]) -> list[str]:
        """Values that are there without an intent, and acknowledged ones whose success is not recorded."""
        effects = [
            f"{key}={value} without an intent" for key, value in found.items() if (key, value) not in self.intended
        ]
        replies = [
            f"{key}={value} acknowledged without an outcome"
            for key, value in self.acknowledged.items()
            if (key, value) not in self.succeeded
        ]
        return effects + replies

    def lost(self, found: dict[str, int]) -> list[str]:
        """Keys whose value is older than what was acknowledged, or was never sent."""
        return [
            f"{key}: found {found.get(key)}, acknowledged {value}, tried {self.tried[key]}"
            for key, value in self.acknowledged.items()
            if not value <= found.get(key, -1) <= self.tried[key]
        ]


def kill_under_load(daemon: Daemon, ledger: Ledger, chance: random.Random, *, writers: int = 20) -> KillRound:
    """Let `writers` connections set keys, kill -9 at a random moment, start again, and look for what is missing."""
    before = ledger.count
    asyncio.run(_write_until_killed(daemon, ledger, chance, writers))
    daemon.start()
    outcome = KillRound(acknowledged=ledger.count - before, ready_s=daemon.ready_s)
    with daemon.connect() as connection:
        ids = {connection.post("state:get", {"key": key, "namespace": "chaos"}): key for key in ledger.tried}
        answers = {key: connection.answer(request_id) for request_id, key in ids.items()}
        verdict = connection.call("audit:verify")
    found = {key: answer["data"]["value"] for key, answer in answers.items() if answer["ok"]}
    ledger.read_audit(daemon)
    outcome.lost = ledger.lost(found)
    outcome.unrecorded = ledger.unrecorded(found)
    outcome.audit = "ok" if verdict["ok"] else f"row {verdict['first_bad_seq']}: {verdict['problem']}"
    outcome.damage = integrity(daemon.database)
    return outcome


async def _write_until_killed(daemon: Daemon, ledger: Ledger, chance: random.Random, writers: int) -> None:
    tasks = [asyncio.create_task(_writer(daemon.socket_path, f"w{number}", ledger)) for number in range(writers)]
    await asyncio.sleep(chance.uniform(0.02, 0.5))  # the random moment itself, not a wait for something
    daemon.kill()
    await asyncio.wait_for(asyncio.gather(*tasks), WAIT_S)


async def _writer(path: Path, name: str, ledger: Ledger) -> None:
    """Set one key after the other, each to a higher number, until the daemon is gone."""
    try:
        reader, writer = await asyncio.open_unix_connection(path)
    except OSError:
        return
    try:
        while True:
            for number in range(KEYS_PER_WRITER):
                key = f"{name}-{number}"
                value = ledger.tried[key] = ledger.tried.get(key, 0) + 1
                request = {
                    "event": "state:set",
                    "data": {"key": key, "value": value, "namespace": "chaos"},
                    "id": value,
                }
                writer.write(json.dumps(request).encode() + b"\n")
                line = await reader.readline()
                if not line.endswith(b"\n"):
                    return
                answer = json.loads(line)
                if answer["ok"]:
                    ledger.acknowledged[key] = value
                    ledger.count += 1
    except OSError:
        return
    finally:
        writer.close()


def integrity(database: Path) -> str:
    """SQLite's own verdict on a database: ok, or what is wrong with it."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return str(connection.execute("PRAGMA integrity_check(3)").fetchone()[0])


@dataclass
class Fuzz:
    """What came back for many bad lines."""

    sent: int = 0
    answered: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    suspicious: list[str] = field(default_factory=list)  # lines with an answer that must never be given

    def add(self, line: bytes, answer: dict[str, Any]) -> None:
        """Judge one answer."""
        self.answered += 1
        code = "ok" if answer.get("ok") is True else str(answer.get("error", {}).get("code", "shapeless"))
        self.codes[code] += 1
        if code in ("internal", "shapeless") or "Traceback" in json.dumps(answer):
            self.suspicious.append(f"{line[:300]!r} -> {str(answer)[:300]}")


def throw_lines(daemon: Daemon, lines: Iterable[bytes], *, at_once: int = 50) -> Fuzz:
    """Send lines through one connection, `at_once` at a time, each with an answer of its own; notices in between are passed over."""
    seen = Fuzz()
    with daemon.connect() as connection:
        pile: list[bytes] = []
        for line in lines:
            pile.append(line)
            if len(pile) == at_once:
                _throw(connection, pile, seen)
                pile = []
        _throw(connection, pile, seen)
        connection.call("message:unsubscribe")
    return seen


def _throw(connection: Any, pile: list[bytes], seen: Fuzz) -> None:
    connection.write(b"".join(line + b"\n" for line in pile))
    seen.sent += len(pile)
    answers: list[dict[str, Any]] = []
    while len(answers) < len(pile):
        got = connection.next()
        if "notice" not in got and "dropped" not in got:
            answers.append(got)
    # Answers come in any order; which line one belongs to is only needed to tell of a bad one.
    for answer in answers:
        seen.add(b" | ".join(pile) if len(pile) == 1 else b"one of %d lines" % len(pile), answer)
    if seen.suspicious and len(pile) > 1 and len(seen.suspicious) < 5:
        seen.suspicious += [repr(line[:200]) for line in pile]


GOOD_REQUESTS: tuple[dict[str, Any], ...] = (
    {"event": "system:echo", "data": {"text": "hello"}, "id": 1},
    {"event": "system:health", "id": "h"},
    {"event": "system:status", "id": None},
    {"event": "system:help", "data": {"event": "state:set", "format_style": "mcp"}, "id": 2},
    {"event": "system:discover", "data": {"namespace": "state", "detail": True, "level": "full"}, "id": 3},
    {"event": "system:validate", "data": {"event": "state:set", "data": {"key": "k", "value": 1}}, "id": 4},
    {"event": "plugin:list", "id": 5},
    {"event": "plugin:inspect", "data": {"name": "state"}, "id": 6},
    {"event": "plugin:reload", "data": {"name": "state"}, "id": 6},
    {
        "event": "state:set",
        "data": {"key": "k", "namespace": "fuzz", "value": {"a": [1, 2.5, None, "x"]}, "metadata": {"m": 1}},
        "id": 7,
    },
    {"event": "state:get", "data": {"key": "k", "namespace": "fuzz"}, "id": 8, "timeout_s": 5},
    {
        "event": "state:list",
        "data": {"namespace": "fuzz", "pattern": "a*", "limit": 10, "after": ["fuzz", "a"]},
        "id": 9,
    },
    {"event": "state:delete", "data": {"key": "k", "namespace": "fuzz"}, "id": 10, "correlation_id": "c-1"},
    {"event": "message:publish", "data": {"event": "fuzz:happened", "data": {"n": [1]}}, "id": 11},
    {"event": "message:subscribe", "data": {"patterns": ["nobody:*"]}, "id": 12},
    {"event": "message:unsubscribe", "data": {"patterns": ["nobody:*"]}, "id": 13},
    {"event": "message:subscriptions", "id": 14},
    {
        "event": "monitor:get_events",
        "data": {"event_patterns": ["fuzz:*"], "since": 60, "until": "2026-01-01T00:00:00Z", "limit": 5},
        "id": 15,
    },
    {"event": "monitor:get_stats", "id": 16},
    {"event": "monitor:get_correlation_chain", "data": {"correlation_id": "c-1"}, "id": 17},
    {"event": "config:show", "id": 18},
    {"event": "nobody:knows", "data": {}, "id": 19},
)

HOSTILE_TOKENS: tuple[bytes, ...] = (
    b"null", b"true", b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"-0", b"-0.0", b"1e-400", b"9" * 400, b"18446744073709551616",
    b"-9223372036854775809", b"0.1e1", b"01", b"1.", b"'", b'"', b"\\", b'"\\ud800"', b'"\\udc00\\ud800"', b'"\\u0000"', b'"\\uZZZZ"', b"\x00",
    b"\xff\xfe", b"\xc3\x28", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xef\xbb\xbf", b"{", b"}", b"[", b"]", b",", b":", b"[[[[", b"{}", b"[]",
    b'""', b"[" * 70 + b"]" * 70, b'{"a":' * 70 + b"1" + b"}" * 70, b"/*x*/", b"//", b"\x1b[31m", b"\xe2\x80\xae", b"*" * 30, b'"__proto__"',
    b"system:echo", b'"since":1e308', b'"limit":-1', b'"0001-01-01T00:00:00+23:59"', b'"9999-12-31T23:59:59-23:59"', b"1e308", b"-1e308",
)  # fmt: skip


def hostile_values(chance: random.Random) -> Any:
    """A JSON value that is legal but unkind."""
    return chance.choice(
        [None, True, -1, 0, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**40, 1e308, 5e-324, -0.0, "", " ", "\x00", "a\nb", "x" * 5000,
         "\u202e", "é", "e\u0301", "😀" * 50, "'; DROP TABLE state; --", "%s%n", "../../etc/passwd", "*:*", "a:b:c", "[", "[!", "a" * 129,
         [], [[]], [[[[[[]]]]]], {}, {"": ""}, {"a" * 300: 1}, ["x"] * 200, list(range(100)), {"event": "system:echo"}]
    )  # fmt: skip


def mutated_lines(chance: random.Random, count: int) -> Iterator[bytes]:
    """Requests spoilt in their bytes or in their structure; never two lines, never a blank one, never a stop."""
    made = 0
    while made < count:
        request = chance.choice(GOOD_REQUESTS)
        line = _spoil_structure(request, chance) if chance.random() < 0.5 else json.dumps(request).encode()
        for _ in range(chance.choice([0, 1, 1, 2, 5])):
            line = _spoil_bytes(line, chance)
        line = line.replace(b"\n", b" ")
        if line.strip() and b"shutdown" not in line:
            made += 1
            yield line


def _spoil_structure(request: dict[str, Any], chance: random.Random) -> bytes:
    copy: dict[str, Any] = json.loads(json.dumps(request))
    places: list[tuple[Any, Any]] = []
    pending: list[Any] = [copy]
    while pending:
        node = pending.pop()
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], dict | list):
                pending.append(node[key])
    node, key = chance.choice(places)
    kind = chance.randrange(4)
    if kind == 0:
        del node[key]
    elif kind == 1 and isinstance(node, dict):
        node[str(hostile_values(chance))[:200]] = hostile_values(chance)
    else:
        node[key] = hostile_values(chance)
    return json.dumps(copy, ensure_ascii=chance.random() < 0.5).encode()


def _spoil_bytes(line: bytes, chance: random.Random) -> bytes:
    start, end = sorted(chance.choices(range(len(line) + 1), k=2))
    match chance.randrange(6):
        case 0:
            return line[:start] + bytes([chance.randrange(256)]) + line[start + 1 :]
        case 1:
            return line[:start] + line[end:]
        case 2:
            return line[:end] + line[start:]
        case 3:
            return line[:start] + chance.choice(HOSTILE_TOKENS) + line[start:]
        case 4:
            return line[:start] + chance.choice(HOSTILE_TOKENS) + line[end:]
        case _:
            return line[:start]
