"""`scripts/chaos`: runs every storm, prints one line of figures, and exits 1 when something did not survive."""

import argparse
import json
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.live.daemon_process import Daemon, short_folder
from tests.live.storms import Ledger, kill_under_load, mutated_lines, start_together, throw_lines

TOGETHER = 20
JUDGED_ROUNDS = 10  # with fewer, in the suite, times say more about the machine than about us
MUTATIONS_AT_ONCE = 5_000  # lines through one connection, then a new one


@dataclass
class Report:
    """The figures, and the violations."""

    figures: dict[str, Any] = field(default_factory=dict)
    shown: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/chaos", description="Kill, crowd and confuse real daemons, and count what was lost."
    )
    parser.add_argument("--rounds", type=int, default=200, help="how often to kill -9 under load (default 200)")
    parser.add_argument(
        "--races", type=int, default=5, help=f"how often to start {TOGETHER} daemons at once (default 5)"
    )
    parser.add_argument("--mutations", type=int, default=20_000, help="how many spoilt lines to send (default 20,000)")
    parser.add_argument("--seed", type=int, default=None, help="repeat a run's random choices")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON document instead")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if arguments.seed is None else arguments.seed
    chance = random.Random(seed)  # noqa: S311 - choices to repeat, no secrets
    report = Report(figures={"seed": seed})
    began = time.monotonic()
    for storm, count in ((_kills, arguments.rounds), (_races, arguments.races), (_mutations, arguments.mutations)):
        if count > 0:
            _attempt(storm, count, chance, report)
    _progress("")
    report.figures["seconds"] = round(time.monotonic() - began, 1)
    report.figures["violations"] = report.violations
    if arguments.json:
        print(json.dumps(report.figures, indent=2))
    else:
        for violation in report.violations:
            print(f"violation: {violation[:500]}", file=sys.stderr)
        print(" | ".join(report.shown))
    if report.violations:
        print(f"repeat with: scripts/chaos --seed {seed}", file=sys.stderr)
    return 1 if report.violations else 0


def _attempt(
    storm: Callable[[int, random.Random, Report], None], count: int, chance: random.Random, report: Report
) -> None:
    """A daemon that does not start again is a violation too, and the next storm still runs."""
    try:
        storm(count, chance, report)
    except (AssertionError, OSError, EOFError) as error:
        report.violations.append(f"{storm.__name__.strip('_')} ended early: {type(error).__name__}: {error}")


def _kills(count: int, chance: random.Random, report: Report) -> None:
    ledger = Ledger()
    with short_folder() as folder:
        daemon = Daemon(folder)
        try:
            daemon.start()
            rounds = []
            for number in range(count):
                rounds.append(kill_under_load(daemon, ledger, chance))
                _progress(f"kill -9, round {number + 1} of {count}: {ledger.count:,} acknowledged writes")
            report.violations += [f"lost: {loss}" for round_ in rounds for loss in round_.lost]
            report.violations += [f"unrecorded: {gap}" for round_ in rounds for gap in round_.unrecorded]
            report.violations += [f"the audit is broken: {round_.audit}" for round_ in rounds if round_.audit != "ok"]
            report.violations += [
                f"the database is damaged: {round_.damage}" for round_ in rounds if round_.damage != "ok"
            ]
            if daemon.stop() != 0:
                report.violations.append("the daemon did not stop cleanly after all that")
        finally:
            daemon.end()
    lost = sum(len(round_.lost) for round_ in rounds)
    unrecorded = sum(len(round_.unrecorded) for round_ in rounds)
    whole = sum(round_.audit == "ok" for round_ in rounds)
    ready = sorted(round_.ready_s for round_ in rounds)
    report.figures["kill_9"] = {
        "rounds": count,
        "acknowledged_writes": ledger.count,
        "lost_writes": lost,
        "ready_again_p50_s": round(_quantile(ready, 0.5), 3),
        "ready_again_p95_s": round(_quantile(ready, 0.95), 3),
        "databases_sound": sum(round_.damage == "ok" for round_ in rounds),
        "audits_whole": sum(round_.audit == "ok" for round_ in rounds),
        "unrecorded": unrecorded,
    }
    if count >= JUDGED_ROUNDS and _quantile(ready, 0.95) > 2.0:
        report.violations.append(f"ready again p95 {_quantile(ready, 0.95):.2f} s, promised 2 s")
    report.shown += [
        f"survived {count} kill -9",
        f"lost {lost} of {ledger.count:,} acked writes",
        f"{unrecorded} effects or replies without a record, audit whole {whole} of {count} times",
        f"ready again p50 {_quantile(ready, 0.5):.2f} s, p95 {_quantile(ready, 0.95):.2f} s",
    ]


def _races(count: int, _chance: random.Random, report: Report) -> None:
    winners: Counter[int] = Counter()
    seconds: list[float] = []
    for number in range(count):
        with short_folder() as folder:
            race = start_together(folder, TOGETHER)
        winners[race.winners] += 1
        seconds += [loser.seconds for loser in race.losers]
        codes = {loser.exit_code for loser in race.losers}
        if race.winners != 1 or codes != {75}:
            report.violations.append(f"{race.winners} winners of {TOGETHER}, the others ended with {sorted(codes)}")
        if any(f"pid {race.winner_pid} " not in loser.message for loser in race.losers):
            report.violations.append("a loser did not name the winner's pid")
        _progress(f"{TOGETHER} at once, race {number + 1} of {count}")
    p95 = _quantile(sorted(seconds), 0.95)
    report.figures["together"] = {
        "races": count,
        "daemons": TOGETHER,
        "one_winner": winners[1],
        "loser_ended_p50_s": round(_quantile(sorted(seconds), 0.5), 3),
        "loser_ended_p95_s": round(p95, 3),
    }
    report.shown.append(f"{TOGETHER} daemons at once: 1 winner x {winners[1]} of {count}, losers gone p95 {p95:.2f} s")


def _mutations(count: int, chance: random.Random, report: Report) -> None:
    codes: Counter[str] = Counter()
    answered = crashes = 0
    suspicious: list[str] = []
    with short_folder() as folder:
        daemon = Daemon(folder)
        try:
            daemon.start()
            for start in range(0, count, MUTATIONS_AT_ONCE):
                try:
                    seen = throw_lines(daemon, mutated_lines(chance, min(MUTATIONS_AT_ONCE, count - start)))
                except (OSError, EOFError) as error:
                    report.violations.append(f"no answer to a bad line: {error!r}")
                    break
                answered += seen.answered
                codes += seen.codes
                suspicious += seen.suspicious
                _progress(f"bad lines: {answered:,} of {count:,}")
            if not daemon.alive:
                crashes = 1
                report.violations.append("the daemon died of a bad line")
            elif daemon.stop() != 0:
                report.violations.append("the daemon did not stop cleanly after the bad lines")
        finally:
            daemon.end()
    report.violations += [f"suspicious answer: {answer}" for answer in suspicious[:20]]
    if answered != count:
        report.violations.append(f"{answered:,} answers to {count:,} lines")
    report.figures["mutations"] = {
        "lines": count,
        "answered": answered,
        "crashes": crashes,
        "internal": codes["internal"],
        "codes": dict(codes),
    }
    report.shown.append(f"{answered:,} bad lines, {crashes} crashes, {codes['internal']} internal")


def _quantile(ordered: list[float], share: float) -> float:
    """Nearest rank."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def _progress(text: str) -> None:
    """One line that replaces itself, where somebody watches."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
