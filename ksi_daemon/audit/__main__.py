"""`python -m ksi_daemon.audit verify VAR_DIR`: verifies an audit without a daemon, for example one with which the daemon refuses to start.

The key is the one of `--key`, of the setting `audit_key_file`, or VAR_DIR/run/audit.key.
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
from ksi_daemon.config import read_settings
from ksi_daemon.errors import StartError


def main(arguments: list[str]) -> int:
    """Run one of the two commands. Returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        key_file = options.key or read_settings().settings.audit_key_file
        if options.command == "verify":
            files = Files.under(options.var_dir, key_file)
            verdict = verify(files, progress=_show_progress, deep=options.deep, against=options.against)
        else:
            key = _key_of_exports(options.var_dir, key_file)
            verdict = verify_export(options.file, key, against=options.against)
    except StartError as error:
        sys.stderr.write(f"ksi: {error}\n")
        return error.exit_code
    sys.stdout.write(msgspec.json.encode(verdict).decode() + "\n")
    return 0 if verdict.ok else 1


def _key_of_exports(var_dir: Path | None, key_file: Path | None) -> bytes | None:
    """Without a key the chain of an export can be checked, but not who wrote it."""
    if key_file is None and var_dir is not None:
        key_file = Files.under(var_dir).key
    return None if key_file is None or not key_file.exists() else read_key(key_file)


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
        command.add_argument("--key", type=Path, metavar="FILE", help="the audit's key")
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
