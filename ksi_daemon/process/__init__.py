"""The daemon as a process: signals, the var folder and its lock, control."""
