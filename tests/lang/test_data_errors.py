"""Instances that a compiled model cannot take: each is refused when it is made, by argument, column and element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ampnet import Inline, NodeError
from ampnet.errors import DataError
from ampnet.lang import Compiled, Edges, Model, Seq, Tree, choose, compile, each, fold, fold_tree, loss, reduce, repeat
from ampnet.models import Babi15, ListReduction, PermutedLayers, Qm9, TreeLstm
from ampnet.testing import assert_close

WIDTH = 3


class Everything(Model):
    """A tensor, a sequence, a number and a class."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
        self.options = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor, seq: Seq, n: int, label: Tensor) -> None:
        h = fold(lambda h, t: choose(t.k, self.options, h) + t.x, seq, x)
        loss(self.out(repeat(self.a, h, times=n)), label)


def arguments(**changed: Any) -> tuple[Any, ...]:
    given = {
        "x": torch.randn(WIDTH),
        "seq": Seq(x=torch.randn(2, WIDTH), k=[0, 1]),
        "n": 2,
        "label": torch.tensor(1),
        **changed,
    }
    return tuple(given.values())


@pytest.fixture(name="graph")
def _graph() -> Compiled:
    torch.manual_seed(0)
    return compile(Everything(), *arguments())


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"x": torch.randn(4)}, "'x' has (4,) torch.float32 for a message; the model was compiled for (3,)"),
        ({"x": torch.randn(WIDTH).double()}, "'x' has (3,) torch.float64"),
        ({"x": "abc"}, "argument 'x' of Everything is a str, expected a Tensor"),
        ({"x": [1.0, 2.0]}, "'x' has (2,) torch.float32 for a message; the model was compiled for (3,)"),
        ({"x": None}, "'x' is missing; only labels may be, in inference"),
        ({"seq": torch.zeros(2, 3)}, "argument 'seq' of Everything is a Tensor, expected a Seq"),
        ({"seq": Seq(x=torch.randn(2, 4), k=[0, 1])}, "'seq_x' has (4,)"),
        ({"seq": Seq(x=torch.randn(2, WIDTH).double(), k=[0, 1])}, "'seq_x' has (3,) torch.float64"),
        ({"seq": Seq(x=torch.randn(2, WIDTH))}, "needs a column 'k' in Seq(2 elements: x); there are: x"),
        ({"seq": Seq(k=[1])}, "needs a column 'x'"),
        ({"n": -1}, "argument 'n' is -1; integers that decide control flow count from 0 up"),
        ({"n": torch.tensor(2)}, "argument 'n' of Everything is a Tensor, expected a int"),
        ({"n": 1.5}, "argument 'n' of Everything is a float, expected a int"),
        ({"n": None}, "argument 'n' of Everything is None, expected a int"),
        ({"seq": None}, "argument 'seq' of Everything is None, expected a Seq"),
        ({"label": torch.tensor(1.0)}, "'label' has () torch.float32"),
        ({"label": torch.tensor([1])}, "'label' has (1,) torch.int64"),
        ({"more": 3}, "Everything takes 4 argument(s), got 5"),
    ],
)
def test_an_argument_of_the_wrong_kind_is_named(graph: Compiled, changed: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError) as caught:
        graph.instance(*arguments(**changed))
    assert words in str(caught.value)


def test_too_few_arguments_are_counted(graph: Compiled) -> None:
    with pytest.raises(DataError, match="takes 4 argument\\(s\\), got 3"):
        graph.instance(*arguments()[:3])


def test_columns_of_integers_must_be_integers(graph: Compiled) -> None:
    with pytest.raises(DataError, match="column 'k' of a Seq is float64"):
        Seq(x=torch.randn(2, WIDTH), k=[0.5, 1])
    # A tensor in place of integers: payload where control is wanted.
    with pytest.raises(DataError, match="'k'"):
        graph.instance(*arguments(seq=Seq(x=torch.randn(2, WIDTH), k=torch.tensor([0, 1]))))


def test_integers_in_place_of_a_tensor_are_refused(graph: Compiled) -> None:
    with pytest.raises(DataError, match="'x'|seq_x"):
        graph.instance(*arguments(seq=Seq(x=[1, 2], k=[0, 1])))


def test_a_choice_out_of_range_is_named_with_its_state(graph: Compiled) -> None:
    with (
        Inline(graph) as runtime,
        pytest.raises((DataError, NodeError), match="cond") as caught,
    ):
        runtime.train([graph.instance(*arguments(seq=Seq(x=torch.randn(2, WIDTH), k=[0, 2])))])
    assert "seq=1" in str(caught.value)


# -- sequences, trees and edges


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Seq(torch.zeros(0, 3)), "at least one element"),
        (lambda: Seq([]), "at least one element"),
        (lambda: Seq(), "at least one column"),
        (lambda: Seq(a=torch.zeros(3), b=torch.zeros(2)), "column 'b' of a Seq has shape (2,); 3 entries are needed"),
        (lambda: Seq(a=[1, 2], b=torch.tensor(1)), "column 'b' of a Seq has shape ()"),
        (lambda: Seq(["a", "b"]), "column 'value' of a Seq is <U1"),
        (lambda: Seq(np.zeros((2, 2), dtype=np.int64)), "column 'value' of a Seq is int64 (2, 2)"),
        (lambda: Tree([1, 2, 1, -1]), "node 0 of a Tree goes round in a circle"),
        (lambda: Tree([0, -1]), "node 0 of a Tree goes round in a circle"),
        (lambda: Tree([-1, -1]), "this one has 2 among 2 nodes"),
        (lambda: Tree([1, 0]), "this one has 0 among 2 nodes"),
        (lambda: Tree([]), "this one has 0 among 0 nodes"),
        (lambda: Tree([5, -1]), "a Tree of 2 nodes names 5 as a parent"),
        (lambda: Tree([-2, -1]), "a Tree of 2 nodes names -2 as a parent"),
        (lambda: Tree([2, 2, -1], leaves={"w": [1, 2, 3]}), "column 'w' of a Tree has shape (3,); 2 entries"),
        (lambda: Tree([2, 2, -1], y=[1, 2]), "column 'y' of a Tree has shape (2,); 3 entries"),
        (lambda: Edges(Seq([0, 1]), [0], [2]), "the target of edge 0 is 2; there are 2 elements"),
        (lambda: Edges(Seq([0, 1]), [0, -1], [1, 1]), "the source of edge 1 is -1"),
        (lambda: Edges(Seq([0, 1]), [0, 1], [1]), "2 sources and 1 targets"),
        (lambda: Edges(Seq([0, 1]), [0], [1], kind=[0, 1]), "column 'kind' of a Edges has shape (2,); 1 entries"),
        (lambda: Edges(Seq([0, 1]), [0.5], [1]), "column 'source' of a Edges is float64"),
    ],
)
def test_spaces_that_make_no_sense_are_refused(make: Any, words: str) -> None:
    with pytest.raises(DataError) as caught:
        make()
    assert words in str(caught.value)


def small_tree(parents: list[int], **columns: Any) -> Tree:
    words = torch.zeros(len(parents) - len(set(parents) - {-1}), dtype=torch.int64)
    return Tree(parents, leaves={"word": words}, **{"label": torch.zeros(len(parents), dtype=torch.int64), **columns})


def test_a_tree_of_another_arity_names_the_node() -> None:
    graph = compile(TreeLstm(4, 2, 2, 3), small_tree([2, 2, -1]))
    with pytest.raises(DataError, match="node 3 of a Tree has 3 children; the model's branch function takes 2"):
        graph.instance(small_tree([3, 3, 3, -1]))
    with pytest.raises(DataError, match="node 1 of a Tree has 1 children"):
        graph.instance(small_tree([1, -1]))
    graph.instance(small_tree([-1]))


def test_the_other_way_round_of_leaves_and_branches_is_refused() -> None:
    """A column that is given for leaves must not be for branches in another instance."""

    class Sorted(Model):
        def forward(self, tree: Tree) -> None:
            _, root = fold_tree(tree, lambda node: node.w, lambda a, b: a + b)
            loss(root, torch.zeros(2), "squared_error")

    graph = compile(Sorted(), Tree([2, 2, -1], leaves={"w": torch.zeros(2, 2)}))
    with pytest.raises(DataError, match="'w'"):
        graph.instance(Tree([2, 2, -1], branches={"w": torch.zeros(1, 2)}))


def test_edges_between_other_nodes_than_the_argument_are_refused() -> None:
    nodes, others = Seq(x=torch.zeros(2, 5)), Seq(x=torch.zeros(3, 5))
    graph = compile(Babi15(), nodes, Edges(nodes, [0], [1], kind=[0]), torch.tensor(0))
    with pytest.raises(DataError, match="edges"):
        graph.instance(nodes, Edges(others, [0], [2], kind=[0]), torch.tensor(0))


def test_a_reduction_over_no_edges_is_refused_compiled_and_eagerly() -> None:
    class Total(Model):
        def forward(self, nodes: Seq, edges: Edges) -> None:
            loss(reduce(each(lambda e: e.x, edges)), torch.zeros(2), "squared_error")

    nodes = Seq(x=torch.zeros(2, 2))
    some, none = Edges(nodes, [0], [1], x=torch.zeros(1, 2)), Edges(nodes, [], [], x=torch.zeros(0, 2))
    graph = compile(Total(), nodes, some)
    with pytest.raises(DataError, match="'edges' has no element"):
        graph.instance(nodes, none)
    with pytest.raises(DataError, match="has no element"):
        Total().loss(nodes, none)


def test_an_instance_that_reaches_no_loss_is_refused() -> None:
    class Rare(Model):
        def forward(self, x: Tensor, n: int) -> None:
            def judged(h: Tensor) -> Tensor:
                loss(h, x, "squared_error")
                return h

            repeat(judged, x, times=n)

    graph = compile(Rare(), torch.zeros(3), 1)
    with pytest.raises(DataError, match="no loss would be reached"):
        graph.instance(torch.zeros(3), 0)


def test_a_loop_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from ampnet.lang import ints

    class Endless(Model):
        def forward(self, x: Tensor, n: int) -> None:
            h, _ = repeat(lambda s: (s[0] * 2, s[1] + 1), (x, n), while_=lambda s: s[1] != 3)
            loss(h, x, "squared_error")

    monkeypatch.setattr(ints, "MOST_ROUNDS", 50)
    graph = compile(Endless(), torch.zeros(3), 1)
    with Inline(graph) as runtime:
        runtime.train([graph.instance(torch.zeros(3), 1)])
        with pytest.raises(NodeError, match="still holds after 50 rounds"):
            runtime.train([graph.instance(torch.zeros(3), 4)])


# -- labels that are not known


def test_an_instance_without_a_label_gets_a_prediction_and_cannot_be_trained_on(graph: Compiled) -> None:
    given = arguments()
    with Inline(graph, max_active_keys=2) as runtime:
        stats = runtime.infer(
            [graph.instance(*given), graph.instance(*given[:-1], None), graph.instance(*given)], keep_predictions=True
        )
        known, unknown, _ = (stats.predictions[i][0][2] for i in range(3))
        assert_close({"scores": unknown}, {"scores": known})
        with pytest.raises(NodeError, match="no label for"):
            runtime.train([graph.instance(*given[:-1], None)])


def test_a_tree_without_labels_gets_a_prediction_at_every_node() -> None:
    torch.manual_seed(0)
    graph = compile(TreeLstm(4, 2, 2, 3), small_tree([2, 2, -1]))
    bare = Tree([4, 2, 4, 2, -1], leaves={"word": torch.tensor([0, 1, 2])})
    with Inline(graph) as runtime:
        stats = runtime.infer([graph.instance(bare)], keep_predictions=True)
    assert len(stats.predictions[0]) == 5


def test_a_label_that_the_model_computes_with_may_not_be_missing() -> None:
    class Uses(Model):
        def forward(self, x: Tensor, y: Tensor) -> None:
            loss(x * y, y, "squared_error")

    graph = compile(Uses(), torch.zeros(2), torch.zeros(2))
    with pytest.raises(DataError, match="'y' is missing"):
        graph.instance(torch.zeros(2), None)


# -- buckets


def test_a_bucket_gives_the_mean_of_its_instances_gradients() -> None:
    from ampnet.testing import model_gradients

    torch.manual_seed(0)
    model = ListReduction(4, "lstm").double()
    tokens, labels = torch.randint(0, 14, (3, 5)), torch.randint(0, 10, (5,))
    each_one = [(Seq(tokens[:, i].contiguous()), labels[i]) for i in range(5)]
    graph = compile(model, *each_one[0])
    with Inline(graph, update=None) as runtime:
        stats = runtime.train([graph.bucket(5, Seq(tokens), labels)])
    assert stats.records == 5
    names = {id(p): name for name, p in model.named_parameters()}
    got = {
        names[id(p)]: total * 5
        for node in graph.parameterised().values()
        for p, total in zip(node.parameters.values(), node.updater.sums, strict=True)
    }
    assert_close(got, model_gradients(model, each_one))


def test_a_bucket_of_a_model_that_chooses_takes_one_way() -> None:
    torch.manual_seed(0)
    model = PermutedLayers(4, 3, 2)
    graph = compile(model, torch.zeros(4), Seq([0, 2]), torch.tensor(0))
    x, labels = torch.randn(6, 4), torch.randint(0, 2, (6,))
    with Inline(graph) as runtime:
        stats = runtime.infer([graph.bucket(6, x, Seq([1, 0]), labels)], keep_predictions=True)
    with torch.no_grad():
        want = torch.stack([model.judge(x[i], Seq([1, 0]), labels[i])[0].prediction for i in range(6)])
    torch.testing.assert_close(stats.predictions[0][0][2], want)


def test_buckets_that_do_not_fit_are_refused() -> None:
    graph = compile(ListReduction(4), Seq(torch.tensor([1, 2])), torch.tensor(0))
    tokens, labels = torch.zeros(3, 5, dtype=torch.int64), torch.zeros(5, dtype=torch.int64)
    with pytest.raises(DataError, match="'tokens' has \\(4,\\) torch.int64 .* of which a bucket has 5"):
        graph.bucket(5, Seq(tokens[:, :4]), labels)
    with pytest.raises(DataError, match="'label' has \\(3,\\)"):
        graph.bucket(5, Seq(tokens), labels[:3])
    with pytest.raises(DataError, match="'label' has \\(\\)"):
        graph.bucket(5, Seq(tokens), labels[0])
    with pytest.raises(DataError, match="a bucket of 0 instances"):
        graph.bucket(0, Seq(tokens), labels)
    graph.bucket(1, Seq(tokens[:, 0]), labels[0])


def test_models_that_put_elements_together_have_no_buckets() -> None:
    atoms = Seq(x=torch.zeros(2, 2))
    molecule = (atoms, Edges(atoms, [0], [1], kind=[0]), torch.zeros(1))
    with pytest.raises(DataError, match="Qm9 combines elements"):
        compile(Qm9(2, 3, 1), *molecule).bucket(2, *molecule)
    tree = small_tree([2, 2, -1])
    with pytest.raises(DataError, match="TreeLstm combines elements"):
        compile(TreeLstm(4, 2, 2, 3), tree).bucket(2, tree)


def test_instances_come_one_by_one() -> None:
    graph = compile(ListReduction(4), Seq(torch.tensor([1, 2])), torch.tensor(0))
    made = graph.instances((Seq(torch.tensor([i])), torch.tensor(0)) for i in range(10**9))
    assert [next(made).records for _ in range(2)] == [1, 1]
    assert np.array_equal(next(made).feeds["tokens"].columns[0], [0])
