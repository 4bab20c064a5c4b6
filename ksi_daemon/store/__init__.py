"""The core's tables, one small interface per subject; the only place with the core's SQL."""

from ksi_daemon.store import agents, state

# One numbered list for the one file `ksi.db`: only ever add at its end.
MIGRATIONS: tuple[str, ...] = (*state.MIGRATIONS, *agents.MIGRATIONS)
