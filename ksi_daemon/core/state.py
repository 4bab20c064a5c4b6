"""State: shared keys with JSON values that survive restarts."""

import msgspec
from pydantic import field_validator

from ksi_daemon.notice import iso_time
from ksi_daemon.plugin import Context, Field, Invalid, JsonValue, NotFound, Params, Plugin, Result, TooLarge
from ksi_daemon.process.control import Control
from ksi_daemon.storage.state import Quota, QuotaUsed, StateStore

VALUE_LIMIT_BYTES = 900_000  # so that every value fits into one answer line of the socket
STARS_LIMIT = 4  # a glob with many stars takes time that grows with their number

plugin = Plugin("state", uses=[StateStore, Control])
plugin.announces("state:changed", "A key was set or deleted; data has namespace, key and what happened.")

KEY = r"^[^\x00-\x1f\x7f]+$"


class Key(Params):
    key: str = Field(min_length=1, max_length=256, pattern=KEY, description="The key.")
    namespace: str = Field(
        "global", min_length=1, max_length=128, pattern=KEY, description="Keys of different namespaces are separate."
    )


class Set(Key):
    value: JsonValue = Field(description="Any JSON value.")
    metadata: dict[str, JsonValue] = Field({}, max_length=50, description="Metadata stored with the value.")


class Value(Result):
    namespace: str
    key: str
    value: JsonValue
    metadata: dict[str, JsonValue]
    updated_at: str


class SetResult(Result):
    namespace: str
    key: str
    created: bool


class Deleted(Result):
    namespace: str
    key: str
    deleted: bool


@plugin.handles("state:get", reads=True)
async def get(ctx: Context, params: Key) -> Value:
    """Read the value of a key."""
    entry = await _store(ctx).get(params.namespace, params.key)
    if entry is None:
        raise NotFound(
            f"there is no key {params.key!r} in the namespace {params.namespace!r}",
            hint="state:list lists the existing keys",
        )
    return Value(
        namespace=params.namespace,
        key=params.key,
        value=entry.value,
        metadata=entry.metadata,
        updated_at=iso_time(entry.updated_at),
    )


@plugin.handles("state:set")
async def set_value(ctx: Context, params: Set) -> SetResult:
    """Set the value of a key, replacing an earlier one. Answered once it is durable on disk. It counts for the agent that set it last."""
    try:
        size = len(msgspec.json.encode(params.value)) + len(msgspec.json.encode(params.metadata))
    except UnicodeEncodeError as error:
        raise Invalid(f"the value contains text that is not valid Unicode: {error.reason}") from error
    if size > VALUE_LIMIT_BYTES:
        raise TooLarge(
            f"the value has {size:,} bytes, more than {VALUE_LIMIT_BYTES:,}",
            hint="store large values in a file and its path in the state",
        )
    quota = _quota(ctx)
    try:
        created = await _store(ctx).set(
            params.namespace, params.key, value=params.value, metadata=params.metadata, quota=quota
        )
    except QuotaUsed as used:
        raise _over_quota(quota, used) from used
    ctx.notify(
        "state:changed",
        {"namespace": params.namespace, "key": params.key, "change": "created" if created else "replaced"},
    )
    return SetResult(namespace=params.namespace, key=params.key, created=created)


@plugin.handles("state:delete")
async def delete(ctx: Context, params: Key) -> Deleted:
    """Delete a key. Deleting a missing key is not an error; `deleted` is then false."""
    deleted = await _store(ctx).delete(params.namespace, params.key)
    if deleted:
        ctx.notify("state:changed", {"namespace": params.namespace, "key": params.key, "change": "deleted"})
    return Deleted(namespace=params.namespace, key=params.key, deleted=deleted)


class List(Params):
    namespace: str | None = Field(None, max_length=128, description="Only this namespace.")
    pattern: str = Field("*", min_length=1, max_length=256, description="Which keys: a glob such as build-*.")
    limit: int = Field(100, ge=1, le=1000, description="Maximum number of entries.")
    after: tuple[str, str] | None = Field(
        None, description="Continue after this [namespace, key], the last of the previous page."
    )

    @field_validator("pattern")
    @classmethod
    def _few_stars(cls, pattern: str) -> str:
        if pattern.count("*") > STARS_LIMIT:
            raise ValueError(f"a pattern may have at most {STARS_LIMIT} stars")
        return pattern


class Listed(Result):
    namespace: str
    key: str
    bytes: int
    updated_at: str


class Page(Result):
    entries: list[Listed]
    more: bool


@plugin.handles("state:list", reads=True)
async def list_keys(ctx: Context, params: List) -> Page:
    """List keys in order, without their values; `more` is true if there is a next page."""
    rows = await _store(ctx).list(params.namespace, params.pattern, limit=params.limit + 1, after=params.after)
    entries = [
        Listed(namespace=row.namespace, key=row.key, bytes=row.value_bytes, updated_at=iso_time(row.updated_at))
        for row in rows[: params.limit]
    ]
    return Page(entries=entries, more=len(rows) > params.limit)


def _quota(ctx: Context) -> Quota | None:
    """What the calling agent may store; the operator, the daemon and plugins are not limited."""
    if ctx.principal.agent_id is None:
        return None
    settings = ctx.capability(Control).read.settings
    return Quota(ctx.principal.agent_id, settings.agent_state_keys, settings.agent_state_bytes)


def _over_quota(quota: Quota | None, used: QuotaUsed) -> TooLarge:
    if quota is None:
        raise used
    return TooLarge(
        f"{quota.owner} has stored {used.keys:,} keys with {used.stored_bytes:,} bytes; "
        f"an agent may store {quota.keys:,} keys and {quota.bytes:,} bytes",
        hint="delete keys that are not needed any more with state:delete, or ask the operator to raise agent_state_keys"
        " or agent_state_bytes",
    )


def _store(ctx: Context) -> StateStore:
    return ctx.capability(StateStore)  # type: ignore[type-abstract]
