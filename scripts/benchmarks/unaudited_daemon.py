"""The daemon with its audit taken out, for measuring the rest of it; `python -m ksi_daemon` has no such switch."""

import os
from pathlib import Path

from ksi_daemon import config, daemon
from ksi_daemon.process.var_dir import Lock, prepare


def main() -> None:
    """Run until stopped."""
    setattr(daemon, "Recorder", lambda audit: None)  # noqa: B010 - a router without a recorder records nothing
    var_dir = Path(os.environ["KSI_VAR_DIR"])
    prepare(var_dir)
    with Lock(var_dir):
        daemon.run(config.read_settings(), terminal=False)


if __name__ == "__main__":
    main()
