"""`scripts/docs [--check]`: writes the reference pages, or fails with a diff when one is stale."""

import argparse
import difflib
import sys
from collections.abc import Callable
from pathlib import Path

from scripts.reference import commands, errors, events, settings

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
PAGES: dict[str, Callable[[], str]] = {
    "events.md": events.page,
    "settings.md": settings.page,
    "errors.md": errors.page,
    "commands.md": commands.page,
}


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/docs", description="Write docs/reference/ from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a page is stale")
    check: bool = parser.parse_args().check
    stale = [name for name, make in PAGES.items() if not _is_current(FOLDER / name, make(), check=check)]
    known = {FOLDER / name for name in PAGES}
    strays = sorted(path.name for path in FOLDER.glob("*") if path not in known)
    if strays:
        print(f"not made by scripts/docs, so it does not belong in docs/reference/: {', '.join(strays)}")
    if stale and check:
        print(f"stale: {', '.join(stale)}. Run scripts/docs and commit what it writes.")
    return 1 if strays or (stale and check) else 0


def _is_current(path: Path, fresh: str, *, check: bool) -> bool:
    there = path.read_text(encoding="utf-8") if path.exists() else ""
    if there == fresh:
        return True
    if check:
        name = f"docs/reference/{path.name}"
        lines = difflib.unified_diff(there.splitlines(), fresh.splitlines(), name, f"{name} (fresh)", lineterm="", n=1)
        print("\n".join(list(lines)[:60]))
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(fresh, encoding="utf-8")
        print(f"wrote docs/reference/{path.name}")
    return False


if __name__ == "__main__":
    sys.exit(main())
