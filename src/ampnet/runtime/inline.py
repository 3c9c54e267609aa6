"""Inline: everything in one process. One worker hosts all nodes, and takes turns with the controller.

    pump ──> worker.step, step, step ... ──> answers to the controller ──> retire ──> pump ...

With a seed, a run is exactly repeatable: same events, same weights, to the bit. This runtime is the reference for every
other one, the place where orders and faults are simulated, and the fastest choice for one core.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import numpy as np
import torch

from ampnet.errors import StallError
from ampnet.events.log import Listener
from ampnet.graph import CONTROLLER, End, Graph
from ampnet.instance import Instance, Stream
from ampnet.message import Messages
from ampnet.nodes.node import Direction, Report
from ampnet.runtime.runtime import Runtime, check_precision
from ampnet.schedule import ENOUGH_ROWS, Schedule, make_schedule
from ampnet.state import Column
from ampnet.structure import Structure
from ampnet.update.policy import Update
from ampnet.wave.kernels.products import Precision
from ampnet.wave.lot import OfInstances
from ampnet.worker import Counts, Worker


class Inline(Runtime):
    """Runs a graph in this process.

    ``update`` is the policy of every node with parameters (None: frozen), ``updates`` changes it for nodes by name or
    pattern (``{"embedding": ..., "linear*": ...}``; a node by name goes before patterns). At most ``max_active_keys``
    instances are in flight; a node is handed at most ``max_batch`` messages at once, and no more messages than it
    takes to have ``enough_rows`` rows (None: all that wait).

    A context manager: leaving it closes the run. After an error nothing is in flight any more, and the weights are as
    they were when it happened.
    """

    kind = "inline"

    def __init__(
        self,
        graph: Graph,
        *,
        update: Update | None = None,
        updates: Mapping[str, Update | None] | None = None,
        max_active_keys: int = 1,
        max_batch: int | None = None,
        enough_rows: int | None = ENOUGH_ROWS,
        schedule: str | Schedule = "sweep",
        seed: int = 0,
        listeners: Sequence[Listener] = (),
        clock: Callable[[], float] = time.perf_counter,
        waves: bool = True,
        precision: Precision = "float32",
    ) -> None:
        super().__init__(
            graph,
            update=update,
            updates=updates,
            max_active_keys=max_active_keys,
            max_batch=max_batch,
            enough_rows=enough_rows,
            schedule=schedule,
            seed=seed,
            listeners=listeners,
            clock=clock,
        )
        self.worker = Worker(
            "inline",
            graph,
            self._wiring,
            make_schedule(schedule, seed),
            max_batch=max_batch,
            enough_rows=enough_rows,
            send=self._to_controller,
            tell=self._report,
            announce=self._announce,
            clock=clock,
            waves=waves,
            precision=precision,
        )
        check_precision(precision, self.worker.waves is not None)
        self._by_name = {given.name: end for given, end in zip(graph.inputs, self._ends, strict=True)}

    def _to_controller(self, end: End, direction: Direction, messages: Messages) -> None:
        assert end.node == CONTROLLER
        assert direction is Direction.BACKWARD
        self.controller.returned(end.port, messages)

    def _report(self, report: Report) -> None:
        self.controller.report(report)

    def _post(self, port: int, messages: Messages, last: bool) -> None:
        self.worker.deliver(self._ends[port], Direction.FORWARD, messages)

    def _stage(self, instances: Mapping[int, Instance], stream: Stream) -> bool:
        waves = self.worker.waves
        if waves is None or waves.numbers_matter or not all(i.complete for i in instances.values()):
            return False
        waves.stage(OfInstances(waves.sites, self._by_name, instances, stream.train, stream))
        return True

    @property
    def may_play(self) -> bool:
        """Whether whole instances may be computed at once, so that there is a use in rehearsing them."""
        return self.worker.waves is not None

    def rehearse(self, instances: Iterable[Instance]) -> None:
        """Find out ahead of time what is to be computed for these instances, as collating batches beforehand does.

        It is found out anyway when they are pumped first, and remembered. What is wrong with one of them is told then,
        with node and state. Not while a run is going on.
        """
        waves = self.worker.waves
        if waves is not None and not waves.numbers_matter:
            with torch.no_grad(), suppress(Exception):
                waves.rehearse(instances, self._by_name, self.worker.shelf)

    def _shelve(self, structures: Mapping[int, Structure]) -> None:
        self.worker.shelve(structures)

    def _retire(self, instances: Column, train: bool) -> None:
        self.worker.retire(instances, train)

    def _forget(self, instances: Column) -> None:
        self.worker.forget(instances)

    def _flush(self) -> None:
        self.worker.flush()
        self.worker.pass_tokens()
        self.worker.tell_work()

    def _turn(self) -> None:
        if self.worker.step():
            return
        played = None if self.worker.waves is None else self.worker.play(self.controller.max_active_keys)
        if played is None:
            held = [f"{what} holds {count}" for what, count in self.worker.held().items()]
            raise StallError(self.controller.in_flight, [*self.worker.waits(), *held])
        lot, done = played
        if not done:
            assert isinstance(lot, OfInstances)
            self.controller.post(lot.instances)
        elif lot.train:
            self.controller.done(np.array(lot.numbers))

    def _settle(self) -> None:
        self.worker.tell_work()

    def _abandon(self) -> None:
        self.worker.abandon()

    def held(self) -> dict[str, int]:
        held = self.worker.held()
        if self.controller.in_flight:
            held["instances in flight"] = len(self.controller.in_flight)
        return held

    def counts(self) -> Counts:
        return self.worker.counts()

    def close(self) -> None:
        """Forget what is in flight, if anything. There is nothing else to release in this runtime."""
        self.controller.abandon()
        if self.held():
            self.worker.abandon()
