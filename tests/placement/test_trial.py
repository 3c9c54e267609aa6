"""Trial: costs of a wave, measured on a copy; the graph, its weights and random numbers stay as they are."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from threading import Lock

import numpy as np
import pytest
import torch
from torch import Tensor

from ampnet import Graph, Inline, Instance, Update
from ampnet.data import generated
from ampnet.data.list_reduction import generate
from ampnet.lang import compile
from ampnet.models import Qm9, TreeLstm, list_reduction
from ampnet.nodes import Function
from ampnet.placement import Trial, peek, trial
from ampnet.placement.units import around
from tests.replicas.small import SGD, rows
from tests.replicas.small import chain as nodes_in_a_row

ADAM = Update(partial(torch.optim.Adam, lr=1e-3), 4, "instances")


@pytest.fixture(autouse=True)
def _briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "SECONDS", 0.02)


def molecules() -> tuple[Graph, list[Instance]]:
    data = list(generated.molecules(8, 0, most_atoms=9))
    graph = compile(Qm9(10, 12), *data[0])
    return graph, [graph.instance(*d) for d in data]


def rows_of(molecule: Instance) -> Tensor:
    """A row for each atom."""
    return max((f.payload for f in molecule.feeds.values() if f.payload is not None), key=lambda p: p.numel())


def sequences() -> tuple[Graph, list[Instance]]:
    graph = list_reduction.build(8)
    return graph, list(list_reduction.instances(graph, generate(200, 0), 20, np.random.default_rng(0)))


def test_a_trial_changes_nothing() -> None:
    graph, instances = molecules()
    policy = Update(SGD, 3, "instances")
    with Inline(graph, update=policy) as owner:
        runtime, numbers = graph.runtime, torch.random.get_rng_state()
        before = {name: [w.clone() for w in node.updater.weights] for name, node in graph.parameterised().items()}
        costs = Trial(graph, max_active_keys=4).run(instances)
        assert costs.reason is None
        assert graph.runtime is runtime
        assert torch.equal(torch.random.get_rng_state(), numbers)
        for name, node in graph.parameterised().items():
            assert node.updater.policy is policy
            assert node.updater.version == 0
            assert all(torch.equal(a, b) for a, b in zip(before[name], node.updater.weights, strict=True))
        assert not any(total.any() for total in graph.gradients().values())
        assert not owner.held()
        owner.train(instances)


def test_what_a_wave_costs() -> None:
    graph, instances = molecules()
    costs = Trial(graph, update=ADAM, max_active_keys=4).run(instances)
    assert costs.instances == 4
    assert list(costs.seconds) == [name for name in graph.order() if graph.nodes[name].role != "route"]
    assert costs.seconds["propagate_cell"] > 0
    assert costs.operations["propagate_cell"] == 9  # four rounds, both ways, and their weights' gradients at once
    assert 0 < sum(costs.seconds.values()) + costs.beside <= 1.01 * costs.alone
    weights = sum(p.numel() for p in graph.parameterised()["propagate_cell"].parameters.values())
    assert costs.memory["propagate_cell"] == 4 * weights * 4  # themselves, their sums, and what Adam keeps


def test_what_flows_between_nodes() -> None:
    graph, instances = molecules()
    made = Trial(graph, update=ADAM.but(min_update_frequency=8), max_active_keys=8).run(instances).made
    atoms = sum(len(rows_of(one)) for one in instances)
    state = made["propagate_cell", 0]
    assert state.readers["cat2"].rounds == 3  # by way of the view; what the last round makes goes on to cat3
    assert state.readers["cat2"].bytes == 3 * atoms * 12 * 4
    assert state.readers["cat3"].bytes <= 2 * atoms * 12 * 4
    assert state.bytes == 4 * atoms * 12 * 4
    assert not state.still
    assert made["cat", 0].still
    assert made["cat2", 0].view
    assert set(made["cat3", 0].readers) == {"gate", "value"}
    assert set(made["sum", 0].readers) == {"cat2"}
    assert ("controller", 0) not in made


def test_units_are_what_is_cheap_only_together() -> None:
    graph, instances = molecules()
    units = Trial(graph, update=ADAM, max_active_keys=4).run(instances).units
    along = {f"propagate_along_{i}" for i in range(4)}
    assert {frozenset({"sum", "none", *along}), frozenset({"cat2", "propagate_cell"})} == set(units)
    assert set(around(graph, "sum")) == {"sum", "none", *along, "phi", "bonds_phi", "bonds_group"}
    assert around(graph, "gate") == ["gate"]
    data = next(iter(generated.trees(1, 0, most_leaves=5)))
    assert around(compile(TreeLstm(vocabulary=10, hidden=8), *data), "branch_cell") == ["tree_beside", "branch_cell"]


def test_a_round_of_a_loop_is_a_crossing() -> None:
    graph, instances = sequences()
    made = Trial(graph, update=ADAM, max_active_keys=1).run(instances).made
    assert made["embedding", 0].readers["cat"].rounds == 1  # in no loop
    assert made["cell", 0].readers["classify"].rounds == 1
    assert made["cell", 0].readers["cat"].rounds > 1


def test_seconds_belong_to_the_node_that_took_them() -> None:
    graph = nodes_in_a_row("linear", "tanh", "linear")

    def wait(x: Tensor) -> Tensor:
        torch.linalg.matrix_power(torch.eye(200), 20)
        return x * 1.0

    node = Function(wait)
    node.name = "tanh2"
    graph.nodes["tanh2"] = node
    costs = Trial(graph, update=ADAM).run(rows(*[1] * 8))
    assert costs.seconds["tanh2"] > 0.5 * sum(costs.seconds.values())


def test_where_it_cannot_be_tried_parameters_are_the_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, instances = molecules()
    assert Trial(graph).run([]).reason == "there is no instance to try"
    graph.notes["lock"] = Lock()  # type: ignore[assignment]
    assert "cannot be copied: TypeError" in str(Trial(graph).run(instances).reason)
    graph.notes.clear()
    monkeypatch.setattr(trial, "LARGE", 1000)
    costs = Trial(graph).run(instances)
    assert "are not copied to be tried" in str(costs.reason)
    assert costs.seconds["propagate_cell"] > costs.seconds["out"] > 0
    assert costs.memory["propagate_cell"] > 0


def test_bad_data_is_left_to_the_run() -> None:
    """Once, what was wrong with the first instances was raised by the trial, in the name of a worker that was none."""
    graph, instances = molecules()
    bad = molecules()[1][0]
    rows_of(bad)[0, 0] = float("nan")
    costs = Trial(graph, update=ADAM).run([bad])
    assert str(costs.reason).startswith("the trial failed: ")
    with Inline(graph, update=ADAM) as runtime:
        runtime.train(instances)


def test_peek_gives_all_back_and_the_error_where_it_was() -> None:
    def numbers() -> Iterator[int]:
        yield from range(3)
        raise OSError("gone")

    some, again = peek(numbers(), 2)  # type: ignore[arg-type]
    assert some == [0, 1]
    some, again = peek(numbers(), 5)  # type: ignore[arg-type]
    assert some == [0, 1, 2]
    with pytest.raises(OSError, match="gone"):
        list(again)
