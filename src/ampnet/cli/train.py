"""``ampnet train WORKLOAD``: train a workload of the paper, in this process or on worker processes.

    Settings ──> graph, update policy, runtime ──> fit ──> display while it runs, summary and JSON afterwards

Ctrl-C is a request, not an accident: the first lets the instances in flight come back, so that the log is that of a
whole run, and reports what was reached; the second ends the run on the spot.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import numpy as np
import torch

from ampnet.cli import placing
from ampnet.cli.options import Parser, file_to_write, fraction, positive, whole
from ampnet.cli.progress import Facts, make_display
from ampnet.cli.report import duration, report, summary, write_json
from ampnet.controller import Progress
from ampnet.data.list_reduction import generate
from ampnet.errors import GraphError
from ampnet.events.log import Listener, LogWriter
from ampnet.events.perfetto import PerfettoWriter
from ampnet.events.replicas import ReplicaMeter
from ampnet.events.report.drawing import drawing_of
from ampnet.events.staleness import StalenessMeter
from ampnet.fit import FitInterrupted, fit
from ampnet.graph import Graph
from ampnet.lang import Compiled
from ampnet.models import list_reduction
from ampnet.nodes.loss import Loss
from ampnet.replicas.auto import suggest
from ampnet.replicas.replicate import ROUTES, replicate
from ampnet.replicas.sync import KINDS, Sync, When
from ampnet.runtime.inline import Inline
from ampnet.runtime.processes import Processes
from ampnet.runtime.runtime import Runtime
from ampnet.schedule import ENOUGH_ROWS, SCHEDULES
from ampnet.update.policy import MakeOptimizer, Update

REACHED, NOT_REACHED, INTERRUPTED = 0, 3, 130
"""Exit codes."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All that decides the course of a list-reduction run, with the defaults of the command line."""

    max_active_keys: int = 0
    """Instances in flight at most; 0: as many as hold 400 sequences."""
    min_update_frequency: int = 0
    """Gradients that make an update of a node; 0: as many instances as hold 100 sequences, or one message."""
    count: Literal["messages", "instances"] = "instances"
    """What counts as one gradient."""
    epochs: int = 12
    """Epochs at most."""
    target: float | None = None
    """Stop once a validation has this accuracy."""
    seed: int = 0
    """Of the data, the weights, the order of instances and of the random schedule."""
    schedule: str = "sweep"
    """The order in which nodes are served."""
    max_batch: int | None = None
    """Messages handed to a node at once, at most."""
    enough_rows: int = ENOUGH_ROWS
    """Rows beyond which a larger batch is not waited for."""
    bucket: int = 100
    """Sequences of one length in an instance; 1: single sequences."""
    train_size: int = 100_000
    """Training sequences."""
    valid_size: int = 10_000
    """Validation sequences."""
    hidden: int = list_reduction.HIDDEN
    """Width of the recurrent state."""
    learning_rate: float = 3e-3
    """Of the first epoch."""
    decay: float = 0.7
    """Factor of the learning rate after every epoch."""
    optimizer: Literal["adam", "sgd", "momentum"] = "adam"
    """Of every node."""
    clip_norm: float | None = None
    """Scale a node's gradient down to this norm."""
    weights: Literal["current", "stash"] = "current"
    """Which weights a backward sees."""
    barrier: bool = False
    """Let each stream end before the next begins."""
    workers: int | Literal["auto"] | None = None
    """Worker processes; 1: everything in this process; "auto": one for each core, if there are nodes for them; None:
    one for each replica."""
    affinity: Mapping[str, int] | Literal["auto"] = "auto"
    """The worker of nodes, by name or pattern; nodes that it does not name are placed by what they cost."""
    pin: bool = False
    """Keep each worker on a core of its own."""
    threads: int = 1
    """Torch threads, of each worker."""
    replicas: int | Literal["auto"] = 1
    """Copies of the model, or of a part of it; "auto": as many as cores and the controller can keep busy."""
    replicate: tuple[str, ...] | None = None
    """The nodes to make copies of, by name or pattern; None: the whole model."""
    route: str = "shortest"
    """How messages, or whole instances, are shared out among replicas."""
    sync: When = "shared"
    """How replicas are kept together."""
    sync_every: int = 100
    """Updates between two synchronisations, where the policy counts them."""
    sync_optimizer: Literal["average", "keep"] = "average"
    """What becomes of what the replicas' optimizers remember."""
    on_nan: Literal["stop", "skip"] = "stop"
    """What to do when a loss is not finite."""

    def complete(self) -> Settings:
        """The same with nothing left open: instances of single sequences need many in flight, and in an update."""
        frequency = max(1, 100 // self.bucket) if self.count == "instances" else 1
        replicas = 1 if self.replicas == "auto" else self.replicas
        return replace(
            self,
            workers=replicas if self.workers is None else self.workers,
            max_active_keys=self.max_active_keys or max(1, 400 // self.bucket) * replicas,
            min_update_frequency=self.min_update_frequency or frequency,
        )


DEFAULTS = Settings()


def add_parser(commands: Any, common: Parser) -> None:
    """Add the command, and under it one parser for each workload."""
    parser = commands.add_parser("train", help="train a workload", description="Train a workload of the paper.")
    parser.set_defaults(parser=parser)
    workloads = parser.add_subparsers(title="workloads", dest="workload", metavar="WORKLOAD")
    about = "a vanilla RNN on sequences of at most ten tokens"
    workload = workloads.add_parser("list-reduction", parents=[common], help=about, description=f"Train {about}.")
    workload.set_defaults(parser=workload, run=run)
    _add_options(workload)


def _add_options(parser: Parser) -> None:
    def add(option: str, text: str, default: str | None = None, **how: Any) -> None:
        value = getattr(DEFAULTS, option[2:].replace("-", "_"))
        shown = default if default is not None else value
        parser.add_argument(option, default=value, help=f"{text} (default: {shown})", **how)

    number: dict[str, Any] = {"type": whole(1), "metavar": "N"}
    keys = "instances in flight at most; 1 trains without asynchrony"
    add("--max-active-keys", keys, "4 for each replica; for single sequences 100 x as many", **number)
    add("--min-update-frequency", "gradients that make an update of a node", "as many as hold 100 sequences", **number)
    add("--count", "what counts as one gradient", choices=("messages", "instances"))
    add("--epochs", "epochs at most", **number)
    target = "stop once this share of the validation sequences is right: 0.97 for 97 %%"
    add("--target", target, "none", type=fraction, metavar="FRACTION")
    add("--seed", "of data, weights, order and the random schedule", type=whole(0), metavar="N")
    add("--schedule", "the order in which nodes are served", choices=tuple(SCHEDULES))
    add("--max-batch", "messages handed to a node at once, at most", "no limit", **number)
    add("--enough-rows", "rows beyond which a larger batch is not waited for", **number)
    add("--bucket", "sequences of one length in an instance; 1: single sequences", **number)
    add("--train-size", "training sequences", **number)
    add("--valid-size", "validation sequences", **number)
    add("--hidden", "width of the recurrent state", **number)
    add("--learning-rate", "learning rate of the first epoch", type=positive, metavar="RATE")
    add("--decay", "factor of the learning rate after every epoch", type=fraction, metavar="FACTOR")
    add("--optimizer", "of every node; momentum is SGD with 0.9", choices=("adam", "sgd", "momentum"))
    add("--clip-norm", "scale a node's gradient down to this norm", "no clipping", type=positive, metavar="NORM")
    add("--weights", "which weights a backward sees: today's, or its forward's", choices=("current", "stash"))
    add("--barrier", "let each stream end before the next begins", "off", action="store_true")
    workers = "worker processes; 1: all in this one; auto: one for each core, if there are nodes for them"
    add("--workers", workers, "one for each replica", type=placing.number, metavar="N|auto")
    replicas = "copies of the model, on workers of their own; auto: by cores and by what nodes cost"
    add("--replicas", replicas, type=placing.number, metavar="N|auto")
    nodes = "make copies of these nodes only, by name or pattern, like cell,embedding"
    add("--replicate", nodes, "the whole model", type=placing.names, metavar="NAMES")
    route = "how instances (of single nodes: messages) are shared out among replicas"
    add("--route", route, choices=ROUTES)
    sync = "how replicas are kept together: shared weights, means of weights now and then, or of all gradients"
    add("--sync", sync, choices=KINDS)
    add("--sync-every", "updates between two means, where sync is updates or ring", **number)
    optimizer = "what becomes of what the optimizers of replicas remember"
    add("--sync-optimizer", optimizer, choices=("average", "keep"))
    affinity = 'the worker of nodes: a JSON file like {"embedding": 0, "cell*": 1}; auto: by what they cost'
    add("--affinity", affinity, type=placing.file, metavar="FILE|auto")
    add("--pin", "keep each worker on a core of its own", "off", action="store_true")
    add("--threads", "torch threads of each worker", **number)
    add("--on-nan", "when a loss is not finite: stop, or skip its gradient", choices=("stop", "skip"))
    file: dict[str, Any] = {"type": file_to_write, "metavar": "FILE"}
    parser.add_argument("--json", help="write a report to FILE (default: none)", **file)
    parser.add_argument("--log", help="write every event to FILE, for 'ampnet check' (default: none)", **file)
    trace = "write a trace to FILE, for ui.perfetto.dev, 'ampnet gantt' and 'ampnet report' (default: none)"
    parser.add_argument("--trace", help=trace, **file)
    parser.add_argument("--quiet", action="store_true", help="print the closing line only (default: off)")


def run(args: argparse.Namespace) -> int:
    """Train list reduction as the command line asks for."""
    taken: dict[Path, str] = {}
    for option, path in (("--json", args.json), ("--log", args.log), ("--trace", args.trace)):
        if path is not None and taken.setdefault(path.resolve(), option) != option:
            args.parser.error(f"{option}: the same file as {taken[path.resolve()]}; give another one")
    if args.workers == 1 or (args.workers is None and args.replicas == 1):
        for option, given in (("--affinity", args.affinity != "auto"), ("--pin", args.pin)):
            if given:
                args.parser.error(f"{option}: there are no worker processes; give --workers 2 or more")
    if args.replicas == 1:
        for option in ("--replicate", "--route", "--sync", "--sync-every", "--sync-optimizer"):
            name = option[2:].replace("-", "_")
            if getattr(args, name) != getattr(DEFAULTS, name):
                args.parser.error(f"{option}: there is one replica; give --replicas 2 or more, or auto")
    settings = Settings(**{item.name: getattr(args, item.name) for item in fields(Settings)})
    if settings.replicas == "auto":
        settings = replace(settings, replicas=_suggested(settings, args.quiet))
    settings = settings.complete()
    if settings.replicas != 1 and settings.sync == "shared" and settings.weights == "stash":
        args.parser.error("--weights: replicas that share their weights cannot stash them; give another --sync")
    if args.workers == "auto" or args.affinity != "auto" or settings.replicas != 1:
        try:
            graph = _build(settings)
        except GraphError as error:
            option = "--route" if error.faults[0].startswith("route=") else "--replicate"
            args.parser.error(f"{option}: {error.faults[0]}")
        workers, affinity = placing.settle(args.parser, graph, settings.workers or 1, args.affinity)
        settings = replace(settings, workers=workers, affinity=affinity)
    with _files(args.log, args.trace) as listeners:
        return train_list_reduction(settings, json=args.json, quiet=args.quiet, listeners=listeners)


def _build(settings: Settings) -> Compiled:
    """The graph, with its replicas."""
    graph = list_reduction.build(settings.hidden, settings.seed)
    if isinstance(settings.replicas, int) and settings.replicas > 1:
        sync = Sync(settings.sync, settings.sync_every, settings.sync_optimizer)
        replicate(graph, settings.replicate, settings.replicas, route=settings.route, sync=sync)  # type: ignore[arg-type]
    return graph


def _suggested(settings: Settings, quiet: bool) -> int:
    """How many replicas to make."""
    graph = list_reduction.build(settings.hidden, settings.seed)
    data = generate(32 * settings.bucket, 2 * settings.seed)
    torch.set_num_threads(settings.threads)
    cores = len(os.sched_getaffinity(0))
    found = suggest(
        graph, list_reduction.instances(graph, data, settings.bucket), cores, enough_rows=settings.enough_rows
    )
    if not quiet:
        print(
            f"replicas: {found.replicas}, for {cores} cores; an instance takes {1e3 * found.work:.1f} ms of work and "
            f"{1e3 * found.controller:.1f} ms of the controller's",
            flush=True,
        )
    return found.replicas


def train_list_reduction(
    settings: Settings, *, json: Path | None = None, quiet: bool = False, listeners: tuple[Listener, ...] = ()
) -> int:
    """Train, show, report; returns the exit code."""
    torch.set_num_threads(settings.threads)
    meter = StalenessMeter()
    graph = _build(settings)
    replicas = ReplicaMeter() if graph.replicas else None
    runtime = make_runtime(graph, settings, (meter, *([replicas] if replicas is not None else []), *listeners))
    if listeners:
        runtime.settings |= {"workload": "list-reduction", "graph": drawing_of(graph)}  # for reports
    turns = [listener.turn for listener in listeners if isinstance(listener, PerfettoWriter)]
    # Even and odd, so that no two runs share training and validation data, whatever their seeds.
    train_data = generate(settings.train_size, 2 * settings.seed)
    valid_data = generate(settings.valid_size, 2 * settings.seed + 1)
    instances = partial(list_reduction.instances, graph, bucket=settings.bucket)
    totals = {"train": settings.train_size, "valid": settings.valid_size}
    facts = Facts(settings.epochs, totals, "accuracy", meter.overall)
    with runtime, _CtrlC() as ctrl_c, make_display(facts, quiet=quiet) as display:

        def turn(progress: Progress) -> None:
            if ctrl_c.asked:
                runtime.stop()
            display.turn(progress)
            for note in turns:
                note(progress)

        try:
            result = fit(
                runtime,
                train=lambda epoch: instances(train_data, rng=np.random.default_rng((settings.seed, epoch))),
                valid=lambda epoch: instances(valid_data),
                epochs=settings.epochs,
                target=settings.target,
                barrier=settings.barrier,
                on_epoch=display.epoch,
                on_turn=turn,
            )
        except FitInterrupted as interrupt:
            result, ctrl_c.asked = interrupt.result, True
        # A Ctrl-C that came when nothing was left to cut short has interrupted nothing.
        interrupted = ctrl_c.asked and not result.reached and result.epochs < settings.epochs
    if json is not None:
        data = report("list-reduction", result, meter, asdict(settings), interrupted=interrupted, replicas=replicas)
        write_json(json, data)
    if interrupted:
        display.say(f"interrupted after {duration(result)}")
    display.say(summary("list-reduction", "sequences", result, meter, replicas))
    if interrupted:
        return INTERRUPTED
    return REACHED if result.reached or settings.target is None else NOT_REACHED


def make_runtime(graph: Graph, settings: Settings, listeners: tuple[Listener, ...] = ()) -> Runtime:
    """A runtime on a graph, under these settings."""
    settings = settings.complete()
    for loss in (node for node in graph.nodes.values() if isinstance(node, Loss)):
        loss.on_nan = settings.on_nan
    decays = partial(torch.optim.lr_scheduler.ExponentialLR, gamma=settings.decay)
    update = Update(
        _optimizer(settings),
        settings.min_update_frequency,
        settings.count,
        clip_norm=settings.clip_norm,
        schedule=decays if settings.decay < 1 else None,
        weights=settings.weights,
    )
    common: dict[str, Any] = {
        "update": update,
        "max_active_keys": settings.max_active_keys,
        "max_batch": settings.max_batch,
        "enough_rows": settings.enough_rows,
        "schedule": settings.schedule,
        "seed": settings.seed,
        "listeners": listeners,
    }
    assert settings.workers is not None
    if settings.workers == 1:
        return Inline(graph, **common)
    workers = len(os.sched_getaffinity(0)) if settings.workers == "auto" else settings.workers
    return Processes(
        graph, workers=workers, affinity=settings.affinity, pin=settings.pin, threads=settings.threads, **common
    )


def _optimizer(settings: Settings) -> MakeOptimizer:
    if settings.optimizer == "adam":
        return partial(torch.optim.Adam, lr=settings.learning_rate, betas=(0.9, 0.99), fused=True)
    return partial(torch.optim.SGD, lr=settings.learning_rate, momentum=0.9 if settings.optimizer == "momentum" else 0)


@contextmanager
def _files(log: Path | None, trace: Path | None) -> Iterator[tuple[Listener, ...]]:
    """Listeners that write these files. After an error nothing is left of them; an interrupted run's are kept."""
    writers: list[LogWriter | PerfettoWriter] = []
    try:
        if log is not None:
            writers.append(LogWriter(log))
        if trace is not None:
            writers.append(PerfettoWriter(trace))
        yield tuple(writers)
    except Exception:
        for writer in writers:
            writer.close(keep=False)
        raise
    finally:
        for writer in writers:
            writer.close()


class _CtrlC:
    """While it is entered, the first Ctrl-C sets ``asked``; the second interrupts as usual.

    A process told to ignore Ctrl-C (a background job of a script) goes on ignoring it.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> _CtrlC:
        # Only the main thread may set handlers; elsewhere Ctrl-C belongs to whoever started the thread.
        if threading.current_thread() is threading.main_thread():
            self._before = signal.getsignal(signal.SIGINT)
            if self._before is not signal.SIG_IGN:
                signal.signal(signal.SIGINT, self._hear)
        return self

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
