"""`python -m ksi_daemon.audit verify VAR_DIR`: verifies an audit without a daemon, for example one with which the daemon refuses to start.

Progress goes to stderr and the verdict, one JSON object, to stdout; exit 0 when the audit is intact, 1 when not.
"""

import argparse
import sys
from pathlib import Path

import msgspec

from ksi_daemon.audit.anchor import read_key
from ksi_daemon.audit.export import verify_export
from ksi_daemon.audit.files import Files
from ksi_daemon.audit.signed_head import SignedHead, parse_head
from ksi_daemon.audit.verification import verify


def main(arguments: list[str]) -> int:
    """Run one of the two commands. Returns the exit code."""
    options = _parser().parse_args(arguments)
    if options.command == "verify":
        files = Files.under(options.var_dir)
        verdict = verify(files, progress=_show_progress, deep=options.deep, against=options.against)
    else:
        key = None if options.var_dir is None else read_key(Files.under(options.var_dir).key)
        verdict = verify_export(options.file, key, against=options.against)
    sys.stdout.write(msgspec.json.encode(verdict).decode() + "\n")
    return 0 if verdict.ok else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ksi_daemon.audit")
    commands = parser.add_subparsers(dest="command", required=True)
    whole = commands.add_parser("verify")
    whole.add_argument("var_dir", type=Path)
    whole.add_argument("--deep", action="store_true")
    export = commands.add_parser("verify-export")
    export.add_argument("file", type=Path)
    export.add_argument("var_dir", type=Path, nargs="?", help="where the key is")
    for command in (whole, export):
        command.add_argument("--against", type=_head, metavar="HEAD")
    return parser


def _head(text: str) -> SignedHead:
    try:
        return parse_head(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not a signed head: {error}") from error


def _show_progress(rows: int, total: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{rows:,} of {total:,} rows")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
