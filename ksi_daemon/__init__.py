"""KSI: one daemon that gives every agent on the machine identity, tools, events and a record."""

__version__ = "0.1.0"
