"""Inline: everything in one process. One worker hosts all nodes, and takes turns with the controller.

    pump ──> worker.step, step, step ... ──> answers to the controller ──> retire ──> pump ...

With a seed, a run is exactly repeatable: same events, same weights, to the bit. This runtime is the reference for every
other one, the place where orders and faults are simulated, and the fastest choice for one core.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Any

import torch

from ampnet.controller import Controller, Progress
from ampnet.errors import GraphError, StallError
from ampnet.events.log import Announcer, Begin, Listener, Rest
from ampnet.graph import CONTROLLER, End, Graph
from ampnet.instance import Instance, Stream, StreamStats
from ampnet.message import Messages
from ampnet.nodes.loss import Loss
from ampnet.nodes.node import Direction, Report
from ampnet.schedule import ENOUGH_ROWS, Schedule, make_schedule
from ampnet.update.policy import Update
from ampnet.worker import Counts, Worker


class Inline:
    """Runs a graph in this process.

    ``update`` is the policy of every node with parameters (None: frozen), ``updates`` changes it for nodes by name or
    pattern (``{"embedding": ..., "linear*": ...}``; a node by name goes before patterns). At most ``max_active_keys``
    instances are in flight; a node is handed at most ``max_batch`` messages at once, and no more messages than it
    takes to have ``enough_rows`` rows (None: all that wait).

    A context manager: leaving it closes the run. After an error nothing is in flight any more, and the weights are as
    they were when it happened.
    """

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
    ) -> None:
        for name, value in (("max_batch", max_batch), ("enough_rows", enough_rows)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be 1 or more, got {value}")
        self.graph, self.clock = graph, clock
        self._announce = announce = Announcer(listeners)
        self.settings: dict[str, Any] = {
            "runtime": "inline",
            "max_active_keys": max_active_keys,
            "max_batch": max_batch,
            "enough_rows": enough_rows,
            "schedule": schedule if isinstance(schedule, str) else type(schedule).__name__,
            "seed": seed,
        }
        self._wiring = graph.validate()
        graph.runtime = weakref.ref(self)
        _adopt(graph, update, dict(updates or {}))
        self.settings["updates"] = {name: _summary(node.updater.policy) for name, node in graph.parameterised().items()}
        self.worker = Worker(
            "inline",
            graph,
            self._wiring,
            make_schedule(schedule, seed),
            max_batch=max_batch,
            enough_rows=enough_rows,
            send=self._to_controller,
            tell=self._report,
            announce=announce,
            clock=clock,
        )
        labels = {End(name, 1) for name, node in graph.nodes.items() if isinstance(node, Loss)}
        ends = [self._wiring.forward[End(CONTROLLER, i)] for i in range(len(graph.inputs))]
        self.controller = Controller(
            {i.name: i.fields for i in graph.inputs},
            [i.name for i, end in zip(graph.inputs, ends, strict=True) if end in labels],
            max_active_keys,
            post=lambda port, messages: self.worker.deliver(ends[port], Direction.FORWARD, messages),
            shelve=self.worker.shelve,
            retire=self.worker.retire,
            forget=self.worker.forget,
            flush=self.worker.flush,
            announce=announce,
            clock=clock,
        )

    def _to_controller(self, end: End, direction: Direction, messages: Messages) -> None:
        assert end.node == CONTROLLER
        assert direction is Direction.BACKWARD
        self.controller.returned(end.port, messages)

    def _report(self, report: Report) -> None:
        self.controller.report(report)

    def run(
        self,
        streams: Iterable[Stream],
        *,
        together: bool = False,
        barrier: bool = False,
        on_end: Callable[[StreamStats], None] | None = None,
        on_turn: Callable[[Progress], None] | None = None,
        turn_seconds: float = 0.1,
    ) -> list[StreamStats]:
        """Pump streams until every instance has retired. Returns what came of each, in the order of their ends.

        Streams follow one another without a barrier unless ``barrier``; with ``together`` they are pumped in turns.
        ``on_end`` hears of a stream's end at once and may call ``stop()``; ``on_turn`` hears of progress now and then.
        """
        controller, worker = self.controller, self.worker
        if self.graph.runtime is None or self.graph.runtime() is not self:
            raise GraphError(["another runtime was made on this graph since; its nodes work for that one now"])
        if self._announce.wants(Begin):
            self._announce(Begin(self.clock(), {**self.settings, "together": together, "barrier": barrier}))
        controller.on_end = on_end if on_end is not None else lambda stats: None
        due = time.monotonic() + turn_seconds
        turn = 0
        try:
            with torch.no_grad(), _fewer_collections():
                controller.begin(streams, together=together, barrier=barrier)
                controller.pump()
                while controller.busy:
                    if not worker.step():
                        raise StallError(controller.in_flight, [*worker.waits(), *self._held_lines()])
                    controller.pump()
                    turn += 1
                    if on_turn is not None and turn & 15 == 0 and time.monotonic() >= due:
                        progress = controller.progress()
                        if progress is not None:
                            on_turn(progress)
                        due = time.monotonic() + turn_seconds
        except BaseException:
            controller.abandon()
            worker.abandon()
            raise
        if self._announce.wants(Rest):
            self._announce(Rest(self.clock(), self.held()))
        return list(controller.finished)

    def _held_lines(self) -> list[str]:
        return [f"{what} holds {count}" for what, count in self.worker.held().items()]

    def train(self, instances: Iterable[Instance], *, name: str = "train") -> StreamStats:
        """One epoch of training over these instances."""
        return self.run([Stream(instances, True, name)])[0]

    def infer(
        self, instances: Iterable[Instance], *, name: str = "infer", keep_predictions: bool = False
    ) -> StreamStats:
        """Predictions, losses and metrics of these instances. Changes nothing."""
        return self.run([Stream(instances, False, name, keep_predictions)])[0]

    def stop(self) -> None:
        """Pump nothing more; what is in flight still comes back."""
        self.controller.stop()

    def held(self) -> dict[str, int]:
        """Every queue and cache that is not empty; empty at rest."""
        held = self.worker.held()
        if self.controller.in_flight:
            held["instances in flight"] = len(self.controller.in_flight)
        return held

    def counts(self) -> Counts:
        """Invocations and messages so far."""
        return self.worker.counts()

    def close(self) -> None:
        """Forget what is in flight, if anything. There is nothing else to release in this runtime."""
        self.controller.abandon()
        if self.held():
            self.worker.abandon()

    def __enter__(self) -> Inline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def _fewer_collections() -> Iterator[None]:
    """Python's cycle collector looks around every few hundred new objects; a run makes many, and no cycles.

    What was there before the run (torch alone has some hundred thousand objects) need not be looked at again and again.
    """
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], 50_000), *before[1:])
    freeze = gc.get_freeze_count() == 0
    if freeze:
        gc.freeze()
    try:
        yield
    finally:
        if freeze:
            gc.unfreeze()
        gc.set_threshold(*before)


def _summary(policy: Update | None) -> dict[str, Any] | None:
    """A policy in plain data; None: frozen."""
    if policy is None:
        return None
    plain = ("min_update_frequency", "count", "average", "clip_norm", "clip_value", "weights")
    return {name: getattr(policy, name) for name in plain}


def _adopt(graph: Graph, update: Update | None, updates: dict[str, Update | None]) -> None:
    """Give each node with parameters its policy."""
    nodes = graph.parameterised()
    unused = [p for p in updates if p not in nodes and not any(fnmatchcase(name, p) for name in nodes)]
    if unused:
        raise GraphError([f"updates names '{p}', but no node with parameters is called that" for p in unused])
    for name, node in nodes.items():
        matching = [other for pattern, other in updates.items() if fnmatchcase(name, pattern)]
        node.updater.adopt(updates[name] if name in updates else (matching[-1] if matching else update))
