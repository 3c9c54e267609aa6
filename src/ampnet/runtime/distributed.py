"""Distributed: the controller's side of workers in other processes. The base of `Processes` and `Cluster`.

    controller ── wave 17: instances 204..207 ──>  worker 0      worker 1      every worker hosts some of the nodes
        ^                                            │  rows ──────> │         and plays its part of each wave
        │                                            │ <── gradients │
        └──────── played, losses, errors ────────────┴───────────────┘

The controller stays in the caller's process. Its modules:

    teams      the workers that compute an instance: all, or those of one replica of the whole model
    staging    pumped instances, cut into waves (`cutting`) and sent to their team (`parcel`, `known`)
    ahead      places the nodes on workers, by a trial
    post       the controller's connection to its workers (`protocol`, `answers`, `events`)
    host       the loop of a worker
    recovery   what is kept for the case that a worker is lost

Subclasses start and end the workers (`Hired`): forked processes of this machine, or processes of several machines.

Guarantees on failure: an error in a node ends the run, not the workers, and nothing is in flight any more. If a worker
died, was stopped or is stuck, workers are started again and training goes on; after ``max_restarts`` such losses the
caller gets a `WorkerDied` within seconds.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import chain
from typing import Literal, NoReturn, TypeVar

from ampnet.errors import AmpnetError, GraphError, RestartWarning, WorkerDied
from ampnet.events.log import Announcer, Listener, Restart
from ampnet.graph import Graph
from ampnet.instance import Instance, Stream
from ampnet.opened import read_some
from ampnet.placement import Costs
from ampnet.plan.sites import Sites, Unplayable
from ampnet.reference.worker import Counts
from ampnet.runtime import children
from ampnet.runtime.ahead import place_ahead
from ampnet.runtime.answers import Answers
from ampnet.runtime.crew import alarmed
from ampnet.runtime.engine import Engine, check_precision
from ampnet.runtime.equality import Equality
from ampnet.runtime.events import InOrder
from ampnet.runtime.hired import Hired
from ampnet.runtime.host import Host
from ampnet.runtime.known import Known
from ampnet.runtime.protocol import Kind, done_of, error_of, loss_metrics, report_of
from ampnet.runtime.recovery import Recovery
from ampnet.runtime.runtime import Runtime
from ampnet.runtime.stats import RunStats
from ampnet.runtime.teams import teams_of
from ampnet.runtime.transport import Note
from ampnet.runtime.watch import Lost
from ampnet.runtime.workers import Beginning, WorkerSettings
from ampnet.runtime.workers_predict import OnWorkers
from ampnet.snapshot import Snapshot, spread_weights
from ampnet.state import Column
from ampnet.update.policy import Update
from ampnet.update.state import UpdaterState, check_states, rate_of, state_of
from ampnet.update.updater import Updater

_QUIET = 1.0
"""Seconds without notes after which workers are asked whether anything can still move."""


WAVES = 10**9
"""Each generation of workers numbers its waves from another multiple of this: no number occurs twice in a log."""

T = TypeVar("T")


def _without_copies(update: Update | None) -> Update | None:
    """Returns a policy that keeps no copies of weights, unless it asks for them by name."""
    return update.but(weights="current") if isinstance(update, Update) and update.weights == "auto" else update


class _Loss(Exception):
    """A worker was found to be lost while the controller waited for workers."""

    def __init__(self, lost: Lost) -> None:
        super().__init__(lost.how)
        self.lost = lost


class Distributed(Runtime):
    """A runtime whose nodes are in other processes. See the head of this file."""

    may_play = True
    weights_elsewhere = True
    shares_memory = True
    """Whether workers update the parameters of this process's model in place."""
    remedy = "All workers were started again"
    """What is done about a lost worker, for messages."""

    def __init__(
        self,
        graph: Graph,
        how: WorkerSettings,
        *,
        affinity: Mapping[str, int] | Literal["auto"],
        memory_per_worker: int | None,
        max_restarts: int,
        update: Update | None,
        updates: Mapping[str, Update | None] | None,
        listeners: Sequence[Listener],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        check_precision(how.precision, True)
        self._how = how
        self.names = [f"worker{i}" for i in range(how.workers)]
        self.affinity: Mapping[str, int] = {} if affinity == "auto" else dict(affinity)
        self.memory_per_worker = memory_per_worker
        self.hosts: dict[str, int] = {}
        """The worker of each node, after placement."""
        self._costs: Costs | None = None
        """What nodes cost in the trial; None before it, or without one."""
        self._there: Hired | None = None
        self._over: str | None = None
        """The reason why no further run is possible; None while one is."""
        self._running = False
        """Whether workers may be working on a run."""
        self._draining = False
        """Whether a worker may not have received the ABANDON of the last run yet, and may still change weights."""
        self._recovery = Recovery(max_restarts, self.remedy)
        self._beginning = Beginning()
        """What the next workers start from."""
        self._known, self._rehearsed = Known(), list[Instance]()
        self._answers = Answers()
        """The workers' last answers."""
        self._first_rates: dict[str, float] = {}
        self._changed_rates: dict[str, float] = {}
        """Learning rates by node: the workers' initial ones, and those set later."""
        self._active: Runtime = self
        """The runtime that the workers currently run for: this one, or that of the prediction graph."""
        if memory_per_worker is not None:  # copies of the weights of every version in flight would not be in it
            update = _without_copies(update)
            updates = {name: _without_copies(own) for name, own in (updates or {}).items()}
        super().__init__(
            graph,
            update=update,
            updates=updates,
            max_active_keys=how.max_active_keys,
            wave_size=how.wave_size,
            max_batch=None,
            enough_rows=None,
            schedule=how.schedule,
            seed=how.seed,
            listeners=listeners,
            clock=clock,
        )
        self.settings["workers"] = how.workers
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
        if self.hosts:  # there were workers before
            self._hire()
            return streams
        for stream in streams if isinstance(streams, Sequence) else ():
            if isinstance(stream.instances, list | tuple):
                self.know(i for i in stream.instances if isinstance(i, Instance))
        streams = iter(streams)
        first = next(streams, None)
        if first is None:
            return []
        self.hosts, first, self._costs = place_ahead(
            self.graph,
            first,
            workers=self._how.workers,
            affinity=self.affinity,
            memory_per_worker=self.memory_per_worker,
            max_active_keys=self._how.max_active_keys,
            wave_size=self._how.wave_size,
            stopping=lambda: self.controller.stopping,
        )
        self._first_rates = self._first_rates or super()._rates()
        self.settings["affinity"] = {n: w for n, w in self.hosts.items() if self.graph.nodes[n].role != "route"}
        self._hire()
        return chain([first], streams)

    def _hire(self) -> None:
        """Start the workers."""
        self._check_open()  # another thread may have closed it
        self._there = self._made_workers()
        self._equality.clear()  # new workers have ended no stream
        self._there.staging.waves = self._beginning.waves
        self._beginning = Beginning(again=True, prepared=self._there.prepared)
        if self._changed_rates:
            self._there.post.everybody(Kind.RATES, rates=dict(self._changed_rates))
        self.controller.teams = len(self._there.teams)
        self.controller.share_out(*self._there.staging.shares)

    def _made_workers(self) -> Hired:
        """Start workers with `_beginning`."""
        raise NotImplementedError

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
        self._dismiss(lost=lost)

    def _dismiss(self, *, lost: bool = False) -> None:
        """End the workers; others may be started."""
        there, self._there = self._there, None
        if there is not None:
            there.end(lost=lost)
            self._set_versions()

    def _set_versions(self) -> None:
        """Set the update counts of the nodes in this process from the workers' answers."""
        if self.graph.runtime is not None and self.graph.runtime() is self:
            nodes = self.graph.parameterised()
            for name, version in self._answers.versions().items():
                nodes[name].updater.version = max(version, nodes[name].updater.version)

    def _rates(self) -> dict[str, float]:
        if not self._first_rates:
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

    def _read(self, source: Iterator[Instance], most: int, into: list[Instance]) -> None:
        (read_some if self._there is None else self._there.crew.read)(source, most, into)

    def _stage(self, instances: Mapping[int, Instance], stream: Stream) -> Sequence[int]:
        return self._workers.staging.stage(instances, stream.train, self.controller.sending)

    def _retire(self, instances: Column, train: bool) -> None:
        self._workers.staging.retired(instances)

    def _pump(self) -> None:
        super()._pump()
        if self._there is not None:
            self._there.staging.pumped(self.controller.coming)

    def _flush(self) -> None:
        self._workers.post.everybody(Kind.FLUSH)
        self._workers.staging.flushed()
        self._recovery.ended += 1
        self.controller.holding = self._equality.end()

    @property
    def _workers(self) -> Hired:
        self._check_open()
        assert self._there is not None
        return self._there

    def _turn(self) -> None:
        self._through_losses(self._turn_once)

    def _turn_once(self) -> None:
        there, recovery = self._workers, self._recovery
        post = there.post
        if there.crew.lost is not None:  # found by its keeper, while others keep the controller busy
            self._lose(there.crew.lost)
        if post.states is not recovery.states and (post.states or post.faults):
            recovery.save(post.states, post.faults, post.saved)
        if recovery.is_due() and not post.saving and not self.controller.holding:
            recovery.begin()
            post.save(weights=not self.shares_memory)
        post.turn()
        if time.monotonic() - post.heard > _QUIET:
            heard = post.heard = time.monotonic()
            before = self._answers
            if self._ask_once().same_as(before) and post.heard == heard:
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
        elif note.kind == Kind.PEEK:
            if self.beside is not None:
                self.beside.hear(sender, note, len(self.names))
        elif note.kind == Kind.ERROR:
            raise error_of(note, self.names[sender])

    def _ask_weights(self, token: int, nodes: Sequence[str]) -> None:
        self._workers.post.everybody(Kind.PEEK, token=token, nodes=list(nodes))

    def _look(self) -> None:
        lost = self._workers.crew.look()
        if lost is not None:
            self._lose(lost)

    def _alarm(self) -> None:
        """Called while the loader blocks and a worker is lost: interrupts the loader if the loss ends the run. (Else
        workers are started again when the loader returns.)"""
        there = self._there
        if there is None or not there.crew.reading or self._recovery.possible:
            return
        if (lost := there.crew.lost) is not None:
            self._fail(lost)

    # -- losses

    def _lose(self, lost: Lost) -> NoReturn:
        raise _Loss(lost)

    def _fail(self, lost: Lost) -> str:
        """Count a loss, and return it in words; if it was one too many, end the workers and raise `WorkerDied`."""
        name, active = self.names[lost.worker], self._active.controller
        try:
            return self._recovery.lose(name, lost.how, len(active.in_flight), self._answers)
        except WorkerDied as died:
            self._events.release(self.clock())
            self._dismiss(lost=True)
            self._leave_what_survives(died)
            self._end(f"worker '{name}' {lost.how}", lost=True)
            raise

    def _leave_what_survives(self, died: WorkerDied) -> None:
        """No worker is left, and none will be: give the caller a chance to take a last snapshot."""
        if self.on_last_loss is None:
            return
        states = {name: state.applied() for name, state in self._recovery.states.items()}
        self._beginning = replace(self._beginning, states=states)
        try:
            self.on_last_loss()
        except Exception as error:  # the loss counts
            died.add_note(f"no last checkpoint was written: {type(error).__name__}: {error}")

    def _through_losses(self, act: Callable[[], T]) -> T:
        """Call a function that waits for workers; if one is lost, start workers again and call it again."""
        while True:
            try:
                return act()
            except _Loss as loss:
                self._recover(loss.lost)

    def _recover(self, lost: Lost) -> None:
        """Start the workers again after a loss, and have the instances in flight computed again."""
        flying, name = tuple(self._active.controller.in_flight), self.names[lost.worker]
        words = self._fail(lost)
        with children.undisturbed():
            self._events.release(now := self.clock())
            self._dismiss(lost=True)
            for group in self.graph.replicas.values() if self._running and self._active is self else ():
                group.average(self._members(group))  # the synchronisation in progress is lost
            self._beginning = Beginning(
                again=True,
                states=self._recovery.states,
                prepared=self._beginning.prepared,
                waves=self._recovery.generations * WAVES,
                epochs=self._recovery.epochs(self.graph.parameterised()),
            )
            self._answers = Answers()
            self._hire()
        if self.controller.holding:
            self.controller.release()
        if self._announce.wants(Restart):
            self._announce(Restart(now, name, lost.how, flying))
        self._active.controller.replay()
        warnings.warn(words, RestartWarning, stacklevel=2)

    # -- snapshots

    def _states(self) -> dict[str, UpdaterState]:
        if self._there is None:
            self._check_open()
            nodes = self.graph.parameterised()
            return {n: self._beginning.states.get(n) or self._fresh(nodes[n].updater) for n in nodes}

        def ask() -> dict[str, UpdaterState]:
            self._recovery.begin()
            self._workers.post.save(weights=True)
            return self._workers.post.await_states()

        self._recovery.save(states := self._through_losses(ask))
        return states

    def _fresh(self, updater: Updater) -> UpdaterState:
        """Returns the state of a node without a worker: before the first of them, or of which none was saved."""
        if updater.optimizer is not None or updater.policy is None:
            return state_of(updater, weights=False)
        version = updater.version
        updater.adopt(updater.policy)
        updater.version = version
        state = state_of(updater, weights=False)
        updater.leave()
        return state

    def _set_states(self, snapshot: Snapshot) -> None:
        self._check_open()
        nodes, states = self.graph.parameterised(), snapshot.nodes()
        made = self._there is not None or self._beginning.again
        trained = [node.updater for node in nodes.values() if made and node.updater.policy is not None]
        for updater in trained:
            updater.adopt(updater.policy)  # to check the states against: workers have the optimizers
        try:
            check_states(nodes, states)
        finally:
            for updater in trained:
                updater.leave()
        self._dismiss()
        spread_weights(self.graph, snapshot)
        for name, node in nodes.items():
            node.updater.version = states[name].data["version"]
        self._beginning = replace(self._beginning, states=states, pending=True)
        self._changed_rates, self._answers = {}, Answers()
        self._recovery.begin()
        self._recovery.save(states)
        self._first_rates = {n: rate for n, state in states.items() if (rate := rate_of(state)) is not None}

    # -- asking

    def _ask(self) -> Answers:
        return self._answers if self._there is None else self._through_losses(self._ask_once)

    def _ask_once(self) -> Answers:
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
        now, before = self._ask().counts(), self._recovery.counts()
        return Counts(now.invocations + before.invocations, now.messages + before.messages)

    def stats(self) -> RunStats:
        answers = self._ask()
        recovery = self._recovery
        busy = [answer["busy"] + recovery.busy(worker) for worker, answer in sorted(answers.items())]
        most = max((answer["in_flight"] for answer in answers.values()), default=0)
        waves, instances = (answers.total(count) + recovery.total(count) for count in ("waves", "instances"))
        stats = self._stats(waves, instances, most, busy)
        return replace(stats, restarts=recovery.restarts, replayed=recovery.replayed)

    def _announcer(self, listeners: Sequence[Listener]) -> Announcer:
        self._events = InOrder(listeners, self.clock)
        return self._events
