"""Who is calling: the one record every door makes and every check reads."""

from typing import Literal

import msgspec


class Principal(msgspec.Struct, frozen=True):
    """A caller. Made by a door from what it can prove (a peer's uid, later a token), never from what the caller says."""

    kind: Literal["operator", "plugin", "daemon"]
    name: str
    mailbox: str | None = None  # where `message:subscribe` delivers: the caller's own stream, if its door has one


DAEMON = Principal(kind="daemon", name="daemon")
