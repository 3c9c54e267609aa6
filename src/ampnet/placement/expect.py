"""Expect: how fast a cut will be, or replicas of the whole model, against one core in waves.

    seconds for a wave = the largest of
        the load of the busiest worker      divided by the number of replicas of the whole model
        what the controller does for it     one process pumps for all workers
        all loads together / cores
        its way through all workers / waves in flight

A worker is slower the more of them are busy: they share caches and memory (`CROWD`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ampnet.placement.costs import HOP, Costs

PUMPED, HEARD = 25e-6, 200e-6
"""Seconds that the controller takes for an instance, besides making it, and for a wave: `bench/replicas.py` measures
them together."""
WAVE = 100e-6
"""Fixed seconds of a wave at each worker of its team: receiving, beginning and ending it."""
FLIGHT = 3
"""Default number of waves in flight for each worker."""
CROWD = 0.05
"""By how much each further busy worker slows down all of them: 16 replicas are 8 to 10 x one (`bench/replicas.py`)."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """The expected speed of a placement."""

    speedup: float
    """Against one core in waves."""
    busy: tuple[float, ...]
    """Share of the time in which each worker works; of replicas, the workers of one."""
    bound: str
    """What bounds it: "worker", "controller", "cores", "in flight"."""
    worker: int
    """The busiest worker."""
    node: str
    """The node that takes most of its time."""
    share: float
    """The share of that node in the worker's time."""

    def words(self) -> str:
        """What bounds it, as text."""
        if self.bound == "worker":
            return f"bounded by {what_bounds(self.worker, self.node, self.share)}"
        by = {"controller": "the controller", "cores": "the cores", "in flight": "waiting for waves in flight"}
        return f"bounded by {by[self.bound]}"


def what_bounds(worker: int, node: str, share: float) -> str:
    """A text with a worker and the node that takes most of its time."""
    return f"worker {worker}: node '{node}' has {share:.0%} of its time".replace("%", " %")


def expect(
    costs: Costs,
    hosts: Mapping[str, int],
    *,
    replicas: int = 1,
    cores: int | None = None,
    in_flight: int | None = None,
    making: float = 0.0,
) -> Expectation:
    """The expected speed of this placement, with this number of replicas.

    ``in_flight``: waves of each replica in flight at once; None: enough. ``making``: seconds that it takes the
    controller to make an instance, where that is not done beforehand.
    """
    workers = 1 + max(hosts[name] for name in costs.seconds)
    many = workers * replicas
    crowd = 1 + CROWD * (min(many, cores or many) - 1)
    loads = [crowd * (load + WAVE) for load in costs.loads(hosts, workers)]
    controller = costs.instances * (PUMPED + making) + HEARD + (workers - 1) * HOP
    waits = 1 + (workers - 1) / (2 * (in_flight or FLIGHT * workers))  # waves queue up before a busy worker
    bounds = {
        "in flight": sum(loads) / replicas / in_flight if in_flight is not None and workers > 1 else 0.0,
        "worker": min(waits * max(loads), sum(loads)) / replicas,
        "controller": controller,
        "cores": (sum(loads) + controller) / (cores or many + 1),
    }
    bound = max(bounds, key=lambda name: bounds[name])
    seconds = max(bounds.values())
    worker = loads.index(max(loads))
    node = largest(costs, hosts, worker)
    busy = tuple(min(1.0, load / replicas / seconds) for load in loads)
    return Expectation(costs.total / seconds, busy, bound, worker, node, crowd * costs.own(node) / loads[worker])


def largest(costs: Costs, hosts: Mapping[str, int], worker: int) -> str:
    """The node that has most of a worker's time."""
    return max((name for name in costs.seconds if hosts[name] == worker), key=costs.own)
