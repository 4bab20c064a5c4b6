"""Agents from the outside: the configuration with which an MCP client connects as one of them."""
