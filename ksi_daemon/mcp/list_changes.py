"""Tells clients that their list of tools has changed: each open stream for which it did, and no other.

What a stream's caller may see is compared by its fingerprint: after a change of rights for the agents that it is about, after a change of
the plugins for all, and when a grant expires by itself. A stream whose token is not valid any more is ended without a word.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress

from ksi_daemon.gate.rights import Rights
from ksi_daemon.mcp.tools import Tools, fingerprint
from ksi_daemon.principal import Principal

EXPIRY_CHECK_S = 0.5  # the wall clock may be set while an expiry is waited for
STREAMS_AT_ONCE = 20  # that are compared before other work gets its turn


class Watch:
    """One open stream: for whom it is, what its client knows, and how to tell it."""

    def __init__(
        self, principal: Principal, view: str | None, seen: str, notify: Callable[[], None], end: Callable[[], None]
    ) -> None:
        self.principal = principal
        self.view = view
        self.seen = seen
        self.notify = notify
        self.end = end


class ListChanges:
    """The open streams of all clients, compared in one task."""

    def __init__(self, tools: Tools, rights: Rights) -> None:
        self._tools = tools
        self._rights = rights
        self._watches: set[Watch] = set()
        self._changed: set[str] | None = set()  # agents whose rights changed; None: the tools themselves did
        self._wake = asyncio.Event()

    def rights_changed(self, agents: Collection[str]) -> None:
        """These agents may do more or less than before."""
        if self._changed is not None:
            self._changed |= set(agents)
        self._wake.set()

    def tools_changed(self) -> None:
        """Tools came, went or were described anew."""
        self._changed = None
        self._wake.set()

    def seen(self, principal: Principal, view: str | None) -> str:
        """The fingerprint of what a caller may see now."""
        return fingerprint(self._tools.visible(principal, view))

    @contextmanager
    def watching(
        self,
        principal: Principal,
        view: str | None,
        notify: Callable[[], None],
        end: Callable[[], None],
        *,
        seen: str | None = None,
    ) -> Iterator[None]:
        """Call `notify` whenever the caller's list has changed since `seen`, or since now, and `end` when its token is not valid any more."""
        watch = Watch(principal, view, seen or self.seen(principal, view), notify, end)
        self._watches.add(watch)
        if seen is not None:
            self.rights_changed({principal.agent_id or ""})
        self._wake.set()  # its expiries are to be waited for
        try:
            yield
        finally:
            self._watches.discard(watch)

    def end_all(self) -> None:
        """End every stream: the daemon stops."""
        for watch in list(self._watches):
            watch.end()

    async def run(self) -> None:
        """Compare whenever something has changed, until cancelled."""
        compared_at = self._rights.clock()
        while True:
            expires_by_itself = self._next_expiry(compared_at) is not None
            with suppress(TimeoutError):
                async with asyncio.timeout(EXPIRY_CHECK_S if expires_by_itself else None):
                    await self._wake.wait()
            self._wake.clear()
            changed, self._changed = self._changed, set()
            expiry, now = self._next_expiry(compared_at), self._rights.clock()
            if expiry is not None and expiry <= now:  # also when something else woke this task
                changed = None
            compared_at = now
            await self._compare(changed)

    async def _compare(self, agents: set[str] | None) -> None:
        watches = [watch for watch in self._watches if agents is None or watch.principal.agent_id in agents]
        for number, watch in enumerate(watches):
            if number % STREAMS_AT_ONCE == STREAMS_AT_ONCE - 1:
                await asyncio.sleep(0)
            if watch not in self._watches:
                continue
            credential_id = watch.principal.credential_id
            if credential_id is not None and not self._rights.credentials.is_valid(credential_id):
                self._watches.discard(watch)
                watch.end()
                continue
            now = self.seen(watch.principal, watch.view)
            if now != watch.seen:
                watch.seen = now
                watch.notify()

    def _next_expiry(self, after: float) -> float | None:
        """When the next grant or token of somebody with an open stream ends; None when none does by itself."""
        return min((moment for moment in self._expiries() if moment > after), default=None)

    def _expiries(self) -> Iterator[float]:
        for agent_id in {watch.principal.agent_id or "" for watch in self._watches}:
            for holder in self._rights.lineage(agent_id):
                for grant in self._rights.grants.get(holder.agent_id, {}).values():
                    if grant.expires_at is not None:
                        yield grant.expires_at
        for watch in self._watches:
            credential = self._rights.credentials.find(watch.principal.credential_id or "")
            if credential is not None and credential.expires_at is not None:
                yield credential.expires_at
