"""Symbols of this checkout's Python files and of installed packages, beside Python's own parser on the same files."""

import ast
import sysconfig
import time
import warnings
from pathlib import Path

from ksi_daemon.retrieval.symbols import symbols_of
from scripts.benchmarks.figure import Figure, ratio, spread

ROOT = Path(__file__).parents[3]
SAMPLE_STEP = 5  # every fifth file of the packages
FILE_LIMIT_BYTES = 200_000


def measure(quick: bool) -> list[Figure]:
    """Rounds of both take turns."""
    sources = _sources()[: 40 if quick else 1_000]
    symbols_of(sources[0], "python")  # loads the grammar
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(2 if quick else 5):
        start = time.perf_counter()
        for source in sources:
            symbols_of(source, "python")
        middle = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            for source in sources:
                ast.parse(source)
        ours.append(middle - start)
        theirs.append(time.perf_counter() - middle)
    rates = [len(sources) / seconds for seconds in ours]
    size = sum(map(len, sources)) / 1e6
    detail = f"{len(sources)} files, {size:.1f} MB; {spread(rates)} files/s"
    return [
        Figure("symbols", max(rates), "files/s", detail=detail),
        Figure("symbols / ast.parse", ratio(ours, theirs), "×", detail="time, Python files"),
    ]


def _sources() -> list[bytes]:
    own = sorted((ROOT / "ksi_daemon").rglob("*.py"))
    installed = sorted(Path(sysconfig.get_path("purelib")).rglob("*.py"))[::SAMPLE_STEP]
    sources: list[bytes] = []
    for path in (*own, *installed):
        source = path.read_bytes()
        if len(source) <= FILE_LIMIT_BYTES and _is_valid(source):
            sources.append(source)
    return sources


def _is_valid(source: bytes) -> bool:
    try:
        source.decode()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    return True
