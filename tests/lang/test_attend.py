"""softmax and attention over families; children and messages as families."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ampnet import DataError
from ampnet.errors import ModelError
from ampnet.lang import (
    Edges,
    Model,
    Seq,
    Tree,
    attention,
    compile,
    each,
    fold,
    fold_tree,
    loss,
    messages,
    reduce,
    repeat,
    scan,
    softmax,
)
from ampnet.testing import assert_compiled
from tests.lang.on_workers import assert_on_workers
from tests.lang.written import WrittenBase

pytestmark = pytest.mark.usefixtures("float64")
WIDTH = 4


class Written(WrittenBase):
    """``body(m, seq, edges, tree) -> row``, compared with y."""

    def __init__(self, body: Any) -> None:
        super().__init__(body, WIDTH)

    def forward(self, seq: Seq, edges: Edges, tree: Tree, y: Tensor) -> None:
        self.compare(self.body(self, seq, edges, tree), y)


def instances(sizes: tuple[int, ...] = (3, 1, 5, 2), seed: int = 7) -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(seed)

    def rows(*shape: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal(shape))

    out = []
    for n in sizes:
        seq = Seq(x=rows(n, WIDTH), z=rows(n, WIDTH))
        count = int(rng.integers(0, 2 * n))
        ends = rng.integers(0, n, (2, count))
        edges = Edges(seq, ends[0], ends[1], x=rows(count, WIDTH))
        parents = [-1, *(int(rng.integers(max(0, i - 3), i)) for i in range(1, n))]
        tree = Tree(parents, x=rows(n, WIDTH))
        out.append((seq, edges, tree, rows(WIDTH)))
    return out


def check(body: Any) -> Any:
    return assert_compiled(Written(body), instances(), max_active_keys=3)


# -- softmax


def test_softmax_is_torchs() -> None:
    scores = torch.tensor([[1e4, -2.0], [1e4 - 1, 3.0], [-1e4, 3.0]])
    found = softmax(Seq(scores))
    torch.testing.assert_close(torch.stack(found.values), scores.softmax(0))


@pytest.mark.parametrize("scalar", [True, False])
def test_softmax_over_a_sequence(scalar: bool) -> None:
    def body(m: Any, seq: Any, edges: Any, tree: Any) -> Any:
        scores = each(lambda t: (m.a(t.x) * t.z).sum() if scalar else 300 * m.a(t.x), seq)
        return reduce(each(lambda w, t: w * t.z, softmax(scores), seq), "sum")

    check(body)


# -- attention


def test_attention_is_torchs() -> None:
    torch.manual_seed(1)
    q, k, v = torch.randn(8), torch.randn(5, 8), torch.randn(5, 8)
    for heads in (1, 2, 4):
        want = nn.functional.scaled_dot_product_attention(
            q.view(heads, 1, -1), k.view(5, heads, -1).transpose(0, 1), v.view(5, heads, -1).transpose(0, 1)
        )
        words = Seq(k=k, v=v)
        torch.testing.assert_close(attention(q, words.k, words.v, heads=heads), want.flatten())


@pytest.mark.parametrize("heads", [1, 2])
def test_attention_over_a_sequence_at_every_step_of_a_loop(heads: int) -> None:
    def body(m: Any, seq: Any, edges: Any, tree: Any) -> Any:
        states, last = scan(lambda h, t: m.cell(t.x, h), seq, m.zeros(WIDTH))
        keys, values = each(m.a, states), each(m.b, states)
        return repeat(lambda h: m.cell(attention(m.c(h), keys, values, heads=heads), h), last, times=2)

    check(body)


def test_attention_that_does_not_fit() -> None:
    def body(m: Any, seq: Any, edges: Any, tree: Any) -> Any:
        return attention(m.a(seq[0].x), seq.x, seq.x, heads=3)

    with pytest.raises(ModelError, match=r"test_attend.py[\s\S]*3 head.s. takes a query and keys"):
        compile(Written(body), *instances()[0])


# -- children as a family


def test_children_summed_weighted_and_folded() -> None:
    def body(m: Any, seq: Any, edges: Any, tree: Any) -> Any:
        def children(make: Any) -> Any:
            return fold_tree(tree, lambda n: m.a(n.x), make, children="family")

        _, summed = children(lambda hs: torch.tanh(m.b(reduce(hs, "sum"))))
        _, weighted = children(lambda hs, n: torch.tanh(attention(m.c(n.x), hs, each(m.b, hs)) + n.x))
        nodes, folded = children(lambda hs, n: fold(lambda h, child: m.cell(child, h), hs, n.x))
        _, first = children(lambda hs, n: torch.tanh(hs[0] * n.x + hs[-1]))
        return summed + weighted + folded + first + reduce(nodes, "mean")

    check(body)


def test_a_child_sum_tree_lstm_whose_forget_gates_see_the_parent() -> None:
    def body(m: Any, seq: Any, edges: Any, tree: Any) -> Any:
        def branch(children: Any, node: Any) -> Any:
            hs, cs = children
            x, h = m.a(node.x), reduce(hs, "sum")
            kept = reduce(each(lambda hk, ck: torch.sigmoid(m.b(hk) + x) * ck, hs, cs), "sum")
            c = torch.sigmoid(m.c(h) + x) * torch.tanh(x) + kept
            return torch.tanh(c), c

        (h, c), (top, _) = fold_tree(tree, lambda n: (m.a(n.x), m.b(n.x)), branch, children="family")
        each(lambda h, n: loss(h, n.x, "squared_error"), h, tree)
        return top * reduce(c, "sum")

    check(body)


def test_losses_at_the_children_and_a_family_of_them_is_not_taken_out() -> None:
    def body(m: Any, seq: Any, edges: Any, tree: Any) -> Any:
        def branch(hs: Any, node: Any) -> Any:
            each(lambda h: loss(h, node.x, "squared_error"), hs)
            return m.b(reduce(hs, "max"))

        return fold_tree(tree, lambda n: m.a(n.x), branch, children="family")[1]

    check(body)


@pytest.mark.parametrize("seed", range(3))
def test_random_trees_and_graphs(seed: int) -> None:
    sizes = tuple(int(n) for n in np.random.default_rng(seed).integers(1, 9, 5))

    def body(m: Any, seq: Any, edges: Any, tree: Any) -> Any:
        def branch(hs: Any, node: Any) -> Any:
            return fold(lambda h, child: m.cell(child, h), hs, attention(m.a(node.x), hs, hs, heads=2))

        nodes, root = fold_tree(tree, lambda n: m.a(n.x), branch, children="family")
        h = each(lambda t: m.b(t.x), seq)
        for _ in range(2):
            h = messages(lambda v: v, edges, h, to=h, reduction=lambda ms, q: attention(m.c(q), ms, ms))
        return root + reduce(h, "sum") + reduce(nodes, "max")

    assert_compiled(Written(body), instances(sizes, seed), max_active_keys=3)


# -- messages as a family


def test_graph_attention() -> None:
    """GAT (Velickovic and others 2018): scores of both ends, softmax over the edges that arrive."""

    def body(m: Any, seq: Any, edges: Any, tree: Any) -> Any:
        def message(a: Any, b: Any) -> Any:
            return nn.functional.leaky_relu(m.score(torch.cat((a, b), -1)), 0.2), a

        def arrived(both: Any) -> Any:
            return reduce(each(lambda w, v: w * v, softmax(both[0]), both[1]), "sum")

        h = each(lambda t: m.a(t.x), seq)
        h = repeat(lambda h: each(m.cell, messages(message, edges, h, to=h, reduction=arrived), h), h, times=2)
        return reduce(h, "sum")

    check(body)


def test_messages_folded_in_the_order_of_edges_with_losses() -> None:
    def body(m: Any, seq: Any, edges: Any, tree: Any) -> Any:
        def arrived(ms: Any, target: Any) -> Any:
            each(lambda v: loss(v, target, "squared_error"), ms)
            return fold(lambda h, v: m.cell(v, h), ms, target), reduce(ms, "max")

        h, top = messages(lambda v, e: m.b(v) * e.x, edges, each(lambda t: t.x * 2, seq), reduction=arrived)
        return reduce(each(lambda a, b: a + b, h, top), "sum")

    check(body)


def test_on_two_workers() -> None:
    def body(m: Any, seq: Any, edges: Any, tree: Any) -> Any:
        _, root = fold_tree(
            tree, lambda n: m.a(n.x), lambda hs, n: m.b(attention(n.x, hs, each(m.c, hs))), children="family"
        )
        h = each(lambda t: m.c(t.x), seq)
        h = messages(lambda v: m.a(v), edges, h, to=h, reduction=lambda ms, q: attention(m.b(q), ms, ms))
        return attention(root, seq.x, h)

    assert_on_workers(Written(body), instances())


def test_messages_of_families() -> None:
    def body(m: Any, nodes: Any, edges: Any, tree: Any) -> Any:
        return reduce(messages(lambda v: v, edges, each(lambda n: each(m.a, n.x), nodes)), "sum")

    nodes = Seq(x=[torch.zeros(2, WIDTH), torch.zeros(1, WIDTH)])
    example = (nodes, Edges(nodes, [0], [1]), Tree([-1], x=torch.zeros(1, WIDTH)), torch.zeros(WIDTH))
    with pytest.raises(ModelError, match="are given a family for each element of 'seq'"):
        compile(Written(body), *example)


# -- how many children


class Two(Model):
    def __init__(self, branch: Any, children: Any = None) -> None:
        super().__init__()
        self.a, self.b, self.branch, self.children_ = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), branch, children

    def forward(self, tree: Tree, y: Tensor) -> None:
        _, root = fold_tree(tree, lambda n: self.a(n.x), self.branch, children=self.children_)
        loss(self.b(root), y, "squared_error")


def tree_of(parents: list[int]) -> tuple[Tree, Tensor]:
    return Tree(parents, x=torch.randn(len(parents), WIDTH)), torch.randn(WIDTH)


def test_an_example_of_one_leaf() -> None:
    """Once, a branch function of two children and the node was taken for one of three children."""
    data = [tree_of([-1]), tree_of([2, 2, -1]), tree_of([-1, 0, 0, 2, 2])]
    assert_compiled(Two(lambda left, right: left * right), data)
    assert_compiled(Two(lambda left, right, node: left * right + node.x, children=2), data)
    with pytest.raises(ModelError, match="no inner node.*children=2"):
        compile(Two(lambda left, right, node: left * right + node.x), *data[0])
    with pytest.raises(ModelError, match="no inner node"):
        compile(Two(lambda *below: below[0]), *data[0])


def test_another_number_of_children_than_the_model_takes() -> None:
    model, three = Two(lambda left, right: left * right, children=2), tree_of([-1, 0, 0, 0])
    with pytest.raises(DataError, match="has 3 children.*takes 2. With children='family'"):
        model(*three)
    graph = compile(model, *tree_of([-1]))
    with pytest.raises(DataError, match="has 3 children.*takes 2. With children='family'"):
        graph.instance(*three)
    with pytest.raises(ModelError, match="differ in their number of children.*children='family'"):
        compile(Two(lambda left, right: left * right), *tree_of([-1, 0, 0, 1]))
    with pytest.raises(ModelError, match="children of fold_tree is a number"):
        Two(lambda left, right: left, children="all")(*three)
