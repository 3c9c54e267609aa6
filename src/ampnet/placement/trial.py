"""Trial: train a copy of a graph on a few instances in this process, in waves, and note what they cost.

    instances ──> [1] a pass to warm up: if something is wrong with them, costs are guessed; a run will name it
                  [2] passes over them in another order each, until the time is up; the fastest one counts

A wave tells what it did (`Played`: seconds of every operation; `Updated`: of every update). What crosses between two
nodes is read off its layout: the rows that each operation reads, and the operations that made them.

The graph itself, its weights, its runtime and torch's random numbers stay as they are.
"""

from __future__ import annotations

import copy
import random
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import torch

from ampnet.errors import AmpnetError, EngineWarning
from ampnet.events.log import Event, Played, Updated
from ampnet.graph import CONTROLLER, Graph
from ampnet.instance import Instance
from ampnet.placement.costs import Costs, guess
from ampnet.placement.flows import Flows
from ampnet.placement.memory import memory_of, shown
from ampnet.placement.units import units_of
from ampnet.plan.layout import Layout
from ampnet.plan.sites import Sites
from ampnet.runtime.inline import Inline
from ampnet.update.policy import Update

SECONDS = 0.5
"""A trial repeats its instances for this many seconds."""
_SHOWN = 100
"""Maximum length of a reported error."""
LARGE = 2 << 30
"""From this many bytes in training, a model is not copied for a trial."""


class Trial:
    """Measures a graph. ``settings`` are those of `Inline`; policies that are not given are those of the nodes."""

    def __init__(self, graph: Graph, **settings: Any) -> None:
        self.graph, self.settings = graph, settings
        if "update" not in settings and "updates" not in settings:
            self.settings["updates"] = {name: node.updater.policy for name, node in graph.parameterised().items()}

    def run(self, instances: Sequence[Instance]) -> Costs:
        """The costs of a wave of these instances; estimated, with the reason, if they cannot be measured."""
        if not instances:
            return self._guess("there is no instance to try")
        size = sum(memory_of(self.graph, self._policies()).values())
        if size > LARGE:
            return self._guess(f"{shown(size)} of parameters, sums and optimizers are not copied to be tried")
        try:
            copied = copy.deepcopy(self.graph)
        except Exception as error:
            return self._guess(f"the graph cannot be copied: {type(error).__name__}: {error}")
        meter = _Meter()
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore", EngineWarning)  # training the graph warns
            with Inline(copied, listeners=[meter], **self.settings) as runtime:
                if runtime.player is None:
                    return self._guess(f"not played in waves: {runtime.engine.reason}")
                try:
                    runtime.train(instances)  # [1]
                except AmpnetError as error:
                    return self._guess(_failed(error))
                return _measured(copied, runtime, meter, list(instances))

    def _guess(self, reason: str) -> Costs:
        return guess(self.graph, reason, self._policies())

    def _policies(self) -> dict[str, Update | None]:
        given, update = self.settings.get("updates") or {}, self.settings.get("update")
        return {name: given.get(name, update) for name in self.graph.parameterised()}


def _failed(error: AmpnetError) -> str:
    first = str(error).splitlines()[0]
    return f"the trial failed: {first if len(first) < _SHOWN else first[:_SHOWN] + ' ...'}"


def _measured(graph: Graph, runtime: Inline, meter: _Meter, instances: list[Instance]) -> Costs:
    assert runtime.player is not None
    planner = runtime.player.planner
    flows, give_back = Flows(), planner.give_back

    def noted(layout: Layout) -> None:
        flows.look(layout)
        give_back(layout)

    best: _Meter | None = None
    order, until = random.Random(0), time.perf_counter() + SECONDS
    planner.give_back = noted  # type: ignore[method-assign]
    runtime.player.step = meter.timed(runtime.player.step)  # type: ignore[method-assign,assignment]
    while best is None or time.perf_counter() < until:  # [2]
        order.shuffle(instances)  # a layout that comes again would cost less than it does in a run
        meter.clear()
        before, began = runtime.player.waves, time.perf_counter()
        try:
            runtime.train(instances)
        except AmpnetError as error:  # training on the same data again and again may diverge
            if best is None:
                return guess(graph, _failed(error))
            break
        meter.over(time.perf_counter() - began, runtime.player.waves - before, len(instances))
        if best is None or meter.wall / meter.waves < best.wall / best.waves:
            best = copy.copy(meter)
    return best.costs(graph, planner.sites, flows)


class _Meter:
    """Adds up the seconds of a pass, by node."""

    kinds = (Played, Updated)

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.operations: Counter[str] = Counter()
        self.wall, self.stepping, self.waves, self.instances = 0.0, 0.0, 0, 0

    def timed(self, step: Callable[[int], bool]) -> Callable[[int], bool]:
        """The player's ``step``, and how long it takes."""

        def stepping(most: int) -> bool:
            began = time.perf_counter()
            try:
                return step(most)
            finally:
                self.stepping += time.perf_counter() - began

        return stepping

    def __call__(self, event: Event) -> None:
        if isinstance(event, Updated):
            # The leftovers of a short pass are a part of an update only.
            self.seconds[event.node] += event.seconds * min(1.0, event.count / event.frequency)
        elif isinstance(event, Played):
            before = None
            for node, direction, start, seconds in zip(
                event.nodes, event.directions, event.starts, event.seconds, strict=True
            ):
                self.seconds[node] += seconds
                self.operations[node] += (start, direction) != before  # several Linears may be one operation
                before = (start, direction)

    def over(self, wall: float, waves: int, instances: int) -> None:
        """Called at the end of a pass."""
        self.wall, self.waves, self.instances = wall, waves, instances

    def costs(self, graph: Graph, sites: Sites, flows: Flows) -> Costs:
        """The measured costs of a wave."""
        names = [name for name in graph.order() if graph.nodes[name].role != "route"]
        seconds = {name: self.seconds[name] / self.waves for name in names}
        flows.share_out(seconds)
        beside = max(0.0, self.stepping - sum(self.seconds.values())) / self.waves
        operations = {name: self.operations[name] / self.waves for name in names}
        for name, share in flows.pumped().items():  # rows that are pumped are brought by those who read them
            seconds[name] += share * self.seconds[CONTROLLER] / self.waves
        return Costs(
            seconds,
            flows.made(),
            operations,
            beside,
            self.wall / self.waves,
            self.instances / self.waves,
            units_of(sites),
            memory_of(graph),
        )


def peek(instances: Iterable[Instance], count: int) -> tuple[list[Instance], Iterable[Instance]]:
    """The first few instances, and an iterator over all. The iterator raises an error of the loader."""
    first: list[Instance] = []

    def rest(error: Exception | None) -> Iterator[Instance]:
        if error is not None:
            raise error
        yield from source

    failed: Exception | None = None
    source: Iterator[Instance] = iter(())
    try:
        source = iter(instances)
        for instance in islice(source, count):
            first.append(instance)
    except Exception as error:
        failed = error
    return first, chain(first, rest(failed))
