"""Processes: a graph on several worker processes of one machine. The controller stays in the caller's process.

    controller ──pump──>  worker 0 ──messages──> worker 1 ...          every worker hosts some of the nodes
        ^ ^                  │ ^                   │ │
        │ └── answers ───────┘ └──── gradients ────┘ │
        └───────────────────── reports ──────────────┘

All of it (rings in shared memory, parameters, the graph itself) is made before the processes fork from the caller's, so
nothing is pickled and nothing has a name that could be left behind. A worker runs the same `Worker` as inline. Results
are those of the inline runtime up to the order of things.

What is promised when something goes wrong: the caller gets one named error, soon. An error in a node ends the run, not
the workers, and nothing is in flight any more; a worker that died or is stuck ends all of them. Workers end by
themselves when their maker is gone.
"""

from __future__ import annotations

import copy
import json
import mmap
import os
import select
import signal
import sys
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NoReturn

import numpy as np
import torch

from ampnet.errors import AmpnetError, StallError, WorkerDied
from ampnet.events.log import Announcer, Backward, Event, Forward, Listener, Updated, from_json
from ampnet.graph import CONTROLLER, Graph
from ampnet.instance import Stream
from ampnet.message import Messages
from ampnet.nodes.node import Direction
from ampnet.runtime.host import Host, make_quiet
from ampnet.runtime.placement import Trial, by_hand, peek, place
from ampnet.runtime.protocol import Kind, Ports, error_of, instances_note, report_of, structure_note
from ampnet.runtime.runtime import Runtime
from ampnet.runtime.shared import share
from ampnet.runtime.transport import Batch, Endpoint, Mesh, Note
from ampnet.schedule import ENOUGH_ROWS, Schedule, make_schedule
from ampnet.state import Column, Ints
from ampnet.structure import Structure
from ampnet.update.policy import Update
from ampnet.worker import Counts

_NAP = 0.02
"""Seconds for which the controller sleeps at most before it looks after its workers."""
_QUIET = 1.0
"""Seconds without news after which it asks whether anything can still move."""
_PATIENCE = 2.0
"""Seconds that workers have to end when they are told to."""


class Processes(Runtime):
    """Runs a graph on ``workers`` processes.

    ``affinity`` names a worker for nodes by name or pattern; all others are placed by what they cost in a short trial
    on the first instances (``"auto"``). Each worker has ``threads`` torch threads; with ``pin`` it stays on a core of
    its own. A worker that makes no step for ``stuck_after`` seconds is taken for stuck (None: never). The other
    settings are those of `Inline`.

    Workers start with the first run and stay until `close`. Parameters are in shared memory from then on: the model in
    this process has the weights as they are at any moment. Linux only.
    """

    kind = "processes"

    def __init__(
        self,
        graph: Graph,
        *,
        workers: int = 2,
        affinity: Mapping[str, int] | Literal["auto"] = "auto",
        threads: int = 1,
        pin: bool = False,
        stuck_after: float | None = 4.0,
        capacity: int = 8 << 20,
        update: Update | None = None,
        updates: Mapping[str, Update | None] | None = None,
        max_active_keys: int = 4,
        max_batch: int | None = None,
        enough_rows: int | None = ENOUGH_ROWS,
        schedule: str | Schedule = "sweep",
        seed: int = 0,
        listeners: Sequence[Listener] = (),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``capacity``: bytes of the ring between two processes; what does not fit waits with its sender."""
        if workers < 1:
            raise ValueError(f"workers must be 1 or more, got {workers}")
        if not hasattr(os, "fork") or not hasattr(os, "eventfd"):
            raise AmpnetError("worker processes need Linux (fork and eventfd); use the inline runtime")
        self.names = [f"worker{i}" for i in range(workers)]
        self.affinity: Mapping[str, int] = {} if affinity == "auto" else dict(affinity)
        self.hosts: dict[str, int] = {}
        """The worker of each node, once they are placed."""
        self._threads, self._pin, self._schedule, self._seed = threads, pin, schedule, seed
        self._limits = {"max_batch": max_batch, "enough_rows": enough_rows}
        self._later: list[Batch] = []
        self._capacity, self._stuck_after = capacity, stuck_after
        self._pids: list[int] = []
        self._ended: WorkerDied | None = None
        self._era = self._token = self._sent = self._received = 0
        self._heard = self._looked = 0.0
        self._last_answers: dict[int, dict[str, Any]] = {}
        self._beats: list[tuple[int, float]] = []
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
        self.settings["workers"] = workers

    # -- starting and ending

    def _start(self, streams: Iterable[Stream]) -> Iterable[Stream]:
        if self._ended is not None:
            raise AmpnetError(f"this runtime is over: {self._ended}")
        if self._pids:
            return streams
        streams = iter(streams)
        first = next(streams, None)
        if first is None:
            return []
        some, instances = peek(first.instances, min(8, self.controller.max_active_keys))
        first = Stream(instances, first.train, first.name, first.keep_predictions)
        self.hosts = self._place(some, first.train)
        self.settings["affinity"] = dict(self.hosts)
        self._fork()
        return _chained(first, streams)

    def _place(self, some: Sequence[Any], train: bool) -> dict[str, int]:
        workers = len(self.names)
        open_nodes = len(by_hand(self.graph, workers, self.affinity)) < len(self.graph.nodes)
        costs = None
        if some and train and open_nodes and workers > 1:
            trial = Trial(self.graph, max_active_keys=len(some), enough_rows=self._limits["enough_rows"])
            costs = trial.run(some)
        return place(self.graph, workers, self.affinity, costs)

    def _fork(self) -> None:
        workers = len(self.names)
        share(self.graph)
        for node in self.graph.parameterised().values():
            node.updater.adopt(node.updater.policy)  # optimizers hold the parameters as they are now
        self._ports = Ports(self.graph)
        self._mesh = Mesh(workers + 1, self._capacity)
        self._memory = mmap.mmap(-1, mmap.PAGESIZE * (1 + workers * 64 // mmap.PAGESIZE))
        self._pulse: Ints = np.frombuffer(self._memory, dtype=np.int64, count=8 * workers).reshape(workers, 8)
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        for number in range(workers):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of threads: workers have no use for theirs
                pid = os.fork()
            if pid == 0:
                self._be_worker(number, parent)
            self._pids.append(pid)
        self._finalizer = weakref.finalize(self, _end_all, list(self._pids), parent)
        self._endpoint: Endpoint = self._mesh.endpoint(workers)
        self._watched = [_pidfd(pid) for pid in self._pids]
        now = time.monotonic()
        self._beats = [(-1, now)] * workers
        self._heard = self._looked = now

    def _be_worker(self, number: int, parent: int) -> NoReturn:
        """In the new process: work until told to end."""
        status = 1
        try:
            make_quiet()
            torch.set_num_threads(self._threads)
            if self._pin:
                cores = sorted(os.sched_getaffinity(0))
                os.sched_setaffinity(0, {cores[number % len(cores)]})
            Host(
                number,
                self.names[number],
                self.graph,
                self._wiring,
                copy.deepcopy(make_schedule(self._schedule, self._seed + number)),
                self._mesh.endpoint(number),
                hosts=self.hosts,
                controller=len(self.names),
                kinds=[k for k in (Forward, Backward, Updated) if self._announce.wants(k)],
                pulse=self._pulse[number],
                parent=parent,
                clock=self.clock,
                **self._limits,
            ).serve()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    def close(self) -> None:
        """End the workers, whatever they do."""
        self.controller.abandon()
        if self._pids:
            self._end("were closed")

    def _end(self, how: str) -> None:
        """Tell workers to end; kill those that do not."""
        if self._ended is None:
            self._ended = WorkerDied("all", how)
        pids, self._pids = self._pids, []
        for number in range(len(pids)):
            self._endpoint.send(number, Note(Kind.STOP, {}, {}))
        self._endpoint.flush()
        _end_all(pids, os.getpid(), _PATIENCE)
        self._finalizer.detach()
        for fd in self._watched:
            if fd >= 0:
                os.close(fd)
        self._endpoint.close()
        self._mesh.close()
        del self._pulse
        self._memory.close()
        for name, node in self.graph.parameterised().items():
            node.updater.version = self._versions().get(name, node.updater.version)

    def _versions(self) -> dict[str, int]:
        return {name: v for answer in self._last_answers.values() for name, v in answer["versions"].items()}

    # -- to the workers

    def _post(self, port: int, messages: Messages) -> None:
        end = self._ends[port]
        self._sent += 1
        target = self._ports.target(end, Direction.FORWARD, self._era)
        self._endpoint.send(self.hosts[end.node], Batch(target, int(Direction.FORWARD), messages))

    def _everybody(self, note: Note) -> None:
        for number in range(len(self._pids)):
            self._endpoint.send(number, note)

    def _shelve(self, structures: Mapping[int, Structure]) -> None:
        needing = {self.hosts[name] for name, node in self.graph.nodes.items() if node.needs_structure}
        note = structure_note(structures)
        for number in needing:
            self._endpoint.send(number, note)

    def _retire(self, instances: Column, train: bool) -> None:
        self._everybody(instances_note(Kind.RETIRE, instances, train))

    def _forget(self, instances: Column) -> None:
        self._everybody(instances_note(Kind.FORGET, instances))

    def _flush(self) -> None:
        self._everybody(Note(Kind.FLUSH, {}, {}))

    # -- from the workers

    def _turn(self) -> None:
        if self._endpoint.pending():
            self._endpoint.flush()
        if self._take_in():
            self._heard = time.monotonic()
            return
        self._look_after()
        self._endpoint.wait(_NAP, [fd for fd in self._watched if fd >= 0])

    def _take_in(self) -> bool:
        """Hear what has arrived. What losses report comes before the answers that follow from it."""
        arrived = self._endpoint.receive()
        if not arrived:
            return False
        answers = [frame for _, frame in arrived if isinstance(frame, Batch)]
        if answers:
            # A report may have come while the answer was read that came after it.
            more = self._endpoint.receive()
            arrived += [(sender, frame) for sender, frame in more if isinstance(frame, Note)]
            self._later += [frame for _, frame in more if isinstance(frame, Batch)]
        for sender, frame in arrived:
            if isinstance(frame, Note):
                self._hear(sender, frame)
        for batch in answers:
            self._returned(batch)
        while self._later:
            self._take_in_later()
        return True

    def _take_in_later(self) -> None:
        answers, self._later = self._later, []
        more = self._endpoint.receive()
        for sender, frame in more:
            if isinstance(frame, Note):
                self._hear(sender, frame)
            else:
                self._later.append(frame)
        for batch in answers:
            self._returned(batch)

    def _returned(self, batch: Batch) -> None:
        self._received += 1
        end, era = self._ports.find(batch.target, batch.direction)
        if era == self._era:
            assert end.node == CONTROLLER
            self.controller.returned(end.port, batch.messages)

    def _hear(self, sender: int, note: Note) -> None:
        if note.kind == Kind.EVENTS:
            text = bytes(np.asarray(note.arrays["text"])).decode()
            self._events.collect([from_json(data) for data in json.loads(text)])
        elif note.kind == Kind.ANSWER:
            self._last_answers[sender] = note.data
        elif note.data.get("era") != self._era:
            return
        elif note.kind == Kind.REPORT:
            self.controller.report(report_of(note))
        elif note.kind == Kind.ERROR:
            raise error_of(note, self.names[sender])

    # -- looking after the workers

    def _look_after(self) -> None:
        """Nothing is heard: is anybody dead, stuck, or waiting for what will never come?"""
        now = time.monotonic()
        for number, pid in enumerate(self._pids):
            self._check(number, pid, now)
        if now - self._heard > _QUIET:
            self._heard = now
            before = self._last_answers
            if self._ask() and self._nothing_moves(before):
                waits = [line for a in self._last_answers.values() for line in a["waits"]]
                held = [f"{k} holds {n}" for a in self._last_answers.values() for k, n in a["held"].items()]
                raise StallError(self.controller.in_flight, [*waits, *held])

    def _check(self, number: int, pid: int, now: float) -> None:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            how = _how_it_ended(status)
            self._lose(number, how)
        beat = int(self._pulse[number, 0])
        if beat != self._beats[number][0] or self._pulse[number, 1]:
            self._beats[number] = (beat, now)
        elif self._stuck_after is not None and now - self._beats[number][1] > self._stuck_after:
            names = [name for name in self.graph.order() if self.hosts[name] == number]
            at = int(self._pulse[number, 2])
            where = f"in node '{names[at]}'" if 0 <= at < len(names) else ""
            self._lose(number, f"has made no step for {self._stuck_after:g} s {where}".rstrip())

    def _lose(self, number: int, how: str) -> NoReturn:
        error = WorkerDied(self.names[number], how)
        self._ended = error
        raise error

    def _nothing_moves(self, before: Mapping[int, Mapping[str, Any]]) -> bool:
        now = self._last_answers
        sent = self._sent + sum(a["sent"] for a in now.values())
        received = self._received + sum(a["received"] for a in now.values())
        same = all(
            number in before and all(before[number][k] == a[k] for k in ("sent", "received", "messages"))
            for number, a in now.items()
        )
        return same and sent == received and all(a["idle"] for a in now.values())

    def _ask(self) -> bool:
        """Ask all workers how they are, and wait for their answers. False where other news came meanwhile."""
        self._token += 1
        self._last_answers = {}
        heard = self._received
        self._everybody(Note(Kind.ASK, {"token": self._token}, {}))
        while len(self._last_answers) < len(self._pids):
            self._endpoint.flush()
            if not self._take_in():
                now = time.monotonic()
                for number, pid in enumerate(self._pids):
                    self._check(number, pid, now)
                self._endpoint.wait(_NAP, [fd for fd in self._watched if fd >= 0])
        self._events.release(self.clock())
        return heard == self._received

    def _settle(self) -> None:
        self._ask()
        for name, version in self._versions().items():
            node = self.graph.parameterised()[name]
            node.updater.version = version

    def _rested(self) -> None:
        self._events.release(self.clock())

    def _abandon(self) -> None:
        if not self._pids:
            return
        if self._ended is not None:
            self._end(self._ended.how)
            return
        self._era += 1
        self._later = []
        self._events.drop()
        self._everybody(Note(Kind.ABANDON, {"era": self._era}, {}))
        self._endpoint.flush()

    def held(self) -> dict[str, int]:
        held: dict[str, int] = {}
        if self._pids:
            self._ask()
            for number, answer in self._last_answers.items():
                held |= {f"{self.names[number]}: {what}": n for what, n in answer["held"].items()}
        if self.controller.in_flight:
            held["instances in flight"] = len(self.controller.in_flight)
        return held

    def counts(self) -> Counts:
        if self._pids:
            self._ask()
        answers = self._last_answers.values()
        return Counts(sum(a["invocations"] for a in answers), sum(a["messages"] for a in answers))

    def _announcer(self, listeners: Sequence[Listener]) -> Announcer:
        self._events = InOrder(listeners)
        return self._events


class InOrder(Announcer):
    """Events of several processes reach the listeners in the order in which they ended.

    They are kept until every worker has been asked, and so has sent all it had: then what is older than the question is
    complete.
    """

    def __init__(self, listeners: Sequence[Listener] = ()) -> None:
        super().__init__(listeners)
        self._kept: list[Event] = []

    def __call__(self, event: Event) -> None:
        self._kept.append(event)

    def collect(self, events: Sequence[Event]) -> None:
        """Events of a worker."""
        self._kept += events

    def release(self, until: float) -> None:
        """Hand on all that ended by then."""
        self._kept.sort(key=_ended)
        ready = [event for event in self._kept if _ended(event) <= until]
        self._kept = self._kept[len(ready) :]
        for event in ready:
            super().__call__(event)

    def drop(self) -> None:
        """A run was abandoned."""
        self._kept.clear()


def _ended(event: Event) -> float:
    return event.time + float(getattr(event, "seconds", 0.0))


def _chained(first: Stream, rest: Iterable[Stream]) -> Iterable[Stream]:
    yield first
    yield from rest


def _pidfd(pid: int) -> int:
    """Something to poll that becomes readable when a process ends; -1 where the system has no such thing."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1


def _how_it_ended(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"was killed by signal {number} ({signal.Signals(number).name})"
    return f"ended by itself, with status {os.waitstatus_to_exitcode(status)}"


def _end_all(pids: Sequence[int], parent: int, patience: float = 0.0) -> None:
    """Wait a little for processes to end, kill those that do not, and bury all."""
    if os.getpid() != parent:
        return  # a forked copy of the one that owns them
    left = [pid for pid in pids if not _buried(pid)]
    until = time.monotonic() + patience
    fds = [fd for fd in map(_pidfd, left) if fd >= 0]
    try:
        while left and time.monotonic() < until:
            select.select(fds, [], [], 0.05)
            left = [pid for pid in left if not _buried(pid)]
            fds = [fd for fd in fds if fd >= 0]
    finally:
        for fd in fds:
            os.close(fd)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _buried(pid: int) -> bool:
    try:
        done, _ = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return True
    return done != 0
