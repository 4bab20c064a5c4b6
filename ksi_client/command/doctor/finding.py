"""The result of one check, and the state that the checks inspect."""

from pathlib import Path
from typing import Any, Literal, NamedTuple


class Finding(NamedTuple):
    """One line of the report."""

    check: str
    status: Literal["ok", "warn", "fail"]
    seen: str
    fix: str | None = None


class Site(NamedTuple):
    """The state collected before the checks: the var folder, the pid that holds its lock, and the daemon's answers."""

    var: Path
    pid: int | None
    settings: dict[str, Any] | None
    settings_problem: str | None
    status: dict[str, Any] | None
    health: dict[str, Any] | None
    plugins: list[dict[str, Any]] | None
    unreachable_reason: str | None
    agents: list[dict[str, Any]] | None = None

    def setting(self, name: str) -> Any:
        """The value of a setting, None where it is not known."""
        for setting in (self.settings or {}).get("settings", ()):
            if setting.get("name") == name:
                return setting.get("value")
        return None
