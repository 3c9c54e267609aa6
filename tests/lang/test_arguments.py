"""Instances by name, as dicts and as plain data; what is missing, unknown or misspelt is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ampnet import DataError, Edges, Inline, ModelError, Seq, Tree, compile
from ampnet.instance import Instance
from ampnet.lang import Compiled, Model, choose, each, fold, fold_tree, from_pyg, loss, messages, reduce, repeat
from ampnet.testing import assert_compiled

WIDTH = 3


class Reader(Model):
    """Words, a label, and how often the last layer is applied."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.cell = nn.Embedding(9, WIDTH), nn.GRUCell(WIDTH, WIDTH)
        self.again, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, tokens: Seq, label: Tensor | None = None, *, depth: int = 2, scale: float = 1.0) -> Tensor:
        h = fold(lambda h, word: self.cell(self.embedding(word), h), tokens, self.zeros(WIDTH))
        scores: Tensor = self.out(repeat(lambda h: torch.tanh(self.again(h)) * scale, h, times=depth))
        loss(scores, label)
        return scores


def row(*words: int, label: int = 1, **more: Any) -> dict[str, Any]:
    return {"tokens": Seq(torch.tensor(words)), "label": torch.tensor(label), **more}


@pytest.fixture(name="graph")
def _graph() -> Compiled:
    torch.manual_seed(0)
    return compile(Reader(), row(1, 2))


def same(a: Instance, b: Instance) -> bool:
    if a.digest() != b.digest() or a.feeds.keys() != b.feeds.keys():
        return False
    pairs = [(a.feeds[name].payload, b.feeds[name].payload) for name in a.feeds]
    return all(x is y is None or (x is not None and y is not None and torch.equal(x, y)) for x, y in pairs)


# -- the ways to give an instance


def test_position_name_dict_and_mixture_make_the_same_instance(graph: Compiled) -> None:
    given = row(4, 5, 6)
    made = graph.instance(given["tokens"], given["label"])
    assert same(made, graph.instance(**given))
    assert same(made, graph.instance(given))
    assert same(made, graph.instance(given["tokens"], label=given["label"]))


def test_the_example_may_be_given_in_the_same_ways() -> None:
    model, given = Reader(), row(1, 2)
    graphs = [compile(model, given), compile(model, **given), compile(model, given["tokens"], given["label"])]
    assert len({graph.explain() for graph in graphs}) == 1


def test_eager_runs_take_names_too() -> None:
    torch.manual_seed(0)
    model, given = Reader(), row(3, 1)
    want = model.loss(given["tokens"], given["label"])
    assert torch.equal(model.loss(**given), want)
    assert torch.equal(model.loss(given), want)
    assert model.judge(given)[0].name == "loss"
    torch.testing.assert_close(model(**given), model(given["tokens"], given["label"]))


def test_dicts_are_compiled_as_they_run_eagerly() -> None:
    torch.manual_seed(0)
    assert_compiled(Reader().double(), [row(1, 2), row(3, label=0), row(5, 4, 3, 2)], max_active_keys=2)


def test_many_instances_from_dicts_tuples_and_instances(graph: Compiled) -> None:
    given = row(4, 5)
    samples = [given, tuple(given.values()), graph.instance(given)]
    assert [i.digest() for i in graph.instances(samples)] == [graph.instance(given).digest()] * 3


# -- defaults


def test_a_default_that_the_example_leaves_out_is_a_constant(graph: Compiled) -> None:
    assert_compiled(Reader().double(), [row(1, 2), row(3)])
    graph.instance(**row(1), depth=2, scale=1.0)
    with pytest.raises(DataError, match="'depth' of Reader was not in the example.*its default, 2"):
        graph.instance(**row(1), depth=3)


def test_a_default_stands_in_where_the_example_has_the_argument() -> None:
    graph = compile(Reader(), row(1, 2, depth=5))
    assert same(graph.instance(row(1)), graph.instance(row(1, depth=2)))
    assert not same(graph.instance(row(1)), graph.instance(row(1, depth=3)))
    assert_compiled(Reader().double(), [row(1, 2, depth=3), row(2, depth=0), row(2)])


def test_a_label_may_be_left_out_in_inference() -> None:
    class Needs(Reader):
        def forward(self, tokens: Seq, label: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(tokens, label)

    graph = compile(Needs(), row(1))
    unlabelled = graph.instance(tokens=Seq(torch.tensor([1, 2])))
    assert unlabelled.feeds["label"].payload is None
    with Inline(graph) as runtime:
        assert len(runtime.infer([unlabelled], keep_predictions=True).predictions) == 1


# -- errors


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"tokens": [1], "lable": 1},
            "Reader takes no argument 'lable'; did you mean 'label'? Its forward takes: tokens",
        ),
        ({"words": [1]}, "takes no argument 'words'"),
        ({"label": 1}, "Reader needs 'tokens', not given. Its forward takes: tokens, label, depth, scale"),
        ({"tokens": "a b", "label": 1}, "argument 'tokens' of Reader is a str, expected a Seq"),
        ({"tokens": [], "label": 1}, "argument 'tokens' of Reader: a Seq needs at least one element"),
        ({"tokens": [0.5], "label": 1}, "argument 'tokens' of Reader: it has fractions"),
        ({"tokens": [[1, 2], [3]], "label": 1}, "argument 'tokens' of Reader: no tensor can be made of it"),
        ({"tokens": [1], "label": 1.5}, "argument 'label' of Reader: it has fractions"),
        ({"tokens": [1], "label": "angry"}, "argument 'label' of Reader is a str, expected a Tensor"),
    ],
    ids=str,
)
def test_a_dict_that_does_not_fit_is_named(graph: Compiled, given: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError) as caught:
        graph.instance(given)
    assert words in str(caught.value)


def test_an_argument_given_twice_is_named(graph: Compiled) -> None:
    with pytest.raises(DataError, match="'label' of Reader is given twice"):
        graph.instance(Seq(torch.tensor([1])), torch.tensor(1), label=torch.tensor(0))


def test_an_example_that_does_not_fit_is_named() -> None:
    with pytest.raises(ModelError, match="the example does not fit: Reader needs 'tokens'"):
        compile(Reader(), label=torch.tensor(1))
    with pytest.raises(ModelError, match="takes no argument 'tokes'; did you mean 'tokens'"):
        compile(Reader(), {"tokes": Seq(torch.tensor([1]))})
    with pytest.raises(ModelError, match=r"argument 'tokens' of the example is a list.*Seq\(torch.tensor"):
        compile(Reader(), {"tokens": [1, 2], "label": torch.tensor(1)})
    with pytest.raises(ModelError, match="the label of loss 'loss' is None: the example must have one"):
        compile(Reader(), tokens=Seq(torch.tensor([1])))
    with pytest.raises(ModelError, match="'label' of the example is None.*leave it out if forward has a default"):
        compile(Reader(), tokens=Seq(torch.tensor([1])), label=None)
    with pytest.raises(DataError, match="takes no argument 'lable'; did you mean 'label'"):
        Reader().loss(tokens=Seq(torch.tensor([1])), lable=torch.tensor(1))


# -- other signatures


class Whole(Model):
    """Forward takes one dict."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(WIDTH, WIDTH)

    def forward(self, batch: dict[str, Any]) -> None:
        h = repeat(self.a, batch["x"], times=batch["times"])
        loss(h, batch["y"], "squared_error")


def whole(times: int) -> dict[str, Any]:
    return {"x": torch.ones(WIDTH).double(), "times": times, "y": torch.zeros(WIDTH).double()}


def test_an_argument_may_be_a_dict() -> None:
    graph = assert_compiled(Whole().double(), [whole(2), whole(1), whole(3)])
    assert {i.name for i in graph.inputs} == {"batch_x", "batch_y"}
    assert same(graph.instance(whole(2)), graph.instance(batch=whole(2)))
    assert same(graph.instance(whole(2)), graph.instance({"batch": whole(2)}))
    with pytest.raises(DataError, match="'batch' of Whole has an item 'z' that the example did not have; it had: x"):
        graph.instance({**whole(1), "z": 1})
    with pytest.raises(DataError, match="compiled for an item of 'batch' 'batch_times', which is not given"):
        graph.instance({"x": whole(1)["x"], "y": whole(1)["y"]})


class Rest(Model):
    """Forward takes whatever there is."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(WIDTH, WIDTH)

    def forward(self, *parts: Any, **named: Any) -> None:
        loss(self.a(parts[0] + parts[1]), named["y"], "squared_error")


def test_forward_may_take_any_number_of_arguments() -> None:
    x = torch.ones(WIDTH).double()
    graph = compile(Rest().double(), x, x, y=x)
    assert [i.name for i in graph.inputs] == ["argument0", "argument1", "y"]
    assert same(graph.instance(x, x, y=x), graph.instance(x, 1 * x, y=x))
    with pytest.raises(DataError, match="an item of 'parts' 'argument1', which is not given"):
        graph.instance(x, y=x)


# -- plain data


class Plain(Model):
    """One argument of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.e = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Embedding(5, WIDTH)

    def forward(self, x: Tensor, nodes: Seq, edges: Edges, tree: Tree, order: Seq, y: Tensor) -> None:
        h = each(lambda node: self.a(node.x), nodes)
        h = messages(lambda h, edge: h * edge.w, edges, h)
        top = fold_tree(tree, lambda leaf: self.e(leaf.word), lambda a, b: a + b)[1]
        h = fold(lambda h, way: choose(way, [self.a, self.b], h), order, x + reduce(h) + top)
        loss(h, y, "squared_error")


def made(dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    nodes = Seq(x=torch.arange(6).view(2, 3).to(dtype))
    return {
        "x": torch.ones(WIDTH, dtype=dtype),
        "nodes": nodes,
        "edges": Edges(nodes, [0, 1, 1], [1, 0, 1], w=torch.tensor([[0.5], [2.0], [3.0]], dtype=dtype)),
        "tree": Tree([2, 2, -1], leaves={"word": torch.tensor([1, 4])}),
        "order": Seq([1, 0]),
        "y": torch.zeros(WIDTH, dtype=dtype),
    }


PLAIN = {
    "x": [1, 1, 1],
    "nodes": {"x": [[0, 1, 2], [3, 4, 5]]},
    "edges": {"source": [0, 1, 1], "target": [1, 0, 1], "w": np.array([[0.5], [2.0], [3.0]])},
    "tree": {"parents": [2, 2, -1], "word": [1, 4]},
    "order": [1, 0],
    "y": np.zeros(WIDTH),
}


def test_plain_data_become_what_the_example_had() -> None:
    graph = compile(Plain(), made())
    assert same(graph.instance(PLAIN), graph.instance(made()))
    graph.to(torch.float64)
    assert same(graph.instance(PLAIN), graph.instance(made(torch.float64)))


def test_edges_may_be_two_rows_of_ends() -> None:
    class Bare(Model):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(WIDTH, WIDTH)

        def forward(self, nodes: Seq, edges: Edges, y: Tensor) -> None:
            loss(reduce(messages(self.a, edges, nodes)), y, "squared_error")

    nodes = Seq(torch.ones(2, WIDTH))
    graph = compile(Bare(), nodes, Edges(nodes, [0], [1]), torch.zeros(WIDTH))
    want = graph.instance(nodes, Edges(nodes, [0, 1], [1, 0]), torch.zeros(WIDTH))
    for ends in ([[0, 1], [1, 0]], np.array([[0, 1], [1, 0]]), torch.tensor([[0, 1], [1, 0]])):
        assert same(graph.instance(nodes, ends, [0, 0, 0]), want)
    graph.instance(nodes, [[], []], [0, 0, 0])


def test_payload_never_becomes_control() -> None:
    graph = compile(Plain(), made())
    with pytest.raises(DataError, match="is a tensor \\(payload\\)"):
        graph.instance({**PLAIN, "order": torch.tensor([1, 0])})


def test_a_whole_run_on_plain_data_equals_one_on_tensors() -> None:
    losses = []
    for sample in (PLAIN, made()):
        torch.manual_seed(0)
        with Inline(compile(Plain(), made())) as runtime:
            losses.append(runtime.infer([sample, sample]).loss)
    assert losses[0] == losses[1]


# -- graphs of torch_geometric


class OnGraphs(Model):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.out = nn.Linear(2 + 1, 2), nn.Linear(2, 1)

    def forward(self, nodes: Seq, edges: Edges, y: Tensor) -> None:
        h = each(lambda node: node.x, nodes)
        h = messages(lambda h, edge: self.a(torch.cat((h, edge.edge_attr), -1)), edges, h)
        loss(self.out(reduce(h, "sum")), y, "squared_error")


def molecule(n: int, **more: Any) -> Any:
    data = pytest.importorskip("torch_geometric.data")
    ring = torch.arange(n)
    return data.Data(
        x=torch.arange(2.0 * n).view(n, 2).double() / n,
        edge_index=torch.stack((ring, (ring + 1) % n)),
        edge_attr=torch.ones(n, 1).double(),
        y=torch.tensor([[float(n)]]).double(),
        **more,
    )


def test_a_graph_of_pyg_is_taken_as_it_is() -> None:
    torch.manual_seed(0)
    data = [molecule(3), molecule(1), molecule(4, smiles="CCCC")]
    graph = assert_compiled(OnGraphs().double(), data)
    parts = from_pyg(data[0], graph=["y"])
    assert same(graph.instance(data[0]), graph.instance(parts["nodes"], parts["edges"], parts["y"]))
    assert parts["nodes"] == Seq(x=data[0].x)
    assert parts["y"].shape == (1,)


def test_other_names_and_control_are_those_of_the_example() -> None:
    class Typed(Model):
        def __init__(self) -> None:
            super().__init__()
            self.ways = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))

        def forward(self, atoms: Seq, bonds: Edges, y: Tensor) -> None:
            h = each(lambda atom: atom.x, atoms)
            h = messages(lambda h, bond: choose(bond.edge_type, self.ways, h), bonds, h)
            loss(reduce(h), y, "squared_error")

    data = molecule(3, edge_type=torch.tensor([0, 1, 1]))
    data.y = torch.zeros(1, 2).double()
    example = from_pyg(data, nodes="atoms", edges="bonds", graph=["y"], control=["edge_type"])
    graph = compile(Typed().double(), {name: example[name] for name in ("atoms", "bonds", "y")})
    assert same(graph.instance(data), graph.instance(example["atoms"], example["bonds"], example["y"]))


def test_what_is_no_single_graph_of_pyg_is_refused() -> None:
    data = pytest.importorskip("torch_geometric.data")
    with pytest.raises(DataError, match="Batch of several graphs.*to_data_list"):
        from_pyg(data.Batch.from_data_list([molecule(2), molecule(3)]))
    with pytest.raises(DataError, match="HeteroData is not a graph of one kind"):
        from_pyg(data.HeteroData())
    with pytest.raises(DataError, match="no edge_index"):
        from_pyg(data.Data(x=torch.ones(2, 2)))
    with pytest.raises(DataError, match="no attribute with a row for each of its 2 nodes"):
        from_pyg(data.Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2))
    with pytest.raises(DataError, match="'x' is torch.float64.*whole numbers"):
        from_pyg(molecule(2), control=["x"])


def test_a_model_of_pyg_that_takes_the_data_whole_is_told_how_to_write_it() -> None:
    class OnData(Model):
        def forward(self, data: Any) -> None:
            loss(data.x, data.y, "squared_error")

    with pytest.raises(
        ModelError, match="to arguments by name.*Its forward takes: data. Write forward\\(self, nodes, edges, y\\)"
    ):
        compile(OnData(), molecule(2))
