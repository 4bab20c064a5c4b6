"""Checks the settings file in a separate daemon process: the rules exist only in ksi_daemon."""

import json
import subprocess
from pathlib import Path
from typing import Any

from ksi_client.command.fault import BAD_CONFIG, Fault
from ksi_client.command.launch import DAEMON, environment
from ksi_client.paths import var_dir

_TIMEOUT_S = 30


def refuse_bad_settings(config: Path | None = None) -> None:
    """Raise `Fault` if a daemon could not start with these settings."""
    found = check_settings(config)
    if not found.get("ok"):
        problems = "".join(f"\n  {problem}" for problem in found.get("problems", ()))
        raise Fault(f"the settings cannot be used:{problems}", exit_code=BAD_CONFIG, hint="ksi config check")


def check_settings(config: Path | None = None) -> dict[str, Any]:
    """The result of `python -m ksi_daemon --check-config`: ok, settings, problems, warnings."""
    try:
        done = subprocess.run(
            [*DAEMON, "--check-config"],
            env=environment(var_dir(), config),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        last_lines = (
            done.stderr.decode(errors="replace").strip().splitlines()[-1:] if isinstance(error, ValueError) else []
        )
        raise Fault(
            f"the settings cannot be checked: {last_lines[0] if last_lines else error}",
            exit_code=BAD_CONFIG,
            hint="is ksi_daemon installed for this Python? see ksi doctor",
        ) from error
    return dict(found)
