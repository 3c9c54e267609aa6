"""What goes wrong in a wave is told as by messages: who, where and why; nothing held, no weight changed (P11, P12)."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ampnet import Graph, Inline, Instance, NodeError, StallError, Update, feed
from ampnet.errors import AmpnetError, DataError, LossError, PayloadError
from ampnet.instance import Feed
from ampnet.lang import Model, Seq, compile, fold, loss
from ampnet.nodes import Function, Group, Linear, Loss, Module, Reduce
from ampnet.testing import assert_close
from tests.wave.both import player_of
from tests.wave.test_gradients import F64, chain, rows_of

SGD = partial(torch.optim.SGD, lr=0.1)
Made = tuple[Graph, list[Instance]]
X = "(node 'n0' .*instance=1|input 'x', instances? [01])"


def classes(label: int, at: int = 1) -> Made:
    graph = chain(Linear(4, 3, dtype=F64), loss="cross_entropy")
    labels = [label if i == at else 0 for i in range(3)]
    return graph, [Instance({"x": feed(torch.ones(1, 4, dtype=F64)), "label": feed(torch.tensor([y]))}) for y in labels]


def with_x(x: Tensor) -> Made:
    graph, instances = chain(Linear(4, 4, dtype=F64)), rows_of(1, 1, 1)
    instances[1] = Instance({**instances[1].feeds, "x": feed(x)})
    return graph, instances


def without_label() -> Made:
    graph, instances = chain(Linear(4, 4, dtype=F64)), rows_of(1, 1, 1)
    instances[1] = Instance({"x": instances[1].feeds["x"]})
    return graph, instances


def never_fills() -> Made:
    graph = Graph("group")
    graph.add("linear", Linear(4, 4, dtype=F64))
    graph.add("group", Group(state=lambda s: s.keep("instance"), size=lambda s: s.part * 0 + 3))
    graph.add("sum", Reduce("sum"))
    graph.add("loss", Loss("squared_error"))
    graph.input("x", "linear", ("part",))
    graph.input("label", "loss.label")
    graph.chain("linear", "group", "sum", "loss.prediction")
    x, y = torch.ones(3, 4, dtype=F64), torch.zeros(1, 4, dtype=F64)
    return graph, [Instance({"x": feed(x[:n], part=list(range(n))), "label": feed(y)}) for n in (3, 2, 3)]


def not_finite() -> Made:
    return with_x(torch.full((1, 4), torch.inf, dtype=F64))


def picky() -> Made:
    def function(x: Tensor) -> Tensor:
        if bool((x == 7).any()):
            raise ZeroDivisionError("seven")
        return x * 2

    graph, instances = chain(Function(function), Linear(4, 4, dtype=F64)), rows_of(1, 1, 1)
    instances[1] = Instance({**instances[1].feeds, "x": feed(torch.full((1, 4), 7.0, dtype=F64))})
    return graph, instances


class Folded(Model):
    """A GRU whose start is an argument: its rows are in one arena with those of the cell, which is there first."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 4)

    def forward(self, xs: Seq, h0: Tensor, y: Tensor) -> None:
        loss(fold(lambda h, x: self.cell(x, h), xs, h0), y, "squared_error")


def folded(h0: Tensor) -> Made:
    rows = torch.ones(4, dtype=F64)
    model = Folded().double()
    graph = compile(model, Seq(torch.ones(2, 4, dtype=F64)), rows, rows)
    instances = [graph.instance(Seq(torch.ones(n, 4, dtype=F64)), rows, rows) for n in (2, 1, 3)]
    given = instances[1].feeds["h0"]
    feeds = {**instances[1].feeds, "h0": Feed(h0, given.fields, given.columns, given.offsets)}
    instances[1] = Instance(feeds, instances[1].structure)
    return graph, instances


FAULTS: dict[str, tuple[Callable[[], Made], type[Exception], type[Exception] | None, str]] = {
    "label out of range": (lambda: classes(3), NodeError, LossError, "node 'loss' .*label 3 at .instance=1.*3 classes"),
    "label below zero": (lambda: classes(-1, 0), NodeError, LossError, "node 'loss' .*label -1 at .instance=0"),
    "wide row": (lambda: with_x(torch.ones(1, 5, dtype=F64)), AmpnetError, PayloadError, X + r".*\((1, )?5,?\)"),
    "narrow row": (lambda: with_x(torch.ones(1, 1, dtype=F64)), AmpnetError, PayloadError, X + r".*\((1, )?1,?\)"),
    "flat row": (lambda: with_x(torch.ones(1, dtype=F64)), AmpnetError, PayloadError, X + r".*\((1,)?\)"),
    "other dtype": (lambda: with_x(torch.ones(1, 4)), AmpnetError, PayloadError, X + ".*float64.*float32"),
    "no label": (without_label, StallError, None, "node 'loss': 1 .*'prediction' wait for port 'label': .instance=1"),
    "a group that never fills": (never_fills, StallError, None, "node 'group': group .instance=1.* waits for 1 more"),
    "a function that fails": (picky, NodeError, ZeroDivisionError, "node 'n0' .*instance=1.*seven"),
    "a start that is too narrow": (
        lambda: folded(torch.ones(1, 1, dtype=F64)), AmpnetError, PayloadError,
        r"(node '(cell|cat)' .*instance=1|input 'h0', instances? [01]).*(\(1,\)|width 8|\[4, 1\])",
    ),
    "a start of another dtype": (
        lambda: folded(torch.ones(1, 4)), AmpnetError, PayloadError,
        "(node '(cell|cat)' .*instance=1|input 'h0', instances? [01]).*float64.*float32",
    ),
}  # fmt: skip
"""How it is made, the error, its cause, and what both engines say: node or input, state or instance, what is wrong."""


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("keys", [1, 3])
@pytest.mark.parametrize("fault", FAULTS)
def test_errors_are_those_of_messages(fault: str, keys: int, train: bool) -> None:
    make, kind, cause, words = FAULTS[fault]
    for waves in (True, False):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            graph, instances = make()
        if not train and fault == "no label":
            instances[1] = Instance(instances[1].feeds, results=1)
        before = {name: value.clone() for name, value in graph.module().state_dict().items()}
        with Inline(graph, update=Update(SGD, 100, "instances"), max_active_keys=keys, waves=waves) as runtime:
            with pytest.raises(kind) as caught:
                (runtime.train if train else runtime.infer)(instances)
            assert runtime.held() == {}
            assert re.search(words, str(caught.value), re.DOTALL), str(caught.value)
            if cause is not None:
                assert isinstance(caught.value.__cause__, cause)
            assert all(torch.equal(value, before[name]) for name, value in graph.module().state_dict().items())
            assert not any(total.any() for total in graph.gradients().values())
            if waves:
                runtime.train([instances[0], instances[2]] if fault != "label below zero" else instances[1:])
                assert player_of(runtime).instances >= 2


@pytest.mark.parametrize("waves", [True, False])
@pytest.mark.parametrize("keys", [1, 3])
def test_a_payload_that_is_not_finite(keys: int, waves: bool) -> None:
    """Neither engine lets it in."""
    graph, instances = not_finite()
    before = {name: value.clone() for name, value in graph.module().state_dict().items()}
    with Inline(graph, update=Update(SGD, 3, "instances"), max_active_keys=keys, waves=waves) as runtime:
        with pytest.raises(DataError, match="input 'x' .*not finite at .instance=1"):
            runtime.train(instances)
        assert runtime.held() == {}
        assert all(torch.equal(value, before[name]) for name, value in graph.module().state_dict().items())


@pytest.mark.parametrize("optimizer", [SGD, partial(torch.optim.Adam, lr=0.1)])
def test_what_is_not_finite_can_be_left_out(optimizer: Any) -> None:
    found = []
    for waves in (True, False):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            graph, instances = not_finite()
        node = graph.nodes["loss"]
        assert isinstance(node, Loss)
        node.on_nan = "skip"
        with Inline(graph, update=Update(optimizer, 3, "instances"), max_active_keys=3, waves=waves) as runtime:
            stats = [runtime.train(instances) for _ in range(2)]
            assert [s.skipped for s in stats] == [1, 1]
            assert runtime.held() == {}
        losses = torch.tensor([s.loss for s in stats], dtype=F64)
        found.append({**graph.module().state_dict(), "losses": losses})
    assert_close(*found)


class _NoWayBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        raise ValueError("no way back")


@pytest.mark.parametrize("optimizer", [SGD, partial(torch.optim.Adam, lr=0.1)])
def test_a_backward_that_fails_names_its_node(optimizer: Any) -> None:
    """By then gradients have been added up: there is no way to messages, and no state to be named."""
    graph = chain(Linear(4, 4, dtype=F64), Function(lambda x: _NoWayBack.apply(x)), Linear(4, 4, dtype=F64))
    with Inline(graph, update=Update(optimizer, 1, "instances")) as runtime:
        with pytest.raises(NodeError) as caught:
            runtime.train(rows_of(1, 1))
        assert (caught.value.node, caught.value.direction) == ("n1", "backward")
        assert isinstance(caught.value.__cause__, ValueError)
        assert runtime.held() == {}
    assert not any(total.any() for total in graph.gradients().values())


def test_what_was_added_to_weights_is_not_left_out_after_an_error() -> None:
    """Plain gradient descent goes straight into the weights; an error after that must not cost the next update."""
    graph, instances = chain(Linear(4, 4, dtype=F64)), rows_of(1, 1)
    with Inline(graph, update=Update(SGD, 1, "instances")) as runtime:
        player = player_of(runtime)
        report = player._tell
        player._tell = lambda report: 1 / 0  # type: ignore[assignment,return-value]
        with pytest.raises(ZeroDivisionError):
            runtime.train(instances[:1])
        player._tell = report
        assert runtime.held() == {}
        start = {name: value.clone() for name, value in graph.module().state_dict().items()}
        runtime.train(instances[1:])
        assert graph.parameterised()["n0"].updater.version == 2
    assert all(not torch.equal(value, start[name]) for name, value in graph.module().state_dict().items())


def test_a_module_that_is_not_row_wise_is_found_out() -> None:
    class Mixing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flip(0)

    for node in (Module(Mixing()), Function(lambda x: x.flip(0))):
        rows = [torch.full((1, 4), float(np.sqrt(i)), dtype=F64) for i in range(4)]
        instances = [Instance({"x": feed(x), "label": feed(x)}) for x in rows]
        with Inline(chain(node), max_active_keys=4) as runtime, pytest.raises(NodeError, match="not row-wise"):
            runtime.train(instances)
