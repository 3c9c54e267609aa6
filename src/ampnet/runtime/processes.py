"""Processes: a graph on several worker processes of one machine. The controller stays in the caller's process.

    controller ──pump──>  worker 0 ──messages──> worker 1 ...          every worker hosts some of the nodes
        ^ ^                  │ ^                   │ │
        │ └── answers ───────┘ └──── gradients ────┘ │
        └───────────────────── reports ──────────────┘

All of it (rings in shared memory, parameters, the graph itself) is made before the processes fork from the caller's, so
nothing is pickled and nothing has a name that could be left behind. A worker runs the same `Worker` as inline. Results
are those of the inline runtime up to the order of things.

What shares out pumped messages among replicas (the Conds behind inputs) is done here, beside the controller: a message
then goes straight to the worker of its replica, and workers hear of their own instances only.

What is promised when something goes wrong: the caller gets one named error, soon. An error in a node ends the run, not
the workers, and nothing is in flight any more; a worker that died or is stuck ends all of them. Workers end by
themselves when their maker is gone.
"""

from __future__ import annotations

import copy
import mmap
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, islice, takewhile
from typing import Any, Literal, NoReturn

import numpy as np
import torch

from ampnet.errors import AmpnetError, DataError, StallError, TransportError, WorkerDied
from ampnet.events.log import Announcer, Backward, Forward, Listener, Return
from ampnet.graph import CONTROLLER, End, Graph
from ampnet.instance import Instance, Stream
from ampnet.message import Messages
from ampnet.nodes.node import Direction
from ampnet.nodes.products import Precision
from ampnet.nodes.transform import Parameterised
from ampnet.plan.planner import Planner
from ampnet.reference.schedule import ENOUGH_ROWS, Schedule, make_schedule
from ampnet.reference.worker import Counts, Worker
from ampnet.replicas.replicate import concerned, entrances
from ampnet.reuse import BufferWatch
from ampnet.runtime import children
from ampnet.runtime.engine import Engine, check_precision, choose_engine
from ampnet.runtime.events import KINDS, InOrder, events_of
from ampnet.runtime.host import Host, make_quiet
from ampnet.runtime.placement import Trial, by_hand, known, peek, place
from ampnet.runtime.protocol import (
    Kind,
    Ports,
    done_of,
    error_of,
    instances_note,
    loss_metrics,
    report_of,
    structure_note,
)
from ampnet.runtime.runtime import Runtime
from ampnet.runtime.shared import share
from ampnet.runtime.stats import RunStats
from ampnet.runtime.transport import Batch, Endpoint, Frame, Mesh, Note
from ampnet.state import Column, Ints
from ampnet.structure import Shelf, Structure
from ampnet.update.policy import Update

_NAP = 0.02
"""Seconds for which the controller sleeps at most before it looks after its workers."""
_QUIET = 1.0
"""Seconds without news after which it asks whether anything can still move."""
_WAVES = 2
"""For each worker, at the start of a run."""
_TRIED = 128
"""Instances of a trial at most; no more than there are in a wave, so that batches are as large as they will be."""
_PATIENCE = 2.0
"""Seconds that workers have to end when they are told to."""
_SHOW = 0.25
"""Seconds after which workers are asked for their events, where somebody listens."""


class Processes(Runtime):
    """Runs a graph on ``workers`` processes.

    ``affinity`` names a worker for nodes by name or pattern; all others are placed by what they cost in a short trial
    on the first instances (``"auto"``). Each worker has ``threads`` torch threads; with ``pin`` it stays on a core of
    its own. A worker that makes no step and uses no processor time for ``stuck_after`` seconds is taken for stuck
    (None: never), unless it runs in a debugger: a long computation is never ended, a long wait for a disk or a network
    may be. The other settings are those of `Inline`.

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
        wave_size: int | None = None,
        schedule: str | Schedule | None = None,
        seed: int = 0,
        listeners: Sequence[Listener] = (),
        clock: Callable[[], float] = time.perf_counter,
        waves: bool = True,
        precision: Precision = "float32",
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
        self._last = False
        """Whether what is posted now is the last of its instances."""
        self._front: Worker | None = None
        """Hosts what is done beside the controller."""
        self._ended_streams = 0
        self._equal_after: dict[str, int] = {}
        """By group of replicas: after how many training streams they have been made equal."""
        self._capacity, self._stuck_after = capacity, stuck_after
        self._pids: list[int] = []
        self._ended: str | None = None
        """Why there can be no further run."""
        self._running = self._sending = False
        """Whether something is being sent or received: interrupted there, a ring may be left in any condition."""
        self._shown = 0.0
        self._showing: tuple[int, float, set[int]] | None = None
        """The question for events that was asked last, when, and who has yet to answer it."""
        self._era = self._token = self._sent = self._received = 0
        self._heard = 0.0
        """When something last moved. Events that workers were asked for are no sign of it."""
        self._last_answers: dict[int, dict[str, Any]] = {}
        self._quiet: list[children.Quiet] = []
        self._watched: list[int] = []
        super().__init__(
            graph,
            update=update,
            updates=updates,
            max_active_keys=max_active_keys,
            wave_size=wave_size,
            max_batch=max_batch,
            enough_rows=enough_rows,
            schedule=schedule,
            seed=seed,
            listeners=listeners,
            clock=clock,
        )
        self.settings["workers"] = workers
        self._wave_size, self._precision = wave_size, precision
        self._instances: list[Instance] = []
        """Those that workers have from the start."""
        self._numbered: dict[int, int] = {}
        self._stamps: list[tuple[int, ...] | None] = []
        """Of each of them, as it was when the workers were made (see `_stamp`)."""
        self._rehearsed: list[Instance] = []
        self._prepared: Planner | None = None
        """What workers take over of what was found out about those."""
        self._entrances = entrances(graph, self._wiring)
        self._inner = [name for name in graph.nodes if name not in self._entrances]
        engine = self._engine(waves, max_batch, schedule)
        check_precision(precision, engine.waves)
        self._set_engine(engine)
        self._waves = engine.waves
        self._places = max_active_keys
        self.on_worker: Callable[[Host], None] = lambda host: None
        """Called in each worker process before it serves, for instruments. To be set before the first run."""

    def know(self, instances: Iterable[Instance]) -> None:
        """Workers will have these instances from the start: to be pumped, each of them is then named, not sent.

        To be called before the first run. Instances that are the list of a stream in the first run are known anyway.

        Workers have them as they are when the first run starts. A payload that is changed in place later, by an
        operation of torch, is noticed: that instance is sent from then on. A change through memory that is shared with
        NumPy is not noticed. States and structures are immutable.
        """
        if self._pids:
            raise AmpnetError("the workers are there already: tell them of instances before the first run")
        for instance in instances:
            if id(instance) not in self._numbered:
                self._numbered[id(instance)] = len(self._instances)
                self._instances.append(instance)

    @property
    def may_play(self) -> bool:
        """Whether workers may compute whole instances, so that there is a use in rehearsing them."""
        return self._waves

    def rehearse(self, instances: Iterable[Instance]) -> None:
        """Before the first run: find out what is to be computed for these instances, for all workers at once.

        They are then known as well (see `know`). It is done when the workers are made, at the start of that run.
        """
        known = list(instances)
        self.know(known)
        self._rehearsed += known

    def _stage(self, instances: Mapping[int, Instance], stream: Stream) -> bool:
        if not self._instances or not self._waves:
            return False
        places = [self._place_of(instance) for instance in instances.values()]
        if min(places) < 0 or not all(instance.complete for instance in instances.values()):
            return False
        numbers = np.fromiter(instances, dtype=np.int64, count=len(instances))
        data = {"era": self._era, "train": stream.train, "stream": self.controller.sending}
        note = Note(Kind.STAGE, data, {"instances": numbers, "places": np.array(places)})
        self._send(self._homes[int(numbers[0]) % self.controller.parts], note)
        return True

    def _place_of(self, instance: Instance) -> int:
        """The number by which workers know an instance; -1 where they do not know it, or not as it is now."""
        place = self._numbered.get(id(instance), -1)
        if place >= 0 and self._stamps[place] != _stamp(instance):
            del self._numbered[id(instance)]
            return -1
        return place

    def _stagger(self) -> None:
        """Begin with some of the places only; `_hear` opens more, a wave for each report of a loss.

        Instances that are pumped together stay together: at a node, all that waits is one batch. As one great wave they
        would keep one worker busy at a time. In several waves, each worker has one to work on, and one that waits.
        Replicas of a whole model work side by side anyway.
        """
        share = -(-self._places // (_WAVES * len(self.names)))
        self._wave = share if concerned(self.graph.copies, self._inner) is None else self._places
        self._judged = False
        self.controller.max_active_keys = self._wave

    def _open_places(self) -> None:
        self.controller.max_active_keys = min(self._places, self.controller.max_active_keys + self._wave)

    # -- starting and ending

    def _start(self, streams: Iterable[Stream]) -> Iterable[Stream]:
        if self._running:
            self._abandon()  # a second interrupt kept the run before from being wound up
        if self._ended is not None:
            raise AmpnetError(f"this runtime is over: {self._ended}")
        self._running = True
        self._stagger()
        if self._pids:
            return streams
        for stream in streams if isinstance(streams, Sequence) else ():
            if isinstance(stream.instances, list | tuple) and self._waves:
                self.know(i for i in stream.instances if isinstance(i, Instance))
        streams = iter(streams)
        first = next(streams, None)
        if first is None:
            return []
        some, first = _ahead(first, min(_TRIED, self._wave))
        hosts = self._place(some, first.train)
        by_name = by_hand(self.graph, len(self.names), self.affinity)
        self._entrances = {name: port for name, port in self._entrances.items() if name not in by_name}
        self._inner = [name for name in self.graph.nodes if name not in self._entrances]
        self.settings["affinity"] = {name: host for name, host in hosts.items() if name not in self._entrances}
        self.hosts = hosts | dict.fromkeys(self._entrances, len(self.names))
        self._fork()
        return _chained(first, streams)

    def _equalise(self) -> None:
        if self._pids and not self._equal:
            if self._running:
                self._abandon()
            self._ask()  # workers that have heard of the end of the run before update nothing more
        super()._equalise()

    def _place(self, some: Sequence[Any], train: bool) -> dict[str, int]:
        workers = len(self.names)
        open_nodes = len(known(self.graph, workers, self.affinity)) < len(self.graph.nodes)
        costs = None
        if some and train and open_nodes and workers > 1:
            trial = Trial(self.graph, max_active_keys=len(some), enough_rows=self._limits["enough_rows"])
            costs = trial.run(some)
        return place(self.graph, workers, self.affinity, costs)

    def _fork(self) -> None:
        workers = len(self.names)
        self._make_tables()  # anew: a trial had weights frozen
        tables = [group.table for group in self.graph.replicas.values() if group.table is not None]
        shared = iter(share(self.graph, [tensor for table in tables for tensor in table.tensors()]))
        for table in tables:
            table.move([next(shared) for _ in table.tensors()])
        for node in self.graph.parameterised().values():
            node.updater.adopt(node.updater.policy)  # optimizers hold the parameters as they are now
        self._make_interests()
        self._ports = Ports(self.graph)
        self._losses = loss_metrics(self.graph)
        self._mesh = Mesh(workers + 1, self._capacity)
        self._memory = mmap.mmap(-1, mmap.PAGESIZE * (1 + workers * 64 // mmap.PAGESIZE))
        self._pulse: Ints = np.frombuffer(self._memory, dtype=np.int64, count=8 * workers).reshape(workers, 8)
        self._endpoint: Endpoint = self._mesh.endpoint(workers, causal=True)
        if self._whole:
            self._endpoint.spin = 0.0  # workers have something staged: there is no hurry
        self._prepare()
        self._stamps = [_stamp(instance) for instance in self._instances]
        for instance, stamp in zip(self._instances, self._stamps, strict=True):
            if stamp is None:
                del self._numbered[id(instance)]
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        with children.undisturbed():
            self._finalizer = weakref.finalize(self, _let_go, self._pids, parent, self._watched, self._mesh)
            try:
                for number in range(workers):
                    self._pids.append(children.fork(partial(self._be_worker, number, parent)))
            except BaseException:
                self._end("could not all be made")
                raise
            self._watched += [children.watch(pid) for pid in self._pids]
        if self._entrances:
            self._front = Worker(
                CONTROLLER,
                self.graph,
                self._wiring,
                make_schedule("fifo", 0),
                hosts=list(self._entrances),
                send=self._from_front,
                tell=self.controller.report,
                announce=self._announce,
                clock=self.clock,
            )
        now = time.monotonic()
        self._quiet = [children.Quiet(pid, now) for pid in self._pids]
        self._heard = self._shown = now

    def _prepare(self) -> None:
        """Rehearse what was asked for, with the nodes of the first worker, before there are others."""
        if not self._waves or not self._rehearsed:
            return
        mine = {name: self.graph.nodes[name] for name in self.graph.order() if self.hosts[name] == 0}
        shelf = Shelf()
        for node in mine.values():
            node.shelf = shelf
        self._prepared = Planner(self.graph, self._wiring, mine, shelf)
        replica = next((copy for copy, worker in self._homes.items() if worker == 0), None)
        if replica is not None:
            with torch.no_grad():
                self._prepared.rehearse(self._rehearsed, self._inputs_of(replica))

    def _make_interests(self) -> None:
        """Which instances each worker has to hear of: that retire, that are forgotten, and structures of which."""
        nodes, hosts = self.graph.nodes, self.hosts
        here = [[name for name in self._inner if hosts[name] == number] for number in range(len(self.names))]
        asking = [[n for n in names if nodes[n].needs_structure] for names in here]
        counting = [[n for n in names if isinstance(nodes[n], Parameterised)] for names in here]
        copies = self.graph.copies
        self._structured = [concerned(copies, names) for names in asking]
        self._retiring = [concerned(copies, [*a, *c]) for a, c in zip(asking, counting, strict=True)]
        self._forgetting = [concerned(copies, names) for names in here]

        # Replicas of the whole model, each of them on one worker: that one can tell when an instance is done.
        homes = {(c.number, hosts[name]) for name, c in copies.items()}
        counts = {c.count for c in copies.values()}
        whole = concerned(copies, self._inner) is not None and len(counts) == 1
        self._whole = whole and len(homes) == counts.pop() and not any(hosts[n] < len(here) for n in self._entrances)
        self.controller.parts = len(homes) if self._whole else 1
        if self._waves and (not self._whole or len({worker for _, worker in homes}) < len(homes)):
            self._set_engine(Engine(False, "not every worker has one replica of the whole model to itself"))
            self._waves = False
            check_precision(self._precision, False)
        listened = any(self._announce.wants(kind) for kind in (Return, Forward, Backward))
        self._brief = self._whole and (self._waves or not listened)
        self._homes = dict(homes)
        """By replica of the whole model: its worker."""
        self._ways = {
            port: [self._wiring.forward[End(name, i)] for i in range(len(nodes[name].outputs))]
            for name, port in self._entrances.items()
        }

    def _engine(self, waves: bool, max_batch: int | None, schedule: str | Schedule | None) -> Engine:
        """Workers with a replica of the whole model each play waves; where a model is parted, messages are passed."""
        if concerned(self.graph.copies, self._inner) is None:
            if isinstance(schedule, str):
                make_schedule(schedule, 0)
            return Engine(False, "the model is parted over workers" if waves else "waves=False")
        first = {n: self.graph.nodes[n] for n in self._inner if self.graph.copies[n].number == 0}
        return choose_engine(self.graph, self._wiring, first, waves, max_batch=max_batch, schedule=schedule)

    def _be_worker(self, number: int, parent: int) -> None:
        """In the new process: work until told to end."""
        make_quiet()
        pulse = self._pulse[number]
        children.on_debugger(lambda: pulse.__setitem__(3, 1))
        torch.set_num_threads(self._threads)
        if self._pin:
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {cores[number % len(cores)]})
        host = Host(
            number,
            self.names[number],
            self.graph,
            self._wiring,
            copy.deepcopy(self._schedule),
            self._mesh.endpoint(number, causal=True),
            hosts=self.hosts,
            controller=len(self.names),
            kinds=[kind for kind in KINDS if self._announce.wants(kind)],
            pulse=memoryview(pulse),
            parent=parent,
            clock=self.clock,
            share=self._share(number) if self._whole else None,
            brief=self._brief,
            waves=self._waves,
            wave_size=self._wave_size,
            seed=self._seed,
            precision=self._precision,
            ends=[self._inputs_of(copy) for copy in range(self.controller.parts)] if self._whole else (),
            instances=self._instances,
            **self._limits,
        )
        if self._prepared is not None and host.player is not None:
            host.player.planner.take_over(self._prepared)
        self.on_worker(host)
        if self._threads == 1:
            host.serve()
            return
        # OpenMP's threads belong to the thread that used them first, and of those only that one is in a forked process:
        # it would wait for them for ever.
        with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(self._threads,)) as fresh:
            fresh.submit(host.serve).result()

    def _inputs_of(self, replica: int) -> dict[str, End]:
        """Where each input leads, for the instances of one replica of the whole model."""
        return {given.name: self._ways[port][replica] for port, given in enumerate(self.graph.inputs)}

    def _share(self, number: int) -> int:
        """How many instances may be in flight at a worker that does all of them."""
        here = {found.number for name, found in self.graph.copies.items() if self.hosts[name] == number}
        return len(here) * -(-self._places // self.controller.parts)

    def close(self) -> None:
        """End the workers, whatever they do."""
        self.controller.abandon()
        if self._pids:
            self._end("were closed")

    def _end(self, how: str) -> None:
        """Tell workers to end; kill those that do not."""
        with children.undisturbed():
            self._ended = self._ended or f"its workers {how}"
            pids, self._pids = self._pids, []
            if not self._sending:
                for number in range(len(pids)):
                    self._endpoint.send(number, Note(Kind.STOP, {}, {}))
            children.end(pids, os.getpid(), 0.0 if self._sending else _PATIENCE)
            self._finalizer.detach()
            for fd in self._watched:
                if fd >= 0:
                    os.close(fd)
            self._endpoint.close()
            self._mesh.close()
            del self._pulse
            self._memory.close()
        self._set_versions()

    def _set_versions(self) -> None:
        """How often nodes have updated themselves, for whoever asks in this process."""
        if self.graph.runtime is not None and self.graph.runtime() is self:
            nodes = self.graph.parameterised()
            for name, version in self._versions().items():
                nodes[name].updater.version = version

    def _versions(self) -> dict[str, int]:
        return {name: v for answer in self._last_answers.values() for name, v in answer["versions"].items()}

    # -- to the workers

    def _post(self, port: int, messages: Messages, last: bool) -> None:
        self._last = last
        end = self._ends[port]
        if self._brief:  # all are for one replica
            number = int(messages.states.columns[0, 0]) % self.controller.parts
            end = self._ways[port][number]
        try:
            self._on(end, Direction.FORWARD, messages)
        except TransportError as error:
            raise DataError(f"input '{self.graph.inputs[port].name}': {error}") from error

    def _on(self, end: End, direction: Direction, messages: Messages) -> None:
        """Send messages to wherever they are for."""
        if end.node in self._entrances:
            assert self._front is not None
            self._front.deliver(end, direction, messages)
            while self._front.step():
                pass
        else:
            self._sent += 1
            stream = self.controller.sending if self._waves else 0  # workers compute instances of a stream together
            target = self._ports.target(end, direction, self._era, stream)
            self._send(self.hosts[end.node], Batch(target, int(direction), messages, self._last))

    def _from_front(self, end: End, direction: Direction, messages: Messages) -> None:
        if end.node == CONTROLLER:
            self.controller.returned(end.port, messages)
        else:
            self._on(end, direction, messages)

    def _send(self, number: int, frame: Frame) -> None:
        self._sending = True
        try:
            self._endpoint.send(number, frame)
        except TransportError:
            self._sending = self._endpoint.writing  # a frame that cannot be sent is known before it is written
            raise
        self._sending = False

    def _everybody(self, note: Note) -> None:
        for number in range(len(self._pids)):
            self._send(number, note)

    def _shelve(self, structures: Mapping[int, Structure]) -> None:
        if self._front is not None:
            self._front.shelve(structures)
        numbers = np.fromiter(structures, dtype=np.int64, count=len(structures))
        for number, interest in enumerate(self._structured):
            theirs = _of_interest(numbers, interest)
            if len(theirs):
                some = structures if theirs is numbers else {n: structures[n] for n in theirs.tolist()}
                self._send(number, structure_note(some))

    def _retire(self, instances: Column, train: bool) -> None:
        if not train:
            self._tell_of(Kind.RETIRE, instances, self._structured)
        elif not self._whole:  # those know already
            self._tell_of(Kind.RETIRE, instances, self._retiring, train)

    def _forget(self, instances: Column) -> None:
        self._tell_of(Kind.FORGET, instances, self._forgetting)

    def _tell_of(self, kind: Kind, instances: Column, interests: Sequence[Interest], train: bool = False) -> None:
        if self._front is not None:
            self._front.shelf.drop(instances)
        for number, interest in enumerate(interests):
            theirs = _of_interest(instances, interest)
            if len(theirs):
                self._send(number, instances_note(kind, theirs, train))

    def _flush(self) -> None:
        self._everybody(Note(Kind.FLUSH, {}, {}))
        self._ended_streams += 1
        self.controller.holding = any(group.table is not None for group in self.graph.replicas.values())

    # -- from the workers

    def _turn(self) -> None:
        if self._events.listeners and time.monotonic() - self._shown > _SHOW:
            self._show()
        if self._take_in():
            return
        self._look_after()
        self._wait()

    def _receive(self) -> list[tuple[int, Frame]]:
        self._sending = True
        if self._endpoint.pending():
            self._endpoint.flush()
        arrived = self._endpoint.receive()
        self._sending = False
        return arrived

    def _wait(self) -> None:
        self._sending = self._endpoint.pending() > 0  # else nothing is written while it waits
        self._endpoint.wait(_NAP, [fd for fd in self._watched if fd >= 0])
        self._sending = False

    def _take_in(self) -> bool:
        """Hear what has arrived. What losses report comes before the answers that follow from it."""
        arrived = self._receive()
        if not arrived:
            return False
        answers = [frame for _, frame in arrived if isinstance(frame, Batch)]
        if answers:
            # A report may have come while the answer was read that came after it.
            more = self._receive()
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
        more = self._receive()
        for sender, frame in more:
            if isinstance(frame, Note):
                self._hear(sender, frame)
            else:
                self._later.append(frame)
        for batch in answers:
            self._returned(batch)

    def _returned(self, batch: Batch) -> None:
        end, era = self._ports.find(batch.target, batch.direction)
        if era == self._era:
            self._heard = time.monotonic()
            if end is self._ports.done:
                done, reports = done_of(batch.messages, self._losses)
                for report in reports:
                    self.controller.report(report)
                self.controller.done(done)
                return
            self._received += 1
            free = self.controller.free
            if end.node == CONTROLLER:
                self.controller.returned(end.port, batch.messages)
            else:
                self._on(end, Direction.BACKWARD, batch.messages)
            if not self._judged and self.controller.free > free:
                self._open_places()  # instances of which no loss hears, whose way ends in a Sink

    def _hear(self, sender: int, note: Note) -> None:
        if note.kind == Kind.ANSWER:
            if note.data["token"] == self._token:
                self._last_answers[sender] = note.data
        elif note.data.get("era") != self._era:
            return
        elif note.kind == Kind.EVENTS:
            self._events.collect(events_of(note))
            if note.data["token"] is not None:
                self._showed(sender, note.data["token"])
        elif note.kind == Kind.REPORT:
            self._heard, self._judged = time.monotonic(), True
            self._open_places()  # a wave is half way round: the next one may follow
            self.controller.report(report_of(note))
        elif note.kind == Kind.EQUAL:
            self._heard = time.monotonic()
            self._equal_after[note.data["group"]] = note.data["ended"]
            if self.controller.holding and all(
                self._equal_after.get(name, 0) >= self._ended_streams
                for name, group in self.graph.replicas.items()
                if group.table is not None
            ):
                self.controller.release()
        elif note.kind == Kind.ERROR:
            raise error_of(note, self.names[sender])

    def _show(self) -> None:
        """Ask workers for their events, without waiting for them."""
        self._shown = time.monotonic()
        if self._showing is None:
            self._token += 1
            self._showing = (self._token, self.clock(), set(range(len(self._pids))))
            self._everybody(Note(Kind.SHOW, {"token": self._token}, {}))

    def _showed(self, number: int, token: int) -> None:
        if self._showing is not None and self._showing[0] == token:
            _, asked, missing = self._showing
            missing.discard(number)
            if not missing:
                self._showing = None
                self._events.release(asked)

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
        how = children.how_it_ended(pid)
        if how is not None:
            self._lose(number, how)
        beat, idle, at, debugged = self._pulse[number, :4].tolist()
        quiet = self._quiet[number]
        if self._stuck_after is None or idle or debugged:
            quiet.begin(beat, now)
        elif quiet.look(beat, now) > self._stuck_after:
            if not children.waits(pid):
                quiet.begin(beat, now)
                return
            names = [name for name in self.graph.order() if self.hosts[name] == number]
            where = f" in node '{names[at]}'" if 0 <= at < len(names) else ""
            self._lose(
                number,
                f"has made no step for {self._stuck_after:g} s{where}, and has used no processor time: it was stopped, "
                f"or waits for what does not come. Where nodes may wait that long (for a disk, a network), give a "
                f"larger stuck_after, or None",
            )

    def _lose(self, number: int, how: str) -> NoReturn:
        self._ended = f"worker '{self.names[number]}' {how}"
        self._end("were ended")
        raise WorkerDied(self.names[number], how)

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
        self._last_answers, self._showing = {}, None
        heard, asked = self._received, self.clock()
        self._everybody(Note(Kind.ASK, {"token": self._token}, {}))
        while len(self._last_answers) < len(self._pids):
            if not self._take_in():
                now = time.monotonic()
                for number, pid in enumerate(self._pids):
                    self._check(number, pid, now)
                self._wait()
        self._events.release(asked)
        return heard == self._received

    def _settle(self) -> None:
        self._ask()
        self._set_versions()

    def _rested(self) -> None:
        self._running = False
        self.controller.max_active_keys = self._places
        self._events.release(self.clock())

    def _abandon(self) -> None:
        if self._sending and self._pids:
            self._end("were interrupted in the middle of a message")
        with children.undisturbed():
            self._era += 1
            self.controller.max_active_keys = self._places
            self._sent = self._received = 0
            self._later, self._showing = [], None
            self._ended_streams, self._equal_after = 0, {}
            if self._front is not None:
                self._front.abandon()
            self._events.drop()
            self._everybody(Note(Kind.ABANDON, {"era": self._era}, {}))
            self._running = False

    def held(self) -> dict[str, int]:
        held: dict[str, int] = {}
        if self._pids:
            self._ask()
            for number, answer in self._last_answers.items():
                held |= {f"{self.names[number]}: {what}": n for what, n in answer["held"].items()}
        if self._front is not None:
            held |= self._front.held()
        if self.controller.in_flight:
            held["instances in flight"] = len(self.controller.in_flight)
        return held

    def counts(self) -> Counts:
        if self._pids:
            self._ask()
        answers = self._last_answers.values()
        return Counts(sum(a["invocations"] for a in answers), sum(a["messages"] for a in answers))

    def stats(self) -> RunStats:
        if self._pids:
            self._ask()
        answers = list(self._last_answers.values())
        waves, instances = (sum(a[name] for a in answers) for name in ("waves", "instances"))
        return self._stats(waves, instances, max((a["in_flight"] for a in answers), default=0))

    def _announcer(self, listeners: Sequence[Listener]) -> Announcer:
        self._events = InOrder(listeners)
        return self._events


def _stamp(instance: Instance) -> tuple[int, ...] | None:
    """How often each payload was written to; None where torch does not count that (in inference mode)."""
    try:
        return tuple([given.payload._version for given in instance.feeds.values() if given.payload is not None])
    except RuntimeError:
        return None


Interest = list[tuple[int, int]] | None
"""Instances that are so much modulo n, for pairs of (n, so much); None: all."""


def _of_interest(instances: Column, interest: Interest) -> Column:
    if interest is None:
        return instances
    mine = np.zeros(len(instances), dtype=bool)
    for n, number in interest:
        mine |= instances % n == number
    return instances[mine]


def _let_go(pids: Sequence[int], parent: int, watched: Sequence[int], mesh: Mesh) -> None:
    """A runtime that nobody closed is gone: so go its workers and file descriptors. Nothing in a copy of the parent."""
    if os.getpid() == parent:
        children.end(pids, parent)
        for fd in watched:
            if fd >= 0:
                os.close(fd)
        mesh.close()


def _ahead(stream: Stream, count: int) -> tuple[list[Instance], Stream]:
    """The first few instances of a stream, and the stream with all of them.

    They are read before any of them is computed with: a loader that fills one buffer again and again is found here.
    """
    if isinstance(stream.instances, list | tuple):
        some = list(stream.instances[:count])
    else:
        watch, source = BufferWatch(stream.name), chain.from_iterable((stream.instances,))

        def watched() -> Iterator[Instance]:
            for position, instance in enumerate(islice(source, count)):
                if isinstance(instance, Instance):
                    watch.read(instance, position)
                yield instance

        some, instances = peek(watched(), count)
        if watch.fault is not None:
            raise watch.fault
        stream = Stream(chain(instances, source), stream.train, stream.name, stream.keep_predictions)
    return list(takewhile(lambda instance: isinstance(instance, Instance), some)), stream


def _chained(first: Stream, rest: Iterable[Stream]) -> Iterable[Stream]:
    yield first
    yield from rest
