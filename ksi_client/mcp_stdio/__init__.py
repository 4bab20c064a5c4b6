"""The bridge behind `ksi mcp stdio`: JSON-RPC lines of a client on one side, the hub's MCP endpoint over HTTP on the other."""
