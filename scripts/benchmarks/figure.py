"""One measured figure and its limit, the two ways to condense rounds, and the machine they were taken on."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, Literal

LIBRARIES = ("uvloop", "pydantic", "msgspec", "pyee", "aiosqlite", "uvicorn", "typer", "mcp")


@dataclass(frozen=True, slots=True)
class Figure:
    """What was measured. Without a limit it is for information only."""

    name: str
    value: float
    unit: str
    limit: float | None = None
    bound: Literal["at most", "at least"] = "at most"
    detail: str = ""

    @property
    def verdict(self) -> str:
        """`ok` or `MISSED`; nothing for a figure without a limit."""
        if self.limit is None:
            return ""
        kept = self.value <= self.limit if self.bound == "at most" else self.value >= self.limit
        return "ok" if kept else "MISSED"

    def as_dict(self) -> dict[str, Any]:
        """For the JSON file."""
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "limit": self.limit,
            "bound": self.bound if self.limit is not None else None,
            "verdict": self.verdict or None,
            "detail": self.detail,
        }


def ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """The median of the ratios round by round: what disturbs one round disturbs both sides of it."""
    return median(over / under for over, under in zip(above, below, strict=True))


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Minimum and median, for the detail of a figure."""
    return f"min {min(values):.{digits}f}, median {median(values):.{digits}f} of {len(values)}"


def machine() -> dict[str, Any]:
    """What the figures were taken on, without names that identify the machine."""
    processor = ""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            processor = line.partition(":")[2].strip()
            break
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    return {
        "processor": processor or platform.machine(),
        "cores": cores,
        "load_1min": round(load, 2),
        "quiet": load < cores / 4,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in LIBRARIES},
    }


def table(figures: Sequence[Figure]) -> str:
    """The figures in columns."""
    rows = [("figure", "measured", "limit", "", "detail")] + [
        (figure.name, _number(figure.value, figure.unit), _limit(figure), figure.verdict, figure.detail)
        for figure in figures
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row[:4], widths, strict=True)) + "  " + row[4]
        for row in rows
    )


def _limit(figure: Figure) -> str:
    return "" if figure.limit is None else f"{figure.bound} {_number(figure.limit, figure.unit)}"


def _number(value: float, unit: str) -> str:
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}"
