"""Choosing: chooses the numbers of workers, replicas and tiles by a trial before the training.

    settings ──> trial on the plain model ──> ways (`ampnet.placement.ways`) ──> the requested one, or the best

        --workers 2                      a plain cut; faster alternatives are printed
        --workers auto                   the best cut, with copies and tiles of single nodes if they are faster
        --replicas auto                  the best number of copies of the whole model
        --workers auto --replicas auto   the best of all

With auto, the ways that the costs of a wave let expect most are simulated (`ampnet.simulate.plan`), with the numbers in
flight that the run will have, and the fastest is taken, with its placement. Else the costs alone say what to expect.

The choice, its expected speed, and the alternatives are printed in one line:

    placement: 2 workers, 1.5 x one core expected, bounded by worker 1: node 'gru' has 82 % of its time; \
    --workers 2 --replicate gru=2: 1.6 x; --replicas 2: 1.9 x
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch

from ampnet.data import Dataset
from ampnet.errors import AmpnetError, GraphError
from ampnet.experiments.kept import Kept
from ampnet.experiments.running import policies
from ampnet.experiments.settings import Training
from ampnet.experiments.workload import Facts, Workload
from ampnet.graph import Graph
from ampnet.instance import Instance
from ampnet.lang import Compiled
from ampnet.nodes.loss import Loss
from ampnet.placement import Costs, Trial, peek
from ampnet.placement.expect import largest, what_bounds
from ampnet.placement.memory import PROCESS, shown
from ampnet.placement.units import around
from ampnet.placement.ways import PAYS, Way, Ways, best, numbers
from ampnet.runtime.cutting import size_of
from ampnet.simulate.costs import Affine
from ampnet.simulate.machine import this_machine
from ampnet.simulate.plan import Candidate, Plan, Planner
from ampnet.simulate.study import Study
from ampnet.simulate.trial import Measurement

_BRIEF = 0.15
"""Seconds of each measurement for a simulation."""
_OTHERS = 2
"""The number of alternatives that are printed of a simulation."""
_TRIED = 256
"""The maximal number of instances in a trial."""
_BUSY = 0.75
"""The busy share from which a process counts as the bottleneck."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen way, and its alternatives."""

    way: Way
    others: tuple[Way, ...]
    """Alternatives of another kind that are printed."""
    hosts: Mapping[str, int] | None = None
    """The worker of each node of one copy of the model, if it was simulated."""
    max_active_keys: int | None = None
    """The number of instances in flight that was simulated, if it was not given."""
    unsimulated: str | None = None
    """Why nothing was simulated, where that was wanted."""

    def line(self) -> str:
        """Returns the choice as one line of text."""
        way, reason = self.way, self.way.costs.reason
        found = f"placement: {_words(way)}"
        if way.workers > 1:
            found += "" if self.max_active_keys is None else f", {self.max_active_keys} in flight"
            unused = way.workers // way.replicas - sum(busy > 0 for busy in way.expected.busy)
            found += f" ({unused} without nodes)" if unused else ""
            found += f", {way.speedup:.1f} x one core expected, {way.expected.words()}"
        found += "".join(f"; {other.options()}: {other.speedup:.1f} x" for other in self.others)
        found += "" if self.unsimulated is None else f"; not simulated: {self.unsimulated}"
        return found if reason is None else f"{found}; guessed from parameters, {reason}"

    def plain(self) -> dict[str, Any]:
        """Returns the choice as plain data."""
        others = [{"options": other.options(), "speedup": other.speedup} for other in self.others]
        costs = self.way.costs
        return {
            "options": self.way.options(),
            "expected": asdict(self.way.expected),
            "others": others,
            "guessed": costs.reason,
            "simulated": self.hosts is not None,
            "max_active_keys": self.max_active_keys,
            "wave": {"instances": costs.instances, "seconds": costs.total, "nodes": dict(costs.seconds)},
        }


def choose(workload: Workload[Any], settings: Training, data: Dataset[Any], facts: Facts) -> Choice | None:
    """Returns what to train with; None if there is nothing to choose and no speed to predict: one process, or a worker
    for each replica of the whole model. Raises `GraphError` if nodes do not fit into the memory of workers."""
    if not _is_open(settings):
        return None
    graph, cores = workload.build(settings, facts), len(os.sched_getaffinity(0))
    torch.set_num_threads(settings.threads)
    tried = _tried(workload, settings, data, facts, graph, cores)
    costs, making, waves = _measured(workload, settings, data, facts, graph, tried)
    ways = Ways(graph, costs, cores, settings.memory_per_worker, waves, making)
    asked = list(_asked(ways, settings, graph))
    if settings.workers != "auto" and settings.replicas != "auto":
        return Choice(asked[0], tuple(_others(ways, settings, asked[0])))
    way = best(asked)
    if way is None:
        limit = shown(settings.memory_per_worker or 0)
        raise GraphError([f"this model does not fit on {cores} workers, one for each core, of {limit} each"])
    if costs.reason is not None or len(asked) < 2:
        return Choice(way, tuple(_others(ways, settings, way)))
    try:
        return simulated(graph, tried, costs, making, settings, asked)
    except AmpnetError as error:
        reason = str(error).splitlines()[0]
        return Choice(way, tuple(_others(ways, settings, way)), unsimulated=reason)


def simulated(
    graph: Compiled, tried: Tried, costs: Costs, making: float, settings: Training, asked: Sequence[Way]
) -> Choice:
    """Returns the way that is fastest in a simulation on this machine, and two others, with the speeds found. Measures
    what simulations need first. If the number of instances in flight is not given, twice the default is tried as
    well: with replicas, one half waits while the other is computed."""
    sizes = (max(1, tried.wave // 4), tried.wave)
    measured = Measurement(graph, tried.instances, sizes, tried.common, _BRIEF).run()
    controller = measured.controller
    measured = replace(measured, controller=Affine(controller.fixed, controller.each + making))
    common = tried.common
    study = Study(graph, tried.instances, measured, costs, tried.wave, common["update"], common["updates"])

    def waves(way: Way) -> Iterator[tuple[int, int | None]]:
        run = chosen(replace(settings, max_active_keys=_number(settings.max_active_keys)), way).complete()
        assert isinstance(run.max_active_keys, int)
        yield run.max_active_keys, run.wave_size
        if not settings.max_active_keys:
            yield 2 * run.max_active_keys, run.wave_size

    limits: dict[str, Any] = {"memory_per_worker": settings.memory_per_worker, "tried": asked, "waves": waves}
    plan = Planner(study, this_machine(), **limits).run()
    others = tuple(_found(asked, other, plan) for other in plan.others[:_OTHERS])
    keys = None if settings.max_active_keys else plan.best.max_active_keys
    return Choice(_found(asked, plan.best, plan), others, plan.hosts, keys)


def _found(asked: Sequence[Way], candidate: Candidate, plan: Plan) -> Way:
    """The way of a candidate, with the speed that was simulated."""
    options = candidate.workers, candidate.replicas, dict(candidate.copies), dict(candidate.tiles)
    way = next(w for w in asked if (w.workers, w.replicas, dict(w.copies), dict(w.tiles)) == options)
    busy = tuple(one.busy for one in candidate.result.workers)
    speedup = candidate.throughput / plan.one.throughput
    return replace(way, expected=replace(way.expected, speedup=speedup, busy=busy))


def _number(given: int | Literal["auto"]) -> int:
    """The number of instances in flight; 0, the default, where it will be tried later."""
    return 0 if given == "auto" else given


def chosen(settings: Training, way: Way) -> Training:
    """Returns the settings with the choice applied."""
    mine = settings.replicate is not None or bool(settings.tile)  # set explicitly
    replicas = max(way.copies.values(), default=1) if isinstance(settings.replicate, tuple) else way.replicas
    return replace(
        settings,
        workers=way.workers,
        replicas=replicas,
        replicate=settings.replicate if mine or not way.copies else dict(way.copies),
        tile=settings.tile if mine else dict(way.tiles),
    )


def bounded(busy: Sequence[float], controller: float, choice: Choice | None, hosts: Mapping[str, int]) -> str:
    """Returns the bottleneck of a run, from the busy shares of each worker and of the controller."""
    worker = max(range(len(busy)), key=lambda i: busy[i])
    if controller > max(_BUSY, busy[worker]):
        return "bounded by the controller"
    if choice is None or choice.way.workers == choice.way.replicas:
        return "bounded by the work of the replicas"
    if busy[worker] < _BUSY:
        return "bounded by waiting for crossings: more and smaller waves in flight (--wave-size) may help"
    costs, first = choice.way.costs, worker % (choice.way.workers // choice.way.replicas)
    named = {name: hosts[name if name in hosts else f"{name}#1"] for name in costs.seconds}  # of the first replica
    node = largest(costs, named, first)
    share = costs.own(node) / costs.loads(named, len(busy))[first]
    return f"bounded by {what_bounds(worker, node, share)}"


def _is_open(settings: Training) -> bool:
    """Whether a number is to be chosen, or nodes are to be placed by their costs."""
    if settings.device != "cpu" or settings.workers == 1:
        return False
    if settings.workers == "auto" or settings.replicas == "auto":
        return True
    workers, copies = settings.complete().workers, settings.replicas
    assert isinstance(workers, int)
    assert isinstance(copies, int)
    parted = workers > 1 if settings.replicate is not None or copies == 1 else workers > copies
    return parted and (settings.replicate is not None or workers % copies == 0)


@dataclass(frozen=True, slots=True)
class Tried:
    """What a trial measures."""

    instances: Sequence[Instance]
    making: float
    """Seconds to build one."""
    wave: int
    waves: int | None
    """The number of waves in flight; None: enough."""
    alone: Training
    """The settings of a run in one process."""
    common: Mapping[str, Any]
    """Settings of `Inline`."""


def _tried(
    workload: Workload[Any], settings: Training, data: Dataset[Any], facts: Facts, graph: Compiled, cores: int
) -> Tried:
    """Returns the instances of a trial, and the settings that it is made with."""
    alone = replace(settings, workers=1, replicas=1, replicate=None).complete()
    assert isinstance(alone.max_active_keys, int)
    for node in graph.nodes.values():
        if isinstance(node, Loss):
            node.on_nan = settings.on_nan
    update, updates = policies(alone, graph)
    wave, waves = _wave(settings, alone, cores)
    count = min(_TRIED, max(32, 4 * wave))
    began = time.perf_counter()
    some, _ = peek(workload.instances(graph, alone, facts, data, "train", epoch=1), count)
    making = (time.perf_counter() - began) / max(1, len(some))
    common: dict[str, Any] = {"update": update, "updates": updates, "precision": alone.precision}
    return Tried(some, making, wave, waves, alone, common)


def _measured(
    workload: Workload[Any], settings: Training, data: Dataset[Any], facts: Facts, graph: Compiled, tried: Tried
) -> tuple[Costs, float, int | None]:
    """Returns the costs of a wave of the plain model; the seconds to build an instance, if it is built when pumped; and
    the number of waves in flight, if it is limited."""
    some, wave, alone, common = list(tried.instances), tried.wave, tried.alone, tried.common
    assert isinstance(alone.max_active_keys, int)
    costs = Trial(graph, **common, max_active_keys=alone.max_active_keys, wave_size=wave).run(some)
    if wave < min(alone.max_active_keys, len(some)) and costs.reason is None:
        whole = Trial(graph, **common, max_active_keys=alone.max_active_keys, wave_size=alone.wave_size).run(some)
        costs = replace(costs, alone=whole.alone * costs.instances / whole.instances)
    kept = Kept(workload, settings, data, facts, graph).holds("train")
    return costs, 0.0 if kept else tried.making, tried.waves


def _wave(settings: Training, alone: Training, cores: int) -> tuple[int, int | None]:
    """Returns the wave size on workers, and the number of waves in flight if it is limited."""
    assert isinstance(alone.max_active_keys, int)
    size = settings.wave_size or alone.max_active_keys
    if not settings.max_active_keys or settings.max_active_keys == "auto":
        return size, None
    workers = settings.workers if isinstance(settings.workers, int) else cores
    size = settings.wave_size or min(size, size_of(workers, settings.max_active_keys))
    return size, max(1, settings.max_active_keys // size)


def _asked(ways: Ways, settings: Training, graph: Graph) -> Iterator[Way]:
    """Yields the ways that the settings allow."""
    workers, replicas, cores = settings.workers, settings.replicas, ways.cores
    auto = workers == "auto" or replicas == "auto"
    if auto and replicas in (1, "auto") and _fits(ways):
        yield ways.one()
    if settings.replicate is not None or settings.tile:  # set explicitly
        if not auto:
            count = settings.complete().workers
            assert isinstance(count, int)
            yield ways.given(count, _parts(graph, settings, count), settings.tile)
        for count in numbers(cores) if auto else ():
            with suppress(GraphError):
                yield ways.given(count, _parts(graph, settings, count), settings.tile)
    elif workers == "auto":
        if replicas == "auto":
            yield from ways.whole(parted=True)
        if replicas in (1, "auto"):
            yield from ways.splits()
        else:
            assert isinstance(replicas, int)
            for parts in range(1, max(1, cores // replicas) + 1):
                with suppress(GraphError):
                    yield ways.of_workers(parts * replicas, replicas)
    elif replicas == "auto":
        counts = numbers(cores) if workers is None else [n for n in range(1, workers + 1) if workers % n == 0]
        for count in counts:
            with suppress(GraphError):
                yield ways.of_workers(count if workers is None else workers, count)
    else:
        assert isinstance(workers, int)
        yield ways.of_workers(workers, replicas)


def _fits(ways: Ways) -> bool:
    """Whether the model fits into one process."""
    return ways.limit is None or sum(ways.costs.memory.values()) <= ways.limit - PROCESS


def _parts(graph: Graph, settings: Training, workers: int) -> dict[tuple[str, ...], int]:
    """Returns the sets of nodes that are copied together, and their numbers of copies."""
    given = settings.replicate
    if isinstance(given, Mapping):
        return {tuple(around(graph, name)): count for name, count in given.items()}
    names = tuple(n for n in graph.nodes if any(n == p or fnmatchcase(n, p) for p in given or ()))
    return {names: workers if settings.replicas == "auto" else settings.replicas} if names else {}


def _others(ways: Ways, settings: Training, way: Way) -> Iterator[Way]:
    """Yields ways that are faster with the same number of workers, and the other kind of parallelism."""
    workers = way.workers if way.workers > 1 else ways.cores
    if workers < 2 or ways.costs.reason is not None:
        return
    by_hand = settings.replicate is not None or settings.tile
    if way.replicas == 1 and not way.changes and not by_hand:
        found = best(_quietly(lambda: ways.of_workers(workers), lambda: ways.with_copies(workers)))
        if found is not None and (found.changes or way.workers == 1) and found.speedup > PAYS * way.speedup:
            yield found
    if way.replicas == 1:
        yield from _quietly(lambda: ways.of_workers(workers, workers))
    elif settings.replicas == "auto":
        yield from _quietly(lambda: ways.of_workers(workers))


def _quietly(*make: Callable[[], Way | Iterable[Way]]) -> Iterator[Way]:
    """Yields the ways that fit into memory."""
    for one in make:
        with suppress(GraphError):
            found = one()
            yield from (found,) if isinstance(found, Way) else found


def _words(way: Way) -> str:
    """Describes a way as text."""
    if way.workers == 1:
        return "one process"
    parts = way.workers // way.replicas
    if way.replicas > 1:
        return f"{way.replicas} replicas" + (f" of {parts} workers each" if parts > 1 else "")
    changes = [f"{count} copies of {name}" for name, count in way.copies.items()]
    changes += [f"{count} tiles of {name}" for name, count in way.tiles.items()]
    return f"{way.workers} workers" + (f" with {', '.join(changes)}" if changes else "")
