"""Simulations of chains of Linears with costs that are made up, so that what is found can be computed by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ampnet import Graph, Update
from ampnet.placement.trial import Trial
from ampnet.simulate.costs import ANY, Affine, Line, Measured, Operations
from ampnet.simulate.machine import Hosts, Link, Machine
from ampnet.simulate.recorder import Recording
from ampnet.simulate.result import Result
from ampnet.simulate.setting import Setting, rules_of
from ampnet.simulate.simulation import Simulation
from ampnet.simulate.study import Study
from ampnet.simulate.waves import Waves
from tests.replicas.small import SGD, chain, rows

NOTHING = Affine()
AT_ONCE = Link(0.0, 1e30, 0.0)
"""A link that takes no time."""
EACH = Update(SGD, 1, "instances")
"""An update after every instance."""


def costs(
    forward: Mapping[str, float],
    backward: Mapping[str, float] | None = None,
    *,
    row: float = 0.0,
    width: int = 0,
    **others: Any,
) -> Measured:
    """Seconds of an operation of each node. Nothing else takes time. ``width``: bytes of a row, of every node."""
    lines = {}
    for direction, seconds in enumerate((forward, forward if backward is None else backward)):
        lines |= {(name, ANY, direction): Line(fixed, row) for name, fixed in seconds.items()}
    operations = Operations(lines, 1e9)
    widths = {(name, 0): width for name in forward}
    made = Measured(
        operations, operations, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, 0.0, NOTHING, 0.0, {}, widths, copied=1e30
    )
    return replace(made, **others)


def machine(cores: int = 64, inside: Link = AT_ONCE, between: Link = AT_ONCE, **others: Any) -> Machine:
    """One computer with many cores."""
    return Machine("made up", (Hosts(cores),), inside, between, **others)


def apart(count: int, between: Link, cores: int = 8) -> Machine:
    """Computers with one worker each. Cores are left for the controller."""
    return Machine("apart", (Hosts(cores, count, workers=1),), AT_ONCE, between)


STAGES: dict[str, float] = {"linear1": 0.001, "linear2": 0.002, "loss": 0.001}
"""Worker 0 computes a wave for 2 ms in all, worker 1 for 6 ms; a wave of one passes through both in 8 ms."""
HOSTS = {"linear1": 0, "linear2": 1, "loss": 1}


def pipeline() -> Graph:
    return chain("linear", "linear")


def simulation(
    measured: Measured,
    where: Machine,
    hosts: Mapping[str, int] | None = None,
    *,
    graph: Graph | None = None,
    update: Update | None = EACH,
    seed: int = 0,
    recorder: Recording | None = None,
    **options: Any,
) -> Simulation:
    """A simulation of a chain, or of another graph whose instances are rows. ``options``: those of `Setting`."""
    graph = pipeline() if graph is None else graph
    hosts = dict.fromkeys(graph.nodes, 0) if hosts is None else hosts
    waves = Waves(graph, hosts, rows(1), measured)
    setting = Setting(hosts, len(waves.workers), rules=rules_of(graph, update), **options)
    return Simulation(waves, measured, setting, where, seed=seed, recorder=recorder)


def simulate(measured: Measured, where: Machine, *given: Any, seconds: float = 4.0, **options: Any) -> Result:
    """What is found in this number of seconds; one in flight, if nothing else is said."""
    return simulation(measured, where, *given, **{"max_active_keys": 1, **options}).run(seconds)


def study() -> Study:
    graph, instances = pipeline(), rows(1, 1)
    placing = Trial(graph, update=EACH, max_active_keys=1).run(instances)
    seconds = {name: 2 * STAGES[name] for name in placing.seconds}
    placing = replace(placing, seconds=seconds, beside=0.0, alone=sum(seconds.values()))
    return Study(graph, instances, costs(STAGES, width=8), placing, 1, EACH)
