"""Agents for tests: added to a running hub, calling by their tokens, and the rows that their calls leave."""

import time
from typing import Any

import msgspec

from ksi_daemon.audit import Filter
from ksi_daemon.gate.gate import Gate
from ksi_daemon.gate.limits import Rate
from ksi_daemon.principal import Principal
from ksi_daemon.testing import TestHub


async def add_agent(hub: TestHub, agent_id: str = "bot", profile: str = "standard", **options: Any) -> Principal:
    """A new agent, recognised by the token it was given."""
    made = await hub.call("agent:register", agent_id=agent_id, profile=profile, **options)
    return hub.hub.rights.credentials.principal(made["token"], transport="socket")


async def call_as(hub: TestHub, principal: Principal, event: str, /, **data: Any) -> Any:
    """A call by somebody else than the operator."""
    return msgspec.json.decode(await hub.hub.router.call(event, data, principal=principal))


async def rows(hub: TestHub, **wanted: Any) -> list[dict[str, Any]]:
    """Audit rows that fit, oldest first."""
    await hub.hub.audit.write_summaries()
    return (await hub.hub.audit.query(Filter(**wanted), limit=10_000, order="oldest")).rows


def told(found: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Rows in short."""
    return [(row["type"], row["phase"], row["status"]) for row in found]


def gate_of(hub: TestHub) -> Gate:
    """The gate in the router's line."""
    gate = hub.hub.router.gate
    assert gate is not None
    return gate


def limit(hub: TestHub, profile: str = "standard", **limits: Any) -> None:
    """Other limits for a profile, from the next call on."""
    profiles = hub.hub.rights.profiles
    profiles[profile] = msgspec.structs.replace(profiles[profile], rate=Rate(**limits))


class WallClock:
    """The time that expiries are held against, from the real one on, passing only when a test says so."""

    def __init__(self, hub: TestHub) -> None:
        self.now_s = time.time()
        hub.hub.rights.credentials.clock = self

    def __call__(self) -> float:
        return self.now_s
