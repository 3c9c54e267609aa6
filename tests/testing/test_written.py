"""Random models: every block is drawn, a seed is a model, and each model gives its eager gradients by messages."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ampnet.lang import compile
from ampnet.lang.edges import Edges
from ampnet.lang.ragged import Ragged
from ampnet.lang.spaces import Space
from ampnet.lang.tree import Tree
from ampnet.testing import assert_close, compiled_gradients, model_gradients
from ampnet.testing.written import (
    BLOCKS,
    CELLS,
    OPTIONS_OF,
    READS,
    ROWS,
    Program,
    WrittenModel,
    example,
    seeded,
    settings_in,
)
from ampnet.testing.written.instances import MOST, Sizes, instance
from ampnet.testing.written.sequences import GATHERED, MODULES


def assert_gradients_by_messages(program: Program, instances: list[tuple[Any, ...]], **settings: Any) -> None:
    model = WrittenModel(program)
    got = compiled_gradients(compile(model, *example()), instances, waves=False, **settings)
    want = model_gradients(model, instances)
    assert all(g.isfinite().all() for g in want.values())
    assert_close(got, want)


def test_every_block_and_every_setting_is_drawn() -> None:
    found = Counter(drawn for seed in range(800) for drawn in settings_in(seeded(seed)[0]))
    wanted = {("row", name) for name in ROWS} | {("block", name) for name in BLOCKS}
    wanted |= {(what, value) for what, values in OPTIONS_OF.items() for value in values}
    assert wanted - found.keys() == set()
    assert set(CELLS) == {value for what, value in found if what == "cell"}
    assert set(READS) == {value for what, value in found if what == "reads"}


def test_sizes_of_instances_vary() -> None:
    several = [one for seed in range(200) for one in seeded(seed)[1]]
    assert {len(tokens) for _, tokens, *_ in several} == {1, 2, 3}
    assert {len(one[3]) for one in several} == {0, 1, 2, 3, 4}
    assert {len(one[4]) for one in several} == {1, 3, 5, 7}
    assert {int(d) for one in several for d in one[5]._degree} == {0, 1, 2, 3}
    assert {len(seeded(seed)[1]) for seed in range(200)} == {1, 2, 3, 4, 5, 6}


def numbers(argument: Any) -> list[Any]:
    """All that an argument of a model holds."""
    if isinstance(argument, Ragged):
        return [numbers(one) for one in argument.spaces]
    if isinstance(argument, Space):
        ends = [argument._parents] if isinstance(argument, Tree) else []
        ends += [argument._source, argument._target] if isinstance(argument, Edges) else []
        return [numbers(column) for column in [*ends, *argument._columns.values()]]
    return argument.tolist() if isinstance(argument, Tensor | np.ndarray) else [argument]


def test_a_seed_is_always_the_same_model() -> None:
    for seed in range(20):
        (program, instances), (again, others) = seeded(seed), seeded(seed)
        assert program == again
        assert [[numbers(a) for a in one] for one in instances] == [[numbers(a) for a in one] for one in others]
        first, second = WrittenModel(program).state_dict(), WrittenModel(program).state_dict()
        assert all(torch.equal(first[name], second[name]) for name in first)
    assert seeded(0)[0] != seeded(1)[0]


@pytest.mark.parametrize("seed", range(60))
def test_seeded_models_give_their_eager_gradients(seed: int) -> None:
    program, instances = seeded(seed)
    assert_gradients_by_messages(program, instances, max_active_keys=1 + seed % 6)


def several() -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(0)
    return [instance(rng, sizes) for sizes in (MOST, Sizes(leaves=3), Sizes(leaves=1, bush=1, edges=0), Sizes())]


@pytest.mark.parametrize("reads", READS)
def test_every_way_to_read_children(reads: str) -> None:
    for use in OPTIONS_OF["use"]:
        assert_gradients_by_messages([("tree", reads, "x", ["tanh"], ["scale"], use)], several(), max_active_keys=3)


@pytest.mark.parametrize("cell", CELLS)
def test_every_cell_in_every_loop(cell: str) -> None:
    program: Program = [
        ("fold", "bonds", cell, ["tanh"]),
        ("scan", "tokens", cell, [("fold", "words", cell, ["linear"])], ["tanh"], "sum"),
        ("stack", "words", cell, cell, "max"),
        ("repeat", 1, cell, ["other"]),
        ("bush", cell, ["tanh"], ["linear"], "sum", "losses"),
        ("graph", ["linear"], cell, ["tanh"], 2, "mean"),
    ]
    assert_gradients_by_messages(program, several(), max_active_keys=3)


@pytest.mark.parametrize("module", MODULES)
def test_every_module_that_is_taken_whole(module: str) -> None:
    program: Program = [
        ("whole", "tokens", module, ["linear", ("whole", "letters", "gru", [], "sum")], "sum"),
        ("nested", "gru", [("repeat", 1, "plain", [("whole", "tree", module, ["tanh"], "max")])], "mean"),
        ("each", "words", [("whole", "letters", module, ["twin"], "logsumexp")], "sum"),
    ]
    assert_gradients_by_messages(program, several(), max_active_keys=3)


@pytest.mark.parametrize("how", GATHERED)
def test_every_way_to_gather_a_family(how: str) -> None:
    program: Program = [
        ("bush", "lstm", ["tanh"], ["linear"], how, "both"),
        ("graph", ["linear"], "gru", ["tanh"], 2, how),
    ]
    assert_gradients_by_messages(program, several(), max_active_keys=3)


@pytest.mark.parametrize("row", ROWS)
def test_every_function_of_a_row_with_and_without_a_choice(row: str) -> None:
    program: Program = ["linear", row, ("loss", "cross_entropy", 0.5), ("choose", 0, [[row], ["tanh"]])]
    assert_gradients_by_messages(program, several(), max_active_keys=3)
    assert_gradients_by_messages([("each", "tokens", program, "sum")], several(), max_active_keys=3)


def test_frozen_parameters_have_no_gradient_and_hand_gradients_on() -> None:
    model, instances = WrittenModel(["frozen", "partly", "known"]), several()
    want = model_gradients(model, instances)
    assert not {"frozen.weight", "frozen.bias", "partly.weight", "known.weight"} & want.keys()
    assert want["linear.weight"].any() and want["partly.bias"].any()
    assert_close(compiled_gradients(compile(model, *example()), instances, waves=False), want)
