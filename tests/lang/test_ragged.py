"""Sequences inside of sequences: columns that have a Seq or Tree for each element, at any depth."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ampnet import DataError, Inline
from ampnet.errors import ModelError
from ampnet.lang import (
    Edges,
    Model,
    Seq,
    Tree,
    choose,
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
from ampnet.testing import assert_compiled, compiled_gradients, model_gradients
from tests.lang.on_workers import assert_on_workers
from tests.lang.written import WrittenBase

pytestmark = pytest.mark.usefixtures("float64")
WIDTH = 3


def rows(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(rng.standard_normal(shape))


class Written(WrittenBase):
    """A model whose forward is a function of the test: ``(m, *arguments) -> row``, compared with the last argument."""

    def forward(self, x: Any, y: Tensor) -> None:
        self.compare(self.body(self, x), y)


def check(body: Any, data: list[Any], **settings: Any) -> Any:
    rng = np.random.default_rng(5)
    return assert_compiled(Written(body), [(x, rows(rng, WIDTH)) for x in data], max_active_keys=3, **settings)


def document(rng: np.random.Generator) -> Seq:
    """Sentences of words of letters; every level has payload and control."""

    def word() -> Seq:
        n = int(rng.integers(1, 4))
        return Seq(x=rows(rng, n, WIDTH), k=rng.integers(0, 3, n))

    def sentence() -> Seq:
        n = int(rng.integers(1, 4))
        return Seq(x=rows(rng, n, WIDTH), k=rng.integers(0, 3, n), letters=[word() for _ in range(n)])

    n = int(rng.integers(1, 4))
    words = [sentence() for _ in range(n)]
    return Seq(words=words, x=rows(rng, n, WIDTH), k=rng.integers(0, 3, n), y=rows(rng, n, WIDTH))


def documents(count: int = 5, seed: int = 3) -> list[Seq]:
    rng = np.random.default_rng(seed)
    return [document(rng) for _ in range(count)]


# -- a sequence of sequences


def test_a_fold_over_words_inside_of_each_sentence() -> None:
    def body(m: Any, text: Any) -> Any:
        read = each(lambda s: fold(lambda h, w: m.cell(w.x, h), s.words, m.zeros(WIDTH)), text)
        return fold(lambda h, v: m.outer(v, h), read, m.zeros(WIDTH))

    check(body, documents())


def test_a_fold_over_words_inside_of_a_fold_over_sentences() -> None:
    def body(m: Any, text: Any) -> Any:
        return fold(lambda h, s: fold(lambda h, w: m.cell(w.x + s.x, h), s.words, h), text, m.zeros(WIDTH))

    check(body, documents())


def test_each_and_reduce_inside_of_each() -> None:
    def body(m: Any, text: Any) -> Any:
        def sentence(s: Any) -> Any:
            return reduce(each(lambda w: torch.tanh(m.a(w.x) + s.x), s.words), "max")

        return reduce(each(sentence, text), "mean")

    check(body, documents())


def test_three_levels_with_control_at_each() -> None:
    def body(m: Any, text: Any) -> Any:
        def letters(w: Any) -> Any:
            return reduce(each(lambda c: choose(c.k, m.options, c.x + w.x), w.letters), "sum")

        def words(s: Any) -> Any:
            return fold(lambda h, w: m.cell(choose(w.k, m.options, letters(w)), h), s.words, s.x)

        return reduce(each(lambda s: repeat(m.b, words(s), times=s.k), text), "sum")

    check(body, documents())


def test_families_of_families() -> None:
    """What an inner each gives can be taken up again, and the column be used outside of the outer each."""

    def body(m: Any, text: Any) -> Any:
        first = each(lambda s: each(lambda w: m.a(w.x), s.words), text)
        states = each(lambda hs, s: scan(lambda h, v: m.cell(v, h), hs, s.x), first, text)[0]
        both = each(lambda hs, words: reduce(each(lambda h, w: h * w.x, hs, words), "sum"), states, text.words)
        return reduce(both, "mean")

    check(body, documents())


def test_a_loop_carries_a_family_of_families() -> None:
    def body(m: Any, text: Any) -> Any:
        h = each(lambda s: each(lambda w: m.a(w.x), s.words), text)
        h = repeat(lambda h: each(lambda hs: each(lambda v: torch.tanh(m.b(v)), hs), h), h, times=2)
        return reduce(each(lambda hs: reduce(hs, "sum"), h), "sum")

    check(body, documents())


def test_losses_at_the_inner_elements() -> None:
    def body(m: Any, text: Any) -> Any:
        def sentence(s: Any) -> Any:
            states, last = scan(lambda h, w: m.cell(w.x, h), s.words, s.x)
            each(lambda h, w: loss(m.a(h), w.x, "squared_error"), states, s.words)
            return last

        each(lambda s: loss(sentence(s), s.y, "squared_error"), text)

    graph = check(body, documents())
    text = documents(1)[0]
    words = sum(len(words) for words in text._columns["words"].spaces)
    assert graph.instance(text, torch.zeros(WIDTH)).results == words + len(text)


def test_values_from_outside_and_choices_around() -> None:
    def body(m: Any, text: Any) -> Any:
        total = reduce(each(lambda s: m.a(s.x), text), "sum")

        def long(s: Any) -> Any:
            return reduce(softmax(each(lambda w: w.x * total, s.words)), "max")

        return reduce(each(lambda s: choose(s.k, [m.a, lambda x: x * total, lambda x: long(s)], s.x), text), "sum")

    check(body, documents(8))


@pytest.mark.parametrize("plain", [True, False])
def test_lists_of_tensors_and_of_integers(plain: bool) -> None:
    """An inner sequence may be given as a tensor of its rows, or as a list of integers."""

    def body(m: Any, text: Any) -> Any:
        if plain:
            return reduce(each(lambda xs: fold(lambda h, x: m.cell(x, h), xs, m.zeros(WIDTH)), text), "sum")
        return reduce(
            each(lambda s: fold(lambda h, k: torch.tanh(choose(k, m.options, h)), s.kinds, reduce(s.xs, "sum")), text),
            "sum",
        )

    rng, data = np.random.default_rng(2), []
    for n in (2, 1, 3):
        xs = [rows(rng, int(rng.integers(1, 4)), WIDTH) for _ in range(n)]
        kinds = [rng.integers(0, 3, rng.integers(1, 4)).tolist() for _ in range(n)]
        data.append(Seq(xs) if plain else Seq(xs=xs, kinds=kinds))
    check(body, data)


def test_trees_inside_of_a_sequence() -> None:
    """A text of parsed sentences, whose trees have different shapes; a word is a leaf."""

    def body(m: Any, text: Any) -> Any:
        def sentence(s: Any) -> Any:
            nodes, root = fold_tree(s.tree, lambda n: m.a(n.x), lambda a, b, n: torch.tanh(m.b(a) * b + n.y))
            each(lambda h, n: loss(h, n.y, "squared_error"), nodes, s.tree)
            return root

        return fold(lambda h, v: m.outer(v, h), each(sentence, text), m.zeros(WIDTH))

    rng = np.random.default_rng(4)

    def tree() -> Tree:
        parents = [[-1], [2, 2, -1], [1, -1, 1], [4, 2, 4, 2, -1], [-1, 0, 0, 1, 1]][int(rng.integers(5))]
        leaves = len(parents) // 2 + 1
        return Tree(parents, leaves={"x": rows(rng, leaves, WIDTH)}, y=rows(rng, len(parents), WIDTH))

    check(body, [Seq(tree=[Tree([2, 2, -1], leaves={"x": rows(rng, 2, WIDTH)}, y=rows(rng, 3, WIDTH))])])
    check(body, [Seq(tree=[tree() for _ in range(n)]) for n in (3, 1, 4)] * 2)


def test_trees_of_any_number_of_children_inside_of_a_sequence() -> None:
    def body(m: Any, text: Any) -> Any:
        def sentence(s: Any) -> Any:
            return fold_tree(
                s.tree,
                lambda n: m.a(n.x),
                lambda hs, n: fold(lambda h, child: m.cell(child, h), hs, n.x),
                children="family",
            )[1]

        return reduce(each(sentence, text), "sum")

    rng = np.random.default_rng(4)

    def tree(n: int) -> Tree:
        parents = [-1, *(int(rng.integers(0, i)) for i in range(1, n))]
        order = rng.permutation(n)
        shuffled = [-1 if parents[i] < 0 else int(np.flatnonzero(order == parents[i])[0]) for i in order]
        return Tree(shuffled, x=rows(rng, n, WIDTH))

    check(body, [Seq(tree=[tree(n) for n in sizes]) for sizes in ((4, 1), (7,), (2, 5, 1))])


# -- nodes of a graph, edges, and leaves of a tree that carry sequences


def graph_of(rng: np.random.Generator, n: int, bonds: int) -> tuple[Seq, Edges]:
    nodes = Seq(words=[rows(rng, int(rng.integers(1, 4)), WIDTH) for _ in range(n)], x=rows(rng, n, WIDTH))
    ends = rng.integers(0, n, (2, bonds))
    path = [Seq(x=rows(rng, k, WIDTH), k=rng.integers(0, 3, k)) for k in rng.integers(1, 4, bonds)]
    return nodes, Edges(nodes, ends[0], ends[1], path=path)


class Carrying(Model):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.b = nn.GRUCell(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.options = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, nodes: Seq, edges: Edges, y: Tensor) -> None:
        h = each(lambda n: fold(lambda h, w: self.cell(w, h), n.words, n.x), nodes)

        def message(v: Any, edge: Any) -> Any:
            return fold(lambda v, step: torch.tanh(choose(step.k, self.options, v) + step.x), edge.path, v)

        h = repeat(lambda h: each(self.cell, messages(message, edges, h), h), h, times=2)
        loss(self.b(reduce(h, "sum")), y, "squared_error")


def carrying() -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(8)
    return [(*graph_of(rng, n, bonds), rows(rng, WIDTH)) for n, bonds in ((3, 5), (1, 0), (4, 3), (2, 1))]


def test_a_graph_whose_nodes_and_edges_carry_sequences() -> None:
    assert_compiled(Carrying(), carrying(), max_active_keys=3)


def test_leaves_of_a_tree_carry_sequences() -> None:
    def body(m: Any, tree: Any) -> Any:
        return fold_tree(
            tree,
            lambda n: fold(lambda h, w: m.cell(w, h), n.words, m.zeros(WIDTH)),
            lambda a, b: torch.tanh(m.a(a) + m.b(b)),
        )[1]

    rng, data = np.random.default_rng(8), []
    for parents in ([2, 2, -1], [-1], [4, 2, 4, 2, -1]):
        leaves = len(parents) // 2 + 1
        data.append(Tree(parents, leaves={"words": [rows(rng, k, WIDTH) for k in rng.integers(1, 4, leaves)]}))
    check(body, data)


# -- on worker processes, and random structures


def test_on_two_workers() -> None:
    assert_on_workers(Carrying(), carrying())


@pytest.mark.parametrize("seed", range(4))
def test_random_documents(seed: int) -> None:
    rng = np.random.default_rng(seed)
    reduction = ["sum", "mean", "max", "logsumexp"][seed]

    def body(m: Any, text: Any) -> Any:
        def word(w: Any) -> Any:
            return reduce(each(lambda c: choose(c.k, m.options, c.x), w.letters), reduction)

        def sentence(s: Any) -> Any:
            return fold(lambda h, w: m.cell(word(w), h), s.words, m.zeros(WIDTH))

        h = each(sentence, text)
        return fold(lambda h, v: m.outer(v, h), h, m.zeros(WIDTH)) + h[-1] + reduce(text[0].words.x, reduction)

    check(body, [document(rng) for _ in range(6)])


# -- the same plain data as everywhere: Inline trains it


def test_training_goes_by_waves() -> None:
    def body(m: Any, text: Any) -> Any:
        return reduce(each(lambda s: fold(lambda h, w: m.cell(w.x, h), s.words, m.zeros(WIDTH)), text), "sum")

    model, y = Written(body), torch.zeros(WIDTH)
    graph = compile(model, documents(1)[0], y)
    with Inline(graph, max_active_keys=8) as runtime:
        runtime.infer(graph.instances((d, y) for d in documents(20)))
        assert runtime.stats().engine == "waves"


def test_copies_and_plain_data() -> None:
    """Also after the entries were put end to end; a row of a data set has lists of lists."""
    text = Seq(words=[torch.tensor([1, 2]), torch.tensor([3])], k=[0, 1])
    assert len(text._columns["words"].flat) == 3
    assert pickle.loads(pickle.dumps(text)) == copy.deepcopy(text) == text

    class Words(Model):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, WIDTH)

        def forward(self, text: Seq, y: Tensor) -> None:
            loss(reduce(each(lambda s: reduce(each(self.embed, s.words), "sum"), text), "sum"), y, "squared_error")

    graph = compile(Words(), text, torch.zeros(WIDTH))
    row = graph.instance({"text": {"words": [[1, 2], [3]], "k": [0, 1]}, "y": [0.0] * WIDTH})
    want = graph.instance(text, torch.zeros(WIDTH))
    assert all(torch.equal(feed.payload, want.feeds[name].payload) for name, feed in row.feeds.items())


# -- bad input


def test_an_empty_inner_sequence_is_refused() -> None:
    with pytest.raises(DataError, match="entry 1 of column 'words'.*at least one element"):
        Seq(words=[torch.zeros(2, 3), torch.zeros(0, 3)])


def test_inner_sequences_that_are_not_alike_are_refused() -> None:
    with pytest.raises(DataError, match="must be made alike: entry 0 is Seq.*entry 1"):
        Seq(words=[Seq(x=torch.zeros(2, 3)), Seq(y=torch.zeros(2, 3))])
    with pytest.raises(DataError, match="must be made alike"):
        Seq(words=[torch.zeros(2, 3), torch.zeros(2, 4)])
    with pytest.raises(DataError, match="has shape"):
        Seq(words=[torch.zeros(2, 3), torch.zeros(2, 3)], x=torch.zeros(3, 1))


def test_an_inner_sequence_outside_of_its_element() -> None:
    kept: list[Any] = []

    def body(m: Any, text: Any) -> Any:
        each(lambda s: kept.append(s.words) or s.x, text)
        return reduce(kept[0].x, "sum")

    with pytest.raises(ModelError, match="'x_words' are those of one element of 'x'"):
        compile(Written(body), documents(1)[0], torch.zeros(WIDTH))


def test_a_tree_picked_by_its_index() -> None:
    def body(m: Any, text: Any) -> Any:
        return fold_tree(text[0].tree, lambda n: m.a(n.x), lambda a, b: a + b)[1]

    text = Seq(tree=[Tree([-1], x=torch.zeros(1, WIDTH))], k=[0])
    with pytest.raises(ModelError, match="Fold the trees of all elements and pick the result"):
        compile(Written(body), text, torch.zeros(WIDTH))


def test_a_set_of_graphs_is_refused_with_what_works() -> None:
    atoms = Seq(torch.zeros(2, WIDTH))
    with pytest.raises(DataError, match="entry 0 of column 'bonds' is Edges.*one Seq of all nodes, one Edges"):
        Seq(atoms=[atoms], bonds=[Edges(atoms, [0], [1])])


def test_a_reduction_of_a_family_of_families() -> None:
    def body(m: Any, text: Any) -> Any:
        return reduce(each(lambda s: each(lambda w: w.x, s.words), text), "sum")

    with pytest.raises(ModelError, match="each.lambda inner: reduce.inner., families. reduces the inner ones"):
        compile(Written(body), documents(1)[0], torch.zeros(WIDTH))


def test_data_of_another_make_than_the_example() -> None:
    def body(m: Any, text: Any) -> Any:
        return reduce(each(lambda s: reduce(s.words, "sum"), text), "sum")

    graph = compile(Written(body), Seq(words=[torch.zeros(2, WIDTH)], k=[0]), torch.zeros(WIDTH))
    with pytest.raises(DataError, match="compiled for a sequence for each"):
        graph.instance(Seq(words=torch.zeros(2, WIDTH), k=[0, 1]), torch.zeros(WIDTH))
    with pytest.raises(DataError, match=r"\(4,\)"):
        graph.instance(Seq(words=[torch.zeros(2, 4)], k=[0]), torch.zeros(WIDTH))


def test_gradients_of_inner_payload_reach_what_made_it() -> None:
    """An embedding looked up inside of an inner sequence gets the gradients of all its words."""

    class Words(Model):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.cell = nn.Embedding(5, WIDTH), nn.GRUCell(WIDTH, WIDTH)

        def forward(self, text: Seq, y: Tensor) -> None:
            h = each(lambda s: fold(lambda h, w: self.cell(self.embed(w), h), s, self.zeros(WIDTH)), text)
            loss(reduce(h, "mean"), y, "squared_error")

    rng = np.random.default_rng(0)
    data = [
        (Seq([torch.from_numpy(rng.integers(0, 5, k)) for k in rng.integers(1, 5, n)]), rows(rng, WIDTH))
        for n in (2, 1, 3)
    ]
    model = Words()
    graph = assert_compiled(model, data)
    got, want = compiled_gradients(graph, data), model_gradients(model, data)
    torch.testing.assert_close(got["embed.weight"], want["embed.weight"])


def test_nested_columns_follow_a_graph_that_is_cast() -> None:
    """Once the example's inner sequences kept their dtype, and `predict` compiled for that."""

    class Sums(Model):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(WIDTH, WIDTH)

        def forward(self, text: Seq, y: Tensor) -> Tensor:
            h = reduce(each(lambda s: reduce(each(self.a, s.words), "sum"), text), "sum")
            loss(h, y, "squared_error")
            return h

    words = [[[1.0, 2.0, 3.0]], [[1.0, 0.0, 0.0], [0.0, 1.0, 2.0]]]
    graph = compile(Sums(), Seq(words=[torch.tensor(one) for one in words]), torch.zeros(WIDTH))
    graph.to(torch.float32)
    with Inline(graph) as runtime:
        runtime.train(graph.instances([({"words": words}, [0.0, 0.0, 0.0])]))
        (made,) = runtime.predict([({"words": words}, None)])
    assert made.dtype == torch.float32
