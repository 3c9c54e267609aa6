"""Cluster: a graph on worker processes of several machines. The controller stays in the caller's process.

    controller ──Ray──> places workers, starts them, hands out graph, data, keys and states; notices losses
        │
        ├──tcp──> worker 0 on machine a   <──tcp──>   worker 1 on machine b        notes and slices of rows

As `Processes`, with three differences:

**No shared memory.** Parameters live in the workers. At the end of a run they are fetched into this process's model,
and before a run they are sent if they were changed here (torch counts writes). While a run goes on, states are fetched
every few seconds, and at the end of a training stream: what a lost worker had since then is lost with it.

**Generations.** If a worker is lost, the others keep their process, graph and data, and begin again with the states of
their own nodes, connected anew; the lost one's nodes begin with what was fetched last. If there is no other machine for
it within ``patience`` seconds, its nodes are placed on those that are left.

**Elastic.** While there are fewer workers than wanted, and Ray finds a place for one, it is taken in at the next moment
at which nothing is in flight.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

import torch

from ampnet.errors import AmpnetError, ClusterWarning, GraphError, WorkerDied
from ampnet.events.log import Listener, Restart
from ampnet.graph import Graph
from ampnet.instance import Instance, Stream
from ampnet.nodes.loss import Loss
from ampnet.nodes.products import Precision
from ampnet.nodes.transform import Parameterised
from ampnet.placement import place
from ampnet.recipe import digest, packed, recipe_of
from ampnet.runtime.cluster.assignment import Assignment, Wish
from ampnet.runtime.cluster.connection import Connection, check_installed
from ampnet.runtime.cluster.data import Loaded, MakesInstances, fingerprints
from ampnet.runtime.cluster.seats import Seats
from ampnet.runtime.cluster.workers import ClusterWorkers, SeatLost, answer_of
from ampnet.runtime.distributed import WAVES, Distributed
from ampnet.runtime.hired import Hired
from ampnet.runtime.protocol import weights_note
from ampnet.runtime.stats import RunStats
from ampnet.runtime.transport.mesh import CAPACITY
from ampnet.runtime.workers import Beginning, WorkerSettings
from ampnet.update.policy import Update
from ampnet.update.state import UpdaterState

_SENT_ONCE = 1 << 30
"""Bytes of instances that workers get when they start, if there is no ``data``; others are sent as they come."""
_VACANT = 2.0
"""Seconds between two looks for a place for a missing worker."""
_ATTEMPTS = 3
"""How often workers are started, if one is lost before it serves."""
_WAIT = 60.0
"""Seconds to wait for processors at the start."""


class Cluster(Distributed):
    """Runs a graph on ``workers`` processes of a Ray cluster.

    ``address``: "auto" (the Ray of this machine; if there is none, one is started), "local" (start one), or the address
    of a cluster: "HOST:PORT", "ray://HOST:PORT". Needs ``pip install 'ampnet[cluster]'`` on every machine.

    ``data``: a function that returns a list of samples (or instances), the same on every machine. Each worker calls it;
    then instances are named by index and not sent: `instances` is the list here. Without it, instances in lists are
    sent once, when workers start, and all others as they come.

    A worker whose process dies is replaced. One that does not answer for ``silence`` seconds counts as lost, and so
    does one that makes no step for ``stuck_after`` seconds and uses no processor time. For a machine that left, others
    are waited for ``patience`` seconds; then the run goes on with fewer workers, and takes in new machines up to
    ``workers``. After ``max_restarts`` losses the run ends with `WorkerDied`.

    ``runtime_env``: files and packages for the workers, as `ray.init` takes it. The other settings are those of
    `Processes`. Replicas cannot share weights (``sync="shared"``) between machines: use "updates" or "epoch".
    """

    kind = "cluster"
    shares_memory = False
    remedy = "It is replaced if there is a processor for it"

    def __init__(
        self,
        graph: Graph,
        *,
        address: str = "auto",
        workers: int = 2,
        data: Callable[[], Iterable[Any]] | MakesInstances | None = None,
        affinity: Mapping[str, int] | Literal["auto"] = "auto",
        memory_per_worker: int | None = None,
        threads: int = 1,
        stuck_after: float | None = 10.0,
        silence: float = 30.0,
        patience: float = 10.0,
        max_restarts: int = 3,
        runtime_env: dict[str, Any] | None = None,
        update: Update | None = None,
        updates: Mapping[str, Update | None] | None = None,
        max_active_keys: int = 4,
        wave_size: int | None = None,
        schedule: str | None = None,
        seed: int = 0,
        listeners: Sequence[Listener] = (),
        precision: Precision = "float32",
    ) -> None:
        check_installed()
        self._recipe = recipe_of(graph)
        _check(graph)
        self._connection: Connection | None = None
        self._seats: Seats | None = None
        self._address, self._env = address, runtime_env
        self.silence, self.patience = silence, patience
        self._generation = 0
        self._assignment: Any = None
        """What workers are told, in Ray's object store."""
        self._stamps: dict[str, list[int]] = {}
        """By node: the write counts of its parameters here when they were last equal to the worker's."""
        self._shown: dict[str, list[int]] = {}
        """By node: likewise, for the parameters that all workers predict with."""
        self._fetched: dict[str, int] = {}
        """By node: the version of the weights that were fetched last."""
        self._ended = 0
        """Training streams that have ended in this generation."""
        self._vacant, self._joining, self._growing = time.monotonic() + _VACANT, False, False
        """When to look for a place for a missing worker, whether one is ready to be taken in, and whether it is now."""
        self.changes: list[str] = []
        """Each change of the number of workers, as text."""
        how = WorkerSettings(
            workers, threads, False, stuck_after, CAPACITY, max_active_keys, wave_size, schedule, seed, precision
        )
        super().__init__(
            graph,
            how,
            affinity=affinity,
            memory_per_worker=memory_per_worker,
            max_restarts=max_restarts,
            update=update,
            updates=updates,
            listeners=listeners,
        )
        self._data = data if data is None or isinstance(data, MakesInstances) else Loaded(data)
        self.instances: list[Instance] = []
        """The instances of ``data``."""
        self._bytes = 0
        """Of known instances that are not in ``data``."""
        self._connect()

    def _connect(self) -> None:
        """Connect to Ray and reserve processors: what is wrong with the cluster is said before any work."""
        try:
            self._connection = Connection(self._address, self._how.workers, runtime_env=self._env)
            self._seats = Seats(self._connection, self._how.workers, _WAIT, self._env)
            self._seats.invite()  # processes start while instances are made here
            if self._data is not None:
                self.instances = self._data.instances(self.graph)
                self._known.add(self.instances)
        except BaseException:
            self._leave()
            raise

    # -- what workers have from the start

    def know(self, instances: Iterable[Instance]) -> None:
        some = []
        for one in instances:
            if not self._known.has(one):
                self._bytes += _bytes(one)
                if self._bytes > _SENT_ONCE:
                    break
            some.append(one)
        super().know(some)

    def _made_assignment(self) -> Any:
        graph, known = self.graph, self._known
        own = len(self.instances)
        extra = known.instances[own:]
        losses = {name: node.on_nan for name, node in graph.nodes.items() if isinstance(node, Loss)}
        from ampnet.runtime.cluster.actor import versions

        assignment = Assignment(
            self._recipe,
            digest(graph),
            versions(),
            {name: node.updater.policy for name, node in graph.parameterised().items()},
            losses,
            self._how,
            [Wish(one) for one in self._events.listeners],
            self._prediction() is not None,
            self.on_worker,
            self._data,
            fingerprints(self.instances),
        )
        known.seal()
        assert self._connection is not None
        return self._connection.ray.put((packed(assignment), packed(extra) if extra else b""))

    # -- generations

    def _made_workers(self) -> Hired:
        assert self._seats is not None
        try:
            if self._assignment is None:
                self._assignment = self._made_assignment()
                for node in self.graph.parameterised().values():
                    node.updater.leave()
            return self._sit(self._seats, self.patience)
        except BaseException as error:
            self._over = self._over or f"its workers could not be started: {error}"
            self._leave()
            raise

    def _sit(self, seats: Seats, patience: float) -> ClusterWorkers:
        for attempt in range(_ATTEMPTS):
            if not self._growing:
                seats.fill(patience)
            try:
                self._prepare(seats)
                if not len(seats):
                    raise SeatLost(seats.why)
                self._regroup(len(seats))
                self._generation += 1
                made = ClusterWorkers(
                    self.graph,
                    self._wiring,
                    self.hosts,
                    replace(self._how, workers=len(seats)),
                    self._events,
                    self.clock,
                    self._known,
                    [place for place in self._known.places(self._rehearsed) if place >= 0],
                    self._prediction(),
                    self._beginning,
                    seats=seats,
                    generation=self._generation,
                    silence=self.silence,
                    hear=self._hear,
                    look=self._look,
                )
                self._stamp()
                self._shown, self._ended = {}, 0
                return made
            except SeatLost as error:
                if attempt == _ATTEMPTS - 1:
                    raise WorkerDied("of the cluster", f"was lost while workers were started: {error}") from error
        raise AssertionError

    def _prepare(self, seats: Seats) -> None:
        """Give new processes the graph and the data."""
        ray = seats.connection.ray
        calls = [(seat, seat.actor.prepare.remote(self._assignment)) for seat in seats if not seat.prepared]
        try:
            for seat, call in calls:
                try:
                    answer_of(ray, seat, call, None)
                    seat.prepared = True
                except SeatLost as error:
                    seats.drop(seat, str(error))
        finally:
            calls.clear()
            call = None

    def _regroup(self, count: int) -> None:
        """Place the nodes on ``count`` workers, and tell if that is another number than before."""
        before = len(self.names)
        if count != before:
            self.names = [f"worker{i}" for i in range(count)]
            if self._active is not self:  # predictions: every worker is a team of its own
                self._active.controller.teams = count
            affinity = {name: worker % count for name, worker in self.affinity.items()}
            self.hosts = place(self.graph, count, affinity, self._costs, self.memory_per_worker)
            self.settings["affinity"] = {n: w for n, w in self.hosts.items() if self.graph.nodes[n].role != "route"}
            machines = ", ".join(sorted({seat.machine for seat in self._seats or ()}))
            change = f"{'fewer' if count < before else 'more'} workers: {before} before, {count} now (on {machines})"
            self.changes.append(change)
            warnings.warn(f"the cluster has {change}; training goes on", ClusterWarning, stacklevel=2)

    def _dismiss(self, *, lost: bool = False) -> None:
        there, self._there = self._there, None
        if there is not None:
            assert isinstance(there, ClusterWorkers)
            states, recovery = there.end(lost=lost), self._recovery
            recovery.keep(states, {name: self._ended - there.ended[name] for name in states})
            self._keep_changed()
            self._take(recovery.states)
            self._set_versions()

    def _end(self, why: str, *, lost: bool = False) -> None:
        super()._end(why, lost=lost)
        self._leave()

    def _leave(self) -> None:
        """Give back everything that Ray holds for this runtime."""
        seats, self._seats, connection, self._connection = self._seats, None, self._connection, None
        self._assignment = None
        if seats is not None:
            seats.close()
        if connection is not None:
            connection.close()

    # -- weights

    def _written(self, name: str) -> list[int]:
        return [p._version for p in self.graph.parameterised()[name].updater.parameters]

    def _stamp(self) -> None:
        self._stamps = {name: self._written(name) for name in self.graph.parameterised()}

    def _take(self, states: Mapping[str, UpdaterState]) -> None:
        """Write fetched weights into this process's model."""
        nodes = self.graph.parameterised()
        with torch.no_grad():
            for name, state in states.items():
                for i, weight in enumerate(nodes[name].updater.weights):
                    if (given := state.tensors.get(f"weight/{i}")) is not None:
                        weight.copy_(given)
                if nodes[name].updater.policy is None and state.data["pending"]:
                    for i, total in enumerate(nodes[name].updater.sums):
                        total.copy_(state.tensors[f"sum/{i}"])
                nodes[name].updater.version = state.data["version"]
                self._fetched[name] = state.data["version"]
        self._stamp()

    def _fetch(self) -> None:
        """Fetch the weights of all nodes from their workers, if any was updated since the last time; where weights are
        frozen, the sums of gradients."""
        frozen = any(node.updater.policy is None for node in self.graph.parameterised().values())
        if self._there is not None and (frozen or self._answers.versions() != self._fetched):
            self._take(self._states())

    def _changed(self) -> dict[str, Parameterised]:
        """Returns the nodes whose weights were changed in this process and not sent."""
        return {n: node for n, node in self.graph.parameterised().items() if self._written(n) != self._stamps[n]}

    def _keep_changed(self) -> None:
        """Put the weights that were changed in this process into the states that are kept for the next loss."""
        recovery = self._recovery
        for name, node in self._changed().items():
            if (state := recovery.states.get(name)) is not None:
                weights = {f"weight/{i}": weight.clone() for i, weight in enumerate(node.updater.weights)}
                new = replace(state, tensors={**state.tensors, **weights})
                recovery.keep({name: new}, recovery.epochs([name]))

    def _send_changed(self) -> None:
        """Send the weights that were changed in this process to their workers."""
        post = self._workers.post
        self._keep_changed()
        post.states = self._recovery.states  # those received last are older
        for name, node in self._changed().items():
            post.send(self.hosts[name], weights_note(node))
            self._shown.pop(name, None)
        self._stamp()

    def show_all(self) -> None:
        """Before a prediction: give all workers the weights of the whole model."""
        post = self._workers.post
        for name, node in self.graph.parameterised().items():
            copy = self.graph.copies.get(name)
            if (copy is None or copy.number == 0) and self._shown.get(name) != self._written(name):
                for worker in range(post.workers):
                    post.send(worker, weights_note(node))
                self._shown[name] = self._written(name)

    def _equalise(self) -> None:
        if self._there is not None:
            changed = bool(self._changed())
            if self._equal and not changed:
                return
            if not self._equal:
                if self._running:
                    self._abandon()
                self._ask()
                if not changed:
                    self._fetch()
        super()._equalise()

    def _start(self, streams: Iterable[Stream]) -> Iterable[Stream]:
        if self._there is not None and (self._joining or self._is_ready()):
            self._send_changed()
            self._join()
        streams = super()._start(streams)
        if self._there is not None:
            self._send_changed()
            if self._active is not self:
                self.show_all()
        return streams

    def _settle(self) -> None:
        super()._settle()
        self._fetch()

    def _abandon(self) -> None:
        super()._abandon()
        if self._there is not None and self._over is None:
            with suppress(AmpnetError):  # the error that ended the run is raised
                self._ask()
                self._fetch()

    def _flush(self) -> None:
        super()._flush()
        self._ended += 1
        if not self._workers.post.saving and self._recovery.is_cheap():
            self._recovery.begin()
            self._workers.post.save(weights=True)
        if self._joining:
            self.controller.holding = True

    # -- elastic

    def _is_ready(self) -> bool:
        """Whether a missing worker has started. While workers are missing, Ray is asked every few seconds."""
        seats, now = self._seats, time.monotonic()
        if seats is None or len(seats) == self._how.workers or now < self._vacant:
            return False
        self._vacant = now + _VACANT
        seats.invite()
        return bool(seats.arrived())

    def _turn_once(self) -> None:
        controller = self._active.controller
        self._joining = self._joining or (self._active is self and self._is_ready())
        if self._joining and self._active is self:
            if not controller.in_flight and not self._equality.waiting:
                self._join()
                controller.release()
                return
            controller.holding = True
        super()._turn_once()

    def _join(self) -> None:
        """Nothing is in flight: begin a generation with the new workers."""
        self._joining = False
        self._recovery.regroup(self._ask())
        self._take(self._states())
        self._dismiss()
        self._events.release(now := self.clock())
        waves = self._recovery.generations * WAVES
        self._beginning = Beginning(again=True, states=self._recovery.states, pending=True, waves=waves)
        self._growing = True
        try:
            self._hire()
        finally:
            self._growing = False
        if self._announce.wants(Restart):
            self._announce(Restart(now, self.names[-1], "joined", ()))

    def stats(self) -> RunStats:
        return replace(super().stats(), workers=len(self.names), changes=tuple(self.changes))


def _check(graph: Graph) -> None:
    """Raise `GraphError` for what cannot be on several machines."""
    faults = [
        f"replicas of '{group.name}' share their weights in memory (sync='shared'), which several machines cannot: use "
        f"sync='updates', which averages them"
        for group in graph.replicas.values()
        if group.sync.when == "shared"
    ]
    faults += [
        f"node '{name}' has a parameter on device '{p.device}'; workers of a cluster compute on the CPU. Move the "
        f"model there, or use the inline runtime"
        for name, node in graph.parameterised().items()
        for p in node.updater.parameters[:1]
        if p.device.type != "cpu"
    ]
    if faults:
        raise GraphError(faults[:8])


def _bytes(instance: Instance) -> int:
    """Returns the size of an instance's payloads and states."""
    feeds = instance.feeds.values()
    return sum(one.columns.nbytes + (0 if one.payload is None else one.payload.nbytes) for one in feeds)
