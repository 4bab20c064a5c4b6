"""The daemon's own events, written through the same API as any plugin, but with access to internal parts of the daemon."""

from ksi_daemon.core import (
    agent,
    audit,
    completion,
    config,
    conversation,
    mcp,
    message,
    monitor,
    permission,
    session,
    spawned_agents,
    state,
    system,
    token,
)
from ksi_daemon.core import plugin as plugins
from ksi_daemon.plugin import Plugin

_MORE_EVENTS = (spawned_agents,)  # of the plugin agent

CORE: tuple[tuple[Plugin, str], ...] = tuple(
    (module.plugin, " ".join((module.__doc__ or "").split()))
    for module in (
        system,
        plugins,
        state,
        message,
        monitor,
        config,
        agent,
        token,
        permission,
        session,
        audit,
        mcp,
        completion,
        conversation,
    )
)
