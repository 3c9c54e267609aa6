"""Place: nodes by hand where that is said, replicas of a whole model a worker or a group of workers each."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampnet import GraphError, replicate
from ampnet.data import generated
from ampnet.lang import Compiled, compile
from ampnet.models import Mlp, list_reduction
from ampnet.placement import Costs, by_hand, known, place
from tests.placement.synthetic import together


def layers() -> Compiled:
    return compile(Mlp(16, 5), *next(iter(generated.images(1, 0, 16))))


def heavy(graph: Compiled) -> Costs:
    return Costs({n: 1.0 if n.startswith("hidden") else 0.01 for n in graph.nodes})


def test_equal_layers_are_shared_out_equally() -> None:
    graph = layers()
    hosts = place(graph, 2, None, heavy(graph))
    assert sorted(hosts[f"hidden_{i}"] for i in range(4)) == [0, 0, 1, 1]
    assert list(hosts) == list(graph.nodes)


def test_affinity_is_kept_and_the_rest_goes_round_it() -> None:
    graph = layers()
    hosts = place(graph, 2, {"hidden_*": 1, "hidden_0": 0}, heavy(graph))
    assert [hosts[f"hidden_{i}"] for i in range(4)] == [0, 1, 1, 1]


def test_wrong_names_and_numbers_are_all_told() -> None:
    with pytest.raises(GraphError) as caught:
        by_hand(layers(), 2, {"nobody": 0, "classify": 2})
    assert len(caught.value.faults) == 2


def test_nodes_that_only_route_are_at_a_neighbours() -> None:
    graph = list_reduction.build(8)
    hosts = place(graph, 2, {"cell": 1, "cat": 1, "embedding": 0})
    assert hosts["tokens_loop"] == 1  # between embedding, cat and cell
    alone = place(graph, 1)
    assert set(alone.values()) == {0}
    assert alone == known(graph, 1, {})


def test_copies_of_the_whole_model_have_a_worker_each() -> None:
    graph = layers()
    replicate(graph, None, 3)
    assert len(known(graph, 3, {})) == len(graph.nodes)
    hosts = place(graph, 3)
    assert all(hosts[name] == copy.number for name, copy in graph.copies.items())
    assert all(place(graph, 2)[name] == copy.number % 2 for name, copy in graph.copies.items())


def test_copies_that_have_several_workers_are_cut_alike() -> None:
    plain, graph = layers(), layers()
    replicate(graph, None, 2)
    for costs in (None, heavy(plain), heavy(graph)):  # guessed, of one copy, of all of them
        hosts = place(graph, 4, None, costs)
        for name, copy in graph.copies.items():
            assert hosts[name] // 2 == copy.number
            assert hosts[name] - 2 * copy.number == hosts[f"{copy.of}#1"]
        assert {hosts[name] for name in graph.copies} == {0, 1, 2, 3}


def test_a_route_placed_by_hand_before_copies_of_several_workers() -> None:
    """Once a KeyError: only what is copied has a number; found by `make fuzz`."""
    graph = layers()
    replicate(graph, None, 2)
    (route,) = [name for name in graph.nodes if name not in graph.copies][:1]
    hosts = place(graph, 4, {route: 3})
    assert hosts[route] == 3
    assert {hosts[name] for name in graph.copies} == {0, 1, 2, 3}


def test_copies_of_single_nodes_are_placed_by_cost() -> None:
    graph = layers()
    replicate(graph, "hidden_1", 3)
    costs = Costs({n: {"hidden_0": 3.0}.get(n, 1.0 if "#" in n else 0.01) for n in graph.nodes})
    hosts = place(graph, 2, None, costs)
    assert together(hosts, ("hidden_1#1", "hidden_1#2", "hidden_1#3"))
    assert hosts["hidden_0"] != hosts["hidden_1#1"]
    assert len({place(graph, 3)[f"hidden_1#{i}"] for i in (1, 2, 3)}) > 1


@settings(max_examples=30)
@given(st.integers(1, 4), st.integers(1, 3), st.data())
def test_every_node_of_every_graph_is_placed(workers: int, copies: int, data: st.DataObject) -> None:
    graph = list_reduction.build(8)
    names = data.draw(st.none() | st.sets(st.sampled_from(["cell", "cat", "embedding", "classify"]), min_size=1))
    replicate(graph, names, copies)
    wanted = data.draw(st.dictionaries(st.sampled_from(list(graph.nodes)), st.integers(0, workers - 1)))
    hosts = place(graph, workers, wanted)
    assert set(hosts) == set(graph.nodes)
    assert {name: hosts[name] for name in wanted} == wanted
