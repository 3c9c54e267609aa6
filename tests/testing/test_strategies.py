"""Promises P2 and P3 over random graphs: any program, any schedule, any batch limit gives autograd's gradients."""

from __future__ import annotations

import torch
from hypothesis import given, settings

from ampnet.events.log import EventLog, Played
from ampnet.testing import assert_gradients
from ampnet.testing.strategies import Block, Example, RandomModel, examples, programs, schedules


@settings(max_examples=120)
@given(program=programs(), given_examples=examples(), how=schedules())
def test_random_graphs_give_the_gradients_of_autograd(
    program: list[Block], given_examples: list[Example], how: dict[str, object]
) -> None:
    model = RandomModel(program)
    losses = [model.loss(e) for e in given_examples]
    assert_gradients(model.graph, [model.instance(e) for e in given_examples], losses, **how)


def test_a_program_with_every_block() -> None:
    inner: list[Block] = ["linear", "tanh"]
    program: list[Block] = [
        "linear",
        ("branch", ["relu"], ["sigmoid", "split"]),
        ("choice", inner, ["norm"]),
        ("loop", inner),
        ("each", inner, ["relu"], "mean"),
        ("rows", inner, ["linear"], "sum"),
        ("each", ["linear"], ["tanh"], "max"),
    ]
    model = RandomModel(program)
    kinds = {type(node).__name__ for node in model.graph.nodes.values()}
    assert {"Flatmap", "Group", "Ungroup", "Phi", "Isu", "Cond", "Bcast", "Concat", "Split", "Reduce"} <= kinds
    log = EventLog()
    torch.manual_seed(0)
    chosen = [
        Example(torch.randn(1, 4, dtype=torch.float64), torch.randn(1, 4, dtype=torch.float64), k, c, f)
        for k, c, f in [(0, 1, 1), (1, 3, 2), (0, 2, 3)]
    ]
    instances = [model.instance(e) for e in chosen]
    assert_gradients(model.graph, instances, [model.loss(e) for e in chosen], listeners=[log], max_active_keys=3)
    assert sum(len(e.nodes) for e in log if isinstance(e, Played)) > 50
    log = EventLog()
    losses = [model.loss(e) for e in chosen]
    assert_gradients(model.graph, instances, losses, listeners=[log], max_active_keys=3, waves=False)
    assert len(log) > 50
