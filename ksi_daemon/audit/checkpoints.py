"""When the chain's head is signed: every 1,000 rows, 60 s after the first unsigned one, and at the end.

An anchor that cannot be written raises an alarm and is retried after a second; the rows themselves are durable anyway.
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
    """Counts unsigned rows and signs checkpoints. `on_signed` receives each signed line, for the log."""

    def __init__(
        self,
        anchor: Anchor,
        on_signed: Callable[[Checkpoint], None],
        *,
        on_alarm: Callable[[str], None],
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.anchor = anchor
        self.problem: str | None = None
        self._on_signed = on_signed
        self._on_alarm = on_alarm
        self._clock = clock
        self._monotonic = monotonic
        self._unsigned = 0
        self._due = float("inf")

    def count(self, rows: int) -> None:
        """Count rows that became durable."""
        if self._unsigned == 0:
            self._due = self._monotonic() + EVERY_S
        self._unsigned += rows

    def is_due(self, now: float) -> bool:
        """Whether it is time to sign."""
        return now >= self._due or (self._unsigned >= EVERY_ROWS and self.problem is None)

    def due_in_s(self, now: float) -> float:
        """Seconds until the next checkpoint is due, if no row is added."""
        return min(EVERY_S, max(0.0, self._due - now))

    def sign(self, ledger: Ledger, kind: Kind, **changes: Any) -> bool:
        """Sign the current head; False (and an alarm) when the anchor cannot be written."""
        before = self._last()
        state: dict[str, Any] = {
            "base_seq": before.base_seq,
            "base_hash": before.base_hash,
            "base_mac": before.base_mac,
            "exported_through": before.exported_through,
        }
        state |= changes
        line = Checkpoint(
            kind=kind,
            daemon_id=ledger.daemon_id,
            seq=ledger.head.seq,
            hash=ledger.head.hash.hex(),
            group_mac=ledger.head.mac.hex(),
            macs_from=before.macs_from,
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
        self._on_signed(signed)
        return True

    def _last(self) -> Checkpoint:
        if self.anchor.last is None:
            raise ValueError("the anchor has no first line, which is written when the database is created")
        return self.anchor.last

    @property
    def exported_through(self) -> int:
        """The last row of the latest complete export."""
        return self._last().exported_through

    @property
    def base(self) -> Head:
        """The position before the first remaining row."""
        return self._last().base

    @property
    def macs_from(self) -> int:
        """The first row covered by a MAC."""
        return self._last().macs_from
