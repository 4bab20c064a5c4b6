"""Asks the daemon's own reader about the settings file, in a process of its own: its rules are written once."""

import json
import subprocess
from typing import Any

from ksi_client.command.fault import BAD_CONFIG, Fault
from ksi_client.command.launch import DAEMON, environment
from ksi_client.paths import var_dir

_PATIENCE_S = 30


def check_settings() -> dict[str, Any]:
    """What `python -m ksi_daemon --check-config` says: ok, settings, problems, warnings."""
    try:
        done = subprocess.run(
            [*DAEMON, "--check-config"],
            env=environment(var_dir()),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE_S,
            check=False,
        )
        found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        said = done.stderr.decode(errors="replace").strip().splitlines()[-1:] if isinstance(error, ValueError) else []
        raise Fault(
            f"the settings cannot be checked: {said[0] if said else error}",
            exit_code=BAD_CONFIG,
            hint="is ksi_daemon installed for this Python? see ksi doctor",
        ) from error
    return dict(found)
