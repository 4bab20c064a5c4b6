"""`scripts/bench SUITE`: runs a suite, prints its table, writes JSON if asked, and exits 1 when a limit is missed."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from scripts.benchmarks import agents, hub, mcp, retrieval, rights
from scripts.benchmarks.figure import Figure, machine, table

SUITES: dict[str, Callable[..., list[Figure]]] = {
    "agents": agents.measure,
    "hub": hub.measure,
    "mcp": mcp.measure,
    "retrieval": retrieval.measure,
    "rights": rights.measure,
}


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Measure the promised figures.")
    parser.add_argument("suite", choices=sorted(SUITES))
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    parser.add_argument("--quick", action="store_true", help="few and short rounds: shows that it runs, not how fast")
    parser.add_argument("--chunks", type=int, metavar="N", help="retrieval: how many chunks are indexed and searched")
    arguments = parser.parse_args()
    if arguments.chunks is not None and (arguments.suite != "retrieval" or arguments.chunks < 1):
        parser.error("--chunks is a positive number, for the suite retrieval")
    options = {} if arguments.chunks is None else {"chunks": arguments.chunks}
    before = machine()
    figures = SUITES[arguments.suite](quick=arguments.quick, **options)
    print(table(figures))
    libraries = ", ".join(f"{name} {number}" for name, number in before["libraries"].items())
    print(f"\n{before['processor']}, {before['cores']} cores, load {before['load_1min']} before, {before['system']}")
    print(f"Python {before['python']}, {libraries}")
    if not before["quiet"]:
        print("The machine was busy: rates beside another process look better than they are, times look worse.")
    missed = [figure.name for figure in figures if figure.verdict == "MISSED"]
    if arguments.json is not None:
        document = {
            "suite": arguments.suite,
            "quick": arguments.quick,
            "ok": not missed,
            "machine": before,
            "figures": [figure.as_dict() for figure in figures],
        }
        arguments.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if arguments.quick:
        print("quick: too short to judge by, so the exit code is 0")
        return 0
    if missed:
        print(f"missed: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
