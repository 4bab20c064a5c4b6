"""Checks of the audit: its files exist and are private, its chain matches the last checkpoint, no outcome is unknown."""

import json
import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ksi_client.command.audit_offline import verify_offline
from ksi_client.command.doctor.finding import Finding, Site
from ksi_client.command.fault import Fault

_ANCHOR_TAIL_BYTES = 65_536
_KEY_BYTES = 32
_VERIFY_LIMIT_BYTES = 100_000_000  # about a second
_WEEK_S = 7 * 86_400.0
_UNKNOWN = "SELECT count(*), group_concat(DISTINCT event) FROM entries WHERE status = 'unknown' AND time > ?"
_MISSING = (
    "SELECT count(*) FROM (SELECT call_id FROM entries WHERE time > ? AND phase IN ('intent', 'outcome') "
    "GROUP BY call_id HAVING sum(phase = 'intent') > sum(phase = 'outcome'))"
)


def audit_files(site: Site) -> Iterator[Finding]:
    """The signing key and the checkpoints exist, belong to this user, and are private."""
    name = "audit files"
    database, key, anchor = _files(site)
    if not any(path.exists() for path in (database, key, anchor)) and not _was_made(site):
        yield Finding(name, "ok", "none yet")
        return
    bad = False
    for path in (database, key, anchor):
        problem = _problem(path, size=_KEY_BYTES if path == key else None)
        if problem:
            bad = True
            shown = path.relative_to(site.var) if path.is_relative_to(site.var) else path
            yield Finding(name, "fail", f"{shown} {problem[0]}", problem[1])
    if not bad:
        yield Finding(name, "ok", "database, key and checkpoints exist and are private")


def _problem(path: Path, *, size: int | None) -> tuple[str, str] | None:
    try:
        state = path.lstat()
    except FileNotFoundError:
        return "is missing", "ksi audit verify, then restore it from a backup"
    if not stat.S_ISREG(state.st_mode):
        return "is not a regular file", "restore it from a backup"
    if state.st_uid != os.getuid():
        return f"belongs to user {state.st_uid}", f"chown {os.getuid()} {path}"
    if state.st_mode & 0o077:
        return f"has mode {stat.S_IMODE(state.st_mode):04o}", f"chmod 600 {path}"
    if size is not None and state.st_size != size:
        return f"has {state.st_size} bytes instead of {size}", "restore it from a backup"
    return None


def audit_chain(site: Site) -> Iterator[Finding]:
    """The row of the last checkpoint is in the database, with the signed hash; if the audit is not large, every row is verified."""
    name = "audit chain"
    database, _, anchor = _files(site)
    if not database.exists() or not anchor.exists():
        was_made = database.exists() or anchor.exists() or _was_made(site)
        yield _verified(name) if was_made else Finding(name, "ok", "none yet")
        return
    checkpoint = _last_checkpoint(anchor)
    if checkpoint is None:
        yield Finding(name, "fail", f"{anchor.name} has no readable checkpoint", "ksi audit verify")
        return
    seq = int(checkpoint["seq"])
    try:
        found = _hash_of(database, str(checkpoint["daemon_id"]), seq, unused=site.pid is None)
    except sqlite3.Error as error:
        yield Finding(name, "warn", f"{database.name} could not be read: {error}", "ksi audit verify")
        return
    if seq <= int(checkpoint.get("base_seq", 0)):
        yield Finding(name, "ok", f"no rows after row {seq}; all earlier rows were dropped by retention")
    elif found is None:
        yield Finding(name, "fail", f"row {seq}, which a checkpoint signed, is missing", "ksi audit verify")
    elif found != checkpoint["hash"]:
        yield Finding(name, "fail", f"row {seq} does not match its checkpoint", "ksi audit verify")
    elif database.stat().st_size > _VERIFY_LIMIT_BYTES:
        yield Finding(name, "ok", f"intact at its last checkpoint, row {seq}; ksi audit verify checks every row")
    else:
        yield _verified(name)


def _verified(name: str) -> Finding:
    """Verify every row: checkpoints alone do not show a forgery when they were rolled back with it."""
    try:
        verdict = verify_offline(deep=False, against=None)
    except Fault as error:
        return Finding(name, "warn", error.message, "ksi audit verify")
    if verdict["ok"]:
        return Finding(name, "ok", f"intact, all {verdict['rows']:,} rows were verified")
    return Finding(name, "fail", str(verdict["problem"]), "ksi audit verify")


def audit_outcomes(site: Site) -> Iterator[Finding]:
    """Every call of the last week that was begun has an outcome, and a known one."""
    name = "audit outcomes"
    database = _files(site)[0]
    if not database.exists():
        yield Finding(name, "ok", "none yet")
        return
    since = datetime.fromtimestamp(time.time() - _WEEK_S, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    try:
        with _reading(database, unused=site.pid is None) as connection:
            unknown, events = connection.execute(_UNKNOWN, (since,)).fetchone()
            (missing,) = connection.execute(_MISSING, (since,)).fetchone()
    except sqlite3.Error as error:
        yield Finding(name, "warn", f"{database.name} could not be read: {error}", "ksi audit verify")
        return
    under_way = int((site.status or {}).get("calls_in_flight", 0))
    if unknown:
        seen = f"{unknown:,} calls of the last week have an unknown outcome: {', '.join(sorted(events.split(','))[:5])}"
        yield Finding(name, "warn", seen, "inspect them: ksi audit query --status unknown --since 7d")
    if missing > under_way:
        fix = "they get the outcome 'unknown' at the next start" if site.pid is None else "see ksi status for alarms"
        yield Finding(
            name, "warn", f"{missing:,} calls were begun and have no outcome, {under_way:,} are under way", fix
        )
    elif not unknown:
        yield Finding(name, "ok", "known for every call of the last week")


def frozen_agents(site: Site) -> Iterator[Finding]:
    """No agent was left frozen."""
    name = "agents"
    if site.agents is None:
        yield Finding(name, "ok", "not known while the daemon does not answer")
        return
    frozen = [str(agent.get("agent_id")) for agent in site.agents if agent.get("frozen")]
    if frozen:
        more = f" and {len(frozen) - 5} more" if len(frozen) > 5 else ""
        yield Finding(name, "warn", f"frozen: {', '.join(frozen[:5])}{more}", "ksi agents unfreeze NAME, or --all")
    else:
        yield Finding(name, "ok", f"{len(site.agents)}, none frozen")


def _was_made(site: Site) -> bool:
    """Whether ksi.db knows the head of an audit; a first start that was killed may have made ksi.db alone."""
    try:
        with _reading(site.var / "db" / "ksi.db", unused=site.pid is None) as connection:
            return connection.execute("SELECT 1 FROM audit_head").fetchone() is not None
    except sqlite3.Error:  # no such file or table
        return False


def _files(site: Site) -> tuple[Path, Path, Path]:
    key = site.setting("audit_key_file")
    return (
        site.var / "db" / "audit.db",
        Path(key) if key else site.var / "run" / "audit.key",
        site.var / "log" / "audit.anchor.jsonl",
    )


def _last_checkpoint(anchor: Path) -> dict[str, Any] | None:
    with anchor.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _ANCHOR_TAIL_BYTES))
        lines = file.read().splitlines()
    for line in reversed(lines):
        try:
            checkpoint = json.loads(line)
        except ValueError:
            continue
        if isinstance(checkpoint, dict) and {"seq", "hash", "daemon_id"} <= checkpoint.keys():
            return checkpoint
    return None


def _hash_of(database: Path, daemon_id: str, seq: int, *, unused: bool) -> str | None:
    with _reading(database, unused=unused) as connection:
        found = connection.execute(
            "SELECT lower(hex(hash)) FROM entries WHERE daemon_id = ? AND seq = ?", (daemon_id, seq)
        ).fetchone()
    return None if found is None else str(found[0])


@contextmanager
def _reading(database: Path, *, unused: bool) -> Iterator[sqlite3.Connection]:
    """Read-only; leaves no -wal or -shm files beside a database that no process has open."""
    immutable = unused and not database.with_name(database.name + "-wal").exists()
    address = f"{database.as_uri()}?mode=ro" + ("&immutable=1" if immutable else "")
    connection = sqlite3.connect(address, uri=True, timeout=2)
    try:
        yield connection
    finally:
        connection.close()
