"""HTTP: one listener, on loopback."""
