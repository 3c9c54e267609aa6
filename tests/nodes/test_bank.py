"""LinearBank: each message through its own layer, whatever the batches."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from ampnet.errors import GraphError, StateError
from ampnet.message import Messages
from ampnet.nodes import LinearBank
from ampnet.nodes.node import Report
from ampnet.state import States
from ampnet.testing import assert_close
from ampnet.update.policy import Update


def bank(bias: bool, activation: str | None) -> LinearBank:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 3, bias=bias, dtype=torch.float64) for _ in range(3)]
    return LinearBank(layers, lambda s: s.kind, activation=activation)  # type: ignore[arg-type]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", [None, "relu", "tanh", "sigmoid"])
@pytest.mark.parametrize("rows_each", [1, 2])
def test_outputs_and_gradients_are_autograds(bias: bool, activation: str | None, rows_each: int) -> None:
    node = bank(bias, activation)
    rng = np.random.default_rng(1)
    n = 17
    kinds = rng.integers(0, 3, n)
    x = torch.randn(n * rows_each, 4, dtype=torch.float64)
    g = torch.randn(n * rows_each, 3, dtype=torch.float64)
    offsets = None if rows_each == 1 else np.arange(n + 1) * rows_each
    whole = Messages(x, States.of(instance=np.arange(n), kind=kinds), offsets)
    leaf = x.clone().requires_grad_()
    act = (lambda t: t) if activation is None else getattr(torch, activation)
    per_row = np.repeat(kinds, rows_each)
    want = torch.stack([act(node.module[int(k)](row)) for k, row in zip(per_row, leaf, strict=True)])  # type: ignore[index]
    grads = torch.autograd.grad(want, [leaf, *node.parameters.values()], g)
    with torch.no_grad():
        got_y, got_dx = torch.zeros_like(want), torch.zeros_like(x)
        for forward, source, out in ((True, x, got_y), (False, g, got_dx)):
            for some in np.array_split(rng.permutation(n), 4):
                handle = node.forward if forward else node.backward
                for output in handle(0, whole.with_payload(source).take(some)):
                    assert not isinstance(output, Report)
                    numbers = output[2].states.instance
                    assert output[2].payload is not None
                    places = (numbers[:, None] * rows_each + np.arange(rows_each)).reshape(-1)
                    out[torch.from_numpy(places)] = output[2].payload
    sums = dict(zip(node.parameters, node.updater.sums, strict=True))
    assert_close(
        {"y": got_y, "dx": got_dx, **sums},
        {"y": want.detach(), "dx": grads[0], **dict(zip(node.parameters, grads[1:], strict=True))},
    )
    assert not any(node.held().values())


def test_a_choice_out_of_range_names_the_state() -> None:
    node = bank(True, None)
    with pytest.raises(StateError, match=r"the choice is 3 for \(instance=1, kind=3\); there are 3 layers"):
        node.forward(0, Messages(torch.zeros(2, 4, dtype=torch.float64), States.of(instance=[0, 1], kind=[0, 3])))


def test_layers_of_different_shapes_are_refused() -> None:
    with pytest.raises(GraphError, match="different layers of one shape"):
        LinearBank([nn.Linear(2, 3), nn.Linear(2, 2)], lambda s: s.kind)


def test_layers_that_share_a_parameter_are_refused() -> None:
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    other.weight = one.weight
    with pytest.raises(GraphError, match="some share one"):
        LinearBank([one, other], lambda s: s.kind)


def test_an_empty_answer_has_no_gradient() -> None:
    node = bank(True, "relu")
    messages = Messages(torch.randn(3, 4, dtype=torch.float64), States.of(instance=[0, 1, 2], kind=[2, 0, 1]))
    with torch.no_grad():
        (out,) = node.forward(0, messages)
        assert not isinstance(out, Report)
        (back,) = node.backward(0, out[2].with_payload(None))
    assert not isinstance(back, Report)
    assert back[2].payload is None
    assert not any(total.any() for total in node.updater.sums)
    assert not any(node.held().values())


def test_messages_without_rows_move_no_layer() -> None:
    """Once an update that held no row at all was taken for one of all layers: weights decayed."""
    node = bank(True, None)
    node.updater.adopt(Update(partial(torch.optim.SGD, lr=0.1, weight_decay=0.5)))
    before = [w.clone() for w in node.updater.weights]
    nothing = torch.zeros(0, 4, dtype=torch.float64)
    with torch.no_grad():
        (out,) = node.forward(0, Messages(nothing, States.of(instance=[0], kind=[1]), np.array([0, 0])))
        assert not isinstance(out, Report)
        node.backward(0, out[2])
    assert node.updater.apply() is not None
    assert all(torch.equal(a, b) for a, b in zip(before, node.updater.weights, strict=True))
