"""Credentials in memory: which secret belongs to which agent, and whether it is still valid.

Found by digest, by id and by agent; live ones and ended ones are kept apart, so that looking does not grow with what has ended.
Ended ones are deleted after a day; the audit keeps their history. What an agent may do is left to `rights.py`.
"""

import asyncio
from collections.abc import Callable

import msgspec

from ksi_daemon.errors import Conflict, NotFound, Unauthenticated
from ksi_daemon.gate.tokens import SHAPE, digest, new_secret
from ksi_daemon.identifiers import new_id
from ksi_daemon.principal import Principal, Transport
from ksi_daemon.storage.agents import AgentStore, Credential

SESSIONS_LIMIT = 10  # live ones per client
CREDENTIALS_LIMIT = 100  # live ones per agent
USED_EVERY_S = 60.0  # how precisely the last use of a credential is kept on disk
ENDED_KEPT_S = 86_400.0


class Credentials:
    """The credentials of all agents. Every change is durable in the store before it is applied. `changing` is shared with the rights."""

    def __init__(
        self,
        store: AgentStore,
        *,
        clock: Callable[[], float],
        changing: asyncio.Lock,
        require_agent: Callable[[str], object],
        on_change: Callable[[Credential], None],
    ) -> None:
        self.clock = clock
        self._store = store
        self._changing = changing
        self._require_agent = require_agent
        self._on_change = on_change
        self._by_id: dict[str, Credential] = {}
        self._by_digest: dict[str, str] = {}
        self._live: dict[str, dict[str, Credential]] = {}  # by agent; an expired one stays until it is looked at
        self._ended: dict[str, dict[str, Credential]] = {}
        self._last_used: dict[str, float] = {}
        self._last_seen: dict[str, float] = {}  # by agent: outlives its credentials
        self._run_out: dict[str, str] = {}  # by id: why they ended by themselves, to be stored

    def load(self, credentials: list[Credential]) -> None:
        """Fill the memory at the start."""
        for credential in credentials:
            self._put(credential)
            seen = credential.last_used_at
            if seen is not None and seen > self._last_seen.get(credential.agent_id, 0.0):
                self._last_seen[credential.agent_id] = seen

    # --- reading

    def principal(self, secret: str, *, transport: Transport, mailbox: str | None = None) -> Principal:
        """Who a secret belongs to. Raises `Unauthenticated`, in the same words for every reason."""
        credential = self._by_id.get(self._by_digest.get(digest(secret), "")) if SHAPE.fullmatch(secret) else None
        if credential is None or self.ended_reason(credential) is not None:
            raise Unauthenticated(
                "this token is not valid here", hint="ask the operator for a new one: ksi tokens create AGENT"
            )
        self._last_used[credential.credential_id] = self._last_seen[credential.agent_id] = self.clock()
        return Principal(
            kind="agent",
            name=credential.agent_id,
            mailbox=mailbox,
            transport=transport,
            agent_id=credential.agent_id,
            user_id=credential.user_id,
            conversation_id=credential.conversation_id,
            completion_id=credential.completion_id,
            credential_id=credential.credential_id,
            resumes=credential.resumes,
            default_view=credential.default_view,
            ceiling=credential.ceiling,
            session_id=credential.credential_id if credential.kind == "session" else None,
        )

    def ended_reason(self, credential: Credential) -> str | None:
        """Why a credential is not valid any more; None while it is. What has ended once stays so when the clock is set back."""
        credential = self._by_id.get(credential.credential_id, credential)  # it may have ended since the caller got it
        if credential.revoked_at is not None:
            return "revoked"
        known = credential.ended_as or self._run_out.get(credential.credential_id)
        if known is not None:
            return known
        reason = self._run_out_reason(credential)
        if reason is not None and credential.credential_id in self._by_id:
            self._run_out[credential.credential_id] = reason
        return reason

    def _run_out_reason(self, credential: Credential) -> str | None:
        now = self.clock()
        if credential.expires_at is not None and now >= credential.expires_at:
            return "expired"
        if credential.idle_limit_s is not None and now - self._used_at(credential) > credential.idle_limit_s:
            return "idle too long"
        return None

    def is_valid(self, credential_id: str) -> bool:
        """Whether there is such a credential and it has not ended."""
        credential = self._by_id.get(credential_id)
        return credential is not None and self.ended_reason(credential) is None

    def find(self, credential_id: str) -> Credential | None:
        """A credential that is kept, ended or not."""
        return self._by_id.get(credential_id)

    def get(self, credential_id: str) -> Credential:
        """The same, or `NotFound`."""
        credential = self._by_id.get(credential_id)
        if credential is None:
            raise NotFound(f"there is no token {ascii(credential_id)[:80]}", hint="`ksi tokens ls` shows their ids")
        return credential

    def all(self) -> list[Credential]:
        """Every credential that is kept, ended ones too, oldest first."""
        return sorted(self._by_id.values(), key=lambda credential: credential.credential_id)

    def of(self, agent_id: str) -> list[Credential]:
        """One agent's, ended ones too, oldest first."""
        kept = [*self._live.get(agent_id, {}).values(), *self._ended.get(agent_id, {}).values()]
        return sorted(kept, key=lambda credential: credential.credential_id)

    def live(self, agent_id: str) -> list[Credential]:
        """One agent's that are still valid."""
        found = list(self._live.get(agent_id, {}).values())
        for credential in found:
            if self.ended_reason(credential) is not None:
                self._move_to_ended(credential)
        return list(self._live.get(agent_id, {}).values())

    def last_used(self, credential: Credential) -> float | None:
        """When a credential was last used."""
        return self._last_used.get(credential.credential_id, credential.last_used_at)

    def last_seen(self, agent_id: str) -> float | None:
        """When any credential of an agent was last used, also one that has ended since."""
        return self._last_seen.get(agent_id)

    # --- changing: one at a time, durable first, then in force

    async def add(self, template: Credential) -> tuple[Credential, str]:
        """A new credential and its secret, which exists only in this answer."""
        async with self._changing:
            self._require_agent(template.agent_id)
            live = [credential for credential in self.live(template.agent_id) if credential.kind == template.kind]
            most = SESSIONS_LIMIT if template.kind == "session" else CREDENTIALS_LIMIT
            if len(live) >= most:
                raise Conflict(
                    f"{template.agent_id} has {most} live {template.kind}s already", hint="revoke the unused ones first"
                )
            secret = new_secret(template.kind)
            credential = msgspec.structs.replace(template, digest=digest(secret))
            await self._store.save_credential(credential)
            self._put(credential)
            return credential, secret

    async def end(self, credential_id: str) -> Credential:
        """Revoke: from the next call on its secret is refused."""
        async with self._changing:
            credential = self.get(credential_id)
            if credential.revoked_at is None:
                credential = msgspec.structs.replace(credential, revoked_at=self.clock())
                await self._store.save_credential(credential)
                self._put(credential)
            return credential

    async def rotate(self, credential_id: str, *, by: str) -> tuple[Credential, str]:
        """A successor with everything the old one had and as long to live; the old one ends."""
        async with self._changing:
            old = self.get(credential_id)
            reason = self.ended_reason(old)
            if reason is not None:
                raise Conflict(f"that token is {reason} already", hint="make a new one: ksi tokens create AGENT")
            now, secret = self.clock(), new_secret(old.kind)
            lives_s = None if old.expires_at is None else old.expires_at - old.created_at
            successor = msgspec.structs.replace(
                old,
                credential_id=new_id(),
                digest=digest(secret),
                created_at=now,
                created_by=by,
                expires_at=None if lives_s is None else now + lives_s,
                last_used_at=None,
            )
            ended = msgspec.structs.replace(old, revoked_at=now)
            await self._store.save_credential(successor)
            await self._store.save_credential(ended)
            self._put(successor)
            self._put(ended)
            return successor, secret

    def drop_agent(self, agent_id: str) -> None:
        """The agent is removed, in the store too."""
        for credential in self.of(agent_id):
            self._drop(credential)
        self._last_seen.pop(agent_id, None)

    async def delete_ended(self) -> int:
        """Delete what ended more than a day ago; returns how many."""
        deleted = 0
        for agent_id in list(self._live):
            self.live(agent_id)
        oldest = self.clock() - ENDED_KEPT_S
        for ended in list(self._ended.values()):
            for credential in [credential for credential in ended.values() if self._ended_at(credential) < oldest]:
                async with self._changing:
                    await self._store.delete_credential(credential.credential_id)
                    self._drop(credential)
                    deleted += 1
        return deleted

    async def keep_last_uses(self) -> None:
        """Write down when credentials were last used, for idle limits that outlive a restart."""
        for credential_id, used in list(self._last_used.items()):
            async with self._changing:
                credential = self._by_id.get(credential_id)
                if credential is not None and used - (credential.last_used_at or 0) >= USED_EVERY_S:
                    credential = msgspec.structs.replace(credential, last_used_at=used)
                    await self._store.save_credential(credential)
                    self._put(credential)

    async def store_run_out(self) -> None:
        """Write down which credentials have ended by themselves, so that they do not revive after a restart either."""
        for agent_id in list(self._live):
            self.live(agent_id)
        for credential_id, reason in list(self._run_out.items()):
            async with self._changing:
                credential = self._by_id.get(credential_id)
                if credential is not None and credential.ended_as is None:
                    credential = msgspec.structs.replace(credential, ended_as=reason)
                    await self._store.save_credential(credential)
                    self._put(credential)
                self._run_out.pop(credential_id, None)

    def _put(self, credential: Credential) -> None:
        credential_id, agent_id = credential.credential_id, credential.agent_id
        self._by_id[credential_id] = credential
        self._by_digest[credential.digest] = credential_id
        ended = credential.revoked_at is not None or credential.ended_as is not None
        if not ended and credential_id not in self._ended.get(agent_id, {}):
            self._live.setdefault(agent_id, {})[credential_id] = credential
        else:
            self._move_to_ended(credential)
        self._on_change(credential)

    def _move_to_ended(self, credential: Credential) -> None:
        self._live.get(credential.agent_id, {}).pop(credential.credential_id, None)
        self._ended.setdefault(credential.agent_id, {})[credential.credential_id] = credential

    def _drop(self, credential: Credential) -> None:
        credential_id, agent_id = credential.credential_id, credential.agent_id
        self._by_id.pop(credential_id, None)
        self._by_digest.pop(credential.digest, None)
        self._last_used.pop(credential_id, None)
        self._run_out.pop(credential_id, None)
        for kept in (self._live, self._ended):
            kept.get(agent_id, {}).pop(credential_id, None)
            if not kept.get(agent_id, True):
                del kept[agent_id]
        self._on_change(credential)

    def _used_at(self, credential: Credential) -> float:
        return self._last_used.get(credential.credential_id) or credential.last_used_at or credential.created_at

    def _ended_at(self, credential: Credential) -> float:
        """When it ended, whichever reason came first."""
        moments = [credential.revoked_at, credential.expires_at]
        if credential.idle_limit_s is not None:
            moments.append(self._used_at(credential) + credential.idle_limit_s)
        return min((moment for moment in moments if moment is not None), default=self.clock())


async def keep_credentials(credentials: Credentials) -> None:
    """Once a minute, until cancelled: write down last uses (once more at the end) and delete what ended a day ago."""
    try:
        while True:
            await asyncio.sleep(USED_EVERY_S)
            await credentials.keep_last_uses()
            await credentials.delete_ended()
    finally:
        await credentials.keep_last_uses()
