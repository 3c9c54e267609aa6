"""Simulated beside real: where the runtime is deterministic, waves, operations and updates are the same."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from ampnet import Graph, Inline, Instance, Processes, Update
from ampnet.events.log import Event, Updated, Wave
from ampnet.replicas.replicate import replicate
from ampnet.simulate.recorder import Recording
from ampnet.simulate.setting import Setting, rules_of
from ampnet.simulate.simulation import Simulation
from ampnet.simulate.study import _renumbered
from ampnet.simulate.waves import Waves
from ampnet.testing.parted import random_hosts
from tests.replicas.small import SGD, case, chain, rows
from tests.simulate.made import HOSTS, costs, machine


class Heard:
    """Sizes of waves by worker, operations of them, and updates by node."""

    def __init__(self) -> None:
        self.waves: dict[str, list[int]] = {}
        self.operations: Counter[str] = Counter()
        self.updates: Counter[str] = Counter()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Wave):
            self.waves.setdefault(event.worker, []).append(len(event.instances))
            self.operations[event.worker] += event.operations
        elif isinstance(event, Updated) and event.reason == "full":
            self.updates[event.node] += 1


def real(make: Any, graph: Graph, instances: Sequence[Instance], **options: Any) -> Heard:
    heard = Heard()
    with make(graph, listeners=[heard], **options) as runtime:
        runtime.train(list(instances))
    return heard


def simulated(
    graph: Graph,
    instances: Sequence[Instance],
    hosts: dict[str, int],
    update: Update,
    *,
    seconds: float = 0.5,
    **options: Any,
) -> tuple[Heard, Simulation]:
    heard = Heard()
    measured = costs(dict.fromkeys(graph.nodes, 0.001))
    waves = Waves(graph, hosts, instances, measured)
    setting = Setting(hosts, len(waves.workers), rules=rules_of(graph, update), **options)
    recording = Recording([heard], 0.0, seconds, {})
    run = Simulation(waves, measured, setting, machine(), recorder=recording)
    run.run(seconds)
    return heard, run


@pytest.mark.parametrize("schedule", ["backward-first", "fifo", "sweep"])
@pytest.mark.parametrize(("wave_size", "every"), [(None, 5), (3, 5), (None, 1), (2, 1000)])
def test_sizes_of_waves_in_one_process(schedule: str, wave_size: int | None, every: int) -> None:
    """Once waves that take turns were as large as all instances in flight."""
    graph, update = chain("linear", "linear"), Update(SGD, every, "instances")
    options: dict[str, Any] = {"max_active_keys": 8, "wave_size": wave_size, "schedule": schedule}
    found, _ = simulated(graph, rows(1), dict.fromkeys(graph.nodes, 0), update, processes=False, **options)
    want = real(Inline, graph, rows(*[1] * 120), update=update, **options)
    begin = 12 if schedule == "backward-first" or every != 5 else 2
    assert found.waves["worker0"][:begin] == want.waves["inline"][:begin]


@pytest.mark.parametrize(("wave_size", "every"), [(None, 5), (3, 5), (4, 1), (16, 1000)])
def test_sizes_of_waves_on_two_workers(wave_size: int | None, every: int) -> None:
    graph, update = chain("linear", "linear"), Update(SGD, every, "instances")
    options: dict[str, Any] = {"max_active_keys": 6, "wave_size": wave_size}
    found, _ = simulated(graph, rows(1), HOSTS, update, **options)
    want = real(Processes, graph, rows(*[1] * 60), workers=2, affinity=HOSTS, update=update, **options)
    assert want.waves["worker0"] == want.waves["worker1"]
    first = want.waves["worker0"][0]
    assert found.waves["worker0"][0] == found.waves["worker1"][0] == first
    assert max(found.waves["worker0"]) == max(want.waves["worker0"])
    if every < 6:  # cut by updates: which wave comes next does not depend on time
        assert found.waves["worker0"][:8] == want.waves["worker0"][:8]


@pytest.mark.parametrize("name", ["list-reduction", "sentiment", "qm9", "permuted-layers", "adaptive-depth"])
@pytest.mark.parametrize("workers", [1, 3])
def test_operations_and_crossings_of_waves(name: str, workers: int) -> None:
    """One wave in flight with equal instances: each wave of a worker has the same operations, there and here."""
    graph = copy.deepcopy(case(name).graph())  # other tests have graphs over the same parameters: this one trains
    one = case(name).instances(graph)[0]
    hosts, _ = _renumbered(graph, random_hosts(graph, workers, 3))
    workers = 1 + max(hosts.values())
    measured = costs(dict.fromkeys(graph.nodes, 0.001), width=8)
    waves = Waves(graph, hosts, [one], measured)
    planned = waves.wave(2)
    for here, part in enumerate(planned.parts):
        for at, crossing in enumerate(part.crosses):
            if crossing is not None:  # the other end has it too, with as many bytes
                other = planned.parts[crossing.other]
                (twin,) = [
                    c
                    for c in other.crosses
                    if c is not None and (c.number, c.round) == (crossing.number, crossing.round) and c.other == here
                ]
                assert (twin.sends, twin.bytes, twin.still) == (not crossing.sends, crossing.bytes, crossing.still)
                assert crossing.sends or part.nodes[at][3] * 8 == crossing.bytes
    update = Update(SGD, 4, "instances")
    options: dict[str, Any] = {"max_active_keys": 2, "wave_size": 2, "update": update}
    make: Any = Inline if workers == 1 else Processes
    more = {} if workers == 1 else {"workers": workers, "affinity": hosts}
    want = real(make, graph, [one] * 16, **options, **more)
    found, run = simulated(
        graph, [one], hosts, update, max_active_keys=2, wave_size=2, processes=workers > 1, seconds=5.0
    )
    for worker, sizes in want.waves.items():
        here = "worker0" if workers == 1 else worker
        assert want.operations[worker] / len(sizes) == found.operations[here] / len(found.waves[here])
        assert set(sizes) == set(found.waves[here]) == {2}
    nodes = {name for name, count in want.updates.items() if count}
    assert nodes == {name for name, weights in run.teams[0].weights_of.items() if weights.updates}
    rounds = len(run.teams[0].weights_of[next(iter(nodes))].updates)
    played = sum(found.waves["worker0"])
    assert rounds == pytest.approx(played / 4, abs=1)
    assert all(count == 4 for count in want.updates.values())


def test_copies_of_a_node_make_as_many_updates() -> None:
    graph, update = chain("linear", "linear"), Update(SGD, 4, "instances")
    replicate(graph, "linear1", 2, route="instance", sync="epoch")
    hosts = dict.fromkeys(graph.nodes, 0)
    options: dict[str, Any] = {"max_active_keys": 4}
    want = real(Inline, graph, rows(*[1] * 64), update=update, **options)
    found, run = simulated(graph, rows(1), hosts, update, processes=False, **options)
    assert found.waves["worker0"][:12] == want.waves["inline"][:12]
    played = sum(found.waves["worker0"])
    for name, count in want.updates.items():
        if name == "linear2":
            assert len(run.teams[0].weights_of[name].updates) == pytest.approx(played * count / 64, abs=2)
