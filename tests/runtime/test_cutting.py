"""Which instances travel together where several workers play them: the same everywhere, never over an update."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ampnet import Instance, Update, feed, replicate
from ampnet.graph import Graph
from ampnet.plan.team import Team
from ampnet.replicas.group import Copy
from ampnet.runtime.cutting import Cutter, Rule, Sort, rules_of, size_of
from tests.replicas.small import chain

SGD = partial(torch.optim.SGD, lr=0.1)
WHOLE = Instance({"x": feed(torch.zeros(1, 1)), "y": feed(torch.zeros(1, 1))})
BARE = Instance({"x": feed(torch.zeros(1, 1)), "y": feed(None, messages=1)})


def some(*numbers: int, one: Instance = WHOLE) -> dict[int, Instance]:
    return dict.fromkeys(numbers, one)


def cut(cutter: Cutter) -> list[list[int]]:
    return [list(wave) for _, wave in cutter.cut()]


def test_no_wave_straddles_an_update() -> None:
    """The picture at the head of `ampnet.runtime.cutting`."""
    cutter = Cutter(4, 2, 16, [Rule(6)])
    cutter.add(some(*range(10)), 0, True)
    assert cut(cutter) == [[0, 1, 2, 3], [4, 5], [6, 7, 8, 9]]
    cutter.add(some(10, 11, 12), 0, True)
    assert cut(cutter) == [[10, 11]]
    cutter.flushed()
    cutter.add(some(*range(13, 20)), 0, True)
    assert cut(cutter) == [[12, 13, 14, 15], [16, 17]]


def test_a_wave_that_is_not_full_waits_while_there_is_enough_to_play() -> None:
    cutter = Cutter(4, 2, 16)
    cutter.add(some(*range(7)), 0, True)
    assert cut(cutter) == [[0, 1, 2, 3], [4, 5, 6]]  # 4 are played: less than a wave for each worker
    cutter.add(some(7, 8, 9), 0, True)
    assert cut(cutter) == [[7, 8, 9]]
    cutter.add(some(10, 11), 0, True)
    assert cut(cutter) == []  # 10 are
    cutter.retired(2)
    assert cut(cutter) == []
    cutter.add(some(12, 13), 0, True)
    assert cut(cutter) == [[10, 11, 12, 13]]
    cutter.add(some(14), 0, True)
    cutter.retired(5)
    assert cut(cutter) == [[14]]


@pytest.mark.parametrize(("size", "places"), [(8, 16), (16, 16), (5, 16), (6, 12)])
def test_waves_that_updates_cut_short_do_not_stay_short(size: int, places: int) -> None:
    """Once, with two waves in flight, the places of a short wave were filled by another one of the same size: in the
    end all waves were of one instance."""
    cutter, numbers, sizes = Cutter(size, 2, places, [Rule(25)]), itertools.count(), list[int]()
    playing: list[list[int]] = []
    cutter.add(some(*itertools.islice(numbers, places)), 0, True)
    while len(sizes) < 60:
        playing += (new := [*map(list, (w for _, w in cutter.cut(full=True))), *cut(cutter)])
        sizes += map(len, new)
        assert sum(map(len, playing)) <= places
        retired = playing.pop(0)
        cutter.retired(len(retired))
        cutter.add(some(*itertools.islice(numbers, len(retired))), 0, True)
    rounds = -(-25 // size)  # waves between two updates, as few as can be
    assert sum(sizes[-4 * rounds :]) >= 4 * 25 - size


def test_streams_training_and_what_is_missing_are_kept_apart() -> None:
    cutter = Cutter(2, 2, 8)
    cutter.add(some(0, 1, 2), 0, True)
    cutter.add(some(3), 1, True)
    cutter.add(some(4), 0, False)
    cutter.add(some(5, one=BARE), 0, False)
    found = list(cutter.cut())
    assert [(sort, list(wave)) for sort, wave in found] == [
        (Sort(0, True, frozenset()), [0, 1]),
        (Sort(0, True, frozenset()), [2]),
        (Sort(1, True, frozenset()), [3]),
    ]
    cutter.add(some(6), 0, False)  # joins its like, which came before the one without a label
    assert [list(wave) for _, wave in cutter.cut()] == [[4, 6]]
    cutter.retired(6)
    assert list(cutter.cut()) == [(Sort(0, False, frozenset({"y"})), {5: BARE})]


def test_streams_that_are_pumped_in_turns_still_make_whole_waves() -> None:
    """Otherwise a wave would have one instance."""
    cutter = Cutter(4, 2, 16)
    cutter.add(some(*range(100, 116)), 9, True)
    assert len(cut(cutter)) == 4
    for number in range(8):
        cutter.add(some(number), number % 2, True)
    assert cut(cutter) == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_inference_counts_for_no_update() -> None:
    cutter = Cutter(4, 2, 16, [Rule(3)])
    cutter.add(some(*range(4)), 0, False)
    cutter.add(some(*range(4, 8)), 1, True)
    assert cut(cutter) == [[0, 1, 2, 3], [4, 5, 6], [7]]


def test_a_replica_counts_its_own_instances() -> None:
    cutter = Cutter(8, 2, 32, [Rule(2, 3, 1)])
    cutter.add(some(*range(12)), 0, True)
    assert cut(cutter) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9, 10], [11]]


def test_one_worker_gets_all_at_once() -> None:
    cutter = Cutter(None, 1, 100)
    cutter.add(some(*range(100)), 0, True)
    assert cut(cutter) == [list(range(100))]


def test_after_an_error_nothing_is_left() -> None:
    cutter = Cutter(4, 1, 8, [Rule(4)])
    cutter.add(some(0, 1, 2, 3, 4), 0, True)
    assert cut(cutter) == [[0, 1, 2, 3]]
    cutter.clear()
    cutter.add(some(5, 6, 7, 8), 0, True)
    assert cut(cutter) == [[5, 6, 7, 8]]


@given(
    size=st.integers(1, 6),
    workers=st.integers(2, 4),
    places=st.integers(1, 24),
    rules=st.lists(st.integers(1, 7).map(Rule), max_size=3),
    batches=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2), st.booleans(), st.integers(0, 9)), max_size=12),
)
def test_any_instances_are_in_one_wave_each(
    size: int, workers: int, places: int, rules: list[Rule], batches: list[tuple[int, int, bool, int]]
) -> None:
    """Whatever retires meanwhile."""
    cutter, numbers = Cutter(size, workers, places, rules), itertools.count()
    waves: list[tuple[Sort, list[int]]] = []
    playing: list[int] = []
    pumped: dict[int, tuple[int, bool]] = {}

    def play() -> None:
        new = [(sort, list(wave)) for sort, wave in cutter.cut()]
        waves.extend(new)
        playing.extend(len(wave) for _, wave in new)

    for count, stream, train, retire in batches:
        batch = some(*itertools.islice(numbers, count))
        pumped.update(dict.fromkeys(batch, (stream, train)))
        cutter.add(batch, stream, train)
        play()
        assert playing
        for _ in range(min(retire, len(playing))):
            cutter.retired(playing.pop(0))
            play()
    while playing:
        cutter.retired(playing.pop(0))
        play()
    assert sorted(n for _, wave in waves for n in wave) == list(pumped)
    trained = 0
    for sort, wave in waves:
        assert len(wave) <= size
        assert wave == sorted(wave)
        assert {pumped[n] for n in wave} == {(sort.stream, sort.train)}
        if sort.train:
            assert all(trained // rule.every == (trained + len(wave) - 1) // rule.every for rule in rules)
            trained += len(wave)


# Of a team


def team(graph: Graph, *hosts: int) -> Team:
    return Team(graph.nodes, dict(zip(graph.nodes, hosts, strict=True)))


@pytest.mark.parametrize(("places", "workers", "size"), [(16, 2, 8), (1, 4, 1), (17, 2, 9)])
def test_there_is_one_wave_for_each_worker(places: int, workers: int, size: int) -> None:
    assert size_of(workers, places) == size


def test_rules_are_those_of_nodes_whose_updates_count_instances() -> None:
    graph = chain("linear", "tanh", "linear", "linear")
    nodes = graph.parameterised()
    nodes["linear1"].updater.adopt(Update(SGD, 5, "instances"))
    nodes["linear3"].updater.adopt(Update(SGD, 7, "messages"))
    nodes["linear4"].updater.adopt(None)
    assert rules_of(team(graph, 0, 1, 1, 0, 0), {}) == [Rule(5)]
    replicate(graph, ("linear1",), 2)
    for name in ("linear1#1", "linear1#2"):
        graph.parameterised()[name].updater.adopt(Update(SGD, 5, "instances"))
    assert graph.copies["linear1#2"] == Copy("linear1", 1, 2, True)
    assert rules_of(team(graph, *range(len(graph.nodes))), graph.copies) == [Rule(5, 2, 0), Rule(5, 2, 1)]
