"""Verifies an audit and begins a new chain without a daemon, in a separate process: that code exists only in ksi_daemon."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from ksi_client.command.fault import FAILED, NOT_FOUND, Fault
from ksi_client.command.launch import DAEMON, environment, refuse_second_daemon
from ksi_client.paths import var_dir


def verify_offline(*, deep: bool, against: str | None) -> dict[str, Any]:
    """The verdict of `python -m ksi_daemon.audit verify` for this var folder; on a terminal its progress is shown."""
    var = var_dir()
    # ksi.db alone shows that there was an audit
    if not any((var / path).exists() for path in ("db/audit.db", "log/audit.anchor.jsonl", "db/ksi.db")):
        raise Fault(f"there is no audit under {var}", exit_code=NOT_FOUND, hint="ksi start creates it")
    return _verdict(["verify", str(var), *(["--deep"] if deep else []), *_against(against)])


def verify_export(file: Path, *, against: str | None) -> dict[str, Any]:
    """The verdict on an export; with this daemon's key, if there is one, also on who wrote it."""
    if not file.exists():
        raise Fault(f"there is no {file}", exit_code=NOT_FOUND)
    return _verdict(["verify-export", str(file), str(var_dir()), *_against(against)])


def _against(head: str | None) -> list[str]:
    return [] if head is None else ["--against", head]


def _verdict(arguments: list[str]) -> dict[str, Any]:
    on_terminal = sys.stderr.isatty()
    done = subprocess.run(
        [sys.executable, "-m", "ksi_daemon.audit", *arguments],
        env=environment(var_dir()),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=None if on_terminal else subprocess.PIPE,
        check=False,
    )
    if on_terminal:
        sys.stderr.write("\r\n")
    try:
        verdict = json.loads(done.stdout)
    except ValueError as error:
        last_lines = (done.stderr or b"").decode(errors="replace").strip().splitlines()[-1:]
        raise Fault(
            f"the audit could not be verified: {last_lines[0] if last_lines else f'exit {done.returncode}'}",
            hint="is ksi_daemon installed for this Python? see ksi doctor",
        ) from error
    return dict(verdict)


def begin_new_chain(reason: str) -> dict[str, Any]:
    """What `python -m ksi_daemon --new-audit-chain` did for this var folder. Raises `Fault` while a daemon runs on it."""
    var = var_dir()
    refuse_second_daemon(var)
    done = subprocess.run(
        [*DAEMON, "--new-audit-chain", reason],
        env=environment(var),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        message = done.stderr.decode(errors="replace").strip().removeprefix("ksi: ")
        raise Fault(f"no new chain was begun: {message}", exit_code=done.returncode if done.returncode > 0 else FAILED)
    return dict(json.loads(done.stdout))
