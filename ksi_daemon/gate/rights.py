"""The gate's memory: which agents there are and what each may do, at this moment.

Reading is synchronous and made on one snapshot with a version; every change is durable in the store before it is applied here, and
counts from the very next call. Secrets are left to `credentials.py`; which calls ask, and what follows a refusal, to the router.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import msgspec

from ksi_daemon.access import Access, Need
from ksi_daemon.errors import BadSettings, Conflict, Invalid, NotFound
from ksi_daemon.gate.credentials import Credentials
from ksi_daemon.gate.grants import Chain, Decision, Rule, RuleSet
from ksi_daemon.gate.limits import Rate
from ksi_daemon.gate.profiles import Profile, find_profile
from ksi_daemon.gate.tokens import AGENT_NAME
from ksi_daemon.identifiers import new_id
from ksi_daemon.principal import Principal
from ksi_daemon.storage.agents import Agent, AgentStore, Credential, Grant

GRANTS_LIMIT = 1_000  # per agent
DEPTH_LIMIT = 8  # of agents below each other
CHILDREN_LIMIT = 1_000  # of one agent
EXPIRY_CHECK_S = 1.0
RESERVED_NAMES = frozenset({"operator", "daemon", "plugin", "agent", "unknown", "all"})  # they mean another caller


class RunBy(msgspec.Struct, frozen=True, kw_only=True):
    """How the daemon runs an agent that does not connect by itself."""

    provider: str
    workspace: str | None
    options: dict[str, Any]
    daemon_id: str


class Rights:
    """Agents, grants and profiles, with the agents' credentials.

    `on_change` is called with the agents that a change is about, `on_revoked` with the agent whose token was revoked.
    """

    def __init__(
        self, store: AgentStore, profiles: Mapping[str, Profile], *, clock: Callable[[], float] = time.time
    ) -> None:
        self.version = 0
        self.agents: dict[str, Agent] = {}
        self.grants: dict[str, dict[str, Grant]] = {}
        self.profiles = dict(profiles)
        self.plugin_names: Callable[[], Collection[str]] = lambda: ()
        self.on_change: Callable[[set[str]], None] = lambda agents: None
        self.on_revoked: Callable[[str], None] = lambda agent_id: None
        self._store = store
        self._changing = asyncio.Lock()
        self.credentials = Credentials(
            store,
            clock=clock,
            changing=self._changing,
            require_agent=self.agent,
            on_change=self._credential_changed,
        )
        self._being_frozen: set[str] = set()  # agents frozen since they were last unfrozen
        self._chains: dict[
            str, dict[tuple[str | None, str | None], Chain]
        ] = {}  # by agent, then credential and ceiling
        self._children: dict[str, set[str]] = {}  # by parent

    async def load(self) -> None:
        """Fill the memory from the store."""
        agents, credentials, grants = await self._store.load()
        for agent in agents:
            self._add(agent)
        self.credentials.load(credentials)
        for grant in grants:
            self.grants.setdefault(grant.subject, {})[grant.resource] = grant
        for agent in agents:
            if agent.profile not in self.profiles:
                raise BadSettings(
                    f"the agent {agent.agent_id!r} has the profile {agent.profile!r}, which does not exist. "
                    f"Put {agent.profile}.toml back into var/profiles/."
                )

    # --- reading: what the router asks at every call

    def clock(self) -> float:
        """The time that expiries are held against."""
        return self.credentials.clock()

    def inactive_reason(self, principal: Principal) -> str | None:
        """Why a principal made earlier may not act any more; None while it may."""
        agent = self.agents.get(principal.agent_id or "")
        if agent is None:
            return "the agent was removed"
        for holder in self.lineage(agent.agent_id):
            if holder.terminated_at is not None:
                return "the agent was terminated" if holder is agent else "an agent it descends from was terminated"
            if holder.frozen:
                return "the agent is frozen" if holder is agent else "an agent it descends from is frozen"
        if principal.credential_id is not None and not self.credentials.is_valid(principal.credential_id):
            return "its token is not valid any more"
        return None

    def decide(self, principal: Principal, resource: str, need: Need) -> Decision:
        """Whether a principal holds a right at this moment."""
        return self.chain_of(principal).decide(resource, need, self.clock())

    def chain_of(self, principal: Principal) -> Chain:
        """The rules that decide about an agent that calls."""
        return self.chain(principal.agent_id or "", principal.credential_id, ceiling=principal.ceiling)

    def chain(self, agent_id: str, credential_id: str | None = None, *, ceiling: str | None = None) -> Chain:
        """An agent's own rules with its session's, those of each agent above it, and those of the ceiling: all must allow."""
        chains = self._chains.get(agent_id)
        if chains is None:
            chains = self._chains[agent_id] = {}
        known = chains.get((credential_id, ceiling))
        if known is None:
            lineage = self.lineage(agent_id)
            links = [RuleSet(self.rules(agent, credential_id), whose="own") for agent in lineage[:1]]
            links += [RuleSet(self.rules(agent), whose="parent") for agent in lineage[1:]]
            if ceiling is not None:
                links.append(RuleSet(find_profile(self.profiles, ceiling).rules, whose="ceiling"))
            known = chains[credential_id, ceiling] = Chain(links)
        return known

    def rules(self, agent: Agent, credential_id: str | None = None) -> list[Rule]:
        """What an agent holds by its profile, its grants and, in a session, its scopes."""
        held = list(self.profiles[agent.profile].rules)
        held += [
            Rule(
                grant.resource,
                grant.access,
                f"grant {grant.grant_id}",
                grant.expires_at,
                overrides=True,
                expired=grant.expired_at is not None,
            )
            for grant in self.grants.get(agent.agent_id, {}).values()
        ]
        credential = self.credentials.find(credential_id or "")
        return held + (scope_rules(credential) if credential is not None else [])

    def lineage(self, agent_id: str) -> list[Agent]:
        """An agent, its parent, its parent's parent…"""
        found: list[Agent] = []
        while (agent := self.agents.get(agent_id)) is not None and agent not in found:
            found.append(agent)
            agent_id = agent.parent_id or ""
        return found

    def rate(self, agent: Agent) -> Rate:
        """The limits of an agent's profile."""
        return self.profiles[agent.profile].rate

    def children(self, agent_id: str) -> set[str]:
        """Every agent below this one."""
        found: set[str] = set()
        waiting = [agent_id]
        while waiting:
            below = self._children.get(waiting.pop(), set()) - found
            found |= below
            waiting += below
        return found

    def children_of(self, agent_id: str) -> set[str]:
        """The agents directly below this one."""
        return set(self._children.get(agent_id, ()))

    def agent(self, agent_id: str) -> Agent:
        """A known agent, or `NotFound`."""
        agent = self.agents.get(agent_id)
        if agent is None:
            raise NotFound(f"there is no agent {ascii(agent_id)[:80]}", hint="`ksi agents ls` shows those there are")
        return agent

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

    def held(self, subject: str, resource: str) -> Grant:
        """A grant that is there, or `NotFound`."""
        held = self.grants.get(self.agent(subject).agent_id, {}).get(resource)
        if held is None:
            raise NotFound(
                f"{subject} has no grant on {ascii(resource)[:200]}",
                hint="what a profile gives is taken away by granting access none",
            )
        return held

    # --- changing: one at a time, durable first, then in force

    async def add_agent(
        self, agent_id: str, profile: str, *, parent_id: str | None, note: str, by: str, run: RunBy | None = None
    ) -> Agent:
        """A new agent. Look-alike names are impossible: only plain ASCII letters, digits and . _ - are allowed."""
        async with self._changing:
            return await self._add_agent(agent_id, profile, parent_id=parent_id, note=note, by=by, run=run)

    async def ensure_agent(self, agent_id: str, profile: str, *, note: str, by: str) -> Agent:
        """The agent of this name, added if there is none."""
        async with self._changing:
            if agent_id in self.agents:
                return self.agents[agent_id]
            return await self._add_agent(agent_id, profile, parent_id=None, note=note, by=by)

    async def _add_agent(
        self, agent_id: str, profile: str, *, parent_id: str | None, note: str, by: str, run: RunBy | None = None
    ) -> Agent:
        self._refuse_name(agent_id)
        close = [other for other in self.agents if other.lower() == agent_id.lower()]
        if close:
            raise Conflict(
                f"there is an agent {close[0]!r} already", hint="names that differ only in case are refused too"
            )
        if parent_id is not None:
            self._refuse_parent(parent_id)
        agent = Agent(agent_id, find_profile(self.profiles, profile).name, parent_id, False, note, self.clock(), by)
        if run is not None:
            agent = msgspec.structs.replace(agent, **msgspec.structs.asdict(run))
        await self._store.save_agent(agent)
        self._add(agent)
        self._changed({agent_id})
        return agent

    def _refuse_parent(self, parent_id: str) -> None:
        parent = self.agent(parent_id)
        if parent.terminated_at is not None:
            raise Conflict(f"{parent_id} is terminated", hint=f"ksi agents restart {parent_id}")
        if len(self.lineage(parent_id)) >= DEPTH_LIMIT:
            raise Conflict(f"{parent_id} is {DEPTH_LIMIT} agents deep already", hint="let one further up spawn it")
        if len(self._children.get(parent_id, ())) >= CHILDREN_LIMIT:
            raise Conflict(f"{parent_id} has {CHILDREN_LIMIT} children already", hint="remove those that have ended")

    def _refuse_name(self, agent_id: str) -> None:
        if not AGENT_NAME.fullmatch(agent_id):
            raise Invalid(
                f"{ascii(agent_id)[:80]} is not a valid agent name",
                hint="1 to 64 of A-Z a-z 0-9 . _ -, and the first is a letter or a digit",
            )
        if agent_id.lower() in RESERVED_NAMES or agent_id.lower() in self.plugin_names():
            raise Invalid(
                f"an agent cannot be called {agent_id!r}: that name means another caller",
                hint="choose a name that is neither a plugin's nor one of " + ", ".join(sorted(RESERVED_NAMES)),
            )

    async def set_profile(self, agent_id: str, profile: str) -> Agent:
        """Another profile."""
        found = find_profile(self.profiles, profile)
        async with self._changing:
            await self._store.save_agent(msgspec.structs.replace(self.agent(agent_id), profile=found.name))
            # It may have been frozen meanwhile: only the profile is changed here.
            self._put([msgspec.structs.replace(self.agent(agent_id), profile=found.name)])
            return self.agents[agent_id]

    async def freeze(self, agent_ids: Iterable[str], *, frozen: bool) -> None:
        """Stop these agents, or let them act again. Freezing waits for nothing: it is in force before it is on disk."""
        chosen = [self.agent(agent_id).agent_id for agent_id in agent_ids]
        if frozen:
            self._being_frozen.update(chosen)
            self._put([msgspec.structs.replace(self.agents[agent_id], frozen=True) for agent_id in chosen])
        else:
            self._being_frozen.difference_update(chosen)
        async with self._changing:
            there = [agent_id for agent_id in chosen if agent_id in self.agents]
            for agent_id in there:
                await self._store.save_agent(msgspec.structs.replace(self.agents[agent_id], frozen=frozen))
            # Whoever was frozen again while this waited stays frozen.
            chosen = [agent_id for agent_id in there if frozen or agent_id not in self._being_frozen]
            self._put([msgspec.structs.replace(self.agents[agent_id], frozen=frozen) for agent_id in chosen])

    def refuse_children(self, agent_id: str) -> None:
        """Refuse to remove an agent with agents below it."""
        self.agent(agent_id)
        if children := self.children(agent_id):
            raise Conflict(f"{agent_id} has children: {', '.join(sorted(children))}", hint="remove them first")

    async def terminate(self, agent_ids: Iterable[str]) -> None:
        """These agents may do nothing more: their credentials end. In force before it is on disk, like freezing."""
        chosen = [self.agent(agent_id).agent_id for agent_id in agent_ids]
        now = self.clock()
        self._put([msgspec.structs.replace(self.agents[agent_id], terminated_at=now) for agent_id in chosen])
        async with self._changing:
            for agent_id in chosen:
                if agent_id in self.agents:
                    await self._store.save_agent(self.agents[agent_id])
        for agent_id in chosen:
            for credential in self.credentials.live(agent_id):
                await self.credentials.end(credential.credential_id)

    async def revive(self, agent_id: str) -> Agent:
        """A terminated agent may act again, with new credentials."""
        async with self._changing:
            agent = msgspec.structs.replace(self.agent(agent_id), terminated_at=None)
            await self._store.save_agent(agent)
            self._put([agent])
            return agent

    async def remove_agent(self, agent_id: str) -> None:
        """An agent goes with its credentials and grants. One with children stays."""
        async with self._changing:
            self.refuse_children(agent_id)
            await self._store.delete_agent(agent_id)
            agent = self.agents.pop(agent_id)
            self._children.get(agent.parent_id or "", set()).discard(agent_id)
            self.grants.pop(agent_id, None)
            self.credentials.drop_agent(agent_id)
            self._changed({agent_id})

    async def grant(self, subject: str, resource: str, access: Access, *, expires_at: float | None, by: str) -> Grant:
        """Give (or, with access none, take) one right. A grant on the same resource is replaced."""
        Rule(resource, access, "check", expires_at)
        async with self._changing:
            self.agent(subject)
            held = self.grants.get(subject, {})
            if len(held) >= GRANTS_LIMIT and resource not in held:
                raise Conflict(f"{subject} has {GRANTS_LIMIT:,} grants already", hint="use wider ones: events/notes:*")
            made = Grant(new_id(), subject, resource, access, expires_at, self.clock(), by)
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

    async def store_expired(self) -> None:
        """Write down which grants and credentials have ended by themselves: they do not revive when the clock is set back."""
        now = self.clock()
        ended = [
            grant
            for held in self.grants.values()
            for grant in held.values()
            if grant.expired_at is None and grant.expires_at is not None and now >= grant.expires_at
        ]
        for grant in ended:
            self.grants[grant.subject][grant.resource] = msgspec.structs.replace(grant, expired_at=now)
            for agent_id in (grant.subject, *self.children(grant.subject)):
                self._chains.pop(agent_id, None)
        for grant in ended:
            async with self._changing:
                held = self.grants.get(grant.subject, {}).get(grant.resource)
                if held is not None and held.grant_id == grant.grant_id:  # not revoked or replaced meanwhile
                    await self._store.save_grant(held)
        await self.credentials.store_run_out()

    def _put(self, agents: list[Agent]) -> None:
        self.agents |= {agent.agent_id: agent for agent in agents}
        self._changed({below for agent in agents for below in (agent.agent_id, *self.children(agent.agent_id))})

    def _add(self, agent: Agent) -> None:
        self.agents[agent.agent_id] = agent
        if agent.parent_id is not None:
            self._children.setdefault(agent.parent_id, set()).add(agent.agent_id)

    def _credential_changed(self, credential: Credential) -> None:
        self._chains.get(credential.agent_id, {}).pop((credential.credential_id, credential.ceiling), None)
        if credential.revoked_at is not None:
            self.on_revoked(credential.agent_id)

    def _changed(self, agents: Iterable[str]) -> None:
        changed = set(agents)
        self.version += 1
        for agent_id in changed:
            self._chains.pop(agent_id, None)
        self.on_change(changed)


async def keep_expired(rights: Rights) -> None:
    """Every second, until cancelled, and once more at the end: write down what has ended by itself."""
    try:
        while True:
            await rights.store_expired()
            await asyncio.sleep(EXPIRY_CHECK_S)
    finally:
        await rights.store_expired()


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
