"""Who is calling: the one record every door makes and every check reads."""

from typing import Literal

import msgspec

Door = Literal["socket", "http", "plugin", "daemon"]


class Principal(msgspec.Struct, frozen=True):
    """A caller. Made by a door from what it can prove (a peer's uid, a token), never from what the caller says."""

    kind: Literal["operator", "agent", "plugin", "daemon"]
    name: str
    door: Door = "daemon"
    mailbox: str | None = None  # where `message:subscribe` delivers: the caller's own stream, if its door has one
    agent_id: str | None = None
    user_id: str | None = None
    conversation_id: str | None = None
    completion_id: str | None = None
    credential_id: str | None = None
    session_id: str | None = None
    acting: str | None = None  # who is in this agent's shoes, if somebody is


DAEMON = Principal(kind="daemon", name="daemon")
