"""Instances to come: lists are looked ahead in, loaders are not; and one that fails fails in its turn."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from ampnet import Inline, Instance, Model, Seq, Update, compile
from ampnet.coming import Made
from ampnet.errors import AmpnetError
from ampnet.fitting.loop import fit
from ampnet.lang import each, loss, reduce
from ampnet.lang.compiled import Compiled
from ampnet.nodes import Linear
from tests.wave.both import player_of
from tests.wave.test_gradients import F64, chain, rows_of
from tests.wave.test_streams import _lots

SGD = partial(torch.optim.SGD, lr=0.05)


class Sums(Model):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, xs: Seq, y: Any) -> None:
        loss(reduce(each(self.layer, xs), "sum"), y, "squared_error")


def sums(*sizes: int) -> tuple[Compiled, list[Any]]:
    """A graph, and samples of these lengths."""
    torch.manual_seed(0)
    samples = [(Seq(torch.randn(n, 2)), torch.randn(1)) for n in sizes]
    return compile(Sums(), *samples[0]), samples


def test_a_list_is_looked_ahead_in() -> None:
    """One in flight, and yet all are planned at once."""
    graph = chain(Linear(4, 4, dtype=F64))
    with Inline(graph, max_active_keys=1, update=Update(SGD, 1, "instances")) as runtime:
        lots = _lots(runtime)
        runtime.train(rows_of(1, 2, 3, 4, 5, 6, seed=1))
        assert lots == [6]


def test_a_loader_is_asked_for_one_instance_at_a_time() -> None:
    graph = chain(Linear(4, 4, dtype=F64))
    asked: list[int] = []

    def loader() -> Any:
        for i, one in enumerate(rows_of(1, 2, 3, 4, 5, 6, seed=1)):
            asked.append(i)
            yield one

    with Inline(graph, max_active_keys=1, update=Update(SGD, 1, "instances")) as runtime:
        lots = _lots(runtime)
        heard: list[int] = []
        player_of(runtime)._over = (lambda over: lambda lot: (heard.append(len(asked)), over(lot)))(  # type: ignore[func-returns-value]
            player_of(runtime)._over
        )
        runtime.train(loader())
        assert heard == [2, 3, 4, 5, 6, 6]
        assert lots[:2] == [1, 1] or lots[0] == 2  # the one that is read ahead is planned with it


def test_weights_are_those_of_planning_one_by_one() -> None:
    """To the bit."""
    weights = []
    for listed in (True, False):
        torch.manual_seed(0)
        graph = chain(Linear(4, 4, dtype=F64))
        given = rows_of(1, 5, 2, 4, 3, 6, 1, 2, seed=1)
        with Inline(graph, max_active_keys=2, update=Update(SGD, 2, "instances")) as runtime:
            runtime.train(given if listed else iter(given))
        weights.append([w.clone() for node in graph.parameterised().values() for w in node.updater.weights])
    for a, b in zip(*weights, strict=True):
        assert torch.equal(a, b)


def test_an_instance_that_cannot_be_planned_fails_in_its_turn() -> None:
    graph = chain(Linear(4, 4, dtype=F64))
    good = rows_of(1, 2, 3, 4, seed=1)
    bad = Instance({"x": good[2].feeds["x"]})
    with Inline(graph, max_active_keys=1, update=Update(SGD, 1, "instances")) as runtime:
        with pytest.raises(AmpnetError):
            runtime.train([*good[:3], bad])
        assert player_of(runtime).instances == 3
        lots = _lots(runtime)
        runtime.train(rows_of(7, 8, 9, seed=1))
        assert lots == [3], "looked ahead again, after the error"


def test_samples_in_memory_are_converted_ahead_and_once() -> None:
    graph, samples = sums(1, 2, 3, 4, 5)
    assert isinstance(graph.instances(samples, shuffle=True, seed=0), Made)
    made = graph.instances(samples)
    assert isinstance(made, Made)
    ahead = made.coming(3)
    assert [next(made) for _ in range(3)] == ahead
    assert [len(one.feeds["xs"]) for one in made] == [4, 5]
    with Inline(graph, max_active_keys=1, update=Update(SGD, 1, "instances")) as runtime:
        lots = _lots(runtime)
        runtime.train(graph.instances(samples))
        assert lots == [5]


def test_a_sample_that_is_no_instance_raises_when_it_is_read() -> None:
    graph, samples = sums(1, 2, 3)
    made = graph.instances([*samples[:2], (1, 2), samples[2]])
    assert isinstance(made, Made)
    assert len(made.coming(9)) == 2
    assert len([next(made), next(made)]) == 2
    with pytest.raises(AmpnetError):
        next(made)
    assert list(made) == []  # as a generator after an error


def test_fit_looks_ahead_in_every_epoch() -> None:
    graph, samples = sums(1, 2, 3, 4, 5)
    with Inline(graph, max_active_keys=1, update=Update(SGD, 1, "instances")) as runtime:
        lots = _lots(runtime)
        fit(runtime, train=samples, epochs=2)
        assert lots == [5]
