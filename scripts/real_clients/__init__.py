"""`scripts/e2e-claude` and `scripts/e2e-codex`: real clients as agents of a hub, with a scripted model."""
