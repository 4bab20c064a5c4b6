"""The migrations of `ksi.db`, in the order in which they were released."""

from ksi_daemon.storage.agents import ADD_EXPIRED_GRANTS, ADD_SPAWNED_AGENTS, CREATE_AGENTS
from ksi_daemon.storage.audit_head import CREATE_AUDIT_HEAD
from ksi_daemon.storage.state import ADD_OWNERS, CREATE_STATE

# A database remembers how many of these it has run, so new ones are only ever added at the end, whatever their subject.
MIGRATIONS: tuple[str, ...] = (
    CREATE_STATE, CREATE_AGENTS, CREATE_AUDIT_HEAD, ADD_OWNERS, ADD_EXPIRED_GRANTS, ADD_SPAWNED_AGENTS,
)  # fmt: skip
