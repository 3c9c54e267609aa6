"""Keys: packed without collision, widened when values grow, refused when they cannot fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ampnet.errors import PairingError, StateError
from ampnet.key import Packer
from ampnet.message import Messages
from ampnet.nodes.store import Store
from ampnet.state import States


@given(st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 2**20), st.integers(0, 2**20)), max_size=40))
def test_different_states_have_different_keys_and_unpack_to_themselves(rows: list[tuple[int, int, int]]) -> None:
    packer = Packer()
    states = States(("instance", "a", "b"), np.array(rows, dtype=np.int64).reshape(-1, 3).T)
    keys = packer.pack(states)
    assert len(set(keys.tolist())) == len(set(rows))
    assert packer.unpack(keys) == states


def test_the_key_may_be_part_of_the_state() -> None:
    packer = Packer(("instance",))
    keys = packer.pack(States.of(instance=[3, 3, 4], t=[0, 1, 0]))
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize(
    "key", [("instance", "t"), ("t", "node"), ("node",), ("instance", "node"), ("node", "instance")]
)
def test_the_key_may_be_any_fields_in_any_order(key: tuple[str, ...]) -> None:
    """Neighbouring fields are packed from a view of the columns, others from a copy: both must give the same."""
    rng = np.random.default_rng(0)
    for n in (0, 1, 2, 50):
        states = States(("instance", "t", "node"), rng.integers(0, 2**12, (3, n)))
        for some in (states, states.slice(n // 3, n)):
            packer = Packer(key)
            assert packer.unpack(packer.pack(some)) == some.keep(*key)


def test_widening_keeps_what_is_stored_findable() -> None:
    """A field that outgrows its bits changes all keys; stores keyed by them must follow."""
    packer = Packer()
    store = Store(packer, "the store")
    small = States.of(instance=np.arange(5), t=np.arange(5))
    store.put(packer.pack(small), (torch.arange(5.0).unsqueeze(1),), small)
    huge = States.of(instance=[2**30], t=[2**20])
    store.put(packer.pack(huge), (torch.tensor([[9.0]]),), huge)
    asked = States.merge([huge, small.take(np.array([4, 2]))])
    found, parts = store.take(Messages(torch.zeros(3, 1), asked))
    rows = torch.cat([p.rows(0) for p in parts if p.rows(0) is not None])  # type: ignore[misc]
    assert dict(zip(found.states.instance.tolist(), rows.flatten().tolist(), strict=True)) == {
        2**30: 9.0,
        4: 4.0,
        2: 2.0,
    }
    assert len(store) == 3


def test_packers_of_the_same_fields_share_a_layout_and_both_stores_follow() -> None:
    one, two = Packer(("instance", "x")), Packer(("instance", "x"))
    a, b = Store(one, "a"), Store(two, "b")
    states = States.of(instance=[1], x=[1])
    a.put(one.pack(states))
    b.put(two.pack(states))
    two.pack(States.of(instance=[2**40], x=[2**10]))
    for store in (a, b):
        store.take(Messages(None, States.of(instance=[1], x=[1])))
        assert len(store) == 0


def test_a_key_that_cannot_fit_is_an_error_not_a_clash() -> None:
    packer = Packer(("instance", "p", "q"))
    with pytest.raises(StateError, match=r"needs 90 bits and has 63: instance up to .*Remedy: key on fewer fields"):
        packer.pack(States.of(instance=[2**29], p=[2**29], q=[2**29]))


def test_a_negative_field_is_an_error() -> None:
    with pytest.raises(StateError, match=r"field 't' is -1 in a key.*runs past the start"):
        Packer(("instance", "t")).pack(States.of(instance=[4], t=[-1]))


def test_a_missing_field_is_an_error() -> None:
    with pytest.raises(StateError, match="needs field 'node', but the state has only"):
        Packer(("instance", "node")).pack(States.of(instance=[4], t=[1]))


def test_a_wrong_key_clashes_loudly() -> None:
    packer = Packer(("instance",))
    store = Store(packer, "its cache")
    store.put(packer.pack(States.of(instance=[1], t=[0])))
    with pytest.raises(PairingError, match=r"two messages with one key \(instance=1\) at the same time in its cache"):
        store.put(packer.pack(States.of(instance=[1], t=[1])))


def test_parts_and_merged_batches_inherit_keys_until_the_layout_changes() -> None:
    packer = Packer(("instance", "t"))
    states = States.of(instance=np.arange(6), t=np.arange(6))
    packer.pack(states)
    parts = [states.slice(0, 2), states.take(np.array([5, 2])), states.slice(3, 5)]
    merged = States.merge(parts)
    for some in (*parts, merged):
        assert some.packed is not None
        assert packer.unpack(packer.pack(some)) == some
    packer.pack(States.of(instance=[2**40], t=[2**12]))  # widens
    for some in (*parts, merged):
        assert packer.unpack(packer.pack(some)) == some
    assert States.merge([parts[0], States.of(instance=[9], t=[9])]).packed is None
