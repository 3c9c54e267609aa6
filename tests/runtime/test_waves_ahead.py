"""How many waves are in flight on several workers, and what that does to staleness."""

from __future__ import annotations

import os
from functools import partial

import pytest
import torch

from ampnet import Processes, Update
from ampnet.events.staleness import StalenessMeter
from tests.replicas.small import chain, rows

SGD = partial(torch.optim.SGD, lr=0.01)
pytestmark = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")


@pytest.mark.parametrize(("wave_size", "most"), [(None, 4), (1, 16)])
def test_two_waves_for_each_worker_unless_somebody_chose_their_size(wave_size: int | None, most: int) -> None:
    """Every instance makes an update, so a wave is one instance: 16 of them would be 16 waves in flight.

    worker 0     [0][1][2][3]. . . .      <- the fifth begins when the gradients of the first are back
    worker 1     ....[0][1]...
    """
    meter = StalenessMeter()
    graph = chain("linear", "tanh", "linear", "linear")
    first, *others = graph.parameterised()
    affinity = {first: 0, **dict.fromkeys(others, 1)}
    update = Update(SGD, 1, "instances")
    with Processes(
        graph,
        workers=2,
        affinity=affinity,
        update=update,
        max_active_keys=16,
        wave_size=wave_size,
        listeners=[meter],
    ) as runtime:
        stats = runtime.train(rows(*[2] * 200))
        assert stats.instances == 200
        assert 1 < runtime.stats().in_flight <= most
    assert meter.overall().max < most
