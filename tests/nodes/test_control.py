"""Cond, Phi, Isu and Sink: routing by state, remembering the origin, updating the state and undoing it, ending."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ampnet.errors import GraphError, PairingError, PayloadError, StateError
from ampnet.message import Messages
from ampnet.nodes import Cond, Direction, Isu, Phi, Sink
from ampnet.nodes.node import Outputs, Report
from ampnet.state import States


def messages(t: list[int], length: int = 3, train: bool = True) -> Messages:
    rows = torch.tensor(t, dtype=torch.float32).unsqueeze(1)
    return Messages(rows, States.of(instance=5, t=t, length=length), train=train)


def seen(outputs: Outputs) -> dict[tuple[str, int], list[int]]:
    """(direction, port) -> the t of what went there; payloads must have gone with their states."""
    out = {}
    for output in outputs:
        assert not isinstance(output, Report)
        way, port, sent = output
        assert sent.payload is not None
        assert sent.payload.flatten().tolist() == sent.states.t.tolist()
        out[way.name.lower(), port] = sent.states.t.tolist()
    return out


def test_cond_routes_each_message_by_its_state() -> None:
    cond = Cond(lambda s: s.t < s.length, ("done", "again"))
    assert seen(cond.forward(0, messages([0, 3, 2, 4]))) == {("forward", 0): [3, 4], ("forward", 1): [0, 2]}
    assert seen(cond.forward(0, messages([0, 1]))) == {("forward", 1): [0, 1]}


def test_cond_routes_among_many_ports_by_number() -> None:
    cond = Cond(lambda s: s.t, ("a", "b", "c"))
    assert seen(cond.forward(0, messages([2, 0, 2]))) == {("forward", 0): [0], ("forward", 2): [2, 2]}


def test_cond_sends_every_gradient_to_its_one_input() -> None:
    cond = Cond(lambda s: s.t < s.length)
    for port in (0, 1):
        assert seen(cond.backward(port, messages([1, 2]))) == {("backward", 0): [1, 2]}


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda s: s.t + 1, r"chose port 2 of 2 for \(instance=5, t=1, length=3\)"),
        (lambda s: s.t * 1.5, "one integer or truth value per message"),
        (lambda s: 1, "one integer or truth value per message: 2 expected"),
    ],
)
def test_cond_names_a_bad_choice(function: object, words: str) -> None:
    with pytest.raises(StateError, match=words):
        Cond(function).forward(0, messages([0, 1]))  # type: ignore[arg-type]


def test_phi_returns_each_gradient_to_where_its_message_came_from() -> None:
    phi = Phi(("start", "loop"))
    assert seen(phi.forward(0, messages([0]))) == {("forward", 0): [0]}
    phi.forward(1, messages([1, 2]))
    assert phi.held() == {"origins": 3}
    assert seen(phi.backward(0, messages([2, 0]))) == {("backward", 1): [2], ("backward", 0): [0]}
    assert seen(phi.backward(0, messages([1]))) == {("backward", 1): [1]}
    assert phi.held() == {"origins": 0}


def test_phi_refuses_an_answer_it_does_not_expect() -> None:
    phi = Phi()
    phi.forward(0, messages([0]))
    with pytest.raises(PairingError, match=r"\(instance=5, t=1, length=3\) that it never forwarded"):
        phi.backward(0, messages([1]))


def test_phi_keeps_nothing_in_inference() -> None:
    phi = Phi()
    phi.forward(0, messages([0], train=False))
    assert phi.held() == {"origins": 0}


def test_isu_updates_and_undoes() -> None:
    isu = Isu(lambda s: s.replace(t=s.t + 1), lambda s: s.replace(t=s.t - 1))
    ((way, port, sent),) = isu.forward(0, messages([0, 1]))  # type: ignore[misc]
    assert (way, port, sent.states.t.tolist()) == (Direction.FORWARD, 0, [1, 2])
    ((way, port, sent),) = isu.backward(0, sent)  # type: ignore[misc]
    assert (way, port, sent.states.t.tolist()) == (Direction.BACKWARD, 0, [0, 1])


def test_isu_finds_a_wrong_inverse_on_the_first_real_states() -> None:
    isu = Isu(lambda s: s.replace(t=s.t + 1), lambda s: s.replace(t=np.maximum(s.t - 1, 1)))
    with pytest.raises(
        StateError, match=r"inverse is wrong: f takes \(instance=5, t=0, .*t=1, .*that to \(instance=5, t=1"
    ):
        isu.forward(0, messages([2, 0]))


def test_isu_must_give_states() -> None:
    with pytest.raises(StateError, match="must give the 2 new States"):
        Isu(lambda s: s.t, lambda s: s).forward(0, messages([0, 1]))  # type: ignore[arg-type,return-value]


def test_a_state_function_of_the_wrong_shape_is_refused_when_the_node_is_made() -> None:
    with pytest.raises(GraphError, match="must take"):
        Cond(lambda: 0)
    with pytest.raises(GraphError, match="must take"):
        Cond(lambda a, b, c: 0)


def test_sink_answers_at_once_without_a_gradient() -> None:
    ((way, port, back),) = Sink().forward(0, messages([0, 1]))  # type: ignore[misc]
    assert (way, port, back.payload, back.states.t.tolist()) == (Direction.BACKWARD, 0, None, [0, 1])
    assert back.train
    with pytest.raises(PayloadError, match="has no successor"):
        Sink().backward(0, messages([0]))


def test_sink_does_nothing_in_inference() -> None:
    assert Sink().forward(0, messages([0, 1], train=False)) == []
