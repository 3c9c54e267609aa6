"""The JSON form of arguments: it describes what it reads, reads what it shows, and refuses everything else by name."""

from __future__ import annotations

import random
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch

from ampnet import Seq, Tree
from ampnet.errors import DataError
from ampnet.lang import Compiled
from ampnet.serve.form import Form, plain
from tests.serve.asking import graphs

KINDS = ("sequence", "tree", "rounds", "edges", "odd")


@pytest.fixture(scope="module")
def forms() -> dict[str, Form]:
    return {name: Form(graph.prediction) for name, graph in graphs().items()}


def drawn(kind: str, draw: random.Random) -> dict[str, Any]:
    """A random instance of a kind of model."""

    def ints(count: int, below: int) -> list[int]:
        return [draw.randrange(below) for _ in range(count)]

    def floats(count: int) -> list[float]:
        return [draw.choice([draw.gauss(0, 1), draw.randrange(5)]) for _ in range(count)]

    count = draw.randint(1, 9)
    if kind == "sequence":
        return {"tokens": ints(count, 20)}
    if kind == "rounds":
        return {"point": floats(2), "rounds": draw.randrange(6)}
    if kind == "edges":
        edges = draw.randint(0, 12)
        bonds = {"source": ints(edges, count), "target": ints(edges, count), "kind": ints(edges, 2)}
        return {"atoms": {"element": ints(count, 10)}, "bonds": bonds}
    if kind == "odd":
        words = {"words": [ints(draw.randint(1, 4), 9) for _ in range(count)]}
        return {"batch": {"x": [floats(3), floats(3)]}, "text": words, "shift": floats(3)}
    parents, heads = [-1] * (2 * count - 1), list(range(count))
    for node in range(count, 2 * count - 1):  # join two of the heads, leaves first
        for _ in range(2):
            parents[heads.pop(draw.randrange(len(heads)))] = node
        heads.append(node)
    return {"tree": {"parents": parents, "word": ints(count, 20)}}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_shown_and_what_is_drawn_fits_the_schema_and_is_read(forms: dict[str, Form], kind: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    form = forms[kind]
    check = jsonschema.Draft202012Validator(form.schema())
    draw = random.Random(1)
    for instance in [form.shown(), *(drawn(kind, draw) for _ in range(40))]:
        check.validate(instance)
        form.read(instance)


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_schema_refuses_is_refused(forms: dict[str, Form], kind: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    form = forms[kind]
    check = jsonschema.Draft202012Validator(form.schema())
    draw = random.Random(2)
    refused = 0
    for _ in range(300):
        instance = mutated(drawn(kind, draw), draw)
        if not check.is_valid(instance):
            refused += 1
            with pytest.raises(DataError):
                form.read(instance)
    assert refused > 100


ODD = (None, True, "7", {}, [], [[]], 1.5, -1, 2**70, -(2**70), 1e39, {"a": 1}, [1, [2]])


def mutated(value: Any, draw: random.Random) -> Any:
    """The value with one change somewhere in it."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        out = dict(value)
        name = draw.choice(list(out))
        what = draw.random()
        if what < 0.08:
            del out[name]
        elif what < 0.16:
            out[name + "x"] = out[name]
        else:
            out[name] = mutated(out[name], draw)
        return out
    if isinstance(value, list) and value and draw.random() < 0.8:
        out = list(value)
        at = draw.randrange(len(out))
        what = draw.random()
        if what < 0.15:
            del out[at]
        elif what < 0.3:
            out.insert(at, deepcopy(out[at]))
        else:
            out[at] = mutated(out[at], draw)
        return out
    return draw.choice(ODD)


@pytest.mark.parametrize(
    ("kind", "given", "text"),
    [
        ("sequence", {"tokens": []}, "tokens: a Seq needs at least one element"),
        ("sequence", {"tokens": [1, True]}, r"tokens\[1\]: expected an integer, got true"),
        ("sequence", {"tokens": [1, 2.5]}, r"tokens\[1\]: expected an integer, got 2.5"),
        ("sequence", {"tokens": [1, 2**64]}, "tokens: an integer of more than 18 digits is no int64"),
        ("sequence", {"tokens": [1] * 20_000}, "tokens: 20,000 items; at most 10,000"),
        ("sequence", {"tokens": 3}, "tokens: expected a list, got 3"),
        ("sequence", {"token": [1]}, "there is no 'token'; did you mean 'tokens'"),
        ("sequence", {"tokens": [1], "label": 1}, "no prediction depends on 'label'; leave it out"),
        ("sequence", {}, "'tokens' is missing"),
        ("sequence", [1, 2], "expected an object with the arguments of the model, got a list"),
        ("sequence", "1 2", "got a text"),
        ("tree", {"tree": {"parents": [1, 0], "word": [1]}}, "tree: a Tree has one root"),
        ("tree", {"tree": {"parents": [1, 2, 1, -1], "word": [1]}}, "circle"),
        ("tree", {"tree": {"parents": [2, 2, -1], "word": [1]}}, "column 'word' of a Tree has shape"),
        ("tree", {"tree": {"parents": [3, 3, 3, -1], "word": [1, 2, 3]}}, "3 children"),
        ("tree", {"tree": {"parents": [-1], "word": [1], "label": [1]}}, "no prediction depends on 'label'"),
        ("rounds", {"point": [1, 2], "rounds": -1}, "rounds: -1 is not from 0 to 10000"),
        ("rounds", {"point": [1, 2], "rounds": 10**9}, "rounds: 1000000000 is not from 0"),
        ("rounds", {"point": [1, 2, 3], "rounds": 1}, "point: expected 2 items, got 3"),
        ("rounds", {"point": [1, 1e39], "rounds": 1}, "point: 1e\\+39 is too large for float32"),
        ("rounds", {"point": [1, 10**400], "rounds": 1}, "point: a number is too large for float32"),
        ("rounds", {"point": [1, "2"], "rounds": 1}, r"point\[1\]: expected a number, got a text"),
        (
            "edges",
            {"atoms": {"element": [1]}, "bonds": {"source": [1], "target": [0], "kind": [0]}},
            "source of edge 0",
        ),
        ("edges", {"atoms": {"element": [1]}, "bonds": {"source": [0], "target": [], "kind": [0]}}, "1 sources and 0"),
        ("odd", {"batch": [], "text": {"words": [[1]]}, "shift": [1, 2, 3]}, "batch: expected an object with x"),
        ("odd", {"batch": {"x": [[1, 2, 3]] * 2}, "text": {"words": [[1], []]}, "shift": [1, 2, 3]}, r"words\[1\]"),
    ],
)
def test_faults_name_the_argument(forms: dict[str, Form], kind: str, given: Any, text: str) -> None:
    with pytest.raises(DataError, match=text):
        forms[kind].read(given)


def test_an_instance_is_the_one_of_the_same_arguments(forms: dict[str, Form]) -> None:
    form = forms["tree"]
    made, _ = form.read({"tree": {"parents": [2, 2, -1], "word": [3, 4]}})
    tree = Tree([2, 2, -1], leaves={"word": torch.tensor([3, 4])})
    same = form.graph.take((tree,))
    assert made.digest() == same.digest()
    for name, feed in made.feeds.items():
        assert feed.payload is not None
        assert torch.equal(feed.payload, same.feeds[name].payload)
        assert np.array_equal(feed.columns, same.feeds[name].columns)


def test_texts_are_read_by_the_function_given() -> None:
    graph: Compiled = graphs()["sequence"]

    def tell(text: str) -> Any:
        if not text.strip():
            raise DataError("nothing is written")
        return (Seq(torch.tensor([int(w) for w in text.split()])), None), lambda result: {"best": int(result.argmax())}

    form = Form(graph.prediction, limit=10, tell=tell, told="numbers")
    instance, answer = form.read("1 2 3")
    assert instance.digest() == form.read({"tokens": [1, 2, 3]})[0].digest()
    assert answer(torch.tensor([0.0, 2.0])) == {"best": 1}
    with pytest.raises(DataError, match="nothing is written"):
        form.read(" ")
    with pytest.raises(DataError, match="at most 10 are taken"):
        form.read("1 " * 11)
    with pytest.raises(DataError, match="surrogate"):
        form.read("\ud800")


def test_results_are_plain_data() -> None:
    assert plain((torch.tensor([1.0, 2.0]), {"n": 3, "rest": [torch.tensor(True)]})) == [
        [1.0, 2.0],
        {"n": 3, "rest": [True]},
    ]
