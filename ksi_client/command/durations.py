"""Parses durations and times as an operator writes them: 30s, 5m, 1h, 2d, or an ISO time."""

import re

from ksi_client.command.fault import USAGE, Fault

_UNIT_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(text: str, option: str) -> float:
    """A duration above zero; a bare number is seconds."""
    found = _seconds(text)
    if not found:
        raise Fault(f"{option} takes 30s, 5m, 1h or 2d, not {text!r}", exit_code=USAGE)
    return found


def moment(text: str, option: str) -> str | float:
    """What the daemon accepts: seconds ago as a number, or an ISO time with a time zone (local by default)."""
    ago = _seconds(text)
    if ago is not None:
        return ago
    from datetime import datetime

    try:
        return datetime.fromisoformat(text).astimezone().isoformat()
    except (ValueError, OverflowError):
        raise Fault(f"{option} takes 90s, 10m, 2h, 1d or an ISO time, not {text!r}", exit_code=USAGE) from None


def _seconds(text: str) -> float | None:
    parsed = re.fullmatch(r"(\d{1,12}(?:\.\d{1,9})?)([smhd]?)", text, re.ASCII)
    return float(parsed[1]) * _UNIT_S[parsed[2]] if parsed else None
