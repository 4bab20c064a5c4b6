"""Profiles: named bundles of grants and a rate, read from files that a person can read and override.

The shipped files lie beside this module; a file of the same name in the operator's folder takes its place, one of another name is
a new profile. Which agent has which profile is left to the store.
"""

import difflib
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ksi_daemon.errors import BadSettings, Invalid
from ksi_daemon.gate.grants import Access, Rule
from ksi_daemon.gate.limits import Rate
from ksi_daemon.gate.resources import parse_resource

PROFILE_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
FILE_LIMIT_BYTES = 100_000
GRANTS_LIMIT = 1_000


class _Grant(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    resource: str
    access: Access


class _Rate(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    calls_per_minute: Annotated[int, Field(ge=1, le=1_000_000)] | Literal["unlimited"] = 100
    burst: int = Field(20, ge=1, le=100_000)
    concurrent_calls: Annotated[int, Field(ge=1, le=10_000)] | Literal["unlimited"] = 8


class _File(BaseModel):
    """A profile as it is written."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    description: str = Field(min_length=1, max_length=500)
    includes: list[str] = Field(default_factory=list, max_length=20)
    plugin_events: Literal["read", "write"] | None = None
    grants: list[_Grant] = Field(max_length=GRANTS_LIMIT)
    rate: _Rate = Field(default_factory=_Rate)


class Profile(msgspec.Struct, frozen=True):
    """A profile ready for use: its rules carry its name as their source, those of included profiles too."""

    name: str
    description: str
    rules: tuple[Rule, ...]
    rate: Rate
    includes: tuple[str, ...] = ()
    overridden: bool = False  # whether the operator's file is in force instead of a shipped one

    def as_dict(self) -> dict[str, Any]:
        """For `permission:get_profile`."""
        return {
            "name": self.name,
            "description": self.description,
            "includes": list(self.includes),
            "grants": [{"resource": rule.resource, "access": rule.access} for rule in self.rules],
            "rate": msgspec.to_builtins(self.rate),
            "overridden": self.overridden,
        }


def read_profiles(folder: Path | None = None, *, core: Collection[str] = ()) -> dict[str, Profile]:
    """The shipped profiles and the operator's own. `core` names the namespaces of the daemon's own events.

    Raises `BadSettings` that names every problem at once.
    """
    problems: list[str] = []
    shipped = {
        name: file
        for entry in resources.files("ksi_daemon.gate").joinpath("profiles").iterdir()
        if (name := entry.name.removesuffix(".toml")) != entry.name
        if (file := _read(entry.name, entry.read_bytes(), problems)) is not None
    }
    own = _read_folder(folder, problems) if folder is not None else {}
    files = shipped | own
    for name, file in files.items():
        problems += _unknown_includes(name, file, files)
    if not problems:
        problems += [f"{name}.toml: it includes itself, by way of {way}" for name, way in _circles(files)]
    if problems:
        raise BadSettings("the profiles cannot be used:\n  " + "\n  ".join(problems))
    return {name: _profile(name, files, core, overridden=name in own and name in shipped) for name in sorted(files)}


def find_profile(profiles: Mapping[str, Profile], name: str) -> Profile:
    """A profile by its name. Raises `Invalid` with the nearest one."""
    found = profiles.get(name)
    if found is None:
        raise Invalid(
            f"there is no profile {ascii(name)[:50]}{_nearest(name, profiles)}", hint=f"there are {', '.join(profiles)}"
        )
    return found


def _read_folder(folder: Path, problems: list[str]) -> dict[str, _File]:
    try:
        paths = sorted(folder.iterdir())
    except FileNotFoundError:
        return {}
    except OSError as error:
        problems.append(f"{folder} cannot be read: {error.strerror}")
        return {}
    files: dict[str, _File] = {}
    for path in paths:
        if path.suffix in (".yaml", ".yml", ".json"):
            problems.append(f"{path.name}: profiles are .toml files")
        if path.suffix != ".toml" or path.name.startswith("."):
            continue
        try:
            if path.stat().st_size > FILE_LIMIT_BYTES:
                problems.append(f"{path.name} is larger than {FILE_LIMIT_BYTES:,} bytes: is it the right file?")
                continue
            file = _read(path.name, path.read_bytes(), problems)
        except OSError as error:
            problems.append(f"{path.name} cannot be read: {error.strerror}")
            continue
        if file is not None:
            files[path.stem] = file
    return files


def _read(file_name: str, content: bytes, problems: list[str]) -> _File | None:
    """One file; what is wrong with it is added to the problems, all of it."""
    try:
        table = tomllib.loads(content.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        problems.append(f"{file_name} is not valid TOML: {error}")
        return None
    found: list[str] = []
    file = None
    try:
        file = _File.model_validate(table)
    except ValidationError as error:
        found += [_problem(detail) for detail in error.errors(include_url=False, include_context=False)]
    stem = file_name.removesuffix(".toml")
    if not PROFILE_NAME.fullmatch(stem):
        found.append("a profile's name is lower-case letters, digits, '_' and '-', at most 32")
    if isinstance(table.get("name"), str) and table["name"] != stem:
        found.append(f"name is {table['name'][:50]!r}, but the file is called {stem!r}: they must be the same")
    found += _bad_resources(table.get("grants"))
    problems += [f"{file_name}: {problem}" for problem in found]
    return None if found else file


def _bad_resources(grants: Any) -> list[str]:
    found: list[str] = []
    for number, grant in enumerate(grants if isinstance(grants, list) else [], start=1):
        text = grant.get("resource") if isinstance(grant, dict) else None
        if isinstance(text, str):
            try:
                parse_resource(text)
            except Invalid as error:
                found.append(f"grants, number {number}: {error.message}")
    return found


_KEYS: dict[str, Iterable[str]] = {
    "": _File.model_fields,
    "grants": _Grant.model_fields,
    "rate": _Rate.model_fields,
}


def _problem(detail: Any) -> str:
    """A pydantic error in the words of the file: which key, what is wrong, what was probably meant."""
    alternatives = ("int", "constrained-int", "literal['unlimited']")  # pydantic names the one of a union that it tried
    place = [part for part in detail["loc"] if part not in alternatives]
    within = str(place[0]) if len(place) > 1 else ""
    where = ".".join(str(part) for part in place if not isinstance(part, int))
    if len(place) > 1 and isinstance(place[1], int):
        where += f" (number {place[1] + 1})"
    if detail["type"] == "extra_forbidden":
        return f"unknown key {where!r}{_nearest(str(place[-1]), _KEYS.get(within, ()))}"
    if detail["type"] == "missing":
        return f"the key {where!r} is missing"
    if place and place[-1] == "access":
        return f"{where}: {detail['input']!r} is not a valid access{_nearest(str(detail['input']), get_args(Access))}"
    return f"{where}: {detail['msg']}, not {str(detail['input'])[:50]!r}"


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name[:50], list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _unknown_includes(name: str, file: _File, files: Mapping[str, _File]) -> list[str]:
    return [
        f"{name}.toml: includes: there is no profile {other[:50]!r}{_nearest(other, files)}"
        for other in file.includes
        if other not in files
    ]


def _circles(files: Mapping[str, _File]) -> list[tuple[str, str]]:
    return [(name, other) for name in sorted(files) for other in files[name].includes if name in _within(other, files)]


def _within(name: str, files: Mapping[str, _File]) -> list[str]:
    """A profile and everything it includes, nearest first, each once."""
    found: list[str] = []
    waiting = [name]
    while waiting:
        next_name = waiting.pop(0)
        if next_name not in found:
            found.append(next_name)
            waiting += files[next_name].includes
    return found


def _profile(name: str, files: Mapping[str, _File], core: Collection[str], *, overridden: bool) -> Profile:
    file = files[name]
    return Profile(
        name=name,
        description=file.description,
        rules=tuple(_rules(name, files, core)),
        rate=Rate(
            calls_per_minute=None if file.rate.calls_per_minute == "unlimited" else file.rate.calls_per_minute,
            burst=file.rate.burst,
            concurrent_calls=None if file.rate.concurrent_calls == "unlimited" else file.rate.concurrent_calls,
        ),
        includes=tuple(file.includes),
        overridden=overridden,
    )


def _rules(name: str, files: Mapping[str, _File], core: Collection[str]) -> list[Rule]:
    """The grants of a profile and of those it includes. `plugin_events` opens every event but the daemon's own."""
    within = _within(name, files)
    rules = [Rule(grant.resource, grant.access, f"profile {each}") for each in within for grant in files[each].grants]
    opened = [
        Rule("events/*", access, f"profile {each}")
        for each in within
        if (access := files[each].plugin_events) is not None
    ]
    named = {rule.resource for rule in rules}
    closed = [
        Rule(resource, "none", f"profile {name}: events of the daemon are opened by name only")
        for namespace in sorted(core)
        if (resource := f"events/{namespace}:*") not in named
    ]
    return [*rules, *opened, *closed] if opened else rules
