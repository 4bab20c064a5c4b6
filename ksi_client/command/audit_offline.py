"""Checks an audit without a daemon, in a process of its own: the rules of the record are written once."""

import json
import subprocess
import sys
from typing import Any

from ksi_client.command.fault import NOT_FOUND, Fault
from ksi_client.command.launch import environment
from ksi_client.paths import var_dir


def verify_here(*, deep: bool) -> dict[str, Any]:
    """What `python -m ksi_daemon.audit verify` says of this var folder; its progress is seen on a terminal."""
    var = var_dir()
    if not any(path.exists() for path in (var / "db" / "audit.db", var / "run" / "audit.key")):
        raise Fault(f"there is no audit under {var}", exit_code=NOT_FOUND, hint="ksi start begins one")
    watched = sys.stderr.isatty()
    done = subprocess.run(
        [sys.executable, "-m", "ksi_daemon.audit", "verify", str(var), *(["--deep"] if deep else [])],
        env=environment(var),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=None if watched else subprocess.PIPE,
        check=False,
    )
    if watched:
        sys.stderr.write("\r\n")
    try:
        verdict = json.loads(done.stdout)
    except ValueError as error:
        said = (done.stderr or b"").decode(errors="replace").strip().splitlines()[-1:]
        raise Fault(
            f"the audit could not be checked: {said[0] if said else f'exit {done.returncode}'}",
            hint="is ksi_daemon installed for this Python? see ksi doctor",
        ) from error
    return dict(verdict)
