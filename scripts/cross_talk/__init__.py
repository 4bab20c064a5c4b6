"""`scripts/cross-talk`: whether any answer reaches another agent than the one that asked."""
