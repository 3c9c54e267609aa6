"""Every model of the package: compiled, it gives its own eager gradients, over random instances and schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ampnet import Inline
from ampnet.data.generated import random_tree
from ampnet.data.list_reduction import generate
from ampnet.lang import Edges, Model, Seq, Tree, compile
from ampnet.models import AdaptiveDepth, Babi15, ListReduction, Mlp, PermutedLayers, Qm9, TreeLstm, by_hand
from ampnet.models.list_reduction import arguments
from ampnet.testing import assert_close, assert_compiled, compiled_gradients
from ampnet.testing.strategies import schedules

FAR = settings(max_examples=25)
seeds = st.integers(0, 2**16)


def drawn(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(shape))


def made(kind: type[Model], *args: Any, **kwargs: Any) -> Any:
    torch.manual_seed(0)
    return kind(*args, **kwargs).double()


@FAR
@given(st.integers(1, 6), seeds, schedules())
def test_the_perceptron_gives_its_eager_gradients(count: int, seed: int, how: dict[str, Any]) -> None:
    rng = np.random.default_rng(seed)
    data = [(drawn(rng, 5), torch.tensor(int(rng.integers(3)))) for _ in range(count)]
    assert_compiled(made(Mlp, width=5, layers=3, classes=3), data, **how)


@FAR
@pytest.mark.parametrize("cell", ["relu", "gru", "lstm"])
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5), seed=seeds, how=schedules())
def test_the_recurrent_network_gives_its_eager_gradients(
    cell: str, lengths: list[int], seed: int, how: dict[str, Any]
) -> None:
    rng = np.random.default_rng(seed)
    data = [(Seq(torch.from_numpy(rng.integers(0, 14, n))), torch.tensor(int(rng.integers(10)))) for n in lengths]
    assert_compiled(made(ListReduction, hidden=4, cell=cell), data, **how)


def comb(leaves: int, left: bool) -> np.ndarray:
    """The parents of a chain: one child of every inner node is a leaf, on the same side."""
    n = 2 * leaves - 1
    parents = np.full(n, -1)
    top = 0 if left else n - 1  # children are in the order of their numbers
    for inner in range(1, leaves):
        leaf, new = 2 * inner - 1, 2 * inner
        parents[top], parents[leaf] = new, new
        top = new
    if left or leaves == 1:
        return parents
    turned = np.full(n, -1)
    for i, parent in enumerate(comb(leaves, True)):
        turned[n - 1 - i] = -1 if parent < 0 else n - 1 - parent
    return turned


def labelled(parents: np.ndarray, rng: np.random.Generator) -> tuple[Tree]:
    n = len(parents)
    leaves = int((np.bincount(parents[parents >= 0], minlength=n) == 0).sum())
    words, labels = rng.integers(0, 9, leaves), rng.integers(0, 3, n)
    return (Tree(parents, leaves={"word": torch.from_numpy(words)}, label=torch.from_numpy(labels)),)


tree_shapes = st.tuples(st.sampled_from(["random", "left", "right"]), st.integers(1, 7))


def shaped(shape: str, leaves: int, rng: np.random.Generator) -> np.ndarray:
    return random_tree(leaves, rng) if shape == "random" else comb(leaves, shape == "left")


def test_combs_are_chains() -> None:
    assert comb(3, True).tolist() == [2, 2, 4, 4, -1]
    assert comb(3, False).tolist() == [-1, 0, 0, 2, 2]
    assert comb(1, False).tolist() == [-1]


@FAR
@given(st.lists(tree_shapes, min_size=1, max_size=4), seeds, schedules())
def test_the_tree_lstm_gives_its_eager_gradients(shapes: list[tuple[str, int]], seed: int, how: dict[str, Any]) -> None:
    rng = np.random.default_rng(seed)
    model = made(TreeLstm, vocabulary=9, embedding=3, hidden=4, classes=3)
    graph = compile(model, *labelled(comb(2, True), rng))
    assert_compiled(model, [labelled(shaped(*s, rng), rng) for s in shapes], graph=graph, **how)


graph_shapes = st.tuples(st.integers(1, 6), st.integers(0, 10), st.integers(0, 15))
"""Nodes, edges (loops at a node and double ones among them), and which kinds of edges there are, as bits."""


def drawn_graph(nodes: int, edges: int, present: int, width: int, rng: np.random.Generator) -> tuple[Seq, Edges]:
    kinds = [k for k in range(4) if present >> k & 1] or [2]
    space = Seq(x=drawn(rng, nodes, width))
    ends = rng.integers(0, nodes, (2, edges))
    return space, Edges(space, ends[0], ends[1], kind=rng.choice(kinds, edges))


@FAR
@given(st.lists(graph_shapes, min_size=1, max_size=4), seeds, schedules(), st.integers(0, 2))
def test_the_graph_network_that_selects_gives_its_eager_gradients(
    shapes: list[tuple[int, int, int]], seed: int, how: dict[str, Any], steps: int
) -> None:
    rng = np.random.default_rng(seed)
    data = [(*drawn_graph(*shape, 3, rng), torch.tensor(int(rng.integers(shape[0])))) for shape in shapes]
    assert_compiled(made(Babi15, hidden=3, steps=steps), data, **how)


@FAR
@pytest.mark.parametrize("kind", ["squared_error", "absolute_error"])
@given(shapes=st.lists(graph_shapes, min_size=1, max_size=4), seed=seeds, how=schedules())
def test_the_graph_network_for_molecules_gives_its_eager_gradients(
    kind: str, shapes: list[tuple[int, int, int]], seed: int, how: dict[str, Any]
) -> None:
    rng = np.random.default_rng(seed)
    data = [(*drawn_graph(*shape, 2, rng), drawn(rng, 1)) for shape in shapes]
    assert_compiled(made(Qm9, features=2, hidden=4, steps=2, loss=kind), data, **how)


def test_lonely_nodes_loops_and_double_edges_give_eager_gradients() -> None:
    rng = np.random.default_rng(0)
    lonely = Seq(x=drawn(rng, 4, 2))
    single = Seq(x=drawn(rng, 1, 2))
    double = Seq(x=drawn(rng, 2, 2))
    data = [
        (lonely, Edges(lonely, [], [], kind=[]), drawn(rng, 1)),
        (single, Edges(single, [0, 0], [0, 0], kind=[1, 1]), drawn(rng, 1)),
        (double, Edges(double, [0, 0, 1], [1, 1, 1], kind=[3, 3, 0]), drawn(rng, 1)),
    ]
    assert_compiled(made(Qm9, features=2, hidden=3, steps=3), data, max_active_keys=3)
    assert_compiled(made(Qm9, features=2, hidden=3, steps=3), data[::-1], schedule="random", max_batch=2)


@FAR
@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), seeds, schedules())
def test_permuted_layers_give_their_eager_gradients(applied: list[int], seed: int, how: dict[str, Any]) -> None:
    rng = np.random.default_rng(seed)
    data = [(drawn(rng, 4), Seq(rng.permutation(4)[:k]), torch.tensor(int(rng.integers(3)))) for k in applied]
    assert_compiled(made(PermutedLayers, width=4, layers=4, classes=3), data, **how)


@FAR
@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), seeds, schedules())
def test_adaptive_depth_gives_its_eager_gradients(steps: list[int], seed: int, how: dict[str, Any]) -> None:
    rng = np.random.default_rng(seed)
    data = [(drawn(rng, 2), k, drawn(rng, 2)) for k in steps]
    assert_compiled(made(AdaptiveDepth, features=2, hidden=4, outputs=2), data, **how)


def test_compiled_list_reduction_is_the_network_wired_by_hand() -> None:
    """The same seed gives the same weights, and the same data the same gradients, node by node."""
    data = generate(20, 4)
    torch.manual_seed(3)
    model = ListReduction(6).double()
    wired = by_hand.build(hidden=6, seed=3, dtype=torch.float64)
    mine = {"embedding": "embedding", "cell": "linear1", "classify": "linear2"}
    theirs = dict(wired.module().named_parameters())
    renamed = {name: name.replace(name.split(".")[0], mine[name.split(".")[0]]) for name, _ in model.named_parameters()}
    assert_close(dict(model.named_parameters()), {name: theirs[other] for name, other in renamed.items()}, 0)

    every: Sequence[Any] = [arguments(data, i) for i in range(20)]
    got = compiled_gradients(compile(model, *every[0]), every, max_active_keys=4)
    with Inline(wired, update=None, max_active_keys=4) as runtime:
        runtime.train([by_hand.instance(data, np.array([i]), 6, torch.float64) for i in range(20)])
    want = wired.gradients()
    assert_close(got, {name: want[other] for name, other in renamed.items()})
