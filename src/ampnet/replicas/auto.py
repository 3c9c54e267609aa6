"""Auto: how many replicas of a model to make, from what an instance costs.

work on an instance      seconds of one replica: operations of its waves and updates, measured by a short trial on a
                         copy of the graph, with the engine that will train (`ampnet.runtime.stats`)
the controller's part    making the instance, naming it to a worker, hearing of its end. One process does that for
                         all replicas

replicas                 as many as the controller can keep busy, but no more than there are cores
"""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from ampnet.graph import Graph
from ampnet.instance import Instance
from ampnet.runtime.inline import Inline

PUMPED, HEARD = 25e-6, 200e-6
"""Seconds that the controller takes for an instance besides making it, and for a wave: `bench/replicas.py` measures
them together."""
_TRIED = 32
"""Instances of a trial."""
_SECONDS = 0.3
"""How long it lasts at least."""

Make = Callable[[Graph], Inline]
"""The runtime of one replica on a graph, in this process."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What was found out."""

    replicas: int
    """How many to make."""
    work: float
    """Seconds that a replica works on an instance."""
    controller: float
    """Seconds that the controller works on it."""
    engine: str = "waves"
    """What was measured: "waves" or "messages"."""
    wave_size: float = 1.0
    """Instances of a wave, on average; 1 where messages were passed."""


def suggest(graph: Graph, instances: Iterable[Instance], cores: int, make: Make) -> Suggestion:
    """Train a copy of the graph on a few instances in this process, and say how many replicas to make.

    The graph must not be replicated yet. The graph itself, its weights, and torch's random numbers stay as they are.
    """
    began = time.perf_counter()
    some = list(itertools.islice(instances, _TRIED))
    making = (time.perf_counter() - began) / max(1, len(some))
    if not some or cores < 2:
        return Suggestion(1, 0.0, making + PUMPED + HEARD)
    with torch.random.fork_rng(devices=[]), make(copy.deepcopy(graph)) as runtime:
        work = _work(runtime, some)
        found = runtime.stats()
    wave = found.instances / found.waves if found.waves else 1.0
    controller = making + PUMPED + HEARD / wave
    return Suggestion(max(1, min(cores, int(work / controller))), work, controller, found.engine, wave)


def _work(runtime: Inline, instances: list[Instance]) -> float:
    """Seconds of the player or worker for an instance."""
    runtime.rehearse(instances)
    runtime.train(instances)  # warms up
    engine = runtime.worker if runtime.player is None else runtime.player
    assert engine is not None
    step, spent = engine.step, 0.0

    def timed(*most: int) -> bool:
        nonlocal spent
        began = time.perf_counter()
        try:
            return step(*most)
        finally:
            spent += time.perf_counter() - began

    engine.step = timed  # type: ignore[method-assign]
    played, began = 0, time.perf_counter()
    while not played or time.perf_counter() - began < _SECONDS:
        played += runtime.train(instances).instances
    return spent / played
