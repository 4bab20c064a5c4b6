"""Stores agents, their credentials (digests only) and grants."""

from typing import Any, Literal, Protocol

import msgspec

from ksi_daemon.access import Access
from ksi_daemon.storage.sqlite import Database, Row

CREATE_AGENTS = """
    CREATE TABLE agents (
        agent_id TEXT PRIMARY KEY,
        profile TEXT NOT NULL,
        parent_id TEXT REFERENCES agents (agent_id),
        frozen INTEGER NOT NULL,
        note TEXT NOT NULL,
        created_at REAL NOT NULL,
        created_by TEXT NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE credentials (
        credential_id TEXT PRIMARY KEY,
        agent_id TEXT NOT NULL REFERENCES agents (agent_id) ON DELETE CASCADE,
        digest TEXT NOT NULL UNIQUE,
        record TEXT NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE grants (
        grant_id TEXT PRIMARY KEY,
        subject TEXT NOT NULL REFERENCES agents (agent_id) ON DELETE CASCADE,
        resource TEXT NOT NULL,
        access TEXT NOT NULL,
        expires_at REAL,
        created_at REAL NOT NULL,
        created_by TEXT NOT NULL,
        UNIQUE (subject, resource)
    ) WITHOUT ROWID;
    """

# A grant that has expired once stays so when the clock is set back.
ADD_EXPIRED_GRANTS = "ALTER TABLE grants ADD COLUMN expired_at REAL;"

# Agents that the daemon starts.
ADD_SPAWNED_AGENTS = """
    ALTER TABLE agents ADD COLUMN provider TEXT;
    ALTER TABLE agents ADD COLUMN workspace TEXT;
    ALTER TABLE agents ADD COLUMN options TEXT NOT NULL DEFAULT '{}';
    ALTER TABLE agents ADD COLUMN daemon_id TEXT;
    ALTER TABLE agents ADD COLUMN terminated_at REAL;
    """


class Agent(msgspec.Struct, frozen=True):
    """One agent."""

    agent_id: str
    profile: str
    parent_id: str | None
    frozen: bool
    note: str
    created_at: float
    created_by: str
    provider: str | None = None  # what runs its completions; None for one that connects by itself
    workspace: str | None = None  # the folder that its processes work in
    options: dict[str, Any] = {}  # of its provider: command, model, and so on
    daemon_id: str | None = None  # the daemon that starts and watches its processes
    terminated_at: float | None = None


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """What proves an agent's identity. The secret itself is shown once and never stored."""

    credential_id: str
    agent_id: str
    digest: str
    kind: Literal["token", "session"] = "token"
    label: str = ""
    user_id: str | None = None
    conversation_id: str | None = None
    completion_id: str | None = None
    resumes: bool = False
    default_view: str | None = None
    ceiling: str | None = None
    client_id: str | None = None
    scopes: tuple[str, ...] = ()
    metadata: dict[str, Any] = {}
    created_at: float
    created_by: str
    expires_at: float | None = None
    idle_limit_s: float | None = None
    last_used_at: float | None = None
    revoked_at: float | None = None
    ended_as: str | None = None  # why it ended by itself: it stays so when the clock is set back


class Grant(msgspec.Struct, frozen=True):
    """One grant: access of an agent to a resource."""

    grant_id: str
    subject: str
    resource: str
    access: Access
    expires_at: float | None
    created_at: float
    created_by: str
    expired_at: float | None = None


class AgentStore(Protocol):
    """What a backend must do. The contract suite is tests/storage/test_agents_contract.py."""

    async def load(self) -> tuple[list[Agent], list[Credential], list[Grant]]: ...
    async def save_agent(self, agent: Agent) -> None: ...
    async def delete_agent(self, agent_id: str) -> None: ...
    async def save_credential(self, credential: Credential) -> None: ...
    async def delete_credential(self, credential_id: str) -> None: ...
    async def save_grant(self, grant: Grant) -> None: ...
    async def delete_grant(self, subject: str, resource: str) -> bool: ...


class SqliteAgents:
    """The embedded backend."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self) -> tuple[list[Agent], list[Credential], list[Grant]]:
        """All rows, for the gate's in-memory copy."""
        agents = await self._database.fetch("SELECT * FROM agents ORDER BY created_at, agent_id")
        credentials = await self._database.fetch("SELECT record FROM credentials ORDER BY credential_id")
        grants = await self._database.fetch("SELECT * FROM grants ORDER BY grant_id")
        return (
            [_agent(row) for row in agents],
            [msgspec.json.decode(row["record"], type=Credential) for row in credentials],
            [Grant(**dict(row)) for row in grants],
        )

    async def save_agent(self, agent: Agent) -> None:
        """Insert or update an agent."""
        await self._database.execute(
            "INSERT INTO agents (agent_id, profile, parent_id, frozen, note, created_at, created_by, provider, workspace,"
            " options, daemon_id, terminated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET profile = excluded.profile, parent_id = excluded.parent_id,"
            " frozen = excluded.frozen, note = excluded.note, provider = excluded.provider,"
            " workspace = excluded.workspace, options = excluded.options, daemon_id = excluded.daemon_id,"
            " terminated_at = excluded.terminated_at",
            *_values(agent),
        )

    async def delete_agent(self, agent_id: str) -> None:
        """Delete an agent with its credentials and grants."""
        await self._database.execute("DELETE FROM agents WHERE agent_id = ?", agent_id)

    async def save_credential(self, credential: Credential) -> None:
        """Insert or update a credential."""
        await self._database.execute(
            "INSERT INTO credentials (credential_id, agent_id, digest, record) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (credential_id) DO UPDATE SET record = excluded.record",
            credential.credential_id,
            credential.agent_id,
            credential.digest,
            msgspec.json.encode(credential).decode(),
        )

    async def delete_credential(self, credential_id: str) -> None:
        """Delete a credential."""
        await self._database.execute("DELETE FROM credentials WHERE credential_id = ?", credential_id)

    async def save_grant(self, grant: Grant) -> None:
        """Insert a grant; it replaces one on the same resource."""
        await self._database.execute(
            "INSERT OR REPLACE INTO grants (grant_id, subject, resource, access, expires_at, created_at, created_by,"
            " expired_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            *msgspec.structs.astuple(grant),
        )

    async def delete_grant(self, subject: str, resource: str) -> bool:
        """Delete a grant; True if it existed."""
        return (
            await self._database.execute("DELETE FROM grants WHERE subject = ? AND resource = ?", subject, resource) > 0
        )


def _values(agent: Agent) -> list[Any]:
    values = msgspec.structs.asdict(agent)
    return list((values | {"options": msgspec.json.encode(agent.options).decode()}).values())


def _agent(row: Row) -> Agent:
    return Agent(**(dict(row) | {"frozen": bool(row["frozen"]), "options": msgspec.json.decode(row["options"])}))
