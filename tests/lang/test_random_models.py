"""Random nested models: whatever is inside of what, the compiled model gives the gradients of the eager one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from ampnet.lang import compile
from ampnet.testing import assert_compiled
from ampnet.testing.strategies import schedules
from ampnet.testing.written import Program, WrittenModel, example, written_instances, written_programs


@settings(max_examples=150)
@given(program=written_programs(), instances=written_instances(), how=schedules())
def test_random_models_give_their_eager_gradients(
    program: Program, instances: list[tuple[Any, ...]], how: dict[str, Any]
) -> None:
    model = WrittenModel(program)
    assert_compiled(model, instances, graph=compile(model, *example()), **how)


@settings(max_examples=40)
@given(program=written_programs(), instances=written_instances(most=2))
def test_random_models_without_passes_give_their_eager_gradients(
    program: Program, instances: list[tuple[Any, ...]]
) -> None:
    model = WrittenModel(program)
    graph = compile(model, *example(), remove_dead=False, fuse_linear=False, fuse_rows=False)
    assert_compiled(model, instances, graph=graph, max_active_keys=2)


@pytest.mark.parametrize(
    "program",
    [
        # Once two sites of one module whose results were used twice had Bcasts of one name; the graph was refused.
        [("scan", ["other"], ["linear"], "sum"), ("scan", ["other"], ["linear"], "sum")],
        # Once the inverse of leaving a while-loop was tried on states that carry another number of rounds than its own.
        [("while", ["linear"]), ("fold", ["linear"]), ("choose", 0, [["linear"], ["linear"]])],
        # Once a graph without edges had a loss more when it ran eagerly: that of the edge made up to learn a shape.
        [("graph", ["loss"], ["linear"], 1, "sum")],
    ],
    ids=["two bcasts", "number of rounds", "made-up edge"],
)
def test_what_random_models_once_found_stays_right(program: Program) -> None:
    model = WrittenModel(program)
    assert_compiled(model, [example(i) for i in range(3)], max_active_keys=2)


def test_a_model_with_every_block_nested() -> None:
    program: Program = [
        ("tree", [("repeat", 2, ["linear", "outer"])], [("choose", 2, [["tanh"], ["scale"], ["loss", "shift"]])], None),
        ("repeat", -2, [("tree", ["norm"], ["other"], "sum"), "first"]),
        ("fold", [("repeat", 1, [("each", "tree", ["linear"], "max")])]),
        ("graph", [("choose", 3, [["linear"], ["other", "loss"]])], [("while", ["softmax"])], 2, "mean"),
        ("scan", [("each", "tree", ["relu", "outer"], "logsumexp")], ["loss", "linear"], "mean"),
    ]
    model = WrittenModel(program)
    assert_compiled(model, [example(i) for i in range(3)], max_active_keys=3, schedule="random", seed=1)
