"""Finds, checks, starts and reloads plugins, and watches that none blocks the event loop."""
