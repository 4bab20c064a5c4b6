"""Closes the daemon's lock and listeners in children that a plugin forks without starting another program.

A child that kept them would keep the next daemon from starting. Programs that are started do not inherit them: close-on-exec.
"""

import os

_ours: set[tuple[int, int]] = set()


def close_in_forked_children(descriptor: int) -> None:
    """Have this file closed in every forked child, under whatever numbers it is open there."""
    seen = os.fstat(descriptor)
    _ours.add((seen.st_dev, seen.st_ino))


def _close_ours() -> None:
    for name in os.listdir("/proc/self/fd"):
        try:
            seen = os.fstat(int(name))
            if (seen.st_dev, seen.st_ino) in _ours:
                os.close(int(name))
        except OSError:  # the descriptor of the listing itself
            continue


os.register_at_fork(after_in_child=_close_ours)
