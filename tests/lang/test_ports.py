"""What ports of well-known models need: each was once refused, or wrong, as a researcher would write it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ampnet import DataError, Inline, ModelError, Processes
from ampnet.lang import Edges, Model, Seq, choose, compile, each, fold, loss, messages, reduce, repeat, softmax
from ampnet.testing import assert_compiled, assert_predicts

WIDTH, TAGS = 4, 3


class Pool(nn.Module):
    """Attention pooling, with a parameter of its own beside combinators."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.context = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.randn(WIDTH))

    def forward(self, xs: Any) -> Any:
        weights = softmax(each(lambda x: torch.tanh(self.project(x)) @ self.context, xs))
        return reduce(each(torch.mul, weights, xs))


class Gin(nn.Module):
    """A graph layer that takes edges, with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.eps, self.mix = nn.Parameter(torch.zeros(1)), nn.Linear(WIDTH, WIDTH)

    def forward(self, h: Any, edges: Any) -> Any:
        return each(lambda a, b: self.mix((1 + self.eps) * a + b), h, messages(lambda a: a, edges, h))


class Scaled(nn.Module):
    """Plain torch on all rows: stays one node."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, xs: Tensor) -> Tensor:
        return (xs - xs.mean(0)) * self.scale


class Graphs(Model):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Gin(), Gin()])
        self.scaled, self.pool, self.out = Scaled(), Pool(), nn.Linear(WIDTH, 1)

    def forward(self, nodes: Seq, edges: Edges, y: Tensor) -> Any:
        h = nodes.x
        for layer in self.layers:
            h = layer(h, edges)
        made = self.out(self.pool(self.scaled(h)))
        loss(made, y, "binary_cross_entropy")
        return made


def graphs(count: int = 5) -> list[tuple[Any, ...]]:
    random = torch.Generator().manual_seed(0)
    out = []
    for i in range(count):
        n = 2 + i % 3
        nodes = Seq(x=torch.randn(n, WIDTH, generator=random, dtype=torch.float64))
        y = torch.tensor([i % 2], dtype=torch.float64)
        out.append((nodes, Edges(nodes, [*range(n - 1)], [*range(1, n)]), y))
    return out


def test_a_module_with_parameters_of_its_own_may_apply_combinators() -> None:
    torch.manual_seed(0)
    graph = assert_compiled(Graphs().double(), graphs(), max_active_keys=3)
    assert "scaled" in graph.nodes
    assert "pool" not in graph.nodes
    assert "pool_project" in graph.nodes


def test_binary_cross_entropy_reports_accuracy() -> None:
    torch.manual_seed(0)
    model = Graphs().double()
    with Inline(compile(model, *graphs()[0]), max_active_keys=3) as runtime:
        found = runtime.infer(graphs())
    with torch.no_grad():
        want = [float((model(*one)[0] > 0) == (one[2][0] > 0.5)) for one in graphs()]
    assert found.metrics["accuracy"] == pytest.approx(sum(want) / len(want))


class Crf(Model):
    """A conditional random field: a matrix of parameters added to rows and looked up; a loss without a label."""

    def __init__(self) -> None:
        super().__init__()
        self.emit = nn.Embedding(9, TAGS)
        self.moves, self.first = nn.Parameter(torch.randn(TAGS, TAGS)), nn.Parameter(torch.randn(TAGS))

    def forward(self, words: Seq) -> Any:
        scores = each(self.emit, words.word)
        total = fold(lambda a, e: torch.logsumexp(a[:, None] + self.moves, 0) + e, scores, self.zeros(TAGS))
        path = each(lambda e, w: e[w.tag] + self.moves[w.before, w.tag] + self.first[w.tag], scores, words)
        rows = each(lambda w: self.moves[w.tag].sum() * 0.1, words)
        loss(torch.logsumexp(total, -1) - reduce(path) + reduce(rows), name="nll", weight=0.5)
        return scores


def sentences() -> list[tuple[Seq]]:
    random = torch.Generator().manual_seed(0)
    out = []
    for i in range(5):
        tags = torch.randint(0, TAGS, (1 + i % 3, 2), generator=random)
        out.append((Seq(word=torch.randint(0, 9, (1 + i % 3,), generator=random), tag=tags[:, 0], before=tags[:, 1]),))
    return out


def test_a_conditional_random_field() -> None:
    torch.manual_seed(0)
    model = Crf().double()
    graph = assert_compiled(model, sentences(), max_active_keys=3)
    assert_predicts(model, sentences(), graph=graph)
    with Processes(graph, workers=2, update=None, max_active_keys=3) as runtime:
        found = runtime.train(sentences())
    assert list(found.losses) == ["nll"]
    want = sum(float(model.loss(*one).detach()) for one in sentences()) / 5
    assert found.losses["nll"] == pytest.approx(want)


def test_a_model_returns_tensors_where_predict_does() -> None:
    """Once a family that forward returned could be read in no way."""
    model = Crf()
    ((words,), *_) = sentences()[2:]
    made = model(words)
    assert made.shape == (3, TAGS)
    torch.testing.assert_close(made, model.emit(torch.stack(words.word.values)))


class Indexed(Model):
    def __init__(self, at: Any) -> None:
        super().__init__()
        self.layer, self.table, self.at = nn.Linear(WIDTH, 6), nn.Parameter(torch.randn(5, 6)), at

    def forward(self, x: Tensor, i: Tensor, j: Tensor, some: Tensor) -> Any:
        loss(self.at(self, self.layer(x).view(2, 3), i, j, some).sum())


ATS: dict[str, Any] = {
    "a row": lambda m, x, i, j, some: x[i],
    "a number": lambda m, x, i, j, some: x[i, j] + x[1, j] * x[i, 2],
    "the rest of a row": lambda m, x, i, j, some: x[i, 1:] * x[i, None, 1:],
    "several rows": lambda m, x, i, j, some: x[some].sum() + x[0, some],
    "of a parameter": lambda m, x, i, j, some: m.table[j] * m.table[i, j] * m.table[i, 1:3].sum(),
    "several of a parameter": lambda m, x, i, j, some: m.table[some],
}


@pytest.mark.parametrize("at", ATS.values(), ids=ATS)
def test_tensors_are_indexed_by_tensors(at: Any) -> None:
    torch.manual_seed(0)
    rows = [
        (torch.randn(WIDTH).double(), torch.tensor(i % 2), torch.tensor(i % 3), torch.tensor([i % 2, 1]))
        for i in range(4)
    ]
    assert_compiled(Indexed(at).double(), rows, max_active_keys=3)


WRONG: dict[str, tuple[Any, str]] = {
    "by a mask": (lambda m, x, i, j, some: x[x > 0], "indexed by a mask.*torch.where"),
    "behind a slice": (lambda m, x, i, j, some: x[:, i], "come first"),
    "mixed": (lambda m, x, i, j, some: x[i, some], "cannot be mixed"),
    "noise": (lambda m, x, i, j, some: x + torch.randn_like(x), "noise is an argument of forward"),
    "a row as loss": (lambda m, x, i, j, some: loss(x), r"one number, got a tensor of shape \(2, 3\).*\.sum\(\)"),
    "no label": (lambda m, x, i, j, some: loss(x, function="squared_error"), "'squared_error' needs a label"),
    "unpacked": (lambda m, x, i, j, some: repeat(lambda s: s, (x, 3), while_=lambda x, n: n > 0), "as one argument"),
    "numbers": (lambda m, x, i, j, some: choose(1, [lambda n: n], 3), "Calculate it outside"),
}


@pytest.mark.parametrize(("at", "said"), WRONG.values(), ids=WRONG)
def test_what_is_refused_names_the_line_and_what_works(at: Any, said: str) -> None:
    example = torch.zeros(WIDTH), torch.tensor(0), torch.tensor(0), torch.tensor([0, 1])
    with pytest.raises(ModelError, match=said) as caught:
        compile(Indexed(at), *example)
    assert caught.value.line is not None
    assert caught.value.line.file == __file__


def test_edges_name_the_order_of_their_arguments() -> None:
    with pytest.raises(DataError, match=r"Edges\(nodes, source, target\).*got list"):
        Edges([0, 1], [1, 0], Seq(torch.zeros(2)))  # type: ignore[arg-type]


def test_two_sequences_of_the_same_elements_are_columns_of_one() -> None:
    def meet(model: Any, a: Any, b: Any) -> None:
        each(torch.add, a, b)

    with pytest.raises(ModelError, match=r"columns of one Seq: Seq\(a=..., b=...\)"):
        meet(None, Seq(torch.zeros(2)), Seq(torch.zeros(2)))


def test_what_needs_all_elements_at_once_may_be_a_module() -> None:
    with pytest.raises(ModelError, match=r"torch's cat .*whole\(module, family\)"):
        torch.cat((torch.zeros(1, WIDTH), Seq(torch.zeros(2, WIDTH)).value))
    with pytest.raises(ModelError, match=r"'\.T' .*whole\(module, family\)"):
        _ = Seq(torch.zeros(2, WIDTH)).value.T


class Dropped(Model):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(WIDTH, 1), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Any:
        loss(F.mse_loss(self.drop(self.layer(x)), torch.ones(1).to(x)))


def test_a_model_with_dropout_is_compared_without_its_masks() -> None:
    model = Dropped().double()
    assert_compiled(model, [(torch.randn(WIDTH).double(),) for _ in range(4)], max_active_keys=2)
    assert model.drop.p == 0.5


def test_zeros_of_no_dimension() -> None:
    assert Dropped().zeros().shape == ()
