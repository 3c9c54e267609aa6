"""Auto: how many replicas of a model to make, from what its nodes cost.

work on an instance        seconds in all nodes, forward and backward, measured by a short trial
the controller's part      making it, pumping it, hearing of its end: one process does that for all replicas

replicas    as many as the controller can keep busy, but no more than there are cores
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from dataclasses import dataclass

from ampnet.graph import Graph
from ampnet.instance import Instance

PUMPED = 250e-6
"""Seconds that the controller takes for one instance besides making it; bench/replicas.py measures it."""
_TRIED = 32


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What was found out."""

    replicas: int
    """How many to make."""
    work: float
    """Seconds that the nodes work on an instance."""
    controller: float
    """Seconds that the controller works on it."""


def suggest(graph: Graph, instances: Iterable[Instance], cores: int, *, enough_rows: int | None) -> Suggestion:
    """Try a few instances in this process, weights frozen. The graph must not be replicated yet."""
    from ampnet.runtime.placement import Trial

    began = time.perf_counter()
    some = list(itertools.islice(instances, _TRIED))
    making = (time.perf_counter() - began) / max(1, len(some))
    controller = making + PUMPED
    if not some or cores < 2:
        return Suggestion(1, 0.0, controller)
    trial = Trial(graph, max_active_keys=4, enough_rows=enough_rows)
    work = sum(trial.run(some).seconds.values()) / max(1, trial.instances)
    return Suggestion(max(1, min(cores, int(work / controller))), work, controller)
