"""Judged sets, measures and the run behind `scripts/eval-retrieval`."""
