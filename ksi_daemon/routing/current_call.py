"""The call or notice that the running code handles, so that what a plugin does by itself meanwhile is recorded as caused by it."""

from contextvars import ContextVar

from ksi_daemon.plugin import Context

current_call: ContextVar[Context | None] = ContextVar("current_call", default=None)
