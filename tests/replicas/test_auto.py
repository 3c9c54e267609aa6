"""How many replicas: by what an instance costs its nodes, by what it costs the controller, and by cores."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from torch import Tensor

from ampnet import Graph, Instance, Update
from ampnet.nodes import Function
from ampnet.replicas import auto
from ampnet.replicas.auto import HEARD, PUMPED, suggest
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


def one(graph: Graph) -> Inline:
    """One instance in flight, an update for each."""
    return Inline(graph, update=Update(SGD, 1, "instances"))


@pytest.fixture(autouse=True)
def _briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "_SECONDS", 0.02)


def test_as_many_as_cores_where_nodes_have_much_to_do() -> None:
    found = suggest(slow(5e-3), rows(*[1] * 4), 4, one)
    assert found.replicas == 4
    assert found.work > 5e-3
    assert found.controller >= PUMPED + HEARD
    assert (found.engine, found.wave_size) == ("waves", 1)


def test_what_is_heard_of_a_wave_is_shared_by_its_instances() -> None:
    def many(graph: Graph) -> Inline:
        return Inline(graph, update=Update(SGD, 4, "instances"), max_active_keys=16)

    found = suggest(chain("linear"), rows(*[1] * 8), 2, many)
    assert (found.engine, found.wave_size) == ("waves", 4)
    assert PUMPED + HEARD / 4 <= found.controller < PUMPED + HEARD + 1e-3


def test_where_messages_are_passed_those_are_measured() -> None:
    def messages(graph: Graph) -> Inline:
        return Inline(graph, update=Update(SGD, 1, "instances"), waves=False)

    found = suggest(slow(2e-3), rows(*[1] * 4), 4, messages)
    assert (found.engine, found.wave_size, found.replicas) == ("messages", 1, 4)
    assert found.work > 2e-3


def test_one_where_the_controller_has_the_most_to_do() -> None:
    def instances() -> Iterator[Instance]:
        for instance in rows(*[1] * 4):
            time.sleep(10e-3)
            yield instance

    found = suggest(slow(1e-4), instances(), 8, one)
    assert found.replicas == 1
    assert found.controller > 10e-3


def test_between_them_as_many_as_the_controller_can_keep_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "PUMPED", 4e-3)
    found = suggest(slow(10e-3), rows(*[1] * 4), 64, one)
    assert found.replicas == int(found.work / found.controller)
    assert found.replicas >= 2


def test_one_core_or_no_data_needs_no_trial() -> None:
    def none(graph: Graph) -> Inline:
        pytest.fail("a trial")

    assert suggest(chain("linear"), rows(1), 1, none).replicas == 1
    assert suggest(chain("linear"), [], 8, none).replicas == 1


def test_a_trial_takes_a_few_instances_and_leaves_no_trace() -> None:
    graph, taken = chain("linear"), []
    with Inline(graph, update=Update(SGD), waves=False) as runtime:  # an update for every message
        before = weights(graph)

        def endless() -> Iterator[Instance]:
            for number in range(10**6):
                taken.append(number)
                yield from rows(1, seed=number)

        suggest(graph, endless(), 2, one)
        assert len(taken) == auto._TRIED
        assert all((a == b).all() for name in before for a, b in zip(before[name], weights(graph)[name], strict=True))
        assert not any(float(total.abs().sum()) for total in graph.gradients().values())
        runtime.train(rows(2))
        assert graph.parameterised()["linear1"].updater.version == 2
