"""MCP: the state of the server that agents connect to."""

from ksi_daemon.mcp.endpoint import SESSION_REVISIONS, STATELESS_REVISION
from ksi_daemon.mcp.mcp_service import McpService
from ksi_daemon.plugin import Context, Field, Nothing, Plugin, Result
from ksi_daemon.process.control import Control

plugin = Plugin("mcp", uses=[McpService, Control])


class Status(Result):
    state: str = Field(description="starting until the protocol's library is imported, then serving.")
    url: str = Field(description="Where agents connect; the views are below it.")
    revisions: list[str] = Field(description="The revisions of the protocol that are spoken, oldest first.")
    tools: int = Field(description="How many tools there are, for all agents together.")
    views: list[str] = Field(description="The views, each at its own address: URL/VIEW.")
    requests: dict[str, int] = Field(description="Requests under way, by agent.")
    streams: dict[str, int] = Field(description="Open streams, by agent.")


@plugin.handles("mcp:status", reads=True, operator_only=True)
async def status(ctx: Context, params: Nothing) -> Status:
    """Say what the MCP server serves and who uses it at this moment."""
    service = ctx.capability(McpService)
    return Status(
        state="serving" if service.is_serving else "starting",
        url=ctx.capability(Control).mcp_url,
        revisions=[*SESSION_REVISIONS, STATELESS_REVISION],
        tools=len(service.tools.own_names),
        views=service.tools.view_names,
        requests=dict(sorted(service.endpoint.requests.items())),
        streams=dict(sorted(service.endpoint.streams.items())),
    )
