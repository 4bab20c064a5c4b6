"""MCP for agents: one server over HTTP that offers the daemon's events as tools."""
