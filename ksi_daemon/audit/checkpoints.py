"""When the chain's head is signed: every 1,000 rows, 60 s after the first unsigned one, and at the end.

An anchor that cannot be written raises an alarm and is tried again a second later; the rows themselves are durable meanwhile.
"""

import time
from collections.abc import Callable
from typing import Any, Literal

from ksi_daemon.audit.anchor import Anchor, Checkpoint
from ksi_daemon.audit.chain import Head
from ksi_daemon.audit.ledger import Ledger
from ksi_daemon.notice import iso_time

EVERY_ROWS = 1_000
EVERY_S = 60.0
RETRY_S = 1.0

Kind = Literal["checkpoint", "closed", "base", "exported"]


class Checkpoints:
    """Counts unsigned rows and signs. `told` gets each signed line, for the log."""

    def __init__(
        self,
        anchor: Anchor,
        told: Callable[[Checkpoint], None],
        *,
        on_alarm: Callable[[str], None],
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.anchor = anchor
        self.problem: str | None = None
        self._told = told
        self._on_alarm = on_alarm
        self._clock = clock
        self._monotonic = monotonic
        self._unsigned = 0
        self._due = float("inf")

    def count(self, rows: int) -> None:
        """So many more rows are durable."""
        if self._unsigned == 0:
            self._due = self._monotonic() + EVERY_S
        self._unsigned += rows

    def is_due(self, now: float) -> bool:
        """Whether it is time to sign."""
        return now >= self._due or (self._unsigned >= EVERY_ROWS and self.problem is None)

    def due_in_s(self, now: float) -> float:
        """How long nothing needs to be signed, if no row comes."""
        return min(EVERY_S, max(0.0, self._due - now))

    def sign(self, ledger: Ledger, kind: Kind, **changes: Any) -> bool:
        """Sign the head as it is now; False (and an alarm) when the anchor cannot be written."""
        before = self._last()
        state: dict[str, Any] = {
            "base_seq": before.base_seq,
            "base_hash": before.base_hash,
            "exported_through": before.exported_through,
        }
        state |= changes
        line = Checkpoint(
            kind=kind,
            daemon_id=ledger.daemon_id,
            seq=ledger.head.seq,
            hash=ledger.head.hash.hex(),
            rows=ledger.head.seq - state["base_seq"],
            open=tuple(ledger.open_intents.values()),
            time=iso_time(self._clock()),
            **state,
        )
        try:
            signed = self.anchor.append(line)
        except OSError as error:
            self._due = self._monotonic() + RETRY_S
            if self.problem is None:
                self._on_alarm(f"the audit's checkpoints cannot be written to {self.anchor.path}: {error}")
            self.problem = f"the audit's checkpoints cannot be written to {self.anchor.path}: {error}"
            return False
        self.problem = None
        self._unsigned = 0
        self._due = float("inf")
        self._told(signed)
        return True

    def _last(self) -> Checkpoint:
        if self.anchor.last is None:
            raise ValueError("an anchor begins with its first line, which is made with the database")
        return self.anchor.last

    @property
    def exported_through(self) -> int:
        """The last row that a finished export holds."""
        return self._last().exported_through

    @property
    def base(self) -> Head:
        """The place that the first remaining row follows."""
        return self._last().base
