"""Runs code off the event loop in threads and processes, and imports plugin code."""
