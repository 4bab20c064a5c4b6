"""The gate's memory: who there is and what each may do, at this moment.

Reading is synchronous and made on one snapshot with a version; every change is durable in the store before it is applied here, and
counts from the very next call. Which calls ask, and what happens after a no, is the router's business.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping

import msgspec

from ksi_daemon.access import Access, Need
from ksi_daemon.errors import BadSettings, Conflict, Invalid, NotFound, Unauthenticated
from ksi_daemon.gate.grants import Chain, Decision, Rule, RuleSet
from ksi_daemon.gate.limits import Rate
from ksi_daemon.gate.profiles import Profile, find_profile
from ksi_daemon.gate.tokens import AGENT_NAME, SHAPE, digest, new_secret
from ksi_daemon.identifiers import new_id
from ksi_daemon.principal import Principal, Transport
from ksi_daemon.storage.agents import Agent, AgentStore, Credential, Grant

SESSIONS_LIMIT = 10  # live ones per client
CREDENTIALS_LIMIT = 100  # live ones per agent
GRANTS_LIMIT = 1_000  # per agent
USED_EVERY_S = 60.0  # how precisely the last use of a credential is kept on disk


class Rights:
    """Agents, credentials, grants and profiles. `on_change` hears which agents a change is about."""

    def __init__(
        self, store: AgentStore, profiles: Mapping[str, Profile], *, clock: Callable[[], float] = time.time
    ) -> None:
        self.version = 0
        self.agents: dict[str, Agent] = {}
        self.credentials: dict[str, Credential] = {}
        self.grants: dict[str, dict[str, Grant]] = {}
        self.profiles = dict(profiles)
        self.on_change: Callable[[set[str]], None] = lambda agents: None
        self._store = store
        self._clock = clock
        self._changing = asyncio.Lock()
        self._brakes: set[str] = set()  # agents frozen since they were last unfrozen
        self._by_digest: dict[str, str] = {}
        self._last_used: dict[str, float] = {}
        self._chains: dict[tuple[str, str | None], Chain] = {}

    async def load(self) -> None:
        """Fill the memory from the store."""
        agents, credentials, grants = await self._store.load()
        self.agents = {agent.agent_id: agent for agent in agents}
        for credential in credentials:
            self._remember(credential)
        for grant in grants:
            self.grants.setdefault(grant.subject, {})[grant.resource] = grant
        for agent in agents:
            if agent.profile not in self.profiles:
                raise BadSettings(
                    f"the agent {agent.agent_id!r} has the profile {agent.profile!r}, and there is none of that name. "
                    f"Put {agent.profile}.toml back into var/profiles/."
                )

    # --- reading: what the router asks at every call

    def principal(self, secret: str, *, transport: Transport, mailbox: str | None = None) -> Principal:
        """Who a secret belongs to. Raises `Unauthenticated`, in the same words for every reason."""
        credential = self.credentials.get(self._by_digest.get(digest(secret), "")) if SHAPE.fullmatch(secret) else None
        if credential is None or self.ended_reason(credential) is not None:
            raise Unauthenticated(
                "this token is not valid here", hint="ask the operator for a new one: ksi tokens create AGENT"
            )
        self._last_used[credential.credential_id] = self._clock()
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
            session_id=credential.credential_id if credential.kind == "session" else None,
        )

    def ended_reason(self, credential: Credential) -> str | None:
        """Why a credential is no good any more; None while it is."""
        now = self._clock()
        if credential.revoked_at is not None:
            return "revoked"
        if credential.expires_at is not None and now >= credential.expires_at:
            return "expired"
        used = self._last_used.get(credential.credential_id) or credential.last_used_at or credential.created_at
        if credential.idle_limit_s is not None and now - used > credential.idle_limit_s:
            return "idle too long"
        return None

    def inactive_reason(self, principal: Principal) -> str | None:
        """Why a principal made earlier may not act any more; None while it may."""
        agent = self.agents.get(principal.agent_id or "")
        if agent is None:
            return "the agent was removed"
        for holder in self.lineage(agent.agent_id):
            if holder.frozen:
                return "the agent is frozen" if holder is agent else "an agent it descends from is frozen"
        credential = self.credentials.get(principal.credential_id or "")
        if principal.credential_id is not None and (credential is None or self.ended_reason(credential) is not None):
            return "its token is not valid any more"
        return None

    def decide(self, principal: Principal, resource: str, need: Need) -> Decision:
        """The one predicate: listing, calling and explaining all ask it."""
        return self.chain(principal.agent_id or "", principal.credential_id).decide(resource, need, self._clock())

    def chain(self, agent_id: str, credential_id: str | None = None) -> Chain:
        """An agent's own rules with its session's, then those of each agent above it: all must say yes."""
        known = self._chains.get((agent_id, credential_id))
        if known is None:
            lineage = self.lineage(agent_id)
            links = [RuleSet(self.rules(agent, credential_id), whose="own") for agent in lineage[:1]]
            links += [RuleSet(self.rules(agent), whose="parent") for agent in lineage[1:]]
            known = self._chains[agent_id, credential_id] = Chain(links)
        return known

    def rules(self, agent: Agent, credential_id: str | None = None) -> list[Rule]:
        """What an agent holds by its profile, its grants and, in a session, its scopes."""
        held = list(self.profiles[agent.profile].rules)
        held += [
            Rule(grant.resource, grant.access, f"grant {grant.grant_id}", grant.expires_at, overrides=True)
            for grant in self.grants.get(agent.agent_id, {}).values()
        ]
        credential = self.credentials.get(credential_id or "")
        return held + (scope_rules(credential) if credential is not None else [])

    def lineage(self, agent_id: str) -> list[Agent]:
        """An agent, its parent, its parent's parent…"""
        found: list[Agent] = []
        while (agent := self.agents.get(agent_id)) is not None and agent not in found:
            found.append(agent)
            agent_id = agent.parent_id or ""
        return found

    def rate(self, principal: Principal) -> Rate | None:
        """The limits of the agent's profile."""
        agent = self.agents.get(principal.agent_id or "")
        return None if agent is None else self.profiles[agent.profile].rate

    def children(self, agent_id: str) -> set[str]:
        """Every agent below this one."""
        below = {other.agent_id for other in self.agents.values() if other.parent_id == agent_id}
        return below.union(*(self.children(child) for child in below))

    # --- changing: one at a time, durable first, then in force

    async def add_agent(self, agent_id: str, profile: str, *, parent_id: str | None, note: str, by: str) -> Agent:
        """A new agent. Look-alike names are impossible: only plain ASCII letters, digits and . _ - are names."""
        async with self._changing:
            return await self._add_agent(agent_id, profile, parent_id=parent_id, note=note, by=by)

    async def ensure_agent(self, agent_id: str, profile: str, *, note: str, by: str) -> Agent:
        """The agent of this name, added if there is none."""
        async with self._changing:
            if agent_id in self.agents:
                return self.agents[agent_id]
            return await self._add_agent(agent_id, profile, parent_id=None, note=note, by=by)

    async def _add_agent(self, agent_id: str, profile: str, *, parent_id: str | None, note: str, by: str) -> Agent:
        if not AGENT_NAME.fullmatch(agent_id):
            raise Invalid(f"{ascii(agent_id)[:80]} is no agent name", hint="1 to 64 of A-Z a-z 0-9 . _ -, nothing else")
        close = [other for other in self.agents if other.lower() == agent_id.lower()]
        if close:
            raise Conflict(
                f"there is an agent {close[0]!r} already", hint="names that differ only in case are refused too"
            )
        if parent_id is not None:
            self.agent(parent_id)
        agent = Agent(agent_id, find_profile(self.profiles, profile).name, parent_id, False, note, self._clock(), by)
        await self._store.save_agent(agent)
        self.agents[agent_id] = agent
        self._changed({agent_id})
        return agent

    async def set_profile(self, agent_id: str, profile: str) -> Agent:
        """Another profile."""
        found = find_profile(self.profiles, profile)
        async with self._changing:
            await self._store.save_agent(msgspec.structs.replace(self.agent(agent_id), profile=found.name))
            # The brake may have come meanwhile: only the profile is ours to change.
            self._put([msgspec.structs.replace(self.agent(agent_id), profile=found.name)])
            return self.agents[agent_id]

    async def freeze(self, agent_ids: Iterable[str], *, frozen: bool) -> None:
        """Stop these agents, or let them act again. A brake does not wait for anything: it holds before it is on disk."""
        chosen = [self.agent(agent_id).agent_id for agent_id in agent_ids]
        if frozen:
            self._brakes.update(chosen)
            self._put([msgspec.structs.replace(self.agents[agent_id], frozen=True) for agent_id in chosen])
        else:
            self._brakes.difference_update(chosen)
        async with self._changing:
            there = [agent_id for agent_id in chosen if agent_id in self.agents]
            for agent_id in there:
                await self._store.save_agent(msgspec.structs.replace(self.agents[agent_id], frozen=frozen))
            # Whoever was braked again while this waited stays braked.
            mine = [agent_id for agent_id in there if frozen or agent_id not in self._brakes]
            self._put([msgspec.structs.replace(self.agents[agent_id], frozen=frozen) for agent_id in mine])

    async def remove_agent(self, agent_id: str) -> None:
        """An agent goes with its credentials and grants. One with children stays."""
        async with self._changing:
            self.agent(agent_id)
            if children := self.children(agent_id):
                raise Conflict(f"{agent_id} has children: {', '.join(sorted(children))}", hint="remove them first")
            await self._store.delete_agent(agent_id)
            del self.agents[agent_id]
            self.grants.pop(agent_id, None)
            for credential in [one for one in self.credentials.values() if one.agent_id == agent_id]:
                del self.credentials[credential.credential_id], self._by_digest[credential.digest]
                self._last_used.pop(credential.credential_id, None)
            self._changed({agent_id})

    async def grant(self, subject: str, resource: str, access: Access, *, expires_at: float | None, by: str) -> Grant:
        """Give (or, with access none, take) one right. A grant on the same resource is replaced."""
        Rule(resource, access, "check", expires_at)
        async with self._changing:
            self.agent(subject)
            held = self.grants.get(subject, {})
            if len(held) >= GRANTS_LIMIT and resource not in held:
                raise Conflict(f"{subject} has {GRANTS_LIMIT:,} grants already", hint="use wider ones: events/notes:*")
            made = Grant(new_id(), subject, resource, access, expires_at, self._clock(), by)
            await self._store.save_grant(made)
            self.grants.setdefault(subject, {})[resource] = made
            self._changed({subject} | self.children(subject))
            return made

    async def revoke(self, subject: str, resource: str) -> Grant:
        """Take a grant back."""
        async with self._changing:
            held = self.held(subject, resource)
            await self._store.delete_grant(subject, resource)
            del self.grants[subject][resource]
            self._changed({subject} | self.children(subject))
            return held

    def held(self, subject: str, resource: str) -> Grant:
        """A grant that is there, or `NotFound`."""
        held = self.grants.get(self.agent(subject).agent_id, {}).get(resource)
        if held is None:
            raise NotFound(
                f"{subject} has no grant on {ascii(resource)[:200]}",
                hint="what a profile gives is taken away by granting access none",
            )
        return held

    async def add_credential(self, agent_id: str, template: Credential) -> tuple[Credential, str]:
        """A new credential and its secret, which exists only in this answer."""
        async with self._changing:
            self.agent(agent_id)
            live = [one for one in self.live_credentials(agent_id) if one.kind == template.kind]
            most = SESSIONS_LIMIT if template.kind == "session" else CREDENTIALS_LIMIT
            if len(live) >= most:
                raise Conflict(
                    f"{agent_id} has {most} live {template.kind}s already", hint="revoke the unused ones first"
                )
            secret = new_secret(template.kind)
            credential = msgspec.structs.replace(template, agent_id=agent_id, digest=digest(secret))
            await self._store.save_credential(credential)
            self._remember(credential)
            return credential, secret

    async def end_credential(self, credential_id: str) -> Credential:
        """Revoke: from the next call on its secret is nobody's."""
        async with self._changing:
            credential = self.credential(credential_id)
            if credential.revoked_at is None:
                credential = msgspec.structs.replace(credential, revoked_at=self._clock())
                await self._store.save_credential(credential)
                self._remember(credential)
                self._changed({credential.agent_id})
            return credential

    async def rotate(self, credential_id: str, *, by: str) -> tuple[Credential, str]:
        """A successor with everything the old one had and as long to live; the old one ends."""
        async with self._changing:
            old = self.credential(credential_id)
            if self.ended_reason(old) is not None:
                raise Conflict(
                    f"that token is {self.ended_reason(old)} already", hint="make a new one: ksi tokens create AGENT"
                )
            now, secret = self._clock(), new_secret(old.kind)
            lives_s = None if old.expires_at is None else old.expires_at - old.created_at
            fresh = msgspec.structs.replace(
                old,
                credential_id=new_id(),
                digest=digest(secret),
                created_at=now,
                created_by=by,
                expires_at=None if lives_s is None else now + lives_s,
                last_used_at=None,
            )
            ended = msgspec.structs.replace(old, revoked_at=now)
            await self._store.save_credential(fresh)
            await self._store.save_credential(ended)
            self._remember(fresh)
            self._remember(ended)
            self._changed({old.agent_id})
            return fresh, secret

    async def keep_last_uses(self) -> None:
        """Write down when credentials were last used, for idle limits that outlive a restart."""
        for credential_id, used in list(self._last_used.items()):
            async with self._changing:
                credential = self.credentials.get(credential_id)
                if credential is not None and used - (credential.last_used_at or 0) >= USED_EVERY_S:
                    credential = msgspec.structs.replace(credential, last_used_at=used)
                    await self._store.save_credential(credential)
                    self._remember(credential)

    def _put(self, agents: list[Agent]) -> None:
        self.agents |= {agent.agent_id: agent for agent in agents}
        self._changed({below for agent in agents for below in (agent.agent_id, *self.children(agent.agent_id))})

    def credential(self, credential_id: str) -> Credential:
        """A known credential, or `NotFound`."""
        credential = self.credentials.get(credential_id)
        if credential is None:
            raise NotFound(f"there is no token {ascii(credential_id)[:80]}", hint="`ksi tokens ls` shows their ids")
        return credential

    def now(self) -> float:
        """The time that expiries are held against."""
        return self._clock()

    def impersonate(self, agent_id: str, *, mailbox: str | None = None) -> Principal:
        """The operator acting as an agent: with exactly that agent's rights and limits."""
        self.agent(agent_id)
        return Principal(
            kind="agent",
            name=agent_id,
            mailbox=mailbox,
            transport="socket",
            agent_id=agent_id,
            impersonated_by="operator",
        )

    def agent(self, agent_id: str) -> Agent:
        """A known agent, or `NotFound`."""
        agent = self.agents.get(agent_id)
        if agent is None:
            raise NotFound(f"there is no agent {ascii(agent_id)[:80]}", hint="`ksi agents ls` shows those there are")
        return agent

    def live_credentials(self, agent_id: str | None = None) -> list[Credential]:
        """Those that still work."""
        return [
            one
            for one in self.credentials.values()
            if agent_id in (None, one.agent_id) and self.ended_reason(one) is None
        ]

    def last_used(self, credential: Credential) -> float | None:
        """When a credential was last used."""
        return self._last_used.get(credential.credential_id, credential.last_used_at)

    def _remember(self, credential: Credential) -> None:
        self.credentials[credential.credential_id] = credential
        self._by_digest[credential.digest] = credential.credential_id
        self._chains = {key: chain for key, chain in self._chains.items() if key[1] != credential.credential_id}

    def _changed(self, agents: Iterable[str]) -> None:
        self.version += 1
        self._chains.clear()
        self.on_change(set(agents))


SCOPE_ACCESS: dict[str, tuple[str, ...]] = {
    "read": ("read",),
    "write": ("write",),
    "execute": ("execute",),
    "network": ("network",),
    "admin": ("read", "write", "execute", "network", "admin"),
}


def scope_rules(credential: Credential) -> list[Rule]:
    """A session's scopes as rules: `librarian/<scope>`, and the right to call librarian events at all."""
    source = f"session {credential.credential_id}"
    named = {part for scope in credential.scopes for part in SCOPE_ACCESS[scope]}
    rules = [Rule(f"librarian/{scope}", "execute", source) for scope in sorted(named)]
    if named:
        rules.append(Rule("events/librarian:*", "write" if named & {"write", "execute", "admin"} else "read", source))
    return rules


async def keep_last_uses(rights: Rights) -> None:
    """Write down last uses once a minute, until cancelled, and once more then."""
    try:
        while True:
            await asyncio.sleep(USED_EVERY_S)
            await rights.keep_last_uses()
    finally:
        await rights.keep_last_uses()
