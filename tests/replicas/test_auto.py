"""How many replicas: by what an instance costs its nodes, by what it costs the controller, and by cores."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from torch import Tensor

from ampnet import Graph, Instance, Update
from ampnet.nodes import Function
from ampnet.replicas import auto
from ampnet.replicas.auto import PUMPED, suggest
from ampnet.runtime import placement
from ampnet.runtime.inline import Inline
from tests.replicas.small import SGD, chain, rows, weights


def slow(seconds: float) -> Graph:
    """A chain in which every message takes so long."""
    graph = chain("linear", "tanh", "linear")

    def wait(x: Tensor) -> Tensor:
        time.sleep(seconds * len(x))
        return x * 1.0

    node = Function(wait)
    node.name = "tanh2"
    graph.nodes["tanh2"] = node
    return graph


@pytest.fixture(autouse=True)
def _briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_SECONDS", 0.02)


def test_as_many_as_cores_where_nodes_have_much_to_do() -> None:
    found = suggest(slow(5e-3), rows(*[1] * 4), 4, enough_rows=None)
    assert found.replicas == 4
    assert found.work > 5e-3
    assert found.controller >= PUMPED


def test_one_where_the_controller_has_the_most_to_do() -> None:
    def instances() -> Iterator[Instance]:
        for instance in rows(*[1] * 4):
            time.sleep(10e-3)
            yield instance

    found = suggest(slow(1e-4), instances(), 8, enough_rows=None)
    assert found.replicas == 1
    assert found.controller > 10e-3


def test_between_them_as_many_as_the_controller_can_keep_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "PUMPED", 4e-3)
    found = suggest(slow(10e-3), rows(*[1] * 4), 64, enough_rows=None)
    assert found.replicas == int(found.work / found.controller)
    assert found.replicas >= 2


def test_one_core_or_no_data_needs_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "Trial", lambda *a, **k: pytest.fail("a trial"))
    assert suggest(chain("linear"), rows(1), 1, enough_rows=None).replicas == 1
    assert suggest(chain("linear"), [], 8, enough_rows=None).replicas == 1


def test_a_trial_takes_a_few_instances_and_leaves_no_trace() -> None:
    graph, taken = chain("linear"), []
    with Inline(graph, update=Update(SGD), waves=False) as runtime:  # an update for every message
        before = weights(graph)

        def endless() -> Iterator[Instance]:
            for number in range(10**6):
                taken.append(number)
                yield from rows(1, seed=number)

        suggest(graph, endless(), 2, enough_rows=None)
        assert len(taken) == auto._TRIED
        assert all((a == b).all() for name in before for a, b in zip(before[name], weights(graph)[name], strict=True))
        assert not any(float(total.abs().sum()) for total in graph.gradients().values())
        runtime.train(rows(2))
        assert graph.parameterised()["linear1"].updater.version == 2
