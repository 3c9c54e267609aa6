"""The graph of what a model returns: what is in it, which arguments it needs, and how results are nested."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from ampnet import DataError, Edges, Inline, Model, ModelError, Seq, Tree, Update, compile
from ampnet.data.generated import trees
from ampnet.lang import each, fold, fold_tree, loss, messages, reduce, repeat, scan
from ampnet.models import ListReduction, Qm9
from ampnet.models.by_hand import build as by_hand
from ampnet.nodes import Loss, Result
from ampnet.testing import assert_predicts
from ampnet.testing.predicted import assert_same, eager


class Both(NamedTuple):
    last: Tensor
    every: Any


class Tagger(Model):
    """Returns a named tuple, families of two scopes, and a head that no loss depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.cell = nn.Embedding(9, 4), nn.Linear(8, 4)
        self.tag, self.extra = nn.Linear(4, 3), nn.Linear(4, 2)

    def step(self, h: Tensor, token: Tensor) -> Tensor:
        return torch.tanh(self.cell(torch.cat((self.embedding(token), h), -1)))

    def forward(self, tokens: Seq, tags: Seq, scale: int = 3) -> Any:
        states, last = scan(self.step, tokens, self.zeros(4))
        tags = reduce(each(lambda tag: tag, tags), "sum")
        scores = each(self.tag, states)
        loss(reduce(scores, "sum"), tags, "squared_error")
        return {"scores": scores, "last": Both(self.extra(last), states), "scale": 7, "none": None}


def tagged(count: int, seed: int = 0) -> list[tuple[Seq, Seq]]:
    generator = torch.Generator().manual_seed(seed)
    out = []
    for i in range(count):
        tokens = torch.randint(0, 9, (1 + i % 4,), generator=generator)
        tags = torch.rand(2 + i % 3, 3, generator=generator, dtype=torch.float64)
        out.append((Seq(tokens), Seq(tags)))
    return out


@pytest.fixture
def tagger() -> Model:
    torch.manual_seed(0)
    return Tagger().double()


def test_what_forward_returns_without_labels(tagger: Model) -> None:
    samples = tagged(9)
    graph = assert_predicts(tagger, samples, data=[(tokens,) for tokens, _ in samples], max_active_keys=4)
    assert not any(isinstance(node, Loss) for node in graph.prediction.nodes.values())
    assert [given.name for given in graph.prediction.inputs if "tags" in given.name] == []


@pytest.mark.parametrize("how", ["none", "alone", "named", "labelled", "instances", "own instances"])
def test_labels_may_be_left_out_in_any_way(tagger: Model, how: str) -> None:
    samples = tagged(5)
    graph = compile(tagger, *samples[0])
    data: dict[str, Any] = {
        "none": [(tokens, None) for tokens, _ in samples],
        "alone": [tokens for tokens, _ in samples],
        "named": [{"tokens": tokens} for tokens, _ in samples],
        "labelled": samples,
        "instances": list(graph.instances(samples)),
        "own instances": [graph.prediction.instance(tokens=tokens) for tokens, _ in samples],
    }
    assert_predicts(tagger, samples, data=data[how], graph=graph, max_active_keys=2)


def test_messages_give_the_same(tagger: Model) -> None:
    samples = tagged(5)
    assert_predicts(tagger, samples, data=[(t,) for t, _ in samples], waves=False, max_active_keys=3)


def test_the_training_graph_has_nothing_for_predictions(tagger: Model) -> None:
    graph = compile(tagger, *tagged(1)[0])
    before = list(graph.nodes)
    assert graph.prediction is graph.prediction
    assert list(graph.nodes) == before
    assert "extra" not in graph.nodes
    assert "extra" in graph.prediction.nodes
    assert not any(isinstance(node, Result) for node in graph.nodes.values())
    assert all(p is q for p, q in zip(graph.model.parameters(), graph.prediction.model.parameters(), strict=True))


def test_a_missing_argument_is_named(tagger: Model) -> None:
    graph = compile(tagger, *tagged(1)[0])
    with Inline(graph) as runtime, pytest.raises(DataError, match="argument 'tokens' of Tagger is missing"):
        runtime.predict([(None, tagged(1)[0][1])])


class Nothing(Model):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, x: Tensor, y: Tensor) -> Any:
        loss(self.layer(x), y, "squared_error")


class Whole(Nothing):
    def forward(self, x: Seq, y: Tensor) -> Any:
        loss(fold(lambda h, x: self.layer(h + x), x, self.zeros(1)), y, "squared_error")
        return x


def test_a_model_that_returns_nothing_says_what_to_return() -> None:
    row = torch.zeros(1)
    with (
        Inline(compile(Nothing(), row, row)) as runtime,
        pytest.raises(ModelError, match="returns None.*return scores"),
    ):
        runtime.predict([(row,)])
    graph = compile(Whole(), Seq(torch.zeros(2, 1)), row)
    with Inline(graph) as runtime, pytest.raises(ModelError, match="returns a Symbol"):
        runtime.predict([])


def test_a_graph_wired_by_hand_has_no_forward() -> None:
    with Inline(by_hand(4)) as runtime, pytest.raises(Exception, match="wired by hand.*keep_predictions"):
        runtime.predict([])


class TreeModel(Model):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.branch = nn.Embedding(20, 4), nn.Linear(8, 4)
        self.out = nn.Linear(4, 5)

    def forward(self, tree: Tree) -> Any:
        states, top = fold_tree(
            tree, lambda node: self.embedding(node.word), lambda a, b: torch.tanh(self.branch(torch.cat((a, b), -1)))
        )
        each(lambda h, label: loss(self.out(h), label), states, tree.label)
        return self.out(top), states


def test_a_tree_without_its_labels() -> None:
    torch.manual_seed(0)
    samples = [s if isinstance(s, tuple) else (s,) for s in trees(8, 1, vocabulary=20, most_leaves=6)]
    bare = [Tree(tree._parents, leaves={"word": tree._columns["word"]}) for (tree,) in samples]
    assert_predicts(TreeModel().double(), samples, data=bare, max_active_keys=3)


class Bonds(Model):
    def __init__(self) -> None:
        super().__init__()
        self.along, self.out = nn.Linear(2, 2), nn.Linear(2, 1)

    def forward(self, atoms: Seq, bonds: Edges, y: Tensor) -> Any:
        edges = each(lambda e: self.along(e), bonds.weight)
        h = messages(lambda h, e: self.along(h) * e.weight, bonds, atoms.x)
        loss(self.out(reduce(h, "sum")), y, "squared_error")
        return h, edges


def test_families_of_edges_and_of_none() -> None:
    torch.manual_seed(0)
    samples = []
    for count, ends in ((3, [(0, 1), (2, 1)]), (2, []), (1, [(0, 0)])):
        atoms = Seq(x=torch.rand(count, 2, dtype=torch.float64))
        weight = torch.rand(len(ends), 2, dtype=torch.float64)
        bonds = Edges(atoms, [a for a, _ in ends], [b for _, b in ends], weight=weight)
        samples.append((atoms, bonds, torch.zeros(1, dtype=torch.float64)))
    model = Bonds().double()
    graph = compile(model, *samples[0])
    with Inline(graph, max_active_keys=3) as runtime:
        found = runtime.predict([(atoms, bonds) for atoms, bonds, _ in samples])
    for place, (sample, (h, edges)) in enumerate(zip(samples, found, strict=True)):
        assert_same((h, edges), eager(model, sample), f"sample {place}")
    assert found[1][1].shape == (0, 2)


def test_a_bucket_has_a_row_for_each_of_its_records() -> None:
    torch.manual_seed(0)
    model = ListReduction(8)
    graph = compile(model, Seq(torch.zeros(2, dtype=torch.int64)), torch.tensor(0))
    tokens, labels = torch.randint(0, 10, (3, 4)), torch.zeros(4, dtype=torch.int64)
    with Inline(graph, max_active_keys=2) as runtime:
        (found,) = runtime.predict([graph.bucket(4, Seq(tokens), labels)])
    for i in range(4):
        torch.testing.assert_close(found[i], model(Seq(tokens[:, i]), labels[i]).detach())


class Document(Model):
    """Sentences of words: values for elements of elements."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(9, 3), nn.Linear(3, 2)

    def forward(self, sentences: Seq, y: Tensor) -> Any:
        words = each(lambda s: each(lambda w: self.out(self.embedding(w)), s.words), sentences)
        whole = each(lambda s: reduce(each(self.embedding, s.words), "sum"), sentences)
        loss(self.out(reduce(whole, "sum")), y, "squared_error")
        return words, whole


def test_elements_of_elements_are_lists() -> None:
    torch.manual_seed(0)
    y = torch.zeros(2, dtype=torch.float64)
    given = [[[1, 2], [3]], [[4], [5], [6, 7, 8]], [[0]]]
    samples = [(Seq(words=[torch.tensor(words) for words in one]), y) for one in given]
    graph = assert_predicts(Document().double(), samples, data=[s for s, _ in samples], max_active_keys=3)
    assert_predicts(graph.model, samples, data=[s for s, _ in samples], graph=graph, max_active_keys=2, waves=False)  # type: ignore[arg-type]
    with Inline(graph) as runtime, pytest.raises(DataError, match="sentences, as an argument"):
        runtime.predict(list(graph.instances(samples)))


class Depth(Model):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor, depth: int, y: Tensor) -> Tensor:
        h = repeat(lambda h: self.drop(torch.tanh(self.layer(h))), x, times=depth)
        loss(h, y, "squared_error")
        return h


def test_weights_are_those_of_now_and_dropout_is_off() -> None:
    torch.manual_seed(0)
    model = Depth().double()
    samples = [(torch.rand(2, dtype=torch.float64), i % 3, torch.rand(2, dtype=torch.float64)) for i in range(8)]
    graph = compile(model, *samples[0])
    with Inline(graph, update=Update(), max_active_keys=4) as runtime:
        for _ in range(3):
            runtime.train(graph.instances(samples))
            found = runtime.predict([(x, depth) for x, depth, _ in samples])
            for place, (sample, got) in enumerate(zip(samples, found, strict=True)):
                assert_same(got, eager(model, sample), f"sample {place}")


def test_a_model_that_was_cast_predicts_in_its_new_dtype(tagger: Model) -> None:
    samples = [(tokens, Seq(tags._columns["value"].float())) for tokens, tags in tagged(3)]
    graph = compile(tagger.float(), *samples[0])
    assert graph.prediction is not None
    graph.to(torch.float64)
    with Inline(graph) as runtime:
        assert runtime.predict([samples[0][:1]])[0]["scores"].dtype == torch.float64


def test_the_papers_graph_network() -> None:
    torch.manual_seed(0)
    atoms = Seq(x=torch.rand(3, 4, dtype=torch.float64))
    bonds = Edges(atoms, [0, 1, 0, 2], [1, 0, 2, 0], kind=[0, 0, 1, 1])
    sample = (atoms, bonds, torch.zeros(1, dtype=torch.float64))
    assert_predicts(Qm9(4, 6, 2, 2).double(), [sample, sample], data=[(atoms, bonds)] * 2, max_active_keys=2)
