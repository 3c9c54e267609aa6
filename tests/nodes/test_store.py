"""The store: what goes in under a key comes out under it, whatever the composition of batches; and nothing stays."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ampnet.errors import PairingError
from ampnet.key import Packer
from ampnet.message import Messages, offsets_of
from ampnet.nodes.kept import gather, gather_states
from ampnet.nodes.keyed import Marks
from ampnet.nodes.store import Store
from ampnet.state import States


def put(store: Store, numbers: list[int], rows_per: int, tag: int = 0) -> None:
    states = States.of(instance=np.array(numbers), t=np.array(numbers) % 5)
    rows = torch.tensor([[n, j] for n in numbers for j in range(rows_per)], dtype=torch.float64)
    offsets = None if rows_per == 1 else np.arange(len(numbers) + 1) * rows_per
    store.put(store.packer.pack(states), (rows,), states, offsets, tag)


def take(store: Store, numbers: list[int]) -> dict[int, list[list[float]]]:
    states = States.of(instance=np.array(numbers), t=np.array(numbers) % 5)
    found, parts = store.take(Messages(None, states))
    assert gather_states(parts) == found.states
    rows, counts = gather(parts, 0), np.concatenate([p.counts() for p in parts])
    assert rows is not None
    starts = offsets_of(counts)
    return {int(n): rows[starts[i] : starts[i + 1]].tolist() for i, n in enumerate(found.states.instance)}


@given(
    st.lists(st.tuples(st.integers(1, 90), st.sampled_from([1, 1, 3]), st.integers(0, 2)), min_size=1, max_size=8),
    st.integers(1, 40),
    st.randoms(use_true_random=False),
)
def test_any_composition_comes_back_whole(batches: list[tuple[int, int, int]], most: int, random: object) -> None:
    store, size, number = Store(Packer(), "the store"), {}, 0
    for count, rows_per, tag in batches:
        numbers = list(range(number, number + count))
        number += count
        size.update(dict.fromkeys(numbers, rows_per))
        put(store, numbers, rows_per, tag)
    order = list(size)
    if random.random() < 0.7:  # type: ignore[attr-defined]
        random.shuffle(order)  # type: ignore[attr-defined]
    for start in range(0, len(order), most):
        wanted = order[start : start + most]
        assert take(store, wanted) == {n: [[n, j] for j in range(size[n])] for n in wanted}
    assert len(store) == 0
    assert not store.live_tags()


def test_a_batch_that_comes_back_as_it_went_is_not_copied() -> None:
    store = Store(Packer(), "the store")
    rows = torch.randn(300, 3)
    states = States.of(instance=np.arange(300))
    store.put(store.packer.pack(states), (rows,))
    _, (part,) = store.take(Messages(None, states.slice(50, 120)))
    kept = part.rows(0)
    assert kept is not None
    assert kept.data_ptr() == rows[50:].data_ptr()


def test_a_straggler_does_not_keep_a_large_batch_alive() -> None:
    """Promise P17 in small: live rows, not the batches they came in, decide how much is kept."""
    store = Store(Packer(), "the store")
    for batch in range(20):
        put(store, list(range(batch * 100, batch * 100 + 100)), 1)
        take(store, list(range(batch * 100, batch * 100 + 99)))
    closed = [r for r in store.records() if r not in store._open.values()]
    live = sum(r.live for r in closed)
    assert len(store) == 20
    assert live > 5
    assert sum(r.rows[0].shape[0] for r in closed if r.rows[0] is not None) <= 4 * live


def test_small_batches_share_blocks() -> None:
    store = Store(Packer(), "the store")
    for n in range(300):
        put(store, [n], 1)
    assert len(store.records()) <= 5
    assert take(store, list(range(299, -1, -1))) == {n: [[n, 0.0]] for n in range(300)}


def test_taking_what_is_not_there_names_both_states() -> None:
    store = Store(Packer(), "its cache")
    put(store, [7], 1)
    with pytest.raises(
        PairingError, match=r"backward for \(instance=8, t=3\) that it never forwarded.*\(instance=7, t=2\)"
    ):
        take(store, [7, 8])


def test_putting_a_key_twice_is_an_error() -> None:
    store = Store(Packer(), "its cache")
    put(store, [1, 2, 3], 1)
    with pytest.raises(PairingError, match=r"two messages with one key \(instance=2, t=2\)"):
        put(store, [2], 1)
    with pytest.raises(PairingError, match=r"two messages with one key \(instance=9, t=4\)"):
        put(store, [8, 9, 9], 1)


def test_marks_give_back_what_was_put_and_name_what_was_not() -> None:
    packer = Packer()
    marks = Marks(packer, "its memory", 4)
    states = States.of(instance=np.arange(300), t=np.arange(300) % 7)
    for mark in range(3):
        marks.put(packer.pack(states.take(np.arange(mark, 300, 3))), mark)
    assert len(marks) == 300
    assert marks.take(Messages(None, states.take(np.array([4])))) == 1
    assert marks.take(Messages(None, states.take(np.array([9, 3, 0])))) == 0
    mixed = np.array([8, 7, 6, 5])
    assert marks.take(Messages(None, states.take(mixed))).tolist() == [2, 1, 0, 2]  # type: ignore[union-attr]
    assert len(marks) == 292
    with pytest.raises(
        PairingError, match=r"backward for \(instance=9, t=2\) that it never forwarded.*instance=12, t=5"
    ):
        marks.take(Messages(None, states.take(np.array([12, 9, 15]))))
    assert len(marks) == 292
    with pytest.raises(PairingError, match="two messages with one key"):
        marks.take(Messages(None, states.take(np.array([12, 15, 12]))))
    with pytest.raises(PairingError, match=r"two messages with one key \(instance=18, t=4\)"):
        marks.put(packer.pack(states.take(np.array([18]))), 2)


def test_marks_follow_when_keys_widen() -> None:
    packer = Packer(("instance", "t"))
    marks = Marks(packer, "its memory", 4)
    states = States.of(instance=np.arange(5), t=np.arange(5))
    marks.put(packer.pack(states), 1)
    packer.pack(States.of(instance=[2**33], t=[2**12]))
    again = States.of(instance=np.arange(5), t=np.arange(5))
    assert marks.take(Messages(None, again)) == 1


def test_small_batches_that_keep_coming_back_as_they_went_are_kept_apart() -> None:
    """In step, nothing is copied; as soon as batches come back in another composition, they share blocks again."""
    store = Store(Packer(), "the store")

    def kept_apart() -> bool:
        rows = torch.randn(8, 3)
        states = States.of(instance=np.arange(8))
        store.put(store.packer.pack(states), (rows,))
        _, parts = store.take(Messages(None, states))
        kept = gather(parts, 0)
        assert kept is not None
        assert torch.equal(kept, rows)
        return kept.data_ptr() == rows.data_ptr()

    seen = [kept_apart() for _ in range(12)]
    assert not seen[0] and seen[-1] and seen == sorted(seen)
    for first in range(0, 80, 8):
        put(store, list(range(first, first + 8)), 1)
    for first in range(8):
        numbers = list(range(first, 80, 8))
        assert take(store, numbers) == {n: [[n, 0.0]] for n in numbers}
    assert not kept_apart()
    assert len(store) == 0
