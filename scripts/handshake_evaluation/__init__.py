"""`scripts/eval-handshake`: what a full and a thin list of tools cost a model."""
