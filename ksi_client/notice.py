"""A notice, as subscribers receive it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Notice:
    """One notice: what happened (`event`), its `data`, when (`at`, ISO, UTC), and what it is part of."""

    id: str
    event: str
    data: dict[str, Any] = field(default_factory=dict)
    at: str = ""
    origin: str = ""
    correlation_id: str | None = None
    parent_id: str | None = None
    depth: int = 0

    @classmethod
    def from_wire(cls, record: Mapping[str, Any]) -> "Notice":
        """Read the known fields; fields that a newer daemon adds are ignored."""
        known = {name: record[name] for name in cls.__slots__ if name in record}
        return cls(**known)

    def as_dict(self) -> dict[str, Any]:
        """The notice as it came over the wire, for printing and storing."""
        return asdict(self)
