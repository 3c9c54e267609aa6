"""Data sets as sources of instances: map-style, loaders with worker processes, rows; and copies of what they hold."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ampnet import DataError, Edges, Inline, Processes, Seq, Tree, compile
from ampnet.lang import Compiled, Model, fold, loss

WIDTH = 3


class Sums(Model):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, xs: Seq, y: Tensor) -> None:
        h = fold(lambda h, x: torch.tanh(self.a(h + x)), xs, self.zeros(WIDTH))
        loss(self.out(h), y, "squared_error")


def sample(i: int) -> dict[str, Any]:
    return {"xs": Seq(torch.full((1 + i % 3, WIDTH), float(i))), "y": torch.tensor([float(i)])}


class Numbered(Dataset[dict[str, Any]]):
    """Map-style: len() and [i], no __iter__, and no IndexError at its end."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, i: int) -> dict[str, Any]:
        return sample(i)


class Streamed(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([sample(i) for i in range(7)])


def as_list(batch: list[Any]) -> list[Any]:
    return batch


@pytest.fixture(name="graph")
def _graph() -> Compiled:
    torch.manual_seed(0)
    return compile(Sums(), sample(0))


def labels(graph: Compiled, source: Any, **order: Any) -> list[int]:
    """Which samples, by their labels."""
    return [int(i.feeds["y"].payload.item()) for i in graph.instances(source, **order)]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "source",
    [
        lambda: [sample(i) for i in range(7)],
        lambda: (tuple(sample(i).values()) for i in range(7)),
        Numbered,
        Streamed,
        lambda: DataLoader(Numbered(), batch_size=None),
        lambda: DataLoader(Numbered(), batch_size=3, collate_fn=list),
        lambda: DataLoader(Numbered(), batch_size=None, num_workers=2),
        lambda: DataLoader(Numbered(), batch_size=3, collate_fn=as_list, num_workers=2),
    ],
    ids=["list", "generator", "map-style", "iterable", "loader", "batches", "workers", "batches of workers"],
)
def test_every_source_gives_its_samples_in_order(graph: Compiled, source: Callable[[], Any]) -> None:
    assert labels(graph, source()) == list(range(7))


def test_an_order_is_random_and_fixed_by_its_seed(graph: Compiled) -> None:
    for source in (Numbered(), [sample(i) for i in range(7)]):
        first = labels(graph, source, shuffle=True, seed=1)
        assert sorted(first) == list(range(7))
        assert first == labels(graph, source, shuffle=True, seed=1)
        assert len({tuple(labels(graph, source, shuffle=True, seed=seed)) for seed in range(5)}) == 5


@pytest.mark.parametrize(
    ("source", "order", "words"),
    [
        (Streamed(), {"shuffle": True}, "a Streamed has no len"),
        ([], {"seed": 1}, "seed is that of the order"),
        (sample(0), {}, r"a dict \('xs', 'y'\) is one instance"),
        (17, {}, "an int is no source of instances"),
        (
            Seq(torch.arange(3)),
            {},
            r"Seq\(3 elements: value\) is one argument of one sample.*for one of them \[sample\]",
        ),
        (DataLoader(Numbered(), batch_size=3), {}, "stacks samples.*batch_size=None, or collate_fn=list"),
        (DataLoader(Numbered(), batch_size=3, collate_fn=len), {}, "gives a int for a batch"),
    ],
)
def test_what_is_no_source_says_what_to_do(graph: Compiled, source: Any, order: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        list(graph.instances(source, **order))


def test_runtimes_take_a_data_set_as_it_is() -> None:
    def trained(source: Any, make: Callable[[Compiled], Any]) -> float:
        torch.manual_seed(0)
        graph = compile(Sums(), sample(0))
        with make(graph) as runtime:
            runtime.train(source(graph))
            assert runtime.stats().engine == "waves"
            return float(runtime.infer(source(graph)).loss)

    want = trained(lambda graph: list(graph.instances(Numbered())), Inline)
    assert trained(lambda graph: Numbered(), Inline) == want
    assert trained(lambda graph: [sample(i) for i in range(7)], Inline) == want
    assert trained(lambda graph: DataLoader(Numbered(), batch_size=None), Inline) == want
    assert trained(lambda graph: Numbered(), lambda graph: Processes(graph, workers=2)) == pytest.approx(want, rel=1e-6)


def test_a_sample_that_does_not_fit_is_named_with_its_place_in_the_stream(graph: Compiled) -> None:
    with Inline(graph) as runtime, pytest.raises(DataError, match="stream 'train', instance 2: .*'z'"):
        runtime.train([sample(0), {**sample(1), "z": 1}])


def test_batches_of_a_pyg_loader_are_taken_apart() -> None:
    data = pytest.importorskip("torch_geometric.data")
    loader = pytest.importorskip("torch_geometric.loader")

    class Nodes(Model):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(1, 1)

        def forward(self, nodes: Seq, y: Tensor) -> None:
            loss(fold(lambda h, node: h + self.a(node.x), nodes, self.zeros(1)), y, "squared_error")

    graphs = [
        data.Data(x=torch.ones(n, 1), edge_index=torch.zeros(2, 0).long(), y=torch.tensor([[float(n)]]))
        for n in range(1, 6)
    ]
    graph = compile(Nodes(), graphs[0])
    assert labels(graph, loader.DataLoader(graphs, batch_size=2)) == [1, 2, 3, 4, 5]


def test_rows_of_the_datasets_library() -> None:
    """Rows are dicts of lists and numbers; converted to what the example was made of."""
    rows: Any = [{"xs": [[float(i)] * WIDTH] * (1 + i % 3), "y": [float(i)]} for i in range(7)]
    graph = compile(Sums(), sample(0))
    assert labels(graph, rows) == list(range(7))
    datasets = pytest.importorskip("datasets")
    assert labels(graph, datasets.Dataset.from_list(rows)) == list(range(7))


# -- copies


def things() -> dict[str, Any]:
    nodes = Seq(kind=[0, 1, 1], x=torch.arange(6.0).view(3, 2))
    return {
        "plain": Seq(torch.tensor([3, 1])),
        "nodes": nodes,
        "edges": Edges(nodes, [0, 1], [1, 2], kind=[2, 2], w=torch.ones(2, 1)),
        "tree": Tree([2, 2, -1], leaves={"word": torch.tensor([7, 8])}, label=torch.tensor([0, 1, 1])),
        "nested": Seq(words=[torch.tensor([1, 2]), torch.tensor([3])]),
    }


WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": lambda given: {name: copy.copy(value) for name, value in given.items()},
    "deepcopy": copy.deepcopy,
    "pickle": lambda given: pickle.loads(pickle.dumps(given)),
}


@pytest.mark.parametrize("way", WAYS)
def test_copies_are_equal_and_work(way: str) -> None:
    """Once they could not be copied at all: `__getattr__` asked for columns that a new object did not have yet."""
    given = things()
    copied = WAYS[way](given)
    assert copied == given
    assert {name: hash(value) for name, value in copied.items()} == {name: hash(value) for name, value in given.items()}
    assert repr(copied) == repr(given)
    assert len(copied["tree"]) == 3
    assert torch.equal(copied["plain"]._columns["value"], given["plain"]._columns["value"])
    assert (copied["edges"]._nodes is copied["nodes"]) == (way != "copy")


def test_spaces_differ_by_what_is_in_them() -> None:
    given = things()
    assert len(set(given.values())) == len(given)
    assert given["plain"] != Seq(torch.tensor([3, 2]))
    assert given["plain"] != Seq([3, 1])
    assert given["plain"] != Seq(torch.tensor([3, 1], dtype=torch.int32))
    assert given["tree"] != Tree([2, 2, -1], leaves={"word": torch.tensor([7, 8])}, label=torch.tensor([0, 1, 0]))
    assert given["edges"] != Edges(given["nodes"], [0, 1], [1, 1], kind=[2, 2], w=torch.ones(2, 1))
    assert given["plain"] != 3


def test_representations_are_short() -> None:
    shown = list(map(repr, things().values()))
    assert shown == [
        "Seq(2 elements: value)",
        "Seq(3 elements: kind, x)",
        "Edges(2 elements: kind, w)",
        "Tree(3 elements: word, label)",
        "Seq(2 elements: words)",
    ]
    assert repr(Edges(things()["nodes"], [], [])) == "Edges(0 elements)"
