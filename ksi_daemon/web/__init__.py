"""The HTTP door: one listener, on loopback."""
