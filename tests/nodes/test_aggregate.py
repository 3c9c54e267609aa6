"""Concat, Split, Bcast, Group, Ungroup, Flatmap: what meets, what parts, and what comes back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ampnet.errors import PairingError, PayloadError, StateError
from ampnet.message import Messages
from ampnet.nodes import Bcast, Concat, Flatmap, Group, Split, Ungroup
from ampnet.nodes.node import Direction, Outputs, Report
from ampnet.state import Column, States
from ampnet.structure import Shelf, Structure, View

F, B = Direction.FORWARD, Direction.BACKWARD


def sent(outputs: Outputs) -> list[tuple[Direction, int, Messages]]:
    out = []
    for output in outputs:
        assert not isinstance(output, Report)
        out.append(output)
    return out


def rows(messages: Messages) -> dict[tuple[int, ...], list[list[float]]]:
    """State -> its rows."""
    offsets = messages.offsets if messages.offsets is not None else np.arange(len(messages) + 1)
    assert messages.payload is not None
    return {
        tuple(messages.states.columns[:, i].tolist()): messages.payload[offsets[i] : offsets[i + 1]].tolist()
        for i in range(len(messages))
    }


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


def test_concat_joins_by_key_in_any_order_of_arrival() -> None:
    node = Concat(("x", "h"))
    x = Messages(column(10, 11, 12), States.of(instance=[1, 1, 2], t=[0, 1, 0]))
    assert node.forward(0, x) == []
    assert node.waits()[0].startswith("3 message(s) of port 'x' wait for port 'h': (instance=1, t=0)")
    ((way, port, out),) = sent(node.forward(1, Messages(column(22, 20), States.of(instance=[2, 1], t=[0, 0]))))
    assert (way, port) == (F, 0)
    assert rows(out) == {(2, 0): [[12, 22]], (1, 0): [[10, 20]]}
    back = sent(node.backward(0, out.with_payload(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))))
    by_state = {p: rows(m) for _, p, m in back}
    first, second = [tuple(c) for c in out.states.columns.T.tolist()]
    assert by_state == {0: {first: [[1.0]], second: [[3.0]]}, 1: {first: [[2.0]], second: [[4.0]]}}
    assert {k: v for k, v in node.held().items() if v} == {"waiting at 'x'": 1}


def test_concat_of_three_ports_joins_when_the_last_is_there() -> None:
    node = Concat(("a", "b", "c"))
    order = np.random.default_rng(0).permutation(50)
    states = States.of(instance=np.arange(50))
    values = torch.arange(50, dtype=torch.float64).unsqueeze(1)
    for port, shuffled in ((0, order), (2, order[::-1].copy())):
        for part in np.array_split(shuffled, 6):
            assert node.forward(port, Messages(values[part] + 100 * port, states.take(part))) == []
    got = {}
    for part in np.array_split(np.roll(order, 7), 4):
        ((_, _, out),) = sent(node.forward(1, Messages(values[part] + 100, states.take(part))))
        got.update(rows(out))
    assert got == {(i,): [[i, i + 100.0, i + 200.0]] for i in range(50)}
    assert not any(node.held().values())


def test_concat_restores_the_states_of_each_port() -> None:
    """Port 'h' carries a field that is not in the key: it must come back with the gradient."""
    node = Concat(("x", "h"), key=("instance",))
    node.forward(1, Messages(column(2, 3), States.of(instance=[1, 2], t=[7, 8])))
    ((_, _, out),) = sent(node.forward(0, Messages(column(5, 4), States.of(instance=[2, 1]))))
    assert out.states.fields == ("instance",)
    assert rows(out) == {(2,): [[5, 3]], (1,): [[4, 2]]}
    back = {p: rows(m) for _, p, m in sent(node.backward(0, out.with_payload(out.payload)))}
    assert back == {0: {(2,): [[5]], (1,): [[4]]}, 1: {(2, 8): [[3]], (1, 7): [[2]]}}
    assert not any(node.held().values())


@pytest.mark.parametrize("ports", [("x", "h"), ("x", "h", "c")])
def test_concat_remembers_nothing_where_states_are_promised_to_agree(ports: tuple[str, ...]) -> None:
    node = Concat(ports, key=("instance",), same_states=True)
    states = States.of(instance=[1, 2, 3], t=[7, 8, 9])
    for port in range(1, len(ports)):
        node.forward(port, Messages(column(1, 2, 3) + 10 * port, states))
    order = np.array([2, 0, 1])
    ((_, _, out),) = sent(node.forward(0, Messages(column(1, 2, 3), states).take(order)))
    assert out.states.fields == ("instance", "t")
    assert rows(out) == {(i, i + 6): [[i + 10.0 * p for p in range(len(ports))]] for i in (1, 2, 3)}
    assert not any(node.held().values())
    back = {p: rows(m) for _, p, m in sent(node.backward(0, out))}
    assert back == {p: {(i, i + 6): [[i + 10.0 * p]] for i in (1, 2, 3)} for p in range(len(ports))}


def test_concat_names_messages_that_do_not_fit() -> None:
    one = States.of(instance=[1])
    node = Concat(("x", "h"))
    node.forward(0, Messages(column(1), one))
    with pytest.raises(PairingError, match=r"two messages with one key \(instance=1\).*port 'x'"):
        node.forward(0, Messages(column(1), one))
    node = Concat(("x", "h"))
    node.forward(0, Messages(column(1, 2), one, np.array([0, 2])))
    with pytest.raises(PayloadError, match=r"\(instance=1\) has 3 rows at port 'h' and 2 at port 'x'"):
        node.forward(1, Messages(column(1, 2, 3), one, np.array([0, 3])))
    node = Concat(("x", "h"))
    node.forward(0, Messages(column(1), one))
    with pytest.raises(PayloadError, match="'x' torch.float64, 'h' torch.float32"):
        node.forward(1, Messages(column(1).float(), one))


def test_split_is_the_opposite_of_concat() -> None:
    node = Split({"h": 2, "c": 1})
    states = States.of(instance=[1, 2])
    out = sent(node.forward(0, Messages(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), states)))
    assert [rows(m) for _, _, m in out] == [{(1,): [[1, 2]], (2,): [[4, 5]]}, {(1,): [[3]], (2,): [[6]]}]
    assert node.backward(1, Messages(torch.tensor([[9.0], [8.0]]), States.of(instance=[2, 1]))) == []
    ((way, _, back),) = sent(node.backward(0, Messages(torch.tensor([[1.0, 2.0], [4.0, 5.0]]), states)))
    assert way is B
    assert rows(back) == {(1,): [[1, 2, 8]], (2,): [[4, 5, 9]]}
    with pytest.raises(PayloadError, match="expects rows of width 3"):
        node.forward(0, Messages(torch.zeros(2, 4), states))


def test_split_fills_in_zeros_where_a_piece_has_no_gradient() -> None:
    node = Split({"h": 2, "c": 1})
    states = States.of(instance=[1])
    node.backward(1, Messages(None, states))
    ((_, _, back),) = sent(node.backward(0, Messages(torch.tensor([[1.0, 2.0]]), states)))
    assert rows(back) == {(1,): [[1, 2, 0]]}


def test_bcast_sums_the_gradients_of_all_ports() -> None:
    node = Bcast(("a", "b", "c"))
    given = Messages(column(1, 2), States.of(instance=[1, 2]))
    out = sent(node.forward(0, given))
    assert [p for _, p, _ in out] == [0, 1, 2]
    assert all(m.payload is given.payload for _, _, m in out)
    assert node.backward(0, Messages(column(1, 2), States.of(instance=[1, 2]))) == []
    assert node.backward(2, Messages(None, States.of(instance=[2, 1]))) == []
    ((_, _, back),) = sent(node.backward(1, Messages(column(30, 20), States.of(instance=[2, 1]))))
    assert rows(back) == {(1,): [[21]], (2,): [[32]]}


def edge_group() -> Group:
    return Group(
        state=lambda s: s.keep("instance").adding(node=s.target), size=lambda s: s.degree, order=lambda s: s.edge
    )


def edges(which: list[tuple[int, int, int, int]]) -> Messages:
    """(instance, edge, target, degree of the target); the payload says which edge it is."""
    array = np.array(which).T
    return Messages(column(*array[1]), States(("instance", "edge", "target", "degree"), array))


def test_group_fills_in_any_order_and_leaves_in_its_own() -> None:
    node = edge_group()
    assert node.forward(0, edges([(1, 7, 0, 3), (1, 3, 2, 2)])) == []
    assert node.forward(0, edges([(1, 5, 0, 3)])) == []
    assert "group (instance=1, node=0) has 2 message(s) and waits for 1 more" in node.waits()
    ((_, _, out),) = sent(node.forward(0, edges([(1, 1, 2, 2), (1, 6, 0, 3), (2, 9, 0, 2)])))
    assert rows(out) == {(1, 0): [[5], [6], [7]], (1, 2): [[1], [3]]}
    ((_, _, back),) = sent(node.backward(0, out.with_payload(-out.payload)))  # type: ignore[operator]
    assert rows(back) == {
        (1, 5, 0, 3): [[-5]],
        (1, 6, 0, 3): [[-6]],
        (1, 7, 0, 3): [[-7]],
        (1, 1, 2, 2): [[-1]],
        (1, 3, 2, 2): [[-3]],
    }
    assert node.held() == {"members": 0, "waiting": 1}


def test_group_may_be_known_by_some_fields_of_its_state() -> None:
    """The degree is the same for all members, so it need not be in the key, but it travels on."""
    node = Group(
        state=lambda s: s.keep("instance").adding(node=s.target, degree=s.degree),
        size=lambda s: s.degree,
        order=lambda s: s.edge,
        key=("instance", "node"),
    )
    assert node.forward(0, edges([(1, 7, 0, 2), (1, 3, 2, 2)])) == []
    assert "group (instance=1, node=0) has 1 message(s) and waits for 1 more" in node.waits()
    ((_, _, out),) = sent(node.forward(0, edges([(1, 1, 2, 2), (1, 6, 0, 2)])))
    assert rows(out) == {(1, 0, 2): [[6], [7]], (1, 2, 2): [[1], [3]]}
    assert node.key.fields == ("instance", "node")
    ((_, _, back),) = sent(node.backward(0, out))
    assert rows(back) == {(1, 6, 0, 2): [[6]], (1, 7, 0, 2): [[7]], (1, 1, 2, 2): [[1]], (1, 3, 2, 2): [[3]]}
    assert not any(node.held().values())
    with pytest.raises(StateError, match="needs field 'leaf'"):
        Group(lambda s: s, lambda s: s.degree, key=("leaf",)).forward(0, edges([(1, 7, 0, 2)]))


def test_group_of_messages_with_several_rows() -> None:
    node = Group(state=lambda s: s.keep("instance"), size=lambda s: np.full(len(s), 2))
    given = Messages(column(1, 2, 3), States.of(instance=[4, 4], part=[1, 0]), np.array([0, 1, 3]))
    ((_, _, out),) = sent(node.forward(0, given))
    assert rows(out) == {(4,): [[2], [3], [1]]}
    ((_, _, back),) = sent(node.backward(0, out))
    assert rows(back) == {(4, 0): [[2], [3]], (4, 1): [[1]]}


def test_group_that_gets_too_many_is_an_error() -> None:
    node = edge_group()
    with pytest.raises(PairingError, match=r"group \(instance=1, node=0\) has size 1 and got more"):
        node.forward(0, edges([(1, 7, 0, 1), (1, 8, 0, 1)]))


def test_group_survives_the_widening_of_keys_while_it_waits() -> None:
    node = edge_group()
    node.forward(0, edges([(1, 7, 0, 2)]))
    node.forward(0, edges([(2**30, 1, 2**20, 2)]))
    ((_, _, out),) = sent(node.forward(0, edges([(1, 3, 0, 2), (2**30, 2, 2**20, 2)])))
    assert rows(out) == {(1, 0): [[3], [7]], (2**30, 2**20): [[1], [2]]}


def test_ungroup_parts_rows_and_gathers_their_gradients() -> None:
    node = Ungroup(lambda s, i: s.adding(node=i))
    given = Messages(column(1, 2, 3), States.of(instance=[4, 5, 6]), np.array([0, 2, 2, 3]))
    out, answered = sent(node.forward(0, given))
    assert rows(out[2]) == {(4, 0): [[1]], (4, 1): [[2]], (6, 0): [[3]]}
    assert out[2].payload is given.payload
    assert answered[0] is B and rows(answered[2]) == {(5,): []}
    assert node.backward(0, Messages(column(20), States.of(instance=[4], node=[1]))) == []
    back = sent(node.backward(0, Messages(column(30, 10), States.of(instance=[6, 4], node=[0, 0]))))
    got = {}
    for _, _, m in back:
        got.update(rows(m))
    assert got == {(4,): [[10], [20]], (6,): [[30]]}
    assert not any(node.held().values())


def out_edges(s: States, structure: View) -> tuple[Column, States]:
    owner, edge = structure.entries("out", s.node)
    return owner, s.take(owner).adding(edge=edge)


def test_flatmap_copies_to_every_edge_and_sums_what_comes_back() -> None:
    """Node 1 has no out-edge: its gradient is zero, at once."""
    node = Flatmap(out_edges)
    node.shelf = Shelf()
    node.shelf.add({4: Structure(**Structure.lists("out", np.array([0, 2, 0]), 3))})
    given = Messages(column(5, 6, 7), States.of(instance=4, node=[0, 1, 2]))
    out, answered = sent(node.forward(0, given))
    assert rows(out[2]) == {(4, 0, 0): [[5]], (4, 0, 2): [[5]], (4, 2, 1): [[7]]}
    assert answered[0] is B and rows(answered[2]) == {(4, 1): [[0]]}
    states = States.of(instance=4, node=[2, 0], edge=[1, 2])
    ((_, _, back),) = sent(node.backward(0, Messages(column(1, 2), states)))
    assert rows(back) == {(4, 2): [[1]]}
    ((_, _, back),) = sent(node.backward(0, Messages(column(10), States.of(instance=4, node=[0], edge=[0]))))
    assert rows(back) == {(4, 0): [[12]]}
    assert not any(node.held().values())


def test_flatmap_in_inference_keeps_and_answers_nothing() -> None:
    node = Flatmap(lambda s: (np.zeros(0, dtype=np.int64), s.take(np.zeros(0, dtype=np.int64)).adding(k=[])))
    assert node.forward(0, Messages(column(1), States.of(instance=[1]), train=False)) == []
    assert not any(node.held().values())


@pytest.mark.parametrize(
    ("generate", "words"),
    [
        (lambda s: s, "must give \\(owner, States\\)"),
        (lambda s: (np.array([1, 0]), s), "not rising"),
        (lambda s: (np.array([0, 5]), s), "names message 5 of 2"),
    ],
)
def test_flatmap_names_a_bad_generator(generate: object, words: str) -> None:
    with pytest.raises(StateError, match=words):
        Flatmap(generate).forward(0, Messages(column(1, 2), States.of(instance=[1, 2])))  # type: ignore[arg-type]
