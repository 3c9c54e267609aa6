"""Messages: rows and states together; splitting and merging batches is free of meaning."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ampnet.errors import PayloadError
from ampnet.message import Messages, rows_each
from ampnet.state import States


def batch(counts: list[int]) -> Messages:
    """Messages 0, 1, 2, ... with these numbers of rows; row values tell message and place."""
    rows = torch.tensor([[i, j] for i, n in enumerate(counts) for j in range(n)], dtype=torch.float64).view(-1, 2)
    offsets = None if all(n == 1 for n in counts) else np.concatenate(([0], np.cumsum(counts)))
    return Messages(rows, States.of(instance=np.arange(len(counts))), offsets)


def rows_of(messages: Messages) -> dict[int, list[list[float]]]:
    offsets = messages.offsets if messages.offsets is not None else np.arange(len(messages) + 1)
    assert messages.payload is not None
    return {
        int(n): messages.payload[offsets[i] : offsets[i + 1]].tolist() for i, n in enumerate(messages.states.instance)
    }


COUNTS = st.one_of(
    st.lists(st.integers(0, 4), min_size=1, max_size=12),
    st.tuples(st.integers(1, 4), st.integers(1, 8)).map(lambda p: [p[0]] * p[1]),
)


@given(COUNTS, st.integers(1, 5), st.randoms(use_true_random=False))
def test_split_take_and_merge_lose_and_change_nothing(counts: list[int], most: int, random: object) -> None:
    whole = batch(counts)
    pieces = list(whole.split(most))
    assert all(len(p) <= most for p in pieces)
    random.shuffle(pieces)  # type: ignore[attr-defined]
    merged = Messages.merge(pieces)
    assert rows_of(merged) == rows_of(whole)
    order = list(range(len(counts)))
    random.shuffle(order)  # type: ignore[attr-defined]
    taken = whole.take(np.array(order))
    assert taken.states.instance.tolist() == order
    assert rows_of(taken) == rows_of(whole)
    assert taken.rows == sum(counts)


def test_neighbours_are_taken_without_a_copy() -> None:
    whole = batch([3, 3, 3, 3])
    taken = whole.take(np.array([1, 2]))
    assert taken.payload is not None and whole.payload is not None
    assert taken.payload.data_ptr() == whole.payload[3:].data_ptr()


def test_rows_each_tells_uniform_batches() -> None:
    assert rows_each(None) == 1
    assert rows_each(np.array([0, 4, 8, 12])) == 4
    assert rows_each(np.array([0, 4, 7, 12])) == 0
    assert rows_each(np.array([0, 0, 4])) == 0


def test_messages_with_and_without_a_payload_do_not_merge() -> None:
    """Zeros in place of a missing gradient would be a gradient: counted, and multiplied with what was kept."""
    gradient = batch([2, 1])
    empty = gradient.with_payload(None).take(np.array([0]))
    assert Messages.merge([empty, empty]).payload is None
    with pytest.raises(PayloadError, match="must stay in batches of their own"):
        Messages.merge([empty, gradient])


@pytest.mark.parametrize(
    ("payload", "offsets", "words"),
    [
        (torch.zeros(3, 2), None, "for 2 messages of 2 rows"),
        (torch.zeros(3, 2), [0, 1, 4], "for 2 messages of 4 rows"),
        (torch.zeros(3, 2), [0, 3], "rise from 0 in 3 steps"),
        (torch.zeros(3, 2), [0, 4, 3], "rise from 0"),
        (torch.tensor(1.0), None, "payload of shape"),
    ],
)
def test_rows_must_match_the_states(payload: torch.Tensor, offsets: list[int] | None, words: str) -> None:
    starts = None if offsets is None else np.array(offsets)
    with pytest.raises(PayloadError, match=words):
        Messages(payload, States.of(instance=[0, 1]), starts)


def test_different_widths_or_dtypes_do_not_merge() -> None:
    one = States.of(instance=[0])
    with pytest.raises(PayloadError, match=r"rows of \(2,\) torch.float32 and of \(3,\) torch.float32 meet"):
        Messages.merge([Messages(torch.zeros(1, 2), one), Messages(torch.zeros(1, 3), one)])


@given(COUNTS, st.integers(0, 1000))
def test_messages_go_apart_by_a_choice_in_the_order_of_their_keys(counts: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    whole = batch(counts)
    mixed = whole.take(rng.permutation(len(counts)))
    choice = rng.integers(0, 4, len(counts))
    parts = mixed.by(choice, 4)
    assert [way for way, _ in parts] == sorted(set(choice.tolist()))
    assert rows_of(Messages.merge([some for _, some in parts])) == rows_of(whole)
    for way, some in parts:
        numbers = some.states.instance.tolist()
        assert sorted(numbers) == sorted(mixed.states.instance[choice == way].tolist())
        assert len(parts) == 1 or numbers == sorted(numbers)


def test_different_dtypes_do_not_merge_though_torch_would() -> None:
    one = States.of(instance=[0])
    with pytest.raises(PayloadError, match=r"torch.float32 and of \(2,\) torch.float64 meet"):
        Messages.merge([Messages(torch.zeros(1, 2), one), Messages(torch.zeros(1, 2, dtype=torch.float64), one)])
