"""What a record holds, data set by data set, and that models take it: small data, written by the tests."""

from __future__ import annotations

from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ampnet
from ampnet.data import babi15, babi15_text, load, qm9, sst
from ampnet.data.list_reduction import generate
from ampnet.data.word_vectors import WordVectors, plain
from ampnet.errors import DataError
from ampnet.models import Babi15, ListReduction, Mlp, Qm9, TreeLstm
from tests.data.small import words


def model_for(name: str) -> ampnet.Model:
    """A small model that takes the records of a data set."""
    torch.manual_seed(0)
    if name == "mnist":
        return Mlp(layers=2)
    if name == "list-reduction":
        return ListReduction(hidden=8)
    if name == "sst":
        return TreeLstm(vocabulary=22_000, embedding=4, hidden=6)
    return Qm9(qm9.FEATURES, hidden=14, steps=2) if name == "qm9" else Babi15()


def train(name: str, arguments: list[tuple[Any, ...]]) -> float:
    """Compile on the first instance, run all of them; returns the loss."""
    graph = ampnet.compile(model_for(name), *arguments[0])
    update = ampnet.Update(partial(torch.optim.SGD, lr=0.01), min_update_frequency=2, count="instances")
    with ampnet.Inline(graph, update=update, max_active_keys=4) as runtime:
        stats = runtime.train(graph.instances(arguments))
        assert stats.instances == len(arguments)
        return float(stats.loss)


MODELLED = ["mnist", "list-reduction", "sst", "babi15", "babi15-en", "babi15-symbolic", "qm9"]


@pytest.mark.parametrize("name", MODELLED)
def test_models_take_the_records(name: str, root: Path) -> None:
    data = load(name, root)
    assert isfinite(train(name, list(map(data.arguments, data.train.shuffled(seed=1)[:8]))))


def test_a_digit(root: Path) -> None:
    data = load("mnist", root)
    digit = data.train[11]
    assert digit.label == 1 and digit.pixels.shape == (784,) and digit.pixels.dtype == np.uint8
    image, label = data.arguments(digit)
    assert image.dtype == torch.float32 and int(label) == 1
    expected = (digit.pixels / 255 - 0.1307) / 0.3081
    assert np.allclose(image.numpy(), expected, atol=1e-5)
    assert data.valid is data.splits["test"]


def test_a_tree(root: Path) -> None:
    """The example in the head of `ampnet.data.sst`."""
    trees = load("sst", root)
    assert isinstance(trees, sst.Treebank)
    sentence = trees.train[0]
    assert sentence.parents.tolist() == [4, 3, 3, 4, -1]
    assert sentence.labels.tolist() == [2, 2, 4, 4, 3]
    assert [trees.vocabulary[i] for i in sentence.words] == ["It", "'s", "good"]
    assert trees.vocabulary == tuple(words())


def test_a_no_break_space_is_part_of_a_word(root: Path) -> None:
    """`str.split()` makes two words of it, and the tree falls apart."""
    trees = load("sst", root)
    assert [trees.vocabulary[i] for i in trees.train[2].words] == ["8\u00a01\\/2", "-LRB-"]  # type: ignore[attr-defined]


def test_a_tree_of_one_word(root: Path) -> None:
    sentence = load("sst", root).valid[0]
    assert sentence.parents.tolist() == [-1] and sentence.labels.tolist() == [2] and len(sentence.words) == 1


def test_stray_spaces_do_no_harm(root: Path) -> None:
    (root / "sst" / "test.txt.xz").unlink()
    (root / "sst" / "test.txt").write_text(" (0  (0 bore) (2 It )) \n")
    assert load("sst", root).splits["test"][0].labels.tolist() == [0, 2, 0]


def test_word_vectors(root: Path) -> None:
    vectors = load("glove", root)
    assert isinstance(vectors, WordVectors) and vectors.width == 50
    vocabulary = ("good", "bore", "nowhere")
    table = vectors.rows(vocabulary, seed=1)
    assert table.dtype == np.float32 and table.shape == (3, 50)
    assert table[0].tolist() == [float(50 * words().index("good") + i) for i in range(50)]
    assert 0 < np.abs(table[1:]).max() <= 0.05
    assert np.array_equal(table, vectors.rows(vocabulary, seed=1))
    assert not np.array_equal(table, vectors.rows(vocabulary, seed=2))
    assert vectors.splits["words"][words().index("bore")].vector is None
    long = load("wordvec300", root)
    assert long.splits["words"][1].vector[0] == pytest.approx(300 / 42)
    with pytest.raises(DataError, match="no vectors of 100 dimensions; there are 50, 300"):
        load("glove", root, dim=100)
    assert [plain(w) for w in ("-LRB-", "1\\/2", "\\*\\*", "good")] == ["(", "1/2", "**", "good"]


def test_a_question(root: Path) -> None:
    question = load("babi15-en", root).train[1]
    assert question.question == "What is jessica afraid of?" and question.answer == "cat"
    assert len(question.facts) == 8 and question.facts[-1] == "Jessica is a wolf." and question.support == (8, 6)
    graph = babi15_text.graph(question)
    assert graph.nodes == 8 and len(graph.facts) == 8
    assert babi15.deduced(graph.facts, graph.asked) == graph.answer


def test_the_folds_number_their_edges_differently(root: Path) -> None:
    """In fold 3, ``is`` is 2 and ``has_fear`` is 1; records do not differ."""
    first, third = load("babi15-symbolic", root).train[1], load("babi15-symbolic", root, fold=3).train[1]
    assert np.array_equal(first.facts, third.facts) and first.answer == third.answer == 6
    assert first.nodes == 8 and first.asked == 1
    with pytest.raises(DataError, match="there is no fold 6; there are 1 to 5"):
        load("babi15-symbolic", root, fold=6)


def test_the_inflated_version() -> None:
    data = load("babi15")
    assert data.counts == {"train": 100, "valid": 1000}
    for record in [*data.train[:20], *data.train.shuffled(0, 1)[:20], *data.valid[:20]]:
        assert record.nodes == 54 and record.facts.shape == (54, 3)
        assert sorted(record.facts[:, 0].tolist()) == list(range(54))
        assert babi15.deduced(record.facts, record.asked) == record.answer
        assert not any(a == record.asked and b == record.answer for a, _, b in record.facts.tolist()), "one hop"
    epochs = [{r.facts.tobytes() for r in data.train.shuffled(0, epoch)} for epoch in range(3)]
    assert len(set.union(*epochs)) == 300, "fresh in every epoch"
    valid = [r.facts.tobytes() for r in data.valid]
    assert valid == [r.facts.tobytes() for r in load("babi15").valid], "the same in every run"
    assert sorted(valid) == sorted(r.facts.tobytes() for r in data.valid.shuffled(0, 1))
    assert not set(valid) & set.union(*epochs)
    nodes, edges, answer = data.arguments(data.train[0])
    assert len(nodes) == 54 and len(edges) == 108 and answer.dtype == torch.int64
    with pytest.raises(DataError, match="54 nodes were asked for|of 3 nodes"):
        load("babi15", nodes=3)


def test_molecules(root: Path) -> None:
    data = load("qm9", root)
    assert isinstance(data, qm9.Molecules)
    everything = {m.index: m for split in data.splits.values() for m in split}
    assert sorted(everything) == list(range(1, 11)), "each in one split"
    water = everything[1]
    assert water.atoms.tolist() == [8, 1, 1] and water.bonds.tolist() == [[0, 1, 0], [0, 2, 0]] and water.dipole == 0
    atoms, bonds, target = data.arguments(water)
    x = torch.stack(atoms.x.values)
    assert x.shape == (3, qm9.FEATURES) and x.dtype == torch.float32
    assert x[0].tolist() == pytest.approx([0, 0, 0, 1, 0, 0.8, 2, 0, 0, 0, 2, 0])
    assert x[1].tolist() == pytest.approx([1, 0, 0, 0, 0, 0.1, 1, 0, 0, 0, 0, 0])
    assert len(bonds) == 4 and target.shape == (1,)
    assert torch.stack(data.arguments(everything[3])[0].x.values)[:, 11].tolist() == [1, -1]
    learnt = [m.dipole for m in data.train]
    assert data.mean == pytest.approx(np.mean(learnt)) and data.std == pytest.approx(np.std(learnt))
    scaled = qm9.arguments(everything[10], data.mean, data.std)[2]
    assert float(scaled) == pytest.approx((4.5 - data.mean) / data.std, rel=1e-5)


def test_hydrogens_that_are_only_counted() -> None:
    """Methanol, C O H H H H: two atoms and one bond are left, with the features they have among all atoms."""
    bonds = np.array([(0, 1, 0), (0, 2, 0), (0, 3, 0), (0, 4, 0), (1, 5, 0)])
    methanol = qm9.Molecule(1, np.array([6, 8, 1, 1, 1, 1]), np.array([0, -1, 0, 0, 0, 0]), bonds, 1.7)
    whole, (atoms, joined, target) = qm9.arguments(methanol), qm9.arguments(methanol, hydrogens="counts")
    x = torch.stack(atoms.x.values)
    assert torch.equal(x, torch.stack(whole[0].x.values)[:2])
    assert x[:, 10].tolist() == [3, 1]
    assert joined._source.tolist() == [0, 1] and joined._target.tolist() == [1, 0]
    assert torch.equal(target, whole[2])
    scattered = qm9.Molecule(2, np.array([1, 6, 1, 7, 1]), np.zeros(5), np.array([(1, 3, 2), (0, 1, 0), (3, 4, 0)]), 0)
    atoms, joined, _ = qm9.arguments(scattered, hydrogens="counts")
    assert [v[5].item() for v in atoms.x.values] == pytest.approx([0.6, 0.7])
    assert joined._source.tolist() == [0, 1] and joined._target.tolist() == [1, 0]
    assert [
        len(part)
        for part in qm9.arguments(
            qm9.Molecule(3, np.array([1, 1]), np.zeros(2), np.array([(0, 1, 0)]), 0), hydrogens="counts"
        )[:2]
    ] == [2, 2]
    assert isfinite(train("qm9", [(atoms, joined, target)]))


def test_lone_atoms_and_missing_bonds(root: Path) -> None:
    data = load("qm9", root)
    everything = {m.index: m for split in data.splits.values() for m in split}
    lone = [everything[i] for i in (2, 3)]
    assert [len(m.bonds) for m in lone] == [0, 0]
    assert isfinite(train("qm9", [data.arguments(m) for m in (everything[1], *lone)]))
    assert isfinite(train("qm9", [data.arguments(m) for m in lone]))


def test_the_split_of_molecules_is_shuffled_and_seeded(root: Path) -> None:
    def indices(**options: int) -> list[int]:
        return [m.index for m in load("qm9", root, **options).train]

    assert indices() == indices(seed=0) != indices(seed=1)
    assert indices() != sorted(indices())


def test_list_reduction_is_what_the_generator_gives() -> None:
    data = load("list-reduction", seed=3, train=50, valid=20)
    sequences = generate(50, 6)
    for i in (0, 49):
        assert data.train[i].tokens.tolist() == sequences.tokens[i, : sequences.lengths[i]].tolist()
        assert data.train[i].label == sequences.labels[i]
    assert data.valid[0].tokens.tolist() == generate(20, 7)[0].tokens.tolist()
