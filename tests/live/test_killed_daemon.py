"""kill -9 at any moment: what was acknowledged is there again. How soon the daemon is ready again, `scripts/chaos` measures."""

import random

from tests.live.daemon_process import Daemon
from tests.live.storms import Ledger, kill_under_load

ROUNDS = 6


def test_nothing_that_was_acknowledged_is_lost_to_kill_nine(daemon: Daemon) -> None:
    """F01 K045: the long form is `scripts/chaos`"""
    chance = random.Random(20261118)
    ledger = Ledger()
    daemon.start()
    rounds = [kill_under_load(daemon, ledger, chance) for _ in range(ROUNDS)]
    assert [loss for one in rounds for loss in one.lost] == []
    assert [one.damage for one in rounds] == ["ok"] * ROUNDS
    assert sum(one.acknowledged for one in rounds) >= 20 * ROUNDS, "the load must have been real"
