"""``xs[i]``: an element of a Seq, or of a family made of one, by an integer of the instance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ampnet import DataError, NodeError
from ampnet.errors import ModelError
from ampnet.lang import Edges, Model, Seq, Tree, choose, compile, each, fold, fold_tree, loss, messages, reduce, repeat
from ampnet.testing import assert_compiled
from tests.lang.on_workers import assert_on_workers
from tests.lang.written import WrittenBase

pytestmark = pytest.mark.usefixtures("float64")
WIDTH = 3


class Written(WrittenBase):
    """``body(m, seq, edges, tree, text, order, i) -> row``, compared with y."""

    def forward(self, seq: Seq, edges: Edges, tree: Tree, text: Seq, order: Seq, i: int, y: Tensor) -> None:
        self.compare(self.body(self, seq, edges, tree, text, order, i), y)


def instances(sizes: tuple[int, ...] = (3, 1, 4, 2), seed: int = 7) -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(seed)

    def rows(*shape: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal(shape))

    out = []
    for n in sizes:
        seq = Seq(x=rows(n, WIDTH), k=rng.integers(0, 3, n), head=rng.integers(0, n, n))
        ends = rng.integers(0, n, (2, n - 1))
        edges = Edges(seq, ends[0], ends[1], third=rng.integers(0, n, n - 1), x=rows(n - 1, WIDTH))
        parents = [-1, *(int(rng.integers(0, j)) for j in range(1, n))]
        tree = Tree(parents, x=rows(n, WIDTH), word=rng.integers(0, n, n))
        words = [Seq(x=rows(k, WIDTH), k=rng.integers(0, 3, k)) for k in rng.integers(1, 4, n)]
        text = Seq(words=words, last=[len(w) - 1 for w in words], other=rng.integers(0, n, n))
        order = Seq(rng.integers(0, 3, n + 1))
        out.append((seq, edges, tree, text, order, int(rng.integers(0, n)), rows(WIDTH)))
    return out


def check(body: Any) -> Any:
    return assert_compiled(Written(body), instances(), max_active_keys=3)


def test_the_docstring_of_repeat() -> None:
    def body(m: Any, seq: Any, edges: Any, tree: Any, text: Any, order: Any, i: Any) -> Any:
        return repeat(lambda h, i: torch.tanh(choose(order[i], m.options, h)), seq[0].x, times=order.length)

    check(body)


def test_one_element_of_a_column_of_an_argument_and_of_a_family() -> None:
    def body(m: Any, seq: Any, edges: Any, tree: Any, text: Any, order: Any, i: Any) -> Any:
        h = each(lambda t: m.a(t.x), seq)
        return h[i] * seq.x[i] + m.b(h[-1]) + choose(seq[i].k, m.options, h[0]) + h[(i + 1) % seq.length]

    check(body)


def test_rows_that_nobody_asks_for_have_no_gradient() -> None:
    model, data = Written(lambda m, seq, *rest: each(lambda t: m.a(t.x), seq)[0]), instances((4,))
    assert_compiled(model, data)


def test_pointers_inside_of_each_edge_and_each_element() -> None:
    def body(m: Any, seq: Any, edges: Any, tree: Any, text: Any, order: Any, i: Any) -> Any:
        h = each(lambda t: m.a(t.x), seq)
        up = each(lambda t: torch.tanh(h[t.head] + m.b(t.x)), seq)
        return reduce(messages(lambda v, e: v * up[e.third] + e.x, edges, h), "sum") + up[seq[i].head]

    check(body)


def test_pointers_inside_of_rounds_choices_and_trees() -> None:
    def body(m: Any, seq: Any, edges: Any, tree: Any, text: Any, order: Any, i: Any) -> Any:
        h = each(lambda t: m.a(t.x), seq)
        walked = fold(lambda v, t: m.cell(h[t.head], v), seq, h[i])
        _, root = fold_tree(
            tree,
            lambda n: h[n.word] * n.x,
            lambda below, n: torch.tanh(reduce(below, "sum") + h[n.word]),
            children="family",
        )
        chosen = choose(i % 2, [lambda v: v + h[i], lambda v: v * h[-1]], walked)
        return repeat(lambda v, j: torch.tanh(v + h[(i + j) % seq.length]), chosen, times=i) + root

    check(body)


def test_a_pointer_is_followed_through_a_list() -> None:
    """The index is an integer that the loop carries: from element to element, by the column ``head``."""

    def body(m: Any, seq: Any, edges: Any, tree: Any, text: Any, order: Any, i: Any) -> Any:
        h = each(lambda t: m.a(t.x), seq)
        v, at = repeat(lambda s: (m.cell(h[s[1]], s[0]), seq.head[s[1]]), (m.zeros(WIDTH), i), times=3)
        return v + h[at]

    check(body)


def test_values_made_in_a_loop_are_asked_for_in_the_same_round() -> None:
    def body(m: Any, seq: Any, edges: Any, tree: Any, text: Any, order: Any, i: Any) -> Any:
        def step(h: Any) -> Any:
            return each(lambda v, t: torch.tanh(m.b(v) + h[t.head]), h, seq)

        return repeat(step, each(lambda t: m.a(t.x), seq), times=2)[i]

    check(body)


def test_elements_of_inner_sequences() -> None:
    def body(m: Any, seq: Any, edges: Any, tree: Any, text: Any, order: Any, i: Any) -> Any:
        last = each(lambda s: s.words[s.last].x + s.words.x[-1], text)
        states = each(lambda s: each(lambda w: m.a(w.x), s.words), text)
        first = each(lambda hs, s: choose(s.words.k[0], m.options, hs[0]), states, text)
        return reduce(last, "sum") + reduce(first, "max")

    check(body)


def test_an_inner_sequence_of_an_element_that_is_asked_for() -> None:
    """A pointer to a sentence, whose words are read then; also from inside of each other sentence."""

    def body(m: Any, seq: Any, edges: Any, tree: Any, text: Any, order: Any, i: Any) -> Any:
        states = each(lambda s: each(lambda w: m.a(w.x), s.words), text)
        chosen = fold(lambda h, w: m.cell(choose(w.k, m.options, w.x), h), text[i].words, m.zeros(WIDTH))
        mine = reduce(states[i], "mean") * states[i][0]
        others = each(lambda s: reduce(text[s.other].words.x, "sum") * reduce(states[s.other], "max"), text)
        return chosen + mine + reduce(others, "sum")

    check(body)


def test_on_two_workers() -> None:
    def body(m: Any, seq: Any, edges: Any, tree: Any, text: Any, order: Any, i: Any) -> Any:
        h = each(lambda t: torch.tanh(m.b(m.a(t.x))), seq)
        up = each(lambda t: m.cell(h[t.head], t.x), seq)
        return repeat(lambda v, j: choose(order[j], m.options, v), up[i], times=order.length)

    assert_on_workers(Written(body), instances())


@pytest.mark.parametrize("seed", range(3))
def test_random_pointers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = tuple(int(n) for n in rng.integers(1, 7, 5))

    def body(m: Any, seq: Any, edges: Any, tree: Any, text: Any, order: Any, i: Any) -> Any:
        h = each(lambda t: m.a(t.x), seq)
        for _ in range(2):
            h = each(lambda t, v, below=h: m.cell(below[t.head], v) + below[(t.head + t.k) % seq.length], seq, h)
        return h[i] + reduce(messages(lambda a, b, e: a * b + h[e.third], edges, h, to=h), "sum")

    assert_compiled(Written(body), instances(sizes, seed), max_active_keys=3)


# -- what cannot be


def complaint(body: Any) -> str:
    with pytest.raises(ModelError) as caught:
        compile(Written(body), *instances((3,))[0])
    return str(caught.value)


def test_an_index_that_is_a_tensor() -> None:
    said = complaint(lambda m, seq, *rest: seq.x[seq.x[0].argmax()])
    assert "the index of an element of 'seq' is a tensor" in said
    assert "test_pick.py" in said
    with pytest.raises(ModelError, match="is a Tensor"):
        Seq(torch.zeros(2, 3))[torch.tensor(1)]


def test_a_slice() -> None:
    said = complaint(lambda m, seq, *rest: reduce(seq.x[1:], "sum"))
    assert "pass that part to the model as a Seq of its own" in said
    with pytest.raises(ModelError, match="pass that part"):
        Seq(torch.zeros(2, 3))[1:]


def test_an_index_of_some_other_element() -> None:
    def body(m: Any, seq: Any, edges: Any, *rest: Any) -> Any:
        return each(lambda t: t.x, seq)[seq.head._element()]

    assert "used outside of its scope" in complaint(body)


def test_an_element_that_is_not_there() -> None:
    model = Written(lambda m, seq, edges, tree, text, order, i: seq.x[i])
    good, bad = instances((3, 2))
    bad = (*bad[:5], 2, bad[6])
    with pytest.raises(DataError, match="element 2 of Seq.* was asked for; it has 2"):
        model(*bad)
    graph = compile(model, *good)
    from ampnet import Inline

    with pytest.raises(NodeError, match="element 2 of 'seq' was asked for; it has 2"), Inline(graph) as runtime:
        runtime.train([graph.instance(*bad)])


def test_columns_of_leaves_have_no_index() -> None:
    class Leaves(Model):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(WIDTH, WIDTH)

        def forward(self, tree: Tree, y: Tensor) -> None:
            loss(self.a(tree.x[0]), y, "squared_error")

    tree = Tree([-1, 0, 0], leaves={"x": torch.zeros(2, WIDTH)})
    with pytest.raises(ModelError, match="there for some elements only"):
        compile(Leaves(), tree, torch.zeros(WIDTH))


# -- columns whose names are words of ours


@pytest.mark.parametrize("name", ["kind", "length", "plain", "index", "axis", "over", "nodes", "position", "value"])
def test_a_column_of_any_name(name: str) -> None:
    """Once, ``kind``, ``length`` and ``plain`` gave attributes of the class in a model that ran eagerly."""

    class Named(Model):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.options = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

        def forward(self, seq: Seq, kinds: Seq, y: Tensor) -> None:
            rows, ints = getattr(seq, name), getattr(kinds, name)
            h = each(lambda x, t: self.a(x) + self.b(getattr(t, name)) + t.z, rows, seq)
            each(lambda h, k: loss(choose(k, self.options, h), y, "squared_error"), reduce_to(h, ints), ints)

    def reduce_to(h: Any, ints: Any) -> Any:
        total = reduce(h, "sum")
        return each(lambda k: total, ints)

    def one(n: int) -> tuple[Any, ...]:
        x = {name: torch.randn(n, WIDTH), "z": torch.randn(n, WIDTH)}
        return Seq(**x), Seq(**{name: list(range(n)), "z": [0] * n}), torch.randn(WIDTH)

    assert_compiled(Named(), [one(2), one(3), one(1)])


def test_a_list_whose_elements_name_the_next_one() -> None:
    """Once the integers of a loop were worked out for instances that had left it, too: past the end of their list."""

    class Linked(Model):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(WIDTH, WIDTH)

        def forward(self, seq: Seq, y: Tensor) -> None:
            def step(carry: Any) -> Any:
                h, at = carry
                return torch.tanh(self.a(h) + seq.x[at]), seq.following[at]

            h, end = repeat(step, (self.zeros(WIDTH), 0), while_=lambda carry: carry[1] < seq.length)
            loss(choose(end % 2, [self.a, torch.tanh], h), y, "squared_error")

    data = [(Seq(x=torch.randn(n, WIDTH), following=list(range(1, n + 1))), torch.randn(WIDTH)) for n in (3, 1, 4, 2)]
    assert_compiled(Linked(), data, max_active_keys=4)


def test_without_any_pass() -> None:
    """Nothing that is unused may be made where it cannot be."""

    def body(m: Any, seq: Any, edges: Any, tree: Any, text: Any, order: Any, i: Any) -> Any:
        states = each(lambda s: each(lambda w: m.a(w.x), s.words), text)
        h = each(lambda t: m.a(t.x), seq)
        _, root = fold_tree(tree, lambda n: h[n.word], lambda hs, n: m.b(reduce(hs, "sum") + n.x), children="family")
        arrived = messages(lambda v, e: v + h[e.third], edges, h, reduction=lambda ms: m.b(reduce(ms, "max")))
        return reduce(states[i], "mean") * states[i][-1] + root + reduce(arrived, "sum")

    model, data = Written(body), instances()
    graph = compile(model, *data[0], remove_dead=False, fuse_linear=False, fuse_loops=False, fuse_rows=False)
    assert_compiled(model, data, graph=graph, max_active_keys=3)
