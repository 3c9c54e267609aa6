"""Waves planned ahead: the same weights to the bit, errors in their own wave, and nothing on a processor."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from ampnet import Inline, Instance, Update
from ampnet.errors import AmpnetError
from ampnet.nodes import Linear
from tests.wave.both import NAMES, model, player_of
from tests.wave.test_gradients import F64, chain, rows_of

SGD = partial(torch.optim.SGD, lr=0.05)


def weights(graph: Any) -> list[torch.Tensor]:
    return [w.clone() for node in graph.parameterised().values() for w in node.updater.weights]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("schedule", ["backward-first", "fifo"])
def test_weights_are_those_without(name: str, schedule: str) -> None:
    graph, instances = model(name)
    before = {n: v.clone() for n, v in graph.module().state_dict().items()}  # other tests have graphs over the same
    found = []
    for ahead in (False, True):
        graph.module().load_state_dict(before)
        settings = {"update": Update(SGD, 2, "instances"), "schedule": schedule}
        with Inline(graph, max_active_keys=4, **settings) as runtime:  # type: ignore[arg-type]
            planner = player_of(runtime).planner
            assert not planner.ahead, "a processor that computes has no time to plan"
            planner.ahead = ahead
            for _ in range(2):
                runtime.train(instances)
            runtime.infer(instances)
            assert ahead or runtime.stats().ahead == 0
        found.append(weights(graph))
    graph.module().load_state_dict(before)
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


def test_every_wave_but_the_first_is_planned_ahead() -> None:
    """Of a list; one at a time."""
    graph = chain(Linear(4, 4, dtype=F64))
    with Inline(graph, max_active_keys=1, update=Update(SGD, 1, "instances")) as runtime:
        planner = player_of(runtime).planner
        planner.ahead = True
        runtime.train(rows_of(1, 2, 3, 4, seed=1))
        assert planner.used_ahead == runtime.stats().ahead == 3
        assert planner._prepared is None
        assert "3 of them planned ahead" in runtime.stats().words()


def test_a_wave_that_does_not_come_is_dropped() -> None:
    """A run that is stopped leaves a plan behind; the next run has other instances."""
    graph = chain(Linear(4, 4, dtype=F64))
    with Inline(graph, max_active_keys=1, update=Update(SGD, 1, "instances")) as runtime:
        player = player_of(runtime)
        player.planner.ahead = True
        runtime.run([_stopping(runtime, rows_of(1, 2, 3, 4, seed=1))])
        assert player.planner._prepared is not None
        runtime.train(rows_of(7, seed=1))
        assert player.planner._prepared is None
        assert player.planner.used_ahead == 0


def _stopping(runtime: Inline, instances: list[Instance]) -> Any:
    """A stream during whose first wave the run is stopped."""
    from ampnet import Stream

    over = player_of(runtime)._over

    def stop(lot: Any) -> None:
        runtime.controller.stop()
        over(lot)

    player_of(runtime)._over = stop
    return Stream(instances)


def test_an_error_is_that_of_its_own_wave() -> None:
    graph = chain(Linear(4, 4, dtype=F64))
    good = rows_of(1, 2, 3, seed=1)
    bad = Instance({"x": good[2].feeds["x"]})
    with Inline(graph, max_active_keys=1, update=Update(SGD, 1, "instances")) as runtime:
        player_of(runtime).planner.ahead = True
        with pytest.raises(AmpnetError):
            runtime.train([*good[:2], bad])
        assert player_of(runtime).instances == 2
        assert player_of(runtime).planner._prepared is None
