"""Placement: nodes by hand where that is said, the others by what they cost."""

from __future__ import annotations

import itertools

import pytest

from ampnet import GraphError, Inline
from ampnet.data import generated
from ampnet.lang import compile
from ampnet.models import Mlp
from ampnet.runtime.placement import Costs, Trial, by_hand, place


def graph_of_layers() -> tuple:  # type: ignore[type-arg]
    data = list(generated.images(4, 0, 16))
    graph = compile(Mlp(16, 5), *data[0])
    return graph, [graph.instance(*d) for d in data]


def test_equal_layers_are_shared_out_equally() -> None:
    graph, _ = graph_of_layers()
    heavy = {f"hidden_{i}": 1.0 for i in range(4)}
    costs = Costs({n: heavy.get(n, 0.01) for n in graph.nodes})
    hosts = place(graph, 2, None, costs)
    assert sorted(hosts[n] for n in heavy) == [0, 0, 1, 1]


def test_neighbours_stay_together_where_hops_cost() -> None:
    graph, _ = graph_of_layers()
    names = [f"hidden_{i}" for i in range(4)]
    costs = Costs({n: 1.0 if n in names else 0.01 for n in graph.nodes})
    costs.edges = dict.fromkeys(itertools.pairwise(names), (10000, 0))
    hosts = place(graph, 2, None, costs)
    assert sum(hosts[a] != hosts[b] for a, b in costs.edges) <= 1


def test_affinity_is_kept_and_the_rest_goes_round_it() -> None:
    graph, _ = graph_of_layers()
    costs = Costs({n: 1.0 if n.startswith("hidden") else 0.01 for n in graph.nodes})
    hosts = place(graph, 2, {"hidden_*": 1, "hidden_0": 0}, costs)
    assert [hosts[f"hidden_{i}"] for i in range(4)] == [0, 1, 1, 1]


def test_wrong_names_and_numbers_are_all_told() -> None:
    graph, _ = graph_of_layers()
    with pytest.raises(GraphError) as caught:
        by_hand(graph, 2, {"nobody": 0, "classify": 2})
    assert len(caught.value.faults) == 2


def test_a_trial_changes_nothing() -> None:
    graph, instances = graph_of_layers()
    with Inline(graph) as owner:
        before = {n: p.clone() for n, p in graph.model.state_dict().items()}
        costs = Trial(graph, max_active_keys=2).run(instances)
        assert graph.runtime is not None
        assert graph.runtime() is owner
    assert set(costs.seconds) == set(graph.nodes)
    assert all(size > 0 for _, size in costs.edges.values())
    assert all((p == before[n]).all() for n, p in graph.model.state_dict().items())
    assert not any(total.any() for total in graph.gradients().values())
