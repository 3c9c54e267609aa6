"""Collect: the other end of a Dispatch."""

from __future__ import annotations

import pytest
import torch

from ampnet.errors import PairingError
from ampnet.message import Messages
from ampnet.nodes.collect import Collect
from ampnet.nodes.node import Direction, Outputs, Report
from ampnet.state import States


def messages(way: int, *t: int, train: bool = True) -> Messages:
    rows = torch.tensor(t, dtype=torch.float32).unsqueeze(1)
    return Messages(rows, States.of(instance=5, t=list(t), replica=way), train=train)


def answer(*t: int) -> Messages:
    return Messages(torch.tensor(t, dtype=torch.float32).unsqueeze(1), States.of(instance=5, t=list(t)))


def seen(outputs: Outputs) -> dict[tuple[Direction, int], tuple[tuple[str, ...], list[int]]]:
    out = {}
    for output in outputs:
        assert not isinstance(output, Report)
        way, port, sent = output
        assert sent.payload is not None
        assert sent.payload.flatten().tolist() == sent.states.t.tolist()
        if "replica" in sent.states.fields:
            assert (sent.states.replica == port).all()
        out[way, port] = (sent.states.fields, sent.states.t.tolist())
    return out


@pytest.mark.parametrize("key", [None, ("instance", "t")])
def test_the_field_is_taken_away_and_put_back(key: tuple[str, ...] | None) -> None:
    node = Collect("replica", ("1", "2", "3"), key)
    assert seen(node.forward(0, messages(0, 1, 4))) == {(Direction.FORWARD, 0): (("instance", "t"), [1, 4])}
    assert seen(node.forward(2, messages(2, 2))) == {(Direction.FORWARD, 0): (("instance", "t"), [2])}
    assert node.held() == {"origins": 3}
    fields = ("instance", "t", "replica")
    assert seen(node.backward(0, answer(1, 2))) == {
        (Direction.BACKWARD, 0): (fields, [1]),
        (Direction.BACKWARD, 2): (fields, [2]),
    }
    assert seen(node.backward(0, answer(4))) == {(Direction.BACKWARD, 0): (fields, [4])}
    assert node.held() == {"origins": 0}


def test_inference_leaves_nothing() -> None:
    node = Collect("replica", ("1", "2"))
    node.forward(1, messages(1, 7, train=False))
    assert node.held() == {"origins": 0}


def test_a_gradient_of_a_message_that_never_came_is_named() -> None:
    node = Collect("replica", ("1", "2"))
    node.forward(1, messages(1, 7))
    with pytest.raises(PairingError, match=r"t=8"):
        node.backward(0, answer(8))


def test_after_an_error_nothing_is_remembered() -> None:
    node = Collect("replica", ("1", "2"))
    node.forward(1, messages(1, 7, 8))
    node.forget()
    assert node.held() == {"origins": 0}
