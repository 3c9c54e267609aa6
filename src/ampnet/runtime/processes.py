"""Processes: a graph on several worker processes of one machine. The controller stays in the caller's process.

    controller ── wave 17: instances 204..207 ──>  worker 0      worker 1      every worker hosts some of the nodes
        ^                                            │  rows ──────> │         and plays its part of each wave
        │                                            │ <── gradients │
        └──────── played, losses, errors ────────────┴───────────────┘

All of it (rings in shared memory, parameters, the graph itself) is made before the workers fork from the caller's
process, so nothing is pickled, and no named resource can be left behind. Its modules:

    teams      the workers that compute an instance: all, or those of one replica of the whole model
    staging    pumped instances, cut into waves (`cutting`) and sent to their team (`parcel`, `known`)
    workers    the resources that live from the fork to the end; before it, nodes are placed (`ahead`)
    crew       the processes: fork, watch (`watch`), end
    host       the loop of a worker
    post       the controller's connection to its workers (`protocol`, `answers`, `events`)

Guarantees on failure: the caller gets one named error within seconds. An error in a node ends the run, not the workers,
and nothing is in flight any more. A worker that died, was stopped or is stuck ends all of them. Workers end by
themselves when their maker is gone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import Literal, NoReturn

from ampnet.errors import AmpnetError, GraphError, WorkerDied
from ampnet.events.log import Announcer, Listener
from ampnet.graph import Graph
from ampnet.instance import Instance, Stream
from ampnet.nodes.products import Precision
from ampnet.plan.sites import Sites, Unplayable
from ampnet.reference.worker import Counts
from ampnet.runtime import children
from ampnet.runtime.ahead import place_ahead
from ampnet.runtime.answers import Answers
from ampnet.runtime.crew import alarmed
from ampnet.runtime.engine import Engine, check_precision
from ampnet.runtime.equality import Equality
from ampnet.runtime.events import InOrder
from ampnet.runtime.host import Host
from ampnet.runtime.known import Known
from ampnet.runtime.protocol import Kind, done_of, error_of, loss_metrics, report_of
from ampnet.runtime.runtime import Runtime
from ampnet.runtime.stats import RunStats
from ampnet.runtime.teams import teams_of
from ampnet.runtime.transport import Note
from ampnet.runtime.watch import Lost
from ampnet.runtime.workers import Workers, WorkerSettings
from ampnet.runtime.workers_predict import OnWorkers
from ampnet.state import Column
from ampnet.update.policy import Update

_QUIET = 1.0
"""Seconds without notes after which workers are asked whether anything can still move."""


class Processes(Runtime):
    """Runs a graph on ``workers`` processes.

    ``affinity`` maps nodes, by name or pattern, to workers; all others are placed by their costs in a short trial on
    the first instances (``"auto"``), within ``memory_per_worker`` bytes if given. Each worker has ``threads`` torch
    threads; with ``pin`` it is pinned to one core. A worker that makes no step and uses no processor time for
    ``stuck_after`` seconds counts as stuck (None: never), unless it runs in a debugger: a long computation is never
    ended, a long wait for a network may be. ``capacity``: bytes of the ring between two processes; frames that do not
    fit wait at the sender.

    The other settings are those of `Inline`. Instances are computed in waves of ``wave_size`` (None: about two waves in
    flight for each worker, none of them straddling an update that counts instances).

    Workers start with the first run and stay until `close`. If that run is a prediction, there is no trial, and nodes
    are placed by an estimate of their costs: train first where the placement matters. From the first run on, parameters
    are in shared memory: the model in this process always has the current weights. Linux only.
    """

    kind = "processes"
    may_play = True

    def __init__(
        self,
        graph: Graph,
        *,
        workers: int = 2,
        affinity: Mapping[str, int] | Literal["auto"] = "auto",
        memory_per_worker: int | None = None,
        threads: int = 1,
        pin: bool = False,
        stuck_after: float | None = 3.0,
        capacity: int = 8 << 20,
        update: Update | None = None,
        updates: Mapping[str, Update | None] | None = None,
        max_active_keys: int = 4,
        wave_size: int | None = None,
        schedule: str | None = None,
        seed: int = 0,
        listeners: Sequence[Listener] = (),
        clock: Callable[[], float] = time.perf_counter,
        precision: Precision = "float32",
    ) -> None:
        if not hasattr(os, "fork") or not hasattr(os, "eventfd"):
            raise AmpnetError("worker processes need Linux (fork and eventfd); use the inline runtime")
        check_precision(precision, True)
        self._how = WorkerSettings(
            workers, threads, pin, stuck_after, capacity, max_active_keys, wave_size, schedule, seed, precision
        )
        self.names = [f"worker{i}" for i in range(workers)]
        self.affinity: Mapping[str, int] = {} if affinity == "auto" else dict(affinity)
        self.memory_per_worker = memory_per_worker
        self.hosts: dict[str, int] = {}
        """The worker of each node, after placement."""
        self._there: Workers | None = None
        self._over: str | None = None
        """The reason why no further run is possible; None while one is."""
        self._running = False
        """Whether workers may be working on a run."""
        self._draining = False
        """Whether a worker may not have received the ABANDON of the last run yet, and may still change weights."""
        self._known, self._rehearsed = Known(), list[Instance]()
        self._answers = Answers()
        """The workers' last answers."""
        self._first_rates: dict[str, float] = {}
        self._changed_rates: dict[str, float] = {}
        """Learning rates by node: the workers' initial ones, and those set later."""
        self._active: Runtime = self
        """The runtime that the workers currently run for: this one, or that of the prediction graph."""
        super().__init__(
            graph,
            update=update,
            updates=updates,
            max_active_keys=max_active_keys,
            wave_size=wave_size,
            max_batch=None,
            enough_rows=None,
            schedule=schedule,
            seed=seed,
            listeners=listeners,
            clock=clock,
        )
        self.settings["workers"] = workers
        self._set_engine(Engine(True))
        self._losses = loss_metrics(graph)
        self._equality = Equality(name for name, group in graph.replicas.items() if group.table is not None)
        self._check_playable()
        self.on_worker: Callable[[Host], None] = lambda host: None
        """Called in each worker process before it serves, for instruments. Must be set before the first run."""

    def _check_playable(self) -> None:
        team, _ = teams_of(self.graph, self._wiring, dict.fromkeys(self.graph.nodes, 0))[0]
        try:
            Sites(self.graph, self._wiring, team)
        except Unplayable as error:
            fault = f"{error}; or use the inline runtime: workers play waves, and pass no messages"
            raise GraphError([fault]) from error

    def know(self, instances: Iterable[Instance]) -> None:
        """Give workers these instances at the fork: when pumped, each is then named by an index, not sent.

        Must be called before the first run. Instances in the list of a stream of the first run are known anyway.

        Workers have them as of the start of the first run. If a torch operation changes a payload in place later, that
        instance is sent from then on. A change through memory shared with NumPy is not noticed. States and structures
        are immutable.
        """
        if self._there is not None:
            raise AmpnetError("the workers exist already: call know() before the first run")
        self._known.add(instances)

    def offer(self, instances: Sequence[Instance]) -> None:
        if self._there is None:
            self.know(instances)

    def rehearse(self, instances: Iterable[Instance]) -> None:
        """Plan these instances when workers are made. Must be called before the first run.

        They are then known as well (see `know`).
        """
        some = list(instances)
        self.know(some)
        self._rehearsed += some

    @property
    def pids(self) -> list[int]:
        """The pids of the worker processes; empty before the first run and after the last."""
        return [] if self._there is None else list(self._there.crew.pids)

    # -- starting and ending

    def _guarded(self) -> AbstractContextManager[object]:
        self._check_open()
        return alarmed(self._alarm)

    def _check_open(self) -> None:
        if self._there is not None and not self._there.crew.mine:
            raise AmpnetError(f"process {self._there.crew.maker} made the workers; this is a copy of it. Run it there")
        if self._over is not None:
            raise AmpnetError(f"this runtime has ended: {self._over}")

    def _start(self, streams: Iterable[Stream]) -> Iterable[Stream]:
        if self._running:
            self._abandon()  # a second interrupt prevented the cleanup of the run before
        if self._there is None:
            streams = self._make_workers(streams)
        else:
            self._there.post.heard = time.monotonic()
        self._running = True
        return streams

    def _make_workers(self, streams: Iterable[Stream]) -> Iterable[Stream]:
        """Place the nodes, using the first instances of the first stream, and fork. Returns the streams."""
        for stream in streams if isinstance(streams, Sequence) else ():
            if isinstance(stream.instances, list | tuple):
                self.know(i for i in stream.instances if isinstance(i, Instance))
        streams = iter(streams)
        first = next(streams, None)
        if first is None:
            return []
        self.hosts, first = place_ahead(
            self.graph,
            first,
            workers=self._how.workers,
            affinity=self.affinity,
            memory_per_worker=self.memory_per_worker,
            max_active_keys=self._how.max_active_keys,
            wave_size=self._how.wave_size,
            stopping=lambda: self.controller.stopping,
        )
        self._first_rates = super()._rates()
        self.settings["affinity"] = {n: w for n, w in self.hosts.items() if self.graph.nodes[n].role != "route"}
        self._check_open()  # another thread may have closed it
        self._there = Workers(
            self.graph,
            self._wiring,
            self.hosts,
            self._how,
            self._events,
            self.clock,
            self._known,
            self._rehearsed,
            self._prediction(),
            hear=self._hear,
            look=self._look,
            on_worker=self.on_worker,
        )
        if self._changed_rates:
            self._there.post.everybody(Kind.RATES, rates=dict(self._changed_rates))
        self.controller.teams = len(self._there.teams)
        copies, together = self._there.staging.shares
        if copies > 1:
            self.controller.share_out(copies, together)
        return chain([first], streams)

    def _prediction(self) -> Graph | None:
        """Returns the prediction graph for the workers; None if the model returns nothing, or is wired by hand."""
        try:
            return self.graph.prediction
        except Exception:  # training does not need it, and `predict` will raise it
            return None

    def _predictor(self, graph: Graph) -> Runtime:
        if self._predicting is None or self._predicting.graph is not graph:
            if self._there is not None and self._there.prediction is not graph:
                raise AmpnetError("the model was moved or cast after the workers were made: make a new runtime")
            self._predicting = OnWorkers(graph, self)
        return self._predicting

    def _equalise(self) -> None:
        if self._there is not None and not self._equal:
            if self._running:
                self._abandon()
            self._ask()  # after their answers, workers make no more updates of the last run
        super()._equalise()

    def close(self) -> None:
        """End the workers, whatever they do. A run in progress raises an error."""
        if self._inside:
            self._over = self._over or "it was closed"
            return
        self.controller.abandon()
        self._end("it was closed")

    def _end(self, why: str, *, lost: bool = False) -> None:
        self._over = self._over or why
        there, self._there = self._there, None
        if there is not None:
            there.end(lost=lost)
            self._set_versions()

    def _set_versions(self) -> None:
        """Set the update counts of the nodes in this process from the workers' answers."""
        if self.graph.runtime is not None and self.graph.runtime() is self:
            nodes = self.graph.parameterised()
            for name, version in self._answers.versions().items():
                nodes[name].updater.version = version

    def _rates(self) -> dict[str, float]:
        if self._there is None:
            return super()._rates()
        answers = self._answers if self._inside else self._ask()  # a callback must not wait for notes
        return {**self._first_rates, **answers.rates(), **self._changed_rates}

    def _set_rates(self, rates: Mapping[str, float]) -> None:
        self._changed_rates |= rates
        if self._there is None:
            super()._set_rates(rates)
        else:
            self._workers.post.everybody(Kind.RATES, rates=dict(rates))

    # -- a run

    def _read(self, source: Iterator[Instance]) -> Instance:
        return next(source) if self._there is None else self._there.crew.read(source)

    def _stage(self, instances: Mapping[int, Instance], stream: Stream) -> Sequence[int]:
        return self._workers.staging.stage(instances, stream.train, self.controller.sending)

    def _retire(self, instances: Column, train: bool) -> None:
        self._workers.staging.retired(instances)

    def _flush(self) -> None:
        self._workers.post.everybody(Kind.FLUSH)
        self._workers.staging.flushed()
        self.controller.holding = self._equality.end()

    @property
    def _workers(self) -> Workers:
        self._check_open()
        assert self._there is not None
        return self._there

    def _turn(self) -> None:
        post = self._workers.post
        post.turn()
        if time.monotonic() - post.heard > _QUIET:
            heard = post.heard = time.monotonic()
            before = self._answers
            if self._ask().same_as(before) and post.heard == heard:
                raise self._answers.stall(self._active.controller.in_flight)

    def _hear(self, sender: int, note: Note) -> None:
        controller = self._active.controller
        if note.kind == Kind.DONE:
            played, reports = done_of(note, self._losses)
            for report in reports:
                controller.report(report)
            controller.played(played)
        elif note.kind == Kind.REPORT:
            controller.report(report_of(note))
        elif note.kind == Kind.EQUAL:
            if self._equality.equal(note.data["group"], note.data["ended"]) and self.controller.holding:
                self.controller.release()
        elif note.kind == Kind.ERROR:
            raise error_of(note, self.names[sender])

    def _look(self) -> None:
        lost = self._workers.crew.look()
        if lost is not None:
            self._lose(lost)

    def _alarm(self) -> None:
        """Check the workers while the loader blocks; a lost worker interrupts it."""
        there = self._there
        if there is not None and there.crew.reading and there.crew.watch.lost is not None:
            self._lose(there.crew.watch.lost)

    def _lose(self, lost: Lost) -> NoReturn:
        name = self.names[lost.worker]
        self._end(f"worker '{name}' {lost.how}", lost=True)
        raise WorkerDied(name, lost.how)

    def _ask(self) -> Answers:
        if self._there is not None:
            self._answers = self._workers.post.ask()
            self._draining = False
        return self._answers

    def _settle(self) -> None:
        self._ask()
        self._set_versions()

    def _rested(self) -> None:
        self._running = False
        self._events.release(self.clock())

    def _abandon(self) -> None:
        there = self._there
        if there is not None and (there.post.broken or self._over is not None):
            self._end("its workers were interrupted in the middle of a message")
        with children.undisturbed():
            self._equality.clear()
            if self._there is not None and self._there.crew.mine:
                self._there.staging.clear()
                self._there.predicting.clear()
                self._there.post.abandon()
            self._running, self._draining = False, True

    # -- state and statistics

    def held(self) -> dict[str, int]:
        held = {} if self._there is None else self._ask().held()
        if self.controller.in_flight:
            held["instances in flight"] = len(self.controller.in_flight)
        return held

    def counts(self) -> Counts:
        return self._ask().counts()

    def stats(self) -> RunStats:
        answers = self._ask()
        busy = [answer["busy"] for _, answer in sorted(answers.items())]
        most = max((answer["in_flight"] for answer in answers.values()), default=0)
        return self._stats(answers.total("waves"), answers.total("instances"), most, busy)

    def _announcer(self, listeners: Sequence[Listener]) -> Announcer:
        self._events = InOrder(listeners, self.clock)
        return self._events
