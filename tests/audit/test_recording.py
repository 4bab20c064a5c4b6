"""What is appended is there, in order, whole, chained, and survives whatever a caller puts into it."""

import asyncio
import hashlib
import json
import math
import sqlite3
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ksi_daemon.audit import Entry
from ksi_daemon.audit.chain import HASH, NO_HASH, NO_MAC, link
from ksi_daemon.audit.entry import COLUMNS, FIELDS, fields_after_seq
from ksi_daemon.audit.files import SELECT, Files, reading
from ksi_daemon.audit.line import line_of, row_of
from ksi_daemon.audit.opening import INSERT
from ksi_daemon.audit.reading import Filter
from ksi_daemon.audit.value import LIMIT_BYTES, shown_json
from tests.audit.conftest import Open, happening, intent, outcome

TOKEN = "ksi_" + "Zx9" * 12


def rows_of(files: Files) -> list[dict[str, Any]]:
    with reading(files.database) as connection:
        return [dict(zip(COLUMNS, row, strict=True)) for row in connection.execute(SELECT + " ORDER BY daemon_id, seq")]


async def test_an_entry_is_in_the_file_when_append_returns(opened: Open, files: Files) -> None:
    async with opened() as audit:
        await audit.append(
            intent("c1", tool="ksi_state_set", arguments={"key": "k"}, rule="events/state:* write", session_id="s1")
        )
        row = rows_of(files)[-1]
    assert (row["seq"], row["type"], row["phase"], row["status"]) == (2, "tool_call", "intent", "started")
    assert (row["event"], row["tool"], row["agent_id"], row["session_id"]) == ("state:set", "ksi_state_set", "a1", "s1")
    assert (row["arguments"], row["rule"], row["count"]) == ('{"key":"k"}', "events/state:* write", 1)


async def test_rows_of_many_callers_form_one_chain_that_a_stranger_can_check(opened: Open, files: Files) -> None:
    """The hash is SHA-256 over the previous hash and a plain JSON array: checked here with the standard library alone."""
    async with opened() as audit:
        await asyncio.gather(*(audit.append(happening(number)) for number in range(200)))
    previous = NO_HASH
    rows = rows_of(files)
    for seq, row in enumerate(rows, start=1):
        array = json.dumps([row[name] for name in FIELDS], separators=(",", ":"), ensure_ascii=False)
        assert row["seq"] == seq
        assert row["prev_hash"] == previous
        previous = hashlib.sha256(previous + array.encode()).digest()
        assert row["hash"] == previous
    assert len(rows) == 201
    assert len({row["daemon_id"] for row in rows}) == 1


async def test_the_order_of_one_caller_is_the_order_of_its_rows(opened: Open, files: Files) -> None:
    async def caller(name: str) -> None:
        for number in range(20):
            await audit.append(happening(number, agent_id=name))

    async with opened() as audit:
        await asyncio.gather(*(caller(f"a{number}") for number in range(8)))
    for number in range(8):
        mine = [row["event"] for row in rows_of(files) if row["agent_id"] == f"a{number}"]
        assert mine == [f"test:number_{place}" for place in range(20)]


async def test_the_same_daemon_goes_on_after_a_restart(opened: Open) -> None:
    async with opened() as audit:
        first = audit.daemon_id
        await audit.append(happening())
    async with opened() as audit:
        await audit.append(happening())
        assert (audit.daemon_id, audit.head.seq) == (first, 3)
        assert (await audit.verify()).ok


async def test_files_are_private(opened: Open, files: Files) -> None:
    async with opened() as audit:
        await audit.append(happening())
    for path in (files.database, files.key, files.anchor, files.mirror):
        assert path.stat().st_mode & 0o777 == 0o600, path


HOSTILE: list[Any] = [
    "line\nbreak\r\n{\"forged\": true}",
    "\x1b[31mred\x1b[0m \x00 \u202e",
    "\ud800 half a pair",
    {"\udfff": ["\ud83d"]},
    math.nan,
    [math.inf, -math.inf, None],
    b"\xff\xfe not UTF-8",
    10**5_000,
    {"deep": [[[[[[[[[[[[[[[[[[[[["x"]]]]]]]]]]]]]]]]]]]]]},
    {1: "number", None: "none"},
    object(),
]  # fmt: skip


@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
async def test_nothing_a_caller_sends_breaks_a_row(opened: Open, files: Files, value: Any) -> None:
    """U07."""
    async with opened() as audit:
        await audit.append(
            intent(
                "c1", arguments=value, details=value, reason=str(value)[:3_000] if not isinstance(value, int) else "x"
            )
        )
        assert (await audit.verify()).ok
        shown = (await audit.query(Filter(call_id="c1"))).rows[0]
    assert shown["event"] == "state:set"
    lines = files.mirror.read_bytes().splitlines()
    assert len(lines) == 1
    assert all(isinstance(json.loads(line), dict) for line in lines)
    assert "\x1b" not in files.mirror.read_text()
    assert "\u202e" not in shown.get("reason", "")


def test_ten_megabytes_are_cut_and_the_digest_is_that_of_the_whole() -> None:
    """U07."""
    value = {"text": "é" * 5_000_000}
    shown = shown_json(value)
    whole = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    assert shown.text is not None
    assert (shown.full_bytes, shown.full_sha256) == (len(whole), hashlib.sha256(whole).hexdigest())
    assert len(shown.text.encode()) <= 2 * LIMIT_BYTES
    assert json.loads(shown.text)["cut"].startswith('{"text":"éé')


def test_a_secret_at_the_cut_is_not_shown_in_part() -> None:
    """U07, S05."""
    for length in range(8_150, 8_200):
        shown = shown_json({"text": "x" * length + " " + TOKEN + " " + "y" * 20_000}).text
        assert shown is not None
        assert "ksi_" not in shown


async def test_secrets_reach_no_file(opened: Open, var_dir: Any) -> None:
    """S05: arguments, details, reason, event and ids are redacted before the database, the mirror and the anchor."""
    async with opened() as audit:
        await audit.append(
            intent(
                arguments={"password": "hunter2-secret", "note": f"use {TOKEN}"}, details={"header": f"Bearer {TOKEN}"},
                reason=f"bad token {TOKEN}", event=TOKEN, tool=TOKEN, correlation_id=TOKEN, session_id=TOKEN, status=TOKEN,
            )
        )  # fmt: skip
    for path in var_dir.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert TOKEN.encode() not in content, path
            assert b"hunter2-secret" not in content, path


def test_long_names_are_cut_and_say_so() -> None:
    row = fields_after_seq(Entry(type="system", event="e" * 10_000, reason="r" * 10_000), 0.0)
    event, reason = row[FIELDS.index("event") - 2], row[FIELDS.index("reason") - 2]
    assert str(event).endswith("[cut, 10000 characters]")
    assert len(str(event)) <= 128
    assert len(str(reason)) <= 1_024


async def test_an_entry_that_cannot_be_one_fails_alone(opened: Open) -> None:
    class Poison:
        def __str__(self) -> str:
            raise RuntimeError("no")

    async with opened() as audit:
        results = await asyncio.gather(
            audit.append(happening(1)),
            audit.append(happening(2, type="gossip")),
            audit.append(happening(3, arguments=Poison())),
            audit.append(happening(4)),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [type(None), ValueError, RuntimeError, type(None)]
        assert audit.available
        assert (await audit.verify()).rows == 3


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters()), inner, max_size=4),
    max_leaves=20,
)
texts = st.text(st.characters(), max_size=200)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(json_values, texts, texts, st.floats() | st.none(), st.integers(), st.integers() | st.none())
def test_any_row_comes_back_from_sqlite_and_from_its_line_with_the_same_hash(
    value: Any, name: str, reason: str, duration_ms: float | None, count: int, result_bytes: int | None
) -> None:
    """U07."""
    entry = intent(
        arguments=value, details=value, agent_id=name, reason=reason, duration_ms=duration_ms, count=count, result_bytes=result_bytes
    )  # fmt: skip
    fields = ("d", 1, *fields_after_seq(entry, 1_800_000_000.5))
    row = (*fields, NO_HASH, link(fields, NO_HASH), NO_MAC)
    assert row_of(line_of(row)) == row
    with_table = sqlite3.connect(":memory:")
    try:
        with_table.execute(f"CREATE TABLE entries ({', '.join(f'{name} {kind_of(name)}' for name in COLUMNS)}) STRICT")
        with_table.execute(INSERT, row)
        back = with_table.execute(SELECT).fetchone()
    finally:
        with_table.close()
    assert link(back[: len(FIELDS)], NO_HASH) == row[HASH]


def kind_of(column: str) -> str:
    if column in ("seq", "count", "result_bytes", "arguments_bytes"):
        return "INTEGER"
    return {"duration_ms": "REAL", "prev_hash": "BLOB", "hash": "BLOB", "mac": "BLOB"}.get(column, "TEXT")


async def test_a_call_that_was_cancelled_while_it_waited_has_its_row_all_the_same(opened: Open, files: Files) -> None:
    async with opened() as audit:
        waiting = asyncio.create_task(audit.append(outcome("c9", status="cancelled")))
        await asyncio.sleep(0)
        waiting.cancel()
        await audit.append(happening())
    assert [row["call_id"] for row in rows_of(files)].count("c9") == 1
