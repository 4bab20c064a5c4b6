"""The operator's unix socket: newline-delimited JSON, for the daemon's own user only."""
