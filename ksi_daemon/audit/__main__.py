"""`python -m ksi_daemon.audit verify VAR_DIR`: verifies an audit without a daemon, for example one with which the daemon refuses to start.

Progress goes to stderr and the verdict, one JSON object, to stdout; exit 0 when the audit is intact, 1 when not.
"""

import sys
from pathlib import Path

import msgspec

from ksi_daemon.audit.anchor import read_key
from ksi_daemon.audit.export import verify_export
from ksi_daemon.audit.files import Files
from ksi_daemon.audit.verification import verify

USAGE = """usage: python -m ksi_daemon.audit verify VAR_DIR [--deep]
       python -m ksi_daemon.audit verify-export FILE [VAR_DIR with the key]
"""


def main(arguments: list[str]) -> int:
    """Run one of the two commands. Returns the exit code."""
    match arguments:
        case ["verify", var_dir, *options] if options in ([], ["--deep"]):
            verdict = verify(Files.under(Path(var_dir)), progress=_show_progress, deep=bool(options))
        case ["verify-export", file, *var_dirs] if len(var_dirs) <= 1:
            key = read_key(Files.under(Path(var_dirs[0])).key) if var_dirs else None
            verdict = verify_export(Path(file), key)
        case _:
            sys.stderr.write(USAGE)
            return 2
    sys.stdout.write(msgspec.json.encode(verdict).decode() + "\n")
    return 0 if verdict.ok else 1


def _show_progress(rows: int, total: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{rows:,} of {total:,} rows")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
