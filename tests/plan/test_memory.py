"""Promise P17, bounded memory: what is alive in a wave, and what is kept from wave to wave, in bytes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ampnet import Inline, Instance, Seq, Update, compile
from ampnet.lang import Edges
from ampnet.models import Qm9
from ampnet.plan.layout import Layout
from ampnet.plan.score import OBJECTS
from tests.wave.both import player_of

SGD = partial(torch.optim.SGD, lr=1e-3)
MOST = 40
"""Atoms of the largest molecule."""
ROOM = 1.25
"""Memory that is too small grows by a quarter at least, so that it does not grow with every wave."""


def molecule(rng: np.random.Generator, atoms: int) -> tuple[Any, ...]:
    """A chain with random side bonds."""
    nodes = Seq(x=torch.from_numpy(rng.standard_normal((atoms, 3)).astype(np.float32)))
    first = np.concatenate((np.arange(atoms - 1), rng.integers(0, atoms, atoms // 2)))
    second = np.concatenate((np.arange(1, atoms), rng.integers(0, atoms, atoms // 2)))
    source, target = np.concatenate((first, second)), np.concatenate((second, first))
    return nodes, Edges(nodes, source, target, kind=rng.integers(0, 2, len(source))), torch.randn(1)


def made(count: int, seed: int = 0) -> tuple[Any, list[Instance], Instance]:
    """A graph, molecules that are all different, and one that is larger than all of them."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    records = [molecule(rng, int(n)) for n in rng.integers(4, MOST, count)]
    nodes, _, target = molecule(rng, MOST + 1)
    every = np.arange(MOST + 1)
    # Each of its atoms has as many bonds as any, of each kind, so it has more rows of every sort.
    source, to = np.repeat(every, 6), np.concatenate([(every + k) % (MOST + 1) for k in range(1, 7)]).reshape(6, -1).T
    largest = nodes, Edges(nodes, source, to.ravel(), kind=np.tile([0, 1], 3 * len(every))), target
    graph = compile(Qm9(3, 16, 3, 2), *records[0])
    return graph, [graph.instance(*record) for record in records], graph.instance(*largest)


def tensors_of(layout: Layout) -> Iterator[Tensor | None]:
    """Rows, gradients, residuals and indices of a wave."""
    for arena in layout.arenas:
        yield from (arena.data, arena.grad, arena.inverse)
    for op in layout.operations:
        yield from op.kept
        yield op.targets
        yield from (read.index for read in op.reads)
        for bag in op.bags:
            yield from (bag.index, bag.offsets, bag.owners, *(bag.turned or ())[:2])


class Watch:
    """The bytes of a runtime's waves, at the end of each, before anything of it is given back: of those in flight, and
    the memory that is kept for others to come."""

    def __init__(self, runtime: Inline) -> None:
        self.player = player_of(runtime)
        self.seen: list[int] = []
        planner = self.player.planner
        give_back = planner.give_back

        def giving(layout: Layout) -> None:
            self.seen.append(self.bytes(layout))
            give_back(layout)

        planner.give_back = giving  # type: ignore[method-assign]

    def bytes(self, ending: Layout) -> int:
        layouts = {id(layout): layout for layout in (ending, *(p.layout for p in self.player.passages))}.values()
        pools = {
            id(p): p for p in (*(p for some in self.player._pools.values() for p in some), *(x.pool for x in layouts))
        }
        tensors = [t for pool in pools.values() for t in pool._stores.values()]
        tensors += [t for layout in layouts for t in tensors_of(layout) if t is not None]
        payloads = [t for p in self.player.passages for t in p.payloads.values()]
        return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors + payloads}.values())

    def peak(self) -> int:
        """The most since the last call."""
        seen, self.seen = self.seen, []
        return max(seen)


def _never_kept(runtime: Inline) -> None:
    """Every wave has a new layout, as in data whose structures never come again."""
    player_of(runtime).planner._keeps = False


@pytest.mark.parametrize("schedule", ["backward-first", "fifo"])
def test_what_is_alive_is_bounded_by_what_is_in_flight(schedule: str) -> None:
    """No more than `max_active_keys` times what the largest instance takes alone, whatever waves come, in whatever
    order; and it does not grow once the largest waves have been there."""
    graph, instances, largest = made(60)
    update = Update(SGD, 1, "instances") if schedule == "fifo" else Update(SGD, 8, "instances")
    with Inline(graph, max_active_keys=1, update=Update(SGD, 1, "instances")) as runtime:
        _never_kept(runtime)
        watch = Watch(runtime)
        runtime.train([largest] * 2)
        alone = watch.peak()
    keys = 8
    with Inline(graph, max_active_keys=keys, update=update, schedule=schedule) as runtime:
        _never_kept(runtime)
        watch = Watch(runtime)
        rng, peaks = np.random.default_rng(0), []
        for _ in range(4):
            runtime.train([instances[i] for i in rng.permutation(len(instances))])
            peaks.append(watch.peak())
        assert max(peaks) <= ROOM * keys * alone
        assert max(peaks) > alone, "several are in flight"
        assert peaks[-1] <= ROOM * peaks[1], "flat after warm-up"
        assert runtime.held() == {}


def test_memory_is_flat_where_waves_come_again() -> None:
    """Kept layouts keep the tensors that they are computed with: in the pool, so nothing is added in later epochs."""
    graph, instances, _ = made(40)
    with Inline(graph, max_active_keys=8, update=Update(SGD, 8, "instances")) as runtime:
        watch, peaks = Watch(runtime), []
        for _ in range(5):
            runtime.train(instances)
            peaks.append(watch.peak())
        assert peaks[2] == peaks[3] == peaks[4]


def test_scores_and_instances_are_small() -> None:
    """A molecule of 18 atoms and 18 bonds, of four kinds, four steps. Its score took 5,000 bytes as plain tables."""
    rng = np.random.default_rng(0)
    nodes = Seq(x=torch.zeros(18, 12))
    first = np.array([0, 1, 2, 3, 4, 5, 6, 7, 0, *range(9)])
    second = np.array([1, 2, 3, 4, 5, 6, 7, 8, 8, *range(9, 18)])
    source, target = np.concatenate((first, second)), np.concatenate((second, first))
    record = nodes, Edges(nodes, source, target, kind=rng.integers(0, 4, len(source))), torch.zeros(1)
    graph = compile(Qm9(12, 16, 4, 4), *record)
    instance = graph.instance(*record)
    with Inline(graph, max_active_keys=1) as runtime:
        runtime.rehearse([instance])
        (score,) = player_of(runtime).planner._scores.values()
    assert score.nbytes - OBJECTS < 1_250
    assert instance.structure is not None
    assert instance.structure.nbytes < 300


def test_a_structure_gives_back_what_it_was_made_of() -> None:
    """Whatever the sizes and numbers."""
    from ampnet.structure import Structure

    given = {"a": [0, -1, 300], "b": [], "c": [2**40], "d": [True, False]}
    found = Structure(**given).arrays
    assert {name: array.tolist() for name, array in found.items()} == given
    assert all(array.dtype == np.int64 for array in found.values())
    assert Structure().arrays == {}
