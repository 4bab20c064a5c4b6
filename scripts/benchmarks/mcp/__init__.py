"""What one `tools/call` over HTTP costs: our daemon beside a bare ASGI application and a bare server of the MCP SDK."""

from scripts.benchmarks.figure import Figure
from scripts.benchmarks.mcp import tool_calls


def measure(*, quick: bool) -> list[Figure]:
    """Every figure."""
    return tool_calls.measure(quick)
