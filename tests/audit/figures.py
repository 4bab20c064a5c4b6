"""How fast the audit writes and verifies on this machine: `python -m tests.audit.figures [rows]`, one JSON object.

Figures, not assertions: a machine that is busy with something else is no failure.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from ksi_daemon.audit import Audit, open_audit
from ksi_daemon.audit.reading import Filter
from ksi_daemon.identifiers import new_id
from ksi_daemon.process.var_dir import prepare
from tests.audit.conftest import FakeLog, intent, outcome


async def measure(rows: int, callers: int = 64) -> dict[str, Any]:
    """Append `rows` rows by `callers` at once, then verify, open again and query (U06)."""
    with tempfile.TemporaryDirectory(prefix="ksi-audit-figures-") as folder:
        var_dir = Path(folder) / "var"
        prepare(var_dir)
        async with open_audit(var_dir, log=FakeLog()) as audit:
            started, used = time.perf_counter(), time.process_time()
            await asyncio.gather(*(_call(audit, f"a{number}", rows // callers // 2) for number in range(callers)))
            wrote_s, used = time.perf_counter() - started, time.process_time() - used
            written = audit.head.seq
            verdict = await audit.verify()
            started = time.perf_counter()
            await audit.query(Filter(agent="nobody"))
            query_s = time.perf_counter() - started
        started = time.perf_counter()
        async with open_audit(var_dir, log=FakeLog()):
            opened_s = time.perf_counter() - started
        size = (var_dir / "db" / "audit.db").stat().st_size
    return {
        "rows": written,
        "callers": callers,
        "rows_per_s": round(written / wrote_s),
        "processor_us_per_row": round(used / written * 1e6, 1),
        "sync_ms": round(_sync_ms(), 3),
        "verified": verdict.ok,
        "verify_rows_per_s": verdict.rows_per_s,
        "open_s": round(opened_s, 3),
        "query_that_finds_nothing_s": round(query_s, 3),
        "bytes_per_row": round(size / written),
    }


async def _call(audit: Audit, agent: str, times: int) -> None:
    for number in range(times):
        call_id = new_id()
        who: dict[str, Any] = {
            "agent_id": agent,
            "session_id": f"s-{agent}",
            "tool": "ksi_state_set",
            "correlation_id": call_id,
        }
        arguments = {"key": f"k{number}", "value": "some value", "namespace": "global"}
        await audit.append(intent(call_id, arguments=arguments, rule="events/state:* write (profile standard)", **who))
        await audit.append(outcome(call_id, **who))


def _sync_ms() -> float:
    """What one small durable write costs here, without any database."""
    import os

    with tempfile.TemporaryFile() as file:
        started = time.perf_counter()
        for _ in range(50):
            file.write(b"x" * 20_000)
            file.flush()
            os.fdatasync(file.fileno())
        return (time.perf_counter() - started) / 50 * 1_000


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(uvloop.run(measure(int((sys.argv[1:] or ["200000"])[0])))).decode() + "\n")
