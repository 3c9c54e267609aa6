"""Who counts as cut off: seconds count while both ends of a missing connection look."""

from __future__ import annotations

import pytest

pytest.importorskip("zmq", reason="pyzmq is in the extra 'cluster'")
from ampnet.runtime.cluster.reach import Reach, timings
from ampnet.runtime.transport.tcp import BEAT, DEAD

CONTROLLER = 3


def test_the_worker_that_most_others_miss_is_lost_after_a_while() -> None:
    reach = Reach(CONTROLLER)
    for now in (0.0, 5.0, 10.0):
        assert reach.lost(now, 10.0) is None
        reach.looked(0, [2], now)
        reach.looked(1, [2], now)
        reach.looked(2, [], now)
    worker, other = reach.lost(10.1, 10.0) or (None, None)
    assert (worker, other) == (2, 0)


def test_a_worker_that_misses_the_controller_is_lost_itself() -> None:
    reach = Reach(CONTROLLER)
    reach.looked(1, [CONTROLLER], 0.0)
    assert reach.lost(11.0, 10.0) == (1, CONTROLLER)


def test_a_connection_that_is_made_again_starts_from_zero() -> None:
    reach = Reach(CONTROLLER)
    reach.looked(CONTROLLER, [1], 0.0)
    reach.looked(CONTROLLER, [], 9.0)
    reach.looked(CONTROLLER, [1], 9.5)
    assert reach.lost(11.0, 10.0) is None
    assert reach.lost(20.0, 10.0) == (1, CONTROLLER)


@pytest.mark.parametrize("busy", [0, 1])
def test_a_party_that_computes_for_long_is_excused(busy: int) -> None:
    """It accepts no connection meanwhile, or does not know that its own was made."""
    reach = Reach(CONTROLLER)
    reach.looked(0, [1], 0.0)
    reach.busy(busy, 30.0)
    assert reach.lost(39.0, 10.0) is None
    assert reach.lost(41.0, 10.0) is not None


def test_dead_connections_are_noticed_before_workers_are_lost() -> None:
    assert timings(30.0) == {"beat": BEAT, "dead": DEAD, "probe": BEAT}
    assert timings(600.0) == timings(30.0)
    assert timings(3.0)["dead"] < 1.0
