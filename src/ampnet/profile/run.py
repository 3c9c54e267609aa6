"""Profile a runtime: stretches of training, with more and more instruments.

    warm up      whatever is slow the first time
    bare         no hook: how fast it is
    timed        clocks at nodes, queues, waves, controller, transport: how long everything takes
    watched      clocks, and a trace of every torch operator: the share of kernels, and the bytes copied

All run the same instances, round and round, under the settings of the runtime, which trains as it would otherwise. The
last three take turns, a few times, so that a machine that is slow for a while is slow for all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from ampnet.errors import AmpnetError, DataError
from ampnet.graph import Graph
from ampnet.instance import Instance, Stream
from ampnet.profile.far import BARE, TIMED, WATCHED, Measuring, Sheet, attend
from ampnet.profile.kernels import fit
from ampnet.profile.meter import CONTROLLER, Costs, calibrate, clock
from ampnet.profile.result import Profile, Record, Stretch, nodes_of, process_of
from ampnet.runtime.processes import Processes
from ampnet.runtime.runtime import Runtime

_WARM_UP = 0.1
_PARTS = {BARE: 0.2, TIMED: 0.35, WATCHED: 0.35}
"""The shares of the time."""
_ROUNDS = 3
"""Of these."""


def profile(runtime: Runtime, instances: Iterable[Instance], *, seconds: float = 4.0) -> Profile:
    """Train on these instances repeatedly for a number of seconds; returns where the time goes.

    Instances are made beforehand, so that making them does not count. The weights of the model are trained meanwhile.
    A `Processes` runtime must not have run yet: what measures in its workers has to be there when they are made.
    """
    made = list(instances)
    if not made:
        raise DataError("there is no instance to profile with")
    costs = calibrate()
    measure = _Measure(runtime, made, costs)
    measure.stretch(BARE, made, seconds * _WARM_UP)
    stretches: dict[str, Stretch] = {}
    records: dict[str, list[Record]] = {}
    for _ in range(_ROUNDS):
        for name, part in _PARTS.items():
            one, found = measure.stretch(name, made, seconds * part / _ROUNDS), measure.records
            if name in stretches:
                one = stretches[name].plus(one)
                found = [a.plus(b) for a, b in zip(records[name], found, strict=True)]
            stretches[name], records[name] = one, found
    pairs = list(zip(records[TIMED], records[WATCHED], strict=True))
    kinds, watching = kinds_of(runtime.graph), fit([(timed.cells, watched.cells) for timed, watched in pairs], costs)
    by_process = [(timed, list(nodes_of(timed, watched, kinds, watching))) for timed, watched in pairs]
    return Profile(
        stretches,
        tuple(node for _, nodes in by_process for node in nodes),
        tuple(process_of(timed, nodes) for timed, nodes in by_process),
        costs,
        watching,
        dict(runtime.settings),
    )


def kinds_of(graph: Graph) -> dict[str, str]:
    """The kind of each node, in topological order."""
    return {name: type(graph.nodes[name]).__name__ for name in graph.order()}


class _Measure:
    """Stretches of one runtime."""

    def __init__(self, runtime: Runtime, instances: list[Instance], costs: Costs) -> None:
        self.runtime, self.costs = runtime, costs
        self.records: list[Record] = []
        """Of the last stretch: of all workers in order, and of the controller's process."""
        self.sheets: list[Sheet] = []
        if isinstance(runtime, Processes):
            if runtime.hosts:
                raise AmpnetError("workers that run already cannot be profiled; give a runtime that has not run yet")
            self.sheets = [Sheet() for _ in runtime.names]
            runtime.on_worker = attend(self.sheets, costs)
            runtime.know(instances)

    def stretch(self, name: str, instances: list[Instance], seconds: float) -> Stretch:
        """Train for this many seconds, and store the measurements."""
        runtime = self.runtime
        before = runtime.counts()
        self._tell(name)
        here = None if name == BARE else self._here(name)
        try:
            stats = runtime.run([Stream(_until(instances, seconds), True, name)])[0]
        finally:
            mine = [] if here is None else [here.end()]
            for sheet in self.sheets:
                sheet.order = BARE
        after = runtime.counts()  # workers take their hooks out
        self.records = mine if here is None else [*(sheet.read() for sheet in self.sheets), *mine]
        return Stretch(
            name,
            stats.seconds,
            stats.instances,
            stats.records,
            after.invocations - before.invocations,
            after.messages - before.messages,
        )

    def _here(self, order: str) -> Measuring:
        process = "controller" if self.sheets else self.runtime.kind
        return Measuring(process, CONTROLLER, self.costs, order, lambda hooks: hooks.runtime(self.runtime))

    def _tell(self, order: str) -> None:
        """Write an order for all workers. They read it when they answer the next query."""
        for sheet in self.sheets:
            sheet.order = order
        self.runtime.counts()


def _until(instances: list[Instance], seconds: float) -> Iterator[Instance]:
    """Repeat the instances until the time has passed; at least one."""
    end = clock() + seconds
    for instance in itertools.cycle(instances):
        yield instance
        if clock() >= end:
            return
