"""Drops old rows from the start of the chain, with a signed base so that the rest stays verifiable.

Rows are dropped only after they were exported, unless that is asked for; never the newest row, never a call that has not ended.
"""

import msgspec

from ksi_daemon.audit.chain import Head
from ksi_daemon.audit.checkpoints import Checkpoints
from ksi_daemon.audit.files import Files, reading
from ksi_daemon.audit.ledger import Ledger
from ksi_daemon.errors import Conflict, Invalid, Unavailable
from ksi_daemon.notice import iso_time

DAY_S = 86_400
SLICE_ROWS = 5_000  # deleted between two groups: calls continue meanwhile


class Retained(msgspec.Struct, frozen=True):
    """What retention did or would do: rows dropped, the first remaining row, and how many of the dropped were never exported."""

    dropped: int
    first_seq: int
    unexported: int


def last_to_drop(
    files: Files, daemon_id: str, *, head: Head, keep_days: float | None, keep_rows: int | None, now_s: float
) -> int:
    """The seq up to which rows are too old or too many. An old row behind a younger one stays: the chain must have no gaps."""
    if keep_days is None and keep_rows is None:
        raise Invalid("nothing says how much to keep: set keep_days or keep_rows")
    if (keep_days or 0) < 0 or (keep_rows or 0) < 0:
        raise Invalid("keep_days and keep_rows cannot be negative")
    cut = 0 if keep_rows is None else head.seq - max(1, keep_rows)
    if keep_days is not None:
        with reading(files.database) as connection:
            young = connection.execute(
                "SELECT min(seq) FROM entries WHERE daemon_id = ? AND time >= ?",
                (daemon_id, iso_time(max(0.0, now_s - keep_days * DAY_S))),
            ).fetchone()[0]
        cut = max(cut, head.seq if young is None else young - 1)
    return min(cut, head.seq - 1)


def planned(ledger: Ledger, checkpoints: Checkpoints, cut: int) -> Retained:
    """What a retention up to `cut` would do; less if a call begun there has not ended. On the writer's thread."""
    base = checkpoints.base.seq
    cut = min([cut, *(seq - 1 for seq in ledger.open_intents.values())])
    if cut <= base:
        return Retained(0, base + 1, 0)
    return Retained(cut - base, cut + 1, max(0, cut - max(base, checkpoints.exported_through)))


def sign_base(ledger: Ledger, checkpoints: Checkpoints, cut: int, *, unexported: bool) -> Retained:
    """Sign that the chain now begins where `planned` says. On the writer's thread."""
    plan = planned(ledger, checkpoints, cut)
    if plan.dropped == 0:
        return plan
    if plan.unexported and not unexported:
        raise Conflict(
            f"{plan.unexported:,} of the rows to drop were never exported",
            hint="export them first: ksi audit export NAME.jsonl; or drop them all the same with unexported (--unexported)",
        )
    cut = plan.first_seq - 1
    base = ledger.position(cut, checkpoints.base)
    if base is None:
        raise Conflict(f"row {cut}, where the chain would start, is missing", hint="run `ksi audit verify` first")
    if not checkpoints.sign(ledger, "base", base_seq=cut, base_hash=base.hash.hex(), base_mac=base.mac.hex()):
        raise Unavailable(
            f"nothing was dropped: {checkpoints.problem}", hint="free disk space for the anchor file, then try again"
        )
    return plan


def drop_slice(ledger: Ledger, checkpoints: Checkpoints) -> int:
    """Delete some of the rows before the base; returns how many, 0 when none remain. On the writer's thread."""
    dropped = ledger.drop_through(checkpoints.base.seq, SLICE_ROWS)
    if dropped == 0:
        checkpoints.anchor.drop_before(checkpoints.base.seq)
    return dropped
