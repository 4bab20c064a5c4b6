"""The audit: an append-only, hash-chained log of all calls and refusals. `open_audit` opens it."""

from ksi_daemon.audit.audit import Audit, open_audit
from ksi_daemon.audit.entry import Entry
from ksi_daemon.audit.export import verify_export
from ksi_daemon.audit.reading import Filter, Page, Stats
from ksi_daemon.audit.signed_head import SignedHead, parse_head
from ksi_daemon.audit.verification import Verdict

__all__ = [
    "Audit",
    "Entry",
    "Filter",
    "Page",
    "SignedHead",
    "Stats",
    "Verdict",
    "open_audit",
    "parse_head",
    "verify_export",
]
