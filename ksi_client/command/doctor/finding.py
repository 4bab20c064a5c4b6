"""The result of one check, and the state that the checks inspect."""

import os
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ksi_client.paths import has_marker


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
    providers: list[dict[str, Any]] | None = None

    @property
    def is_known(self) -> bool:
        """Whether the var folder is KSI's, or does not exist yet. About another folder nothing is advised."""
        return self.pid is not None or has_marker(self.var) or not os.path.lexists(self.var)

    def setting(self, name: str) -> Any:
        """The value of a setting, None where it is not known."""
        for setting in (self.settings or {}).get("settings", ()):
            if setting.get("name") == name:
                return setting.get("value")
        return None
