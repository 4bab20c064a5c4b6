"""`python -m ksi_daemon`: checks var/, takes the lock, and only then loads the rest.

Of twenty started at once, nineteen end here, after a few milliseconds.
"""

import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ksi_daemon.errors import StartError
from ksi_daemon.process.start_failure import cannot_run
from ksi_daemon.process.var_dir import Lock, choose, prepare

if TYPE_CHECKING:
    from ksi_daemon.config import SettingsRead


def main(arguments: list[str]) -> int:
    """Run the daemon, or only check its settings. Returns the exit code."""
    if arguments == ["--check-config"]:
        return _check_config()
    var_dir = Path()
    new_chain_reason = arguments[1] if len(arguments) == 2 and arguments[0] == "--new-audit-chain" else None
    if arguments and not new_chain_reason:
        sys.stderr.write("usage: python -m ksi_daemon [--check-config | --new-audit-chain REASON]\n")
        return 2
    try:
        with ExitStack() as stack:
            var_dir = choose(os.environ)
            prepare(var_dir)
            stack.enter_context(Lock(var_dir))
            if new_chain_reason:
                _begin_new_audit_chain(var_dir, new_chain_reason)
                return 0
            from ksi_daemon import config, daemon

            daemon.run(config.read_settings(), terminal=sys.stderr.isatty())
    except StartError as error:
        return _failure(error)
    except OSError as error:
        return _failure(cannot_run(error, var_dir))
    return 0


def _failure(error: StartError) -> int:
    sys.stderr.write(f"ksi: {error}\n")
    return error.exit_code


def _begin_new_audit_chain(var_dir: Path, reason: str) -> None:
    import time

    import msgspec

    from ksi_daemon.audit.new_chain import begin_new_chain
    from ksi_daemon.config import read_settings

    os.umask(0o077)
    key_file = read_settings().settings.audit_key_file
    made = begin_new_chain(var_dir, reason=reason, now_s=time.time(), key_file=key_file)
    print(msgspec.json.encode(made).decode())


def _with_plugins(read: "SettingsRead") -> dict[str, Any]:
    """The settings with those of plugins, of which only the names are checked: nothing is imported for a check."""
    if not read.plugins and not read.variables:
        return read.as_dict()
    from ksi_daemon.plugin_host.discovery import find_plugins
    from ksi_daemon.plugin_host.settings_of_plugins import unchecked_rows

    known = {found.name for found in find_plugins(read.settings.plugin_dirs)}
    return read.as_dict(unchecked_rows(read), read.warnings(known))


def _check_config() -> int:
    from ksi_daemon.config import read_settings

    try:
        choose(os.environ)
        document = _with_plugins(read_settings())
    except StartError as error:
        problems = [line.strip() for line in str(error).splitlines()[1:]]
        file = Path(os.environ.get("KSI_CONFIG") or "ksi.toml").absolute()
        document = {
            "ok": False,
            "config_file": str(file),
            "config_file_exists": file.exists(),
            "settings": [],
            "problems": problems,
            "warnings": [],
        }
    print(json.dumps(document))
    return 0 if document["ok"] else 78


if __name__ == "__main__":
    try:
        exit_code = main(sys.argv[1:])
    except BaseException:  # noqa: BLE001 - a defect: shown, and the process ends all the same
        sys.excepthook(*sys.exc_info())
        exit_code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)  # a thread that never ends must not keep a daemon that could not start
