"""Random nested models: whatever is inside of what, the compiled model gives the gradients of the eager one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from ampnet.lang import compile
from ampnet.testing import assert_compiled, assert_predicts
from ampnet.testing.strategies import schedules
from ampnet.testing.written import Block, Program, WrittenModel, example, written_instances, written_programs


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
    graph = compile(model, *example(), remove_dead=False, fuse_linear=False, fuse_loops=False, fuse_rows=False)
    assert_compiled(model, instances, graph=graph, max_active_keys=2)


SUM_OF_STATES: Block = ("scan", "tokens", "gru", ["other"], ["linear"], "sum")


@pytest.mark.parametrize(
    "program",
    [
        # Once two sites of one module whose results were used twice had Bcasts of one name; the graph was refused.
        [SUM_OF_STATES, SUM_OF_STATES],
        # Once the inverse of leaving a while-loop was tried on states that carry another number of rounds than its own.
        [("while", ["linear"]), ("fold", "tokens", "gru", ["linear"]), ("choose", 0, [["linear"], ["linear"]])],
        # Once a graph without edges had a loss more when it ran eagerly: that of the edge made up to learn a shape.
        [("graph", [("loss", "squared_error", 0.5)], "gru", ["linear"], 1, "sum")],
    ],
    ids=["two bcasts", "number of rounds", "made-up edge"],
)
def test_what_random_models_once_found_stays_right(program: Program) -> None:
    model = WrittenModel(program)
    assert_compiled(model, [example(i) for i in range(3)], max_active_keys=2)


def test_a_model_with_many_blocks_nested() -> None:
    judged: Block = ("loss", "squared_error", 0.5)
    program: Program = [
        (
            "tree",
            "cat",
            "x",
            [("repeat", 2, "plain", ["linear", "outer"])],
            [("choose", 2, [["tanh"], ["scale"], [judged, "shift"]])],
            "both",
        ),
        ("repeat", -2, "residual", [("bush", "plain", ["norm"], ["other"], "sum", "both"), "first"]),
        ("fold", "tokens", "lstm", [("repeat", 1, "gru", [("each", "tree", ["linear"], "max")])]),
        ("graph", [("choose", 3, [["linear"], ["other", judged]])], "gru", [("while", ["softmax"])], 2, "mean"),
        ("scan", "words", "two", [("each", "tree", ["relu", "outer"], "logsumexp")], [judged, "linear"], "mean"),
        ("scan", "tokens", "norm", [("scan", "words", "lstm", ["many"], ["few"], "max")], [("select",)], "sum"),
        ("judge", 0, ["quartic", "none", "cross_entropy"]),
        ("attend", "tree", "logsumexp"),
    ]
    model = WrittenModel(program)
    assert_compiled(model, [example(i) for i in range(3)], max_active_keys=3, schedule="random", seed=1)


@settings(max_examples=40)
@given(program=written_programs(), instances=written_instances())
def test_random_models_predict_what_they_return(program: Program, instances: list[tuple[Any, ...]]) -> None:
    model = WrittenModel(program)
    assert_predicts(model, instances, graph=compile(model, *example()), max_active_keys=3)
