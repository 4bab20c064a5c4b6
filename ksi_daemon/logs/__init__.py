"""Structured logs, redaction of secrets, and the journal of recent calls and notices."""
