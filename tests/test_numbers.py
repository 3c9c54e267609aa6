"""Which number an instance gets: in order, or so that replicas have equally many in flight."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampnet import DataError, Inline, Instance, Update, replicate
from ampnet.events.log import EventLog, Pump
from ampnet.numbers import Numbers
from tests.replicas.small import SGD, chain, rows


def test_without_replicas_they_are_in_order() -> None:
    for moduli in ((), (1,)):
        numbers = Numbers(moduli)
        taken = []
        for i in range(20):
            taken.append(numbers.take())
            if i % 3:
                numbers.free([taken[i // 2]])
        assert taken == list(range(20))


def test_the_replica_with_the_fewest_gets_the_next() -> None:
    """
    in flight    replica 1: 0, 2, 4    replica 2: 1
    next         7, then 9: odd ones, until both have as many; then the smallest that is unused
    """
    numbers = Numbers([2])
    assert [numbers.take() for _ in range(6)] == [0, 1, 2, 3, 4, 5]
    for number in (3, 5):
        numbers.free([number])
    assert [numbers.take() for _ in range(4)] == [7, 9, 6, 11]


@given(st.lists(st.integers(1, 5), max_size=2), st.integers(1, 4), st.lists(st.integers(1, 9), max_size=12))
def test_several_at_once_are_those_that_would_come_one_by_one(moduli: list[int], block: int, steps: list[int]) -> None:
    one, other = Numbers(moduli, block), Numbers(moduli, block)
    for count in steps:
        taken = one.some(count)
        assert taken == [other.take() for _ in range(count)]
        assert one.state() == other.state()
        for numbers in (one, other):
            numbers.free(taken[: count // 2])


@given(
    st.lists(st.integers(1, 6), max_size=3),
    st.lists(st.one_of(st.none(), st.integers(0, 30)), max_size=80),
)
def test_no_number_twice_and_balance_wherever_it_can_be(moduli: list[int], steps: list[int | None]) -> None:
    """None: take a number; i: the i-th of those in flight is done."""
    numbers = Numbers(moduli)
    used: set[int] = set()
    flying: list[int] = []
    for step in steps:
        if step is not None:
            if flying:
                numbers.free([flying.pop(step % len(flying))])
            continue
        loads = {n: [sum(f % n == c for f in flying) for c in range(n)] for n in moduli}
        number = numbers.take()
        assert number not in used
        assert number >= 0
        used.add(number)
        flying.append(number)
        if len(set(moduli) - {1}) == 1:
            (n,) = set(moduli) - {1}
            assert loads[n][number % n] == min(loads[n])
    if not set(moduli) - {1}:
        assert used == set(range(len(used)))


def test_two_numbers_of_replicas_are_balanced_together() -> None:
    numbers = Numbers([2, 3])
    taken = [numbers.take() for _ in range(12)]
    assert sorted(taken) == list(range(12))
    for n in (2, 3):
        assert {sum(t % n == c for t in taken) for c in range(n)} == {12 // n}


def test_nothing_is_in_flight_after_clear() -> None:
    numbers = Numbers([2])
    first = [numbers.take() for _ in range(3)]
    numbers.clear()
    later = [numbers.take() for _ in range(4)]
    assert not set(first) & set(later)
    assert sum(t % 2 for t in later) == 2


def test_an_error_of_a_loader_leaves_the_balance() -> None:
    """Once, instances that had a number and were never sent stayed in the books, and one replica got less for ever."""
    graph = chain("linear")
    replicate(graph, None, 2, route="shortest")
    log = EventLog()

    def failing() -> Iterator[Instance]:
        yield from rows(1, 1, 1)
        raise OSError("gone")

    with Inline(graph, update=Update(SGD), max_active_keys=8, listeners=[log]) as runtime:
        for _ in range(5):
            with pytest.raises(DataError, match="the loader failed at instance 4: OSError: gone"):
                runtime.train(failing())
        log.events.clear()
        runtime.train(rows(*[1] * 8))
    (pump,) = [e for e in log if isinstance(e, Pump)]
    assert sum(number % 2 for number in pump.instances) == 4
