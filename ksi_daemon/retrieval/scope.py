"""What a search may see, as a SQL condition on `retrieval_documents AS d`: the agent's visibility and the caller's filter."""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from ksi_daemon.retrieval.document import EVERY_DOCUMENT, Filter


@dataclass(frozen=True, slots=True)
class Scope:
    """A condition and its parameters."""

    condition: str
    params: tuple[str | float, ...]
    is_open: bool  # the filter excludes nothing: only visibility can


def scope_of(agent: str | None, filter: Filter) -> Scope:
    """The scope of one search. `agent=None` sees what everybody sees; EVERY_DOCUMENT sees all."""
    parts: list[str] = []
    params: list[str | float] = []
    if filter.namespaces is not None:
        parts.append("d.namespace IN (SELECT value FROM json_each(?))")
        params.append(_json(filter.namespaces))
    if filter.documents is not None:
        parts.append("d.id IN (SELECT value FROM json_each(?))")
        params.append(_json(filter.documents))
    if filter.source_kinds is not None:
        parts.append("d.source_kind IN (SELECT value FROM json_each(?))")
        params.append(_json(filter.source_kinds))
    if filter.updated_after is not None:
        parts.append("d.updated_at > ?")
        params.append(filter.updated_after)
    for name, values in sorted(filter.attributes.items()):
        parts.append(
            "d.number IN (SELECT document FROM retrieval_attributes"
            " WHERE name = ? AND value IN (SELECT value FROM json_each(?)))"
        )
        params += [name, _json(value.casefold() for value in values)]
    is_open = not parts
    if agent is None:
        parts.append("NOT d.restricted")
    elif agent != EVERY_DOCUMENT:
        parts.append("(NOT d.restricted OR d.number IN (SELECT document FROM retrieval_readers WHERE agent = ?))")
        params.append(agent)
    return Scope(" AND ".join(parts) or "1", tuple(params), is_open)


def _json(values: Iterable[str]) -> str:
    return msgspec.json.encode(sorted(values)).decode()
