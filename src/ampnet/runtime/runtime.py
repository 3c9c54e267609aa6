"""Runtime: what all runtimes do alike. They differ in where the nodes are.

    pump ──> the nodes work ──> answers to the controller ──> retire ──> pump ...

A runtime checks the graph, gives nodes their update policies, and lets a `Controller` pump streams of instances until
the last one has retired. How messages get to the nodes and back is the affair of each: `Inline` has one worker in this
process, `Processes` has several in processes of their own.
"""

from __future__ import annotations

import gc
import platform
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Any, Self

import torch

from ampnet._version import __version__
from ampnet.controller import Controller, Progress
from ampnet.errors import AmpnetError, GraphError, nearest
from ampnet.events.log import Announcer, Begin, Listener, Rest
from ampnet.graph import CONTROLLER, End, Graph
from ampnet.instance import Instance, Stream, StreamStats
from ampnet.message import Messages
from ampnet.nodes.cond import Cond
from ampnet.nodes.dispatch import Dispatch
from ampnet.nodes.loss import Loss
from ampnet.reference.schedule import Schedule
from ampnet.reference.worker import Counts
from ampnet.replicas.group import Replicas, Table
from ampnet.runtime.engine import Engine
from ampnet.runtime.predicting import predict, predict_stream
from ampnet.runtime.rates import resolved
from ampnet.runtime.stats import RunStats
from ampnet.state import Column
from ampnet.structure import Structure
from ampnet.update.policy import Update
from ampnet.update.updater import Updater


class Runtime:
    """Base of the runtimes: a context manager that owns its workers. See the head of this file."""

    kind = "?"

    def __init__(
        self,
        graph: Graph,
        *,
        update: Update | None,
        updates: Mapping[str, Update | None] | None,
        max_active_keys: int,
        wave_size: int | None,
        max_batch: int | None,
        enough_rows: int | None,
        schedule: str | Schedule | None,
        seed: int,
        listeners: Sequence[Listener],
        clock: Callable[[], float],
    ) -> None:
        for name, value in (("max_batch", max_batch), ("enough_rows", enough_rows), ("wave_size", wave_size)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be 1 or more, got {value}")
        self.graph, self.clock = graph, clock
        self._predicting: Runtime | None = None
        """The runtime of the prediction graph, once something was predicted."""
        self._inside, self._began, self._ran = False, 0.0, 0.0
        """Whether a run is going on, since when, and seconds of all runs before, by `time.perf_counter`."""
        self._announce = self._announcer(listeners)
        self.settings: dict[str, Any] = {
            "runtime": self.kind,
            "max_active_keys": max_active_keys,
            "wave_size": wave_size,
            "max_batch": max_batch,
            "enough_rows": enough_rows,
            "schedule": schedule if isinstance(schedule, str | None) else type(schedule).__name__,
            "seed": seed,
            "versions": {"ampnet": __version__, "torch": torch.__version__, "python": platform.python_version()},
        }
        self._wiring = graph.validate()
        graph.runtime = weakref.ref(self)
        _adopt(graph, update, dict(updates or {}))
        self.settings["updates"] = {name: _summary(node.updater.policy) for name, node in graph.parameterised().items()}
        self._equal = True
        """Whether replicas were made equal when the run before ended."""
        self._left: dict[str, list[int]] = {}
        """By group: how often the weights of the first replica had been written to when a run was cut short."""
        self._make_tables()
        if graph.replicas:
            self.settings["replicas"] = [group.settings() for group in graph.replicas.values()]
        self._ends = [self._wiring.forward[End(CONTROLLER, i)] for i in range(len(graph.inputs))]
        self.controller = Controller(
            {i.name: i.fields for i in graph.inputs},
            [i.name for i, end in zip(graph.inputs, self._ends, strict=True) if self._is_label(end)],
            max_active_keys,
            post=self._post,
            stage=self._stage,
            read=self._read,
            shelve=self._shelve,
            retire=self._retire,
            forget=self._forget,
            flush=self._flush,
            moduli=[len(group.members) for group in graph.replicas.values() if group.balanced],
            losses={node.label: node.loss_name for node in graph.nodes.values() if isinstance(node, Loss)},
            announce=self._announce,
            clock=clock,
        )

    def _loss_skips(self) -> bool:
        return any(isinstance(node, Loss) and node.on_nan == "skip" for node in self.graph.nodes.values())

    def _set_engine(self, engine: Engine) -> None:
        """Note which engine runs, and why, where everybody can see it."""
        self.engine = engine
        self.controller.skips = self._loss_skips()
        self.settings["engine"], self.settings["engine_reason"] = engine.name, engine.reason
        if self.settings["schedule"] is None:
            self.settings["schedule"] = "backward-first" if engine.waves else "sweep"

    def _stats(self, waves: int, instances: int, in_flight: int, busy: Sequence[float] = ()) -> RunStats:
        """``busy``: seconds of each worker."""
        seconds = self._ran + (time.perf_counter() - self._began if self._inside else 0.0)
        seconds += 0.0 if self._predicting is None else self._predicting._ran
        shares = tuple(min(1.0, one / seconds) if seconds > 0 else 0.0 for one in busy)
        return RunStats(self.engine.name, self.engine.reason, waves, instances, in_flight, shares)

    def stats(self) -> RunStats:
        """Which engine ran, and how many waves it has played."""
        raise NotImplementedError

    def _is_label(self, end: End) -> bool:
        """Whether what is pumped there is a label, at most sent a way by its state first."""
        node = self.graph.nodes[end.node]
        if isinstance(node, Cond | Dispatch):
            return self._is_label(self._wiring.forward[End(end.node, 0)])
        return isinstance(node, Loss) and end.port == 1

    # -- replicas

    def _members(self, group: Replicas) -> list[Updater]:
        nodes = self.graph.parameterised()
        return [nodes[name].updater for name in group.members]

    def _make_tables(self) -> None:
        """A place for the replicas of each node to put their weights together, unless they are frozen."""
        faults = []
        for group in self.graph.replicas.values():
            updaters = self._members(group)
            frozen = [name for name, u in zip(group.members, updaters, strict=True) if u.policy is None]
            if frozen and len(frozen) < len(updaters):
                faults.append(f"replica '{frozen[0]}' is frozen and others of '{group.name}' are not")
            if group.sync.when == "shared" and any(u.stashes for u in updaters):
                faults.append(
                    f"replicas of '{group.name}' share their weights, so none can stash them: use weights='current', "
                    f"or another sync"
                )
            group.table = None if frozen else Table.of(updaters[0], group.sync, len(updaters))
        if faults:
            raise GraphError(faults)

    def _equalise(self) -> None:
        """Before a run: replicas start with the first one's weights, or with the mean after a run cut short.

        Unless other weights were loaded since then.
        """
        for name, group in self.graph.replicas.items():
            updaters = self._members(group)
            loaded = self._left.get(name) != _written(updaters[0])
            (group.equalise if self._equal or loaded else group.average)(updaters)

    # -- learning rates

    @property
    def learning_rates(self) -> dict[str, float]:
        """The learning rate of each node's optimizer, by the name of the node (of copies: one for all of them)."""
        return {self.graph.called(name): rate for name, rate in self._rates().items()}

    def set_learning_rates(self, rates: float | Mapping[str, float]) -> None:
        """From now on, all nodes that are trained have this learning rate; or nodes by name or pattern have theirs.

        May be called between runs, and in callbacks of a run: updates that are made after it use the new rates. On
        worker processes that is as soon as the worker hears of it, and before any instance that is pumped later.

        Not for nodes whose `Update` has a ``schedule``, which sets their rate.
        """
        self._set_rates(resolved(self.graph, rates))

    def _rates(self) -> dict[str, float]:
        """By node."""
        nodes = self.graph.parameterised().items()
        return {name: rate for name, node in nodes if (rate := node.updater.learning_rate) is not None}

    def _set_rates(self, rates: Mapping[str, float]) -> None:
        nodes = self.graph.parameterised()
        for name, rate in rates.items():
            nodes[name].updater.learning_rate = rate

    # -- what each runtime does in its own way

    def _announcer(self, listeners: Sequence[Listener]) -> Announcer:
        return Announcer(listeners, self.clock)

    @property
    def may_play(self) -> bool:
        """Whether whole instances may be computed at once, so that there is a use in rehearsing them."""
        raise NotImplementedError

    def rehearse(self, instances: Iterable[Instance]) -> None:
        """Find out ahead of time what is to be computed for these instances. Before the first run, or between two."""
        raise NotImplementedError

    def offer(self, instances: Sequence[Instance]) -> None:
        """These instances will be pumped again and again: a runtime may prepare for that. Before a run."""

    def _post(self, port: int, messages: Messages, last: bool) -> None:
        """Pumped messages, for an input; whether they are the last of their instances."""
        raise NotImplementedError

    def _stage(self, instances: Mapping[int, Instance], stream: Stream) -> Sequence[int]:
        """Take whole instances of a stream; returns how many workers will play each. None: post their messages."""
        return ()

    def _read(self, source: Iterator[Instance]) -> Instance:
        """The next instance of a stream; raises StopIteration after the last one."""
        return next(source)

    def _shelve(self, structures: Mapping[int, Structure]) -> None:
        """Where messages are passed: the structures of instances about to be posted."""
        raise NotImplementedError

    def _retire(self, instances: Column, train: bool) -> None:
        """These instances have retired."""

    def _forget(self, instances: Column) -> None:
        """Where messages are passed: drop what is left of these instances, of an inference that is over."""

    def _flush(self) -> None:
        raise NotImplementedError

    def _guarded(self) -> AbstractContextManager[object]:
        """Entered for the duration of a run."""
        return nullcontext()

    def _start(self, streams: Iterable[Stream]) -> Iterable[Stream]:
        """Make ready for a run over these streams; gives them back, or others that hold the same instances."""
        return streams

    def _turn(self) -> None:
        """Let something happen. Raises `StallError` where nothing can."""
        raise NotImplementedError

    def _settle(self) -> None:
        """The last instance has retired: wait until nodes have heard of all that was said to them."""

    def _rested(self) -> None:
        """The run is over, and all has been said about it."""

    def _abandon(self) -> None:
        """After an error: forget all that is in flight."""
        raise NotImplementedError

    def held(self) -> dict[str, int]:
        """Every queue and cache that is not empty; empty at rest."""
        raise NotImplementedError

    def counts(self) -> Counts:
        """Invocations and messages so far."""
        raise NotImplementedError

    def close(self) -> None:
        """End the run, if one is going on, and let go of everything."""
        raise NotImplementedError

    # -- what all do alike

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
        ``on_end`` hears of a stream's end at once and may call ``stop()``; ``on_turn`` hears of progress now and
        then, as listeners do that have a method ``turn``. None may call ``run``.
        """
        controller = self.controller
        if self._inside:
            raise AmpnetError("run was called within a run of this runtime; give it all streams, or wait for its end")
        if self.graph.runtime is None or self.graph.runtime() is not self:
            raise GraphError(["another runtime was made on this graph since; its nodes work for that one now"])
        controller.on_end = on_end if on_end is not None else lambda stats: None
        due = time.monotonic() + turn_seconds
        tables = [group for group in self.graph.replicas.values() if group.table is not None]
        try:
            self._inside, self._began, controller.stopping = True, time.perf_counter(), False
            with torch.no_grad(), _fewer_collections(), self._guarded():
                self._equalise()
                self._equal = not self.graph.replicas
                streams = self._start(self._readable(streams))
                self._began = time.perf_counter()
                if self._announce.wants(Begin):
                    self._announce(Begin(self.clock(), {**self.settings, "together": together, "barrier": barrier}))
                # Replicas are equal after a training stream only: what follows is to see them so.
                controller.begin(streams, together=together, barrier=barrier or (bool(tables) and not together))
                controller.pump()
                while controller.busy:
                    self._turn()
                    controller.pump()
                    if (on_turn is not None or self._announce.turns) and time.monotonic() >= due:
                        progress = controller.progress()
                        if progress is not None:
                            self._announce.turn(progress)
                            if on_turn is not None:
                                on_turn(progress)
                        due = time.monotonic() + turn_seconds
                self._settle()
                self._equal = True
        except BaseException:
            controller.abandon()
            self._abandon()
            self._left = {name: _written(self._members(group)[0]) for name, group in self.graph.replicas.items()}
            raise
        finally:
            self._inside = False
            self._ran += time.perf_counter() - self._began
        if self._announce.wants(Rest):
            held = self.held()
            self._announce(Rest(self.clock(), held))
        self._rested()
        return list(controller.finished)

    def _readable(self, streams: Iterable[Stream]) -> Iterable[Stream]:
        """The streams, with instances in place of the samples of a data set."""

        def readable(stream: Stream) -> Stream:
            instances = self.graph.read(stream.instances)
            return stream if instances is stream.instances else replace(stream, instances=instances)

        made = map(readable, streams)
        return list(made) if isinstance(streams, Sequence) else made

    def train(self, instances: Any, *, name: str = "train") -> StreamStats:
        """One epoch of training over these instances, or over the samples of a data set (`Compiled.instances`)."""
        return self.run([Stream(instances, True, name)])[0]

    def infer(
        self, instances: Iterable[Instance], *, name: str = "infer", keep_predictions: bool = False
    ) -> StreamStats:
        """Predictions, losses and metrics of these instances. Changes nothing."""
        return self.run([Stream(instances, False, name, keep_predictions)])[0]

    def predict(self, data: Any) -> list[Any]:
        """What ``forward`` returns for each sample of ``data``, as tensors, in the order of the data.

        A sample is what `Compiled.instance` takes; labels, and whatever else no result depends on, may be left out. A
        value for each element is one tensor, ``[elements, ...]`` (see `ampnet.lang.prediction`). The weights are those
        of now, dropout is off, and nothing is changed. Instruments are not told of it.
        """
        return predict(self._inner(), data)

    def predict_stream(self, data: Any, *, chunk: int | None = None) -> Iterator[Any]:
        """The same as an iterator, for data that are too many to keep all results: a run for each ``chunk`` of them
        (None: 16 times ``max_active_keys``). Other runs may come between two results; each chunk is made with the
        weights that there are when it begins."""
        if chunk is not None and chunk < 1:
            raise ValueError(f"chunk must be 1 or more, got {chunk}")
        return predict_stream(self._inner, data, chunk)

    def _inner(self) -> Runtime:
        """The runtime of the prediction graph."""
        if self._inside:
            raise AmpnetError("predict was called within a run of this runtime; call it when the run is over")
        return self._predictor(self.graph.prediction)

    def _predictor(self, graph: Graph) -> Runtime:
        """A runtime of the prediction graph, in this process or on these workers."""
        raise NotImplementedError

    def stop(self) -> None:
        """Pump nothing more; what is in flight still comes back."""
        self.controller.stop()

    def __repr__(self) -> str:
        places, engine = self.settings["max_active_keys"], self.settings.get("engine", "not chosen yet")
        return f"{type(self).__name__}({self.graph.name}: max_active_keys {places}, engine: {engine})"

    def __enter__(self) -> Self:
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


def _written(updater: Updater) -> list[int]:
    """How often each parameter was written to in place, in this process."""
    return [parameter._version for parameter in updater.parameters]


def _summary(policy: Update | None) -> dict[str, Any] | None:
    """A policy in plain data; None: frozen."""
    if policy is None:
        return None
    plain = ("min_update_frequency", "count", "average", "clip_norm", "clip_value", "weights")
    return {name: getattr(policy, name) for name in plain}


def _adopt(graph: Graph, update: Update | None, updates: dict[str, Update | None]) -> None:
    """Give each node with parameters its policy."""
    if not isinstance(update, Update | None):
        raise TypeError(f"update is one Update for all nodes, got a {type(update).__name__}; by name: updates={{...}}")
    nodes = graph.parameterised()
    names = {*nodes, *map(graph.called, nodes)}
    unused = [p for p in updates if p not in names and not any(fnmatchcase(name, p) for name in names)]
    if unused:
        known = sorted(names)
        raise GraphError(
            [f"updates names '{p}', but no node with parameters is called that; {nearest(p, known)}" for p in unused]
        )
    for name, node in nodes.items():
        called = graph.called(name)  # a setting for a node is one for all its replicas
        matching = [o for pattern, o in updates.items() if fnmatchcase(name, pattern) or fnmatchcase(called, pattern)]
        exact = next((n for n in (name, called) if n in updates), None)
        node.updater.adopt(updates[exact] if exact is not None else (matching[-1] if matching else update))
