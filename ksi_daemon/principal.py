"""Who is calling: the one record that every transport makes and every check reads."""

from typing import Literal

import msgspec

Transport = Literal["socket", "http", "plugin", "daemon"]


class Principal(msgspec.Struct, frozen=True):
    """A caller. Made by a transport from what it can prove (a peer's uid, a token), never from what the caller says."""

    kind: Literal["operator", "agent", "plugin", "daemon"]
    name: str
    transport: Transport = "daemon"
    mailbox: str | None = None  # where `message:subscribe` delivers: the caller's own stream, if its transport has one
    agent_id: str | None = None
    user_id: str | None = None
    conversation_id: str | None = None
    completion_id: str | None = None
    credential_id: str | None = None
    session_id: str | None = None
    resumes: bool = False  # whether the completion's model has the history of its conversation
    ceiling: str | None = None  # the profile that its rights may not exceed, whatever the agent holds
    default_view: str | None = None  # what the plain MCP address shows; all tools without one
    listener_of: str | None = None  # the plugin whose listener acts with this principal's rights
    impersonated_by: str | None = None  # "operator" when the operator acts as this agent
    label: str = (
        ""  # with the kind, so that no agent can pass for another kind by its name: operator, daemon, agent/scout
    )

    def __post_init__(self) -> None:
        label = self.kind if self.kind in ("operator", "daemon") else f"{self.kind}/{self.name}"
        msgspec.structs.force_setattr(self, "label", label)


DAEMON = Principal(kind="daemon", name="daemon")
