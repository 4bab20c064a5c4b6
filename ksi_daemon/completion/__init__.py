"""Completions: runs of an agent's model, queued per conversation, by one of several providers."""
