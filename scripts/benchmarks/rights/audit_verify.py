"""How fast the record is verified and written, from a record of its own: the figures that tests/audit/figures.py takes."""

import uvloop

from scripts.benchmarks.figure import Figure
from tests.audit.figures import measure as audit_figures


def measure(quick: bool) -> list[Figure]:
    """Rows a second verified, and written by 64 callers."""
    found = uvloop.run(audit_figures(2_560 if quick else 400_000))
    if not found["verified"]:
        raise RuntimeError("the record that was just written does not verify")
    rows = f"{found['rows']:,} rows"
    wrote = f"{found['callers']} callers; {found['processor_us_per_row']} µs CPU a row, {found['sync_ms']} ms a durable write"
    return [
        Figure("audit verify", found["verify_rows_per_s"], "rows/s", 100_000, "at least", rows),
        Figure("audit append, durable", found["rows_per_s"], "rows/s", detail=wrote),
    ]
