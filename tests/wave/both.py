"""The same instances by waves and by messages, and all that came of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ampnet import Graph, Inline, Instance, Stream, StreamStats, Update
from ampnet.testing import assert_close
from ampnet.wave.player import Player
from tests.replicas.small import MODELS, case, hand, taken

NAMES = (*MODELS, "by-hand")


@cache
def _made(name: str) -> tuple[Graph, tuple[Instance, ...]]:
    if name == "by-hand":
        graph, instances = hand()
        return graph, tuple(instances)
    of = case(name)
    compiled = of.graph()
    return compiled, tuple(of.instances(compiled))


def model(name: str) -> tuple[Graph, list[Instance]]:
    """A small model of the registry in float64, and instances of it. The graph is one for all who ask."""
    graph, instances = _made(name)
    return graph, list(instances)


@dataclass
class Outcome:
    """What came of some instances in training, with frozen weights, and in inference."""

    gradients: dict[str, Tensor]
    train: StreamStats
    valid: StreamStats
    counts: dict[str, int]
    """By node: the messages whose gradients were counted."""


def player_of(runtime: Inline) -> Player:
    assert runtime.player is not None, "these nodes cannot be played"
    return runtime.player


def outcome(graph: Graph, instances: Sequence[Instance], *, waves: bool, **how: Any) -> Outcome:
    taken(graph)
    with Inline(graph, waves=waves, **how) as runtime:
        train = runtime.train(instances)
        counts = {name: node.updater.counter for name, node in graph.parameterised().items()}
        found = taken(graph)
        (valid,) = runtime.run([Stream(instances, False, "valid", keep_predictions=True)])
        if waves:
            assert player_of(runtime).instances == 2 * len(instances)
        assert runtime.held() == {}
    return Outcome(found, train, valid, counts)


def assert_same(got: Outcome, want: Outcome, tolerance: float = 1e-10) -> None:
    assert_close(got.gradients, want.gradients, tolerance)
    assert got.counts == want.counts
    for a, b in ((got.train, want.train), (got.valid, want.valid)):
        assert (a.instances, a.records, a.skipped, a.complete) == (b.instances, b.records, b.skipped, b.complete)
        numbers = ({"loss": s.loss, **s.metrics} for s in (a, b))
        assert_close(*({n: torch.tensor(v, dtype=torch.float64) for n, v in one.items()} for one in numbers), tolerance)
    assert_close(predictions(got.valid), predictions(want.valid), tolerance)


def predictions(stats: StreamStats) -> dict[str, Tensor]:
    """By position, loss and state, whatever numbers the instances had."""
    return {
        f"{position} {node} {sorted((f, v) for f, v in state.items() if f != 'instance')}": rows
        for position, some in stats.predictions.items()
        for node, state, rows in some
    }


def weights_after(
    make: Callable[[], tuple[Graph, Sequence[Instance]]], update: Update, epochs: int = 3, **how: Any
) -> dict[bool, dict[str, Tensor]]:
    """The weights that training by waves (True) and by messages (False) ends with."""
    found = {}
    for waves in (True, False):
        graph, instances = make()
        before = {name: value.clone() for name, value in graph.module().state_dict().items()}
        with Inline(graph, update=update, waves=waves, **how) as runtime:
            for _ in range(epochs):
                runtime.train(instances)
            if waves:
                assert player_of(runtime).instances == epochs * len(instances)
        found[waves] = {name: value.clone() for name, value in graph.module().state_dict().items()}
        assert any(not torch.equal(found[waves][name], value) for name, value in before.items())
        graph.module().load_state_dict(before)
    return found
