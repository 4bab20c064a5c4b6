"""What an operator writes under `[views.NAME]` in `ksi.toml`. Whether its events exist is not known here."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from ksi_daemon.identifiers import EVENT_NAME, PATTERN, RESERVED_VIEWS, TOOL_NAME, VIEW_NAME, matches

VIEWS_LIMIT = 50
ENTRIES_LIMIT = 500


class ViewSettings(BaseModel):
    """Which events a view has, which of them have another name there, and which are left out."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tools: tuple[str, ...] = Field(
        min_length=1, max_length=ENTRIES_LIMIT, description="Events, by name or pattern, in the order of the list."
    )
    rename: dict[str, str] = Field(
        {}, max_length=ENTRIES_LIMIT, description="The name of a tool in this view, by its event."
    )
    hide: tuple[str, ...] = Field((), max_length=ENTRIES_LIMIT, description="Events to leave out, by name or pattern.")

    @model_validator(mode="before")
    @classmethod
    def _has_known_keys(cls, given: Any) -> Any:
        if isinstance(given, Mapping):
            for key in given:
                if key not in cls.model_fields:
                    raise ValueError(f"unknown key {str(key)[:60]!r}{_nearest(str(key), cls.model_fields)}")
        return given

    @field_validator("tools", "hide")
    @classmethod
    def _are_patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            if not PATTERN.fullmatch(pattern):
                raise ValueError(f"{pattern[:100]!r} must be an event such as state:get, or a pattern: state:* or *")
        return patterns

    @field_validator("rename")
    @classmethod
    def _are_names(cls, rename: dict[str, str]) -> dict[str, str]:
        for event, name in rename.items():
            if not EVENT_NAME.fullmatch(event):
                raise ValueError(f"{event[:100]!r} must be the name of one event, such as state:get")
            if not TOOL_NAME.fullmatch(name) or name.startswith("ksi_"):
                raise ValueError(
                    f"{name[:100]!r} is not a valid tool name: use letters, digits, _ and -, at most 64, "
                    "and not the beginning ksi_"
                )
        names = list(rename.values())
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two events are named {name!r}; each tool of a view needs a name of its own")
        return rename

    @model_validator(mode="after")
    def _renames_and_hides_what_it_has(self) -> "ViewSettings":
        chosen = [pattern for pattern in self.tools if EVENT_NAME.fullmatch(pattern)]
        for event in [*self.rename, *filter(EVENT_NAME.fullmatch, self.hide)]:
            if not any(matches(pattern, event) for pattern in self.tools):
                raise ValueError(f"{event!r} is renamed or hidden, but not in tools{_nearest(event, chosen)}")
        for event in self.rename:
            if any(matches(pattern, event) for pattern in self.hide):
                raise ValueError(f"{event!r} is both renamed and hidden; do one of them")
        return self


def check_view_names(views: Mapping[str, Any]) -> None:
    """Raise `ValueError` for the first name that no view can have."""
    for name in views:
        if name in RESERVED_VIEWS:
            raise ValueError(f"{name!r} is reserved and cannot be the name of a view")
        if not VIEW_NAME.fullmatch(name):
            raise ValueError(
                f"{name[:100]!r} is not a valid view name: use lower-case letters, digits and hyphens, at most 32"
            )


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
