"""Runtime: the base class of all runtimes, which differ in where the nodes are.

    pump ──> the nodes work ──> answers to the controller ──> retire ──> pump ...

A runtime checks the graph, gives nodes their update policies, and lets a `Controller` pump streams of instances until
the last one has retired. Subclasses carry messages to the nodes and back: `Inline` has one worker in this process,
`Processes` has several worker processes.
"""

from __future__ import annotations

import gc
import platform
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch

from ampnet import native
from ampnet._version import __version__
from ampnet.controller import Controller, Progress
from ampnet.errors import AmpnetError, GraphError, a
from ampnet.events.log import Announcer, Begin, Listener, Rest
from ampnet.graph import CONTROLLER, End, Graph
from ampnet.instance import Instance, Stream, StreamStats
from ampnet.message import Messages
from ampnet.nodes.cond import Cond
from ampnet.nodes.dispatch import Dispatch
from ampnet.nodes.loss import Loss
from ampnet.opened import read_some
from ampnet.reference.schedule import Schedule
from ampnet.reference.worker import Counts
from ampnet.replicas.group import Replicas, Table
from ampnet.runtime.by_name import adopt, resolved
from ampnet.runtime.engine import Engine
from ampnet.runtime.predicting import predict, predict_stream
from ampnet.runtime.stats import RunStats
from ampnet.snapshot import Snapshot, check_fits, collect
from ampnet.state import Column
from ampnet.structure import Structure
from ampnet.update.policy import Update
from ampnet.update.state import UpdaterState
from ampnet.update.updater import Updater

if TYPE_CHECKING:
    from ampnet.runtime.beside import Beside


class Runtime:
    """Base class of the runtimes: a context manager that owns its workers. See the head of this file."""

    kind = "?"
    weights_elsewhere = False
    """Whether other processes change the weights during a run."""

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
        if not isinstance(graph, Graph):
            raise TypeError(
                f"a runtime takes a graph, got {a(type(graph).__name__)}: ampnet.compile(model, *example) makes one"
            )
        self.graph, self.clock = graph, clock
        self.beside: Beside | None = None
        """Plays predictions beside the runs, if this runtime is served."""
        self.on_last_loss: Callable[[], None] | None = None
        """Called when a worker is lost once too often, before the run ends with `WorkerDied`: a snapshot of what
        survives can be taken."""
        self._predicting: Runtime | None = None
        """The runtime of the prediction graph, after the first prediction."""
        self._inside, self._began, self._ran = False, 0.0, 0.0
        """Whether a run is in progress, its start, and the seconds of all earlier runs, by `time.perf_counter`."""
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
        if self._on_cpu():  # before workers are forked, so that only one process compiles them
            native.state()
        graph.runtime = weakref.ref(self)
        self.settings["updates"] = adopt(graph, update, dict(updates or {}))
        self._equal = True
        """Whether replicas were synchronised at the end of the last run."""
        self._left: dict[str, list[int]] = {}
        """By group: the write counts of the first replica's weights when a run was interrupted."""
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
        """Record the engine and its reason in the settings and in the log."""
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
        kernels = native.state().text if self._on_cpu() else ""
        return RunStats(
            self.engine.name,
            self.engine.reason,
            waves,
            instances,
            in_flight,
            shares,
            kernels=kernels,
            seconds=seconds,
        )

    def _on_cpu(self) -> bool:
        return all(w.is_cpu for node in self.graph.parameterised().values() for w in node.updater.weights)

    def stats(self) -> RunStats:
        """Returns the engine, and the number of waves it has played."""
        raise NotImplementedError

    def _is_label(self, end: End) -> bool:
        """Whether an input is a label, possibly routed by its state first."""
        node = self.graph.nodes[end.node]
        if isinstance(node, Cond | Dispatch):
            return self._is_label(self._wiring.forward[End(end.node, 0)])
        return isinstance(node, Loss) and end.port == 1

    # -- replicas

    def _members(self, group: Replicas) -> list[Updater]:
        nodes = self.graph.parameterised()
        return [nodes[name].updater for name in group.members]

    def _make_tables(self) -> None:
        """Make the tables in which the replicas of each trained node average their weights."""
        faults = []
        for group in self.graph.replicas.values():
            updaters = self._members(group)
            frozen = [name for name, u in zip(group.members, updaters, strict=True) if u.policy is None]
            if frozen and len(frozen) < len(updaters):
                faults.append(f"replica '{frozen[0]}' is frozen and others of '{group.name}' are not")
            group.table = None if frozen else Table.of(updaters[0], group.sync, len(updaters))
        if faults:
            raise GraphError(faults)

    def _equalise(self) -> None:
        """Before a run: set replicas to the first one's weights, or to their mean after an interrupted run.

        The mean is not used if other weights were loaded since then.
        """
        for name, group in self.graph.replicas.items():
            updaters = self._members(group)
            loaded = self._left.get(name) != _written(updaters[0])
            (group.equalise if self._equal or loaded else group.average)(updaters)

    # -- learning rates

    @property
    def learning_rates(self) -> dict[str, float]:
        """The learning rate of each node's optimizer, by node name (one entry for all copies of a node)."""
        return {self.graph.called(name): rate for name, rate in self._rates().items()}

    def set_learning_rates(self, rates: float | Mapping[str, float]) -> None:
        """Set the learning rate of all trained nodes, or of nodes by name or pattern.

        May be called between runs, and in callbacks of a run: later updates use the new rates. A worker process
        applies them when it receives them, before any instance that is pumped later.

        Raises ValueError for nodes whose `Update` has a ``schedule``, which sets their rate.
        """
        self._set_rates(resolved(self.graph, rates))

    def _rates(self) -> dict[str, float]:
        """Returns the learning rates by node."""
        nodes = self.graph.parameterised().items()
        return {name: rate for name, node in nodes if (rate := node.updater.learning_rate) is not None}

    def _set_rates(self, rates: Mapping[str, float]) -> None:
        nodes = self.graph.parameterised()
        for name, rate in rates.items():
            nodes[name].updater.learning_rate = rate

    # -- snapshots

    def snapshot(self) -> Snapshot:
        """Returns a copy of everything that training depends on: weights, optimizers, gradients not applied yet,
        counters, instance numbers.

        May be called between runs, and in ``on_turn`` of a run. If nothing is in flight it is complete; else see
        `ampnet.snapshot`.
        """
        made = collect(self.graph, self._states())
        made.data |= {"numbers": self.controller.numbers.state(), "equal": self._equal}
        self._add_to(made)
        return made

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from a snapshot of a runtime with the same graph and update policies. Not during a run.

        `Inline` then goes on as if it had never stopped, to the bit, if nothing was in flight at the snapshot. (Where
        messages are passed, or replicas are chosen by turns, their order also depends on earlier ones.) Worker
        processes start again from it; replicas that were not synchronised begin with the mean of their weights.

        Raises `CheckpointError` if it does not fit; nothing is changed then.
        """
        if self._inside:
            raise AmpnetError("restore was called within a run; call it between two runs")
        check_fits(self.graph, snapshot)
        self._set_states(snapshot)
        self.controller.numbers.restore(snapshot.data["numbers"])
        self._equal = bool(snapshot.data["equal"])
        self._left = {name: _written(self._members(group)[0]) for name, group in self.graph.replicas.items()}

    def _states(self) -> dict[str, UpdaterState]:
        """Returns the state of each node with parameters."""
        raise NotImplementedError

    def _set_states(self, snapshot: Snapshot) -> None:
        """Give nodes and weights the states of a snapshot."""
        raise NotImplementedError

    def _add_to(self, snapshot: Snapshot) -> None:
        """Add to a snapshot what only this kind of runtime has."""

    # -- overridden by each runtime

    def _ask_weights(self, token: int, nodes: Sequence[str]) -> None:
        """Ask for the weights of nodes that are elsewhere; `Beside.hear` gets them."""
        raise NotImplementedError

    def _announcer(self, listeners: Sequence[Listener]) -> Announcer:
        return Announcer(listeners, self.clock)

    @property
    def may_play(self) -> bool:
        """Whether instances are computed in waves, so that rehearsing them is useful."""
        raise NotImplementedError

    def rehearse(self, instances: Iterable[Instance]) -> None:
        """Plan these instances ahead of time. Must be called before the first run, or between runs."""
        raise NotImplementedError

    def offer(self, instances: Sequence[Instance]) -> None:
        """Announce instances that will be pumped repeatedly, before a run; a runtime may prepare for them."""

    def _post(self, port: int, messages: Messages, last: bool) -> None:
        """Post pumped messages to an input. ``last``: whether they are the last of their instances."""
        raise NotImplementedError

    def _stage(self, instances: Mapping[int, Instance], stream: Stream) -> Sequence[int]:
        """Stage whole instances of a stream; returns the number of workers that will play each."""
        return ()

    def _read(self, source: Iterator[Instance], most: int, into: list[Instance]) -> None:
        """Append the next instances of a stream to a list; see `ampnet.opened.Read`."""
        read_some(source, most, into)

    def _shelve(self, structures: Mapping[int, Structure]) -> None:
        """Message passing only: store the structures of instances about to be posted."""
        raise NotImplementedError

    def _retire(self, instances: Column, train: bool) -> None:
        """Called when these instances have retired."""

    def _pump(self) -> None:
        """Fill every free place; what was staged may begin."""
        self.controller.pump()

    def _forget(self, instances: Column) -> None:
        """Message passing only: drop the remaining state of these instances, after inference."""

    def _flush(self) -> None:
        raise NotImplementedError

    def _guarded(self) -> AbstractContextManager[object]:
        """Returns the context manager that encloses a run."""
        return nullcontext()

    def _start(self, streams: Iterable[Stream]) -> Iterable[Stream]:
        """Prepare a run over these streams; returns them, or others with the same instances."""
        return streams

    def _turn(self) -> None:
        """Make progress. Raises `StallError` if nothing can move."""
        raise NotImplementedError

    def _settle(self) -> None:
        """After the last instance has retired: wait until nodes have processed all notes."""

    def _rested(self) -> None:
        """Called at the end of a run, after all its events."""

    def _abandon(self) -> None:
        """After an error: drop everything in flight."""
        raise NotImplementedError

    def held(self) -> dict[str, int]:
        """Returns the sizes of all queues and caches that are not empty; an empty dict at rest."""
        raise NotImplementedError

    def counts(self) -> Counts:
        """Returns the numbers of invocations and messages so far."""
        raise NotImplementedError

    def close(self) -> None:
        """End the run in progress, if any, and release all resources."""
        raise NotImplementedError

    # -- common to all runtimes

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
        """Pump streams until every instance has retired. Returns the statistics of each, in the order of their ends.

        Streams follow one another without a barrier unless ``barrier``; with ``together`` they are pumped in turns.
        ``on_end`` is called at the end of a stream and may call ``stop()``; ``on_turn`` is called with progress at
        intervals, and so is the method ``turn`` of listeners. None of them may call ``run``.
        """
        controller = self.controller
        if self._inside or (self._predicting is not None and self._predicting._inside):
            raise AmpnetError("run was called within a run of this runtime; give it all streams, or wait for its end")
        if self.graph.runtime is None or self.graph.runtime() is not self:
            raise GraphError(["another runtime was made on this graph since; its nodes work for that one now"])
        self.graph.check_parameters()
        controller.on_end = on_end if on_end is not None else lambda stats: None
        due = time.monotonic() + turn_seconds
        tables = [group for group in self.graph.replicas.values() if group.table is not None]
        try:
            self._inside, self._began, controller.stopping = True, time.perf_counter(), False
            if self.beside is not None:
                self.beside.begin()
            with torch.no_grad(), fewer_collections(), self._guarded():
                self._equalise()
                self._equal = not self.graph.replicas
                streams = self._start(self._readable(streams))
                self._began = time.perf_counter()
                if self._announce.wants(Begin):
                    self._announce(Begin(self.clock(), {**self.settings, "together": together, "barrier": barrier}))
                # Replicas are equal only after a training stream; the next stream must see them equal.
                controller.begin(streams, together=together, barrier=barrier or (bool(tables) and not together))
                self._pump()
                while controller.busy:
                    self._turn()
                    self._pump()
                    if self.beside is not None:
                        self.beside.turn()
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
            if self.beside is not None:
                self.beside.end()
            self._ran += time.perf_counter() - self._began
        if self._announce.wants(Rest):
            held = self.held()
            self._announce(Rest(self.clock(), held))
        self._rested()
        return list(controller.finished)

    def _readable(self, streams: Iterable[Stream]) -> Iterable[Stream]:
        """Returns the streams, with samples converted to instances."""

        def readable(stream: Stream) -> Stream:
            instances = self.graph.read(stream.instances)
            return stream if instances is stream.instances else replace(stream, instances=instances)

        made = map(readable, streams)
        return list(made) if isinstance(streams, Sequence) else made

    def train(self, instances: Any, *, name: str = "train") -> StreamStats:
        """Train for one epoch on these instances, or on the samples of a data set (`Compiled.instances`)."""
        return self.run([Stream(instances, True, name)])[0]

    def infer(
        self, instances: Iterable[Instance], *, name: str = "infer", keep_predictions: bool = False
    ) -> StreamStats:
        """Returns predictions, losses and metrics of these instances, without training."""
        return self.run([Stream(instances, False, name, keep_predictions)])[0]

    def predict(self, data: Any) -> list[Any]:
        """Returns what ``forward`` returns for each sample of ``data``, as tensors, in the order of the data.

        A sample is what `Compiled.instance` takes; labels, and other arguments that no result depends on, may be
        omitted. A family is one tensor ``[elements, ...]`` (see `ampnet.lang.prediction`). The current weights are
        used, dropout is off, and no weight changes. Emits no events.
        """
        return predict(self._inner(), data)

    def predict_stream(self, data: Any, *, chunk: int | None = None) -> Iterator[Any]:
        """Yields the results of `predict` one by one, for data sets whose results do not fit into memory. There is a
        run for each ``chunk`` of samples (None: 16 times ``max_active_keys``). Other runs may take place between two
        results; each chunk uses the weights at its start."""
        if chunk is not None and chunk < 1:
            raise ValueError(f"chunk must be 1 or more, got {chunk}")
        return predict_stream(self._inner, data, chunk)

    def _inner(self) -> Runtime:
        """Returns the runtime of the prediction graph."""
        if self._inside:
            raise AmpnetError(
                "predict was called within a run of this runtime; call it when the run is over. A callback of fit may "
                "call it in on_epoch_end if it has at_rest = True"
            )
        return self._predictor(self.graph.prediction)

    def _predictor(self, graph: Graph) -> Runtime:
        """Build the runtime of the prediction graph, in this process or on these workers."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop pumping; instances in flight still complete."""
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
def fewer_collections() -> Iterator[None]:
    """A context with fewer garbage collections: a run creates many objects, and no cycles.

    Objects from before the run (torch alone has some hundred thousand) are not scanned again and again. Within another
    such context, also of another thread, it does nothing.
    """
    if not _FEWER.acquire(blocking=False):
        yield
        return
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
        _FEWER.release()


_FEWER = threading.Lock()


def _written(updater: Updater) -> list[int]:
    """Returns the number of in-place writes to each parameter, in this process."""
    return [parameter._version for parameter in updater.parameters]
