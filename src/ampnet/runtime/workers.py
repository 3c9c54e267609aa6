"""Workers: the resources that live from the fork to the end: processes, shared memory, the controller's connection.

[1] parameters, sums of gradients and tables of replicas move into shared memory
[2] instances that workers have from the start are rehearsed, once for all replicas of the whole model
[3] fork; each worker makes optimizers for its nodes, and its player, and serves (`ampnet.runtime.host`)

After a lost worker all of them are made again (`ampnet.runtime.recovery`): [1] and [2] are as they were, and optimizers
begin with the states that were saved last.

A worker's memory holds the shared pages that it has touched, and everything that its maker had at the fork. To keep
that small the maker has no optimizers, which may be larger than the parameters, and returns freed memory to the system.
"""

from __future__ import annotations

import mmap
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from ampnet.errors import TransportError
from ampnet.graph import Graph, Wiring
from ampnet.instance import Instance
from ampnet.nodes.products import Precision
from ampnet.nodes.transform import Parameterised
from ampnet.plan.planner import Planner
from ampnet.plan.team import Team
from ampnet.runtime import children
from ampnet.runtime.crew import Crew, check_count
from ampnet.runtime.events import InOrder
from ampnet.runtime.host import Host, make_quiet
from ampnet.runtime.known import Known
from ampnet.runtime.parcel import inputs_of
from ampnet.runtime.post import Post
from ampnet.runtime.protocol import Kind
from ampnet.runtime.shared import give_back, share
from ampnet.runtime.staging import Staging, parted
from ampnet.runtime.teams import teams_of
from ampnet.runtime.transport import Mesh, Note
from ampnet.runtime.transport.endpoint import SPIN
from ampnet.runtime.watch import DEBUGGED
from ampnet.state import Ints
from ampnet.structure import Shelf
from ampnet.update.state import UpdaterState, restore_state
from ampnet.update.updater import no_sums
from ampnet.wave.schedule import WAVE_SCHEDULES

_PATIENCE = 2.0
"""Seconds that workers have to end after STOP."""
_IN_HASTE = 0.5
"""Seconds that workers have to end if one of them is lost."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Settings of the workers. Raises ValueError for an invalid setting."""

    workers: int
    threads: int
    pin: bool
    stuck_after: float | None
    capacity: int
    max_active_keys: int
    wave_size: int | None
    schedule: str | None
    seed: int
    precision: Precision

    def __post_init__(self) -> None:
        check_count("workers", self.workers)
        check_count("threads", self.threads)
        for name, least in (("max_active_keys", 1), ("wave_size", 1), ("seed", 0), ("capacity", 1024)):
            value = getattr(self, name)
            if not (isinstance(value, int) and value >= least) and not (name == "wave_size" and value is None):
                raise ValueError(f"{name} must be a whole number, {least} or more; got {value!r}")
        if self.schedule is not None and self.schedule not in tuple(WAVE_SCHEDULES):
            raise ValueError(f"unknown schedule {self.schedule!r}; there are {', '.join(WAVE_SCHEDULES)}")
        if self.stuck_after is not None and not (isinstance(self.stuck_after, int | float) and self.stuck_after > 0):
            raise ValueError(f"stuck_after must be a number of seconds above 0, or None; got {self.stuck_after!r}")

    def places(self, teams: int) -> int:
        """Returns the maximal number of instances in flight of each team, evenly distributed."""
        return -(-self.max_active_keys // teams)


@dataclass(frozen=True, slots=True)
class Beginning:
    """What workers start from."""

    again: bool = False
    """Whether there were workers before: parameters are in shared memory already."""
    states: Mapping[str, UpdaterState] = field(default_factory=dict)
    """The states of nodes, by name; an optimizer without one starts fresh."""
    pending: bool = False
    """Whether gradients that were not applied are part of the states. After a loss they are not: they are older than
    the weights."""
    prepared: Planner | None = None
    """The planner that workers before had, if each team has one worker."""
    waves: int = 0
    """Waves are numbered from this number on."""
    epochs: Mapping[str, int] = field(default_factory=dict)
    """By node: training streams that have ended since its state was saved."""

    def give(self, node: Parameterised, version: int) -> None:
        """Give a node, which has a new optimizer, its state. ``version``: the one it had when the process forked."""
        state = self.states.get(node.name)
        if state is not None:
            restore_state(node.updater, state, node.name, pending=self.pending)
        node.updater.version = max(version, node.updater.version)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of torch: a new optimizer has made no step
            for _ in range(self.epochs.get(node.name, 0)):
                node.updater.end_epoch()


class Workers:
    """See the head of this file."""

    def __init__(
        self,
        graph: Graph,
        wiring: Wiring,
        hosts: Mapping[str, int],
        settings: WorkerSettings,
        events: InOrder,
        clock: Callable[[], float],
        known: Known,
        rehearsed: Sequence[Instance],
        prediction: Graph | None,
        beginning: Beginning,
        *,
        hear: Callable[[int, Note], None],
        look: Callable[[], None],
        on_worker: Callable[[Host], None],
    ) -> None:
        """``hosts``: the worker of each node. ``prediction``: the prediction graph, if there is one. ``hear``,
        ``look``: as in `Post`. ``on_worker``: called in each worker. ``beginning``: where they start from."""
        self.graph, self.wiring, self.settings, self.clock = graph, wiring, settings, clock
        self._events, self._known, self._rehearsed, self._on_worker = events, known, rehearsed, on_worker
        self._hosts = hosts
        self.prediction = prediction
        self._beginning = beginning
        if not beginning.again:
            _share(graph, prediction)  # [1]
        self.teams = teams_of(graph, wiring, hosts)
        self._inputs = inputs_of(graph)
        trains = graph.parameterised()
        self._versions = memoryview(mmap.mmap(-1, 8 * max(1, len(trains)))).cast("q")
        """By node, in the graph's order: its version when its worker last told it. In shared memory: a lost worker
        cannot be asked."""
        self._places = settings.places(len(self.teams))
        self.prepared = beginning.prepared if beginning.again else self._prepare()  # [2]
        known.seal()
        self.mesh = _mesh(settings)
        teams = [team for team, _ in self.teams]
        endpoint = self.mesh.endpoint(settings.workers, spin=0.0)  # staged work keeps workers busy
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        give_back()
        try:
            self.crew = Crew(settings.workers, self._be_worker, self._names(), settings.stuck_after)  # [3]
        except BaseException:
            self.mesh.close()
            raise
        self._finalizer = weakref.finalize(self, _let_go, self.crew, self.mesh)
        self.post = Post(endpoint, settings.workers, events, clock, hear, look)
        self.staging = Staging(
            teams, graph.copies, self._places, settings.wave_size, known, self._inputs, self.post.send
        )
        nodes, inputs = ({}, {}) if prediction is None else (prediction.nodes, inputs_of(prediction))
        apart = [Team.alone(nodes, number) for number in range(settings.workers)]
        places = settings.places(settings.workers)
        self.predicting = Staging(apart, {}, places, settings.wave_size, Known(), inputs, self.post.send, predicts=True)
        """Stages instances of the prediction graph; each worker has the whole graph."""

    def _prepare(self) -> Planner | None:
        """Rehearse for the first replica that has one worker; the others reuse that. (If a team has several workers,
        each of them rehearses its own part.)"""
        alone = next(((team, ends) for team, ends in self.teams if len(team.workers) == 1), None)
        if alone is None or not self._rehearsed:
            return None
        team, ends = alone
        planner = Planner(self.graph, self.wiring, team, team.workers[0], Shelf())
        with torch.no_grad():
            planner.rehearse(self._rehearsed, ends)
        return planner

    def _names(self) -> list[list[str]]:
        """Returns, for each worker, the nodes of its teams: a worker records the index of its current node."""
        teams = [[team for team, _ in self.teams if number in team.workers] for number in range(self.settings.workers)]
        return [[name for team in some for name in team.nodes] for some in teams]

    def _spin(self) -> float:
        """Returns the seconds for which a worker polls for rows of others before it sleeps: a wake-up takes 30 to 60
        us, and others wait for its rows. Zero if workers share cores."""
        apart = parted([team for team, _ in self.teams])
        return SPIN if apart and self.settings.workers <= len(os.sched_getaffinity(0)) else 0.0

    def _be_worker(self, number: int, pulse: Ints) -> None:
        """In the new process: serve until STOP."""
        settings = self.settings
        make_quiet()
        children.on_debugger(lambda: pulse.__setitem__(DEBUGGED, 1))
        torch.set_num_threads(settings.threads)
        if settings.pin:
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {cores[number % len(cores)]})
        for name, node in self.graph.parameterised().items():
            if self._hosts[name] == number:
                version = node.updater.version
                node.updater.adopt(node.updater.policy)
                self._beginning.give(node, version)
        host = Host(
            number,
            f"worker{number}",
            self.graph,
            self.wiring,
            self.teams,
            self.mesh.endpoint(number, spin=self._spin()),
            controller=settings.workers,
            places=self._places,
            instances=self._known.instances,
            inputs=self._inputs,
            wanted=self._events,
            pulse=memoryview(pulse),  # type: ignore[arg-type]
            parent=os.getppid(),
            clock=self.clock,
            schedule=settings.schedule,
            wave_size=settings.wave_size,
            seed=settings.seed,
            precision=settings.precision,
            prediction=self.prediction,
            versions=(self._versions, list(self.graph.parameterised())),
        )
        # After a loss, a worker that has a part of the model plans instances as they come, to begin soon.
        host.rehearse(() if self._beginning.again and self.prepared is None else self._rehearsed, self.prepared)
        host.player.first = self._beginning.waves
        self._on_worker(host)
        host.serve()

    def end(self, *, lost: bool = False) -> Mapping[str, UpdaterState]:
        """End the workers: send STOP, wait briefly, kill the remaining ones. In a process that did not make them, only
        close its copies. Returns no states: weights are in shared memory. If one was lost, the nodes here get the
        versions that are known."""
        with children.undisturbed():
            patience = 0.0
            if self.crew.mine and not self.post.broken:
                patience = _IN_HASTE if lost else _PATIENCE
                self.post.everybody(Kind.STOP)
            self._finalizer.detach()
            self.crew.end(patience)
            self.post.endpoint.close()
            self.mesh.close()
        if lost:
            for node, version in zip(self.graph.parameterised().values(), self._versions, strict=True):
                node.updater.version = max(node.updater.version, version)
        return {}


def _share(graph: Graph, prediction: Graph | None) -> None:
    predicting = [] if prediction is None else [node.updater for node in prediction.parameterised().values()]
    others = [p for updater in predicting for p in updater.parameters]
    tables = [group.table for group in graph.replicas.values() if group.table is not None]
    shared = iter(share(graph, [tensor for table in tables for tensor in table.tensors()], others))
    for table in tables:
        table.move([next(shared) for _ in table.tensors()])
    for node in graph.parameterised().values():
        node.updater.leave()
    for updater in predicting:
        updater.rebind(no_sums)


def _mesh(settings: WorkerSettings) -> Mesh:
    try:
        return Mesh(settings.workers + 1, settings.capacity)
    except (OSError, ValueError) as error:
        raise TransportError(f"no shared memory between {settings.workers} workers: {error}. Use fewer") from error


def _let_go(crew: Crew, mesh: Mesh) -> None:
    """Finaliser of a runtime that was not closed: ends its workers and closes file descriptors, in the maker only."""
    if crew.mine:
        crew.end()
        mesh.close()
