"""`ksi doctor`: checks the installation, reports what it found and how to fix it. Changes nothing."""

import typer

from ksi_client.command.doctor.finding import Finding
from ksi_client.command.fault import FAILED
from ksi_client.command.screen import Screen
from ksi_client.command.verb import Verb, verb_app
from ksi_client.terminal import visible

app = verb_app()

_STYLES = {"ok": "good", "warn": "warn", "fail": "bad"}


@app.command(cls=Verb)
def doctor(context: typer.Context) -> None:
    """Check this installation, whether or not the daemon runs. Exit 1 when a check fails."""
    from ksi_client.command.doctor.examination import examine

    screen: Screen = context.obj
    findings = examine()
    failed = sum(finding.status == "fail" for finding in findings)
    warned = sum(finding.status == "warn" for finding in findings)
    if screen.json:
        checks = [finding._asdict() for finding in findings]
        screen.document({"ok": not failed, "failed": failed, "warned": warned, "checks": checks})
    else:
        for finding in findings:
            _print(screen, finding)
        screen.note(f"{len(findings)} checks: {failed} failed, {warned} warnings")
    if failed:
        raise typer.Exit(FAILED)


def _print(screen: Screen, finding: Finding) -> None:
    mark = screen.paint(f"{finding.status:<4}", _STYLES[finding.status])
    screen.line(f"{mark}  {finding.check:<14} {visible(finding.seen)}")
    if finding.fix and finding.status != "ok":
        screen.line(f"{'':20} fix: {visible(finding.fix)}")
