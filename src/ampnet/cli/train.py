"""``ampnet train WORKLOAD``: train a workload of the paper, in this process or on worker processes.

    Settings ──> data, graph, runtime ──> fit ──> display while it runs; summary, JSON and the model afterwards

The workloads and their settings are in `ampnet.experiments`.

The first Ctrl-C lets the instances in flight complete, so that the log is that of a complete run, and reports the
results so far; the second ends the run at once.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch

from ampnet import tune
from ampnet.cli import placing
from ampnet.cli.choosing import Choice, bounded, choose, chosen
from ampnet.cli.interrupt import CtrlC
from ampnet.cli.options import Parser
from ampnet.cli.progress import Display, make_display
from ampnet.cli.progress import Facts as Shown
from ampnet.cli.report import duration, report, size, summary
from ampnet.cli.run_json import RunFile
from ampnet.cli.train_options import settings_of
from ampnet.controller import Progress
from ampnet.data import Dataset
from ampnet.errors import GraphError, nearest
from ampnet.events.live import Live
from ampnet.events.log import Listener, LogWriter
from ampnet.events.perfetto import PerfettoWriter
from ampnet.events.replicas import ReplicaMeter
from ampnet.events.report.drawing import drawing_of
from ampnet.events.staleness import StalenessMeter
from ampnet.experiments.catalog import WORKLOADS
from ampnet.experiments.kept import Kept
from ampnet.experiments.running import make_graph, make_runtime, on_device
from ampnet.experiments.saved import save
from ampnet.experiments.settings import Training
from ampnet.experiments.workload import Facts, Workload, measured
from ampnet.fitting import (
    BestWeights,
    Callback,
    CSVLogger,
    EarlyStopping,
    EpochRecord,
    FitInterrupted,
    FitResult,
    TensorBoardLogger,
    fit,
)
from ampnet.fitting.better import Mode
from ampnet.lang import Compiled
from ampnet.placement import place
from ampnet.runtime.processes import Processes
from ampnet.runtime.runtime import Runtime

REACHED, NOT_REACHED, INTERRUPTED = 0, 3, 130
"""Exit codes."""


@dataclass(frozen=True)
class Job:
    """A training run."""

    workload: Workload[Any]
    settings: Training
    data: Dataset[Any]
    facts: Facts
    graph: Compiled
    choice: Choice | None = None
    """The choice of workers, replicas and tiles; None: there was nothing to choose."""
    hosts: Mapping[str, int] | None = None
    """The worker of each node; None: chosen by the runtime."""


def run(args: argparse.Namespace) -> int:
    """Train a workload with the settings of the command line."""
    _refuse(args)
    with _live(args) as live:
        return _run(args, live)


def _run(args: argparse.Namespace, live: Live | None) -> int:
    workload = WORKLOADS[args.of]
    settings, callbacks = settings_of(args, workload), _asked_for(args, workload)
    if args.save is not None:
        settings = replace(settings, barrier=True)  # the saved weights are those that were measured
    if (note := placing.crowded(settings.complete().workers)) is not None:
        print(f"ampnet: {note}", file=sys.stderr, flush=True)
    data = workload.load(settings, args.data_dir)
    settings, line = workload.resolve(settings, args.data_dir)
    if line and not args.quiet:
        print(line, flush=True)
    facts = workload.facts(settings, data)
    try:
        if settings.replicate is not None or settings.tile:  # report unknown nodes before any trial
            make_graph(
                workload, replace(settings, replicas=2 if settings.replicas == "auto" else settings.replicas), facts
            )
    except (GraphError, ValueError) as error:
        args.parser.error(_fault(error))
    try:
        choice = choose(workload, settings, data, facts)
    except GraphError as error:
        args.parser.error(f"{'--memory-per-worker' if settings.memory_per_worker else '--workers'}: {error.faults[0]}")
    if choice is not None:
        settings = chosen(settings, choice.way)
        if not args.quiet:
            print(choice.line(), flush=True)
    tuned, settings = settings.max_active_keys == "auto", settings.complete()
    if settings.replicas != 1 and settings.sync == "shared" and settings.weights == "stash":
        args.parser.error("--weights: replicas that share their weights cannot stash them; give another --sync")
    try:
        graph = make_graph(workload, settings, facts)
    except (GraphError, ValueError) as error:
        args.parser.error(_fault(error))
    _check_nodes(args.parser, settings, graph)
    workers = settings.workers
    assert isinstance(workers, int)
    affinity = placing.affinity_of(args.parser, graph, workers, args.affinity)
    settings = replace(settings, affinity=affinity)
    hosts = None
    if choice is not None and workers > 1:
        by_hand = {} if affinity == "auto" else affinity
        hosts = place(graph, workers, by_hand, choice.way.costs, settings.memory_per_worker)
    workload.begin(graph, settings, data, args.data_dir)
    if tuned:
        settings = replace(settings, max_active_keys=_in_flight(workload, settings, data, facts, graph, args.quiet))
    with _files(args.log, args.trace) as files:
        listeners: tuple[Listener, ...] = files
        if live is not None:
            records = {"train": len(data.train), "valid": len(data.splits[measured(data)])}
            live.describe(graph, settings.epochs, records)
            listeners = (*files, live)
        job = Job(workload, settings, data, facts, graph, choice, hosts)
        return train(job, json=args.json, model=args.save, quiet=args.quiet, listeners=listeners, callbacks=callbacks)


def _refuse(args: argparse.Namespace) -> None:
    """Raise `UsageError` for incompatible options."""
    taken: dict[Path, str] = {}
    for option in ("--json", "--log", "--trace", "--save", "--csv"):
        path = getattr(args, option[2:])
        if path is not None and taken.setdefault(path.resolve(), option) != option:
            args.parser.error(f"{option}: the same file as {taken[path.resolve()]}; give another one")
    alone = args.workers == 1 or (args.workers is None and args.replicas == 1 and not isinstance(args.replicate, dict))
    if alone:
        for option, given in (
            ("--affinity", args.affinity != "auto"),
            ("--pin", args.pin),
            ("--memory-per-worker", args.memory_per_worker is not None),
        ):
            if given:
                args.parser.error(f"{option}: there are no worker processes; give --workers 2 or more")
    elif not args.waves or args.max_batch is not None:
        option = "--max-batch" if args.waves else "--no-waves"
        args.parser.error(f"{option}: worker processes play waves, and pass no messages; give --workers 1")
    if isinstance(args.replicate, dict) and args.replicas != 1:
        args.parser.error("--replicate: NODE=N has a number of its own; leave out --replicas, or give names only")
    if args.replicas == 1 and not isinstance(args.replicate, dict):
        defaults = WORKLOADS[args.of].settings()
        for option in ("--replicate", "--route", "--sync", "--sync-every", "--sync-optimizer"):
            name = option[2:].replace("-", "_")
            if getattr(args, name) != getattr(defaults, name):
                args.parser.error(f"{option}: there is one replica; give --replicas 2 or more, or auto")
    if args.precision != "float32" and not args.waves:
        args.parser.error("--precision: without waves products are in float32; leave out --no-waves")
    if args.device == "cuda":
        if not torch.cuda.is_available():
            args.parser.error("--device: torch finds no CUDA device here; use cpu")
        if not alone:
            args.parser.error("--device: worker processes work on the CPU; give --workers 1")


def _fault(error: GraphError | ValueError) -> str:
    """Returns the fault of replicas or tiles, with the option that sets them."""
    text = error.faults[0] if isinstance(error, GraphError) else str(error)
    option = "--route" if text.startswith("route=") else "--tile" if "tile" in text else "--replicate"
    return f"{option}: {text}"


def _check_nodes(parser: Parser, settings: Training, graph: Compiled) -> None:
    """Raise `UsageError` if settings name nodes that do not exist."""
    names = sorted({*map(graph.called, graph.parameterised())})
    for option, given in (("--update-after", settings.update_after), ("--rate-of", settings.rate_of)):
        for name in given:
            if not any(name == node or fnmatchcase(node, name) for node in names):
                parser.error(f"{option}: no node with parameters is called '{name}'; {nearest(name, names)}")


def _in_flight(
    workload: Workload[Any], settings: Training, data: Dataset[Any], facts: Facts, graph: Compiled, quiet: bool
) -> int:
    """Returns the number of instances in flight, from trials on copies of the graph."""
    assert isinstance(settings.replicas, int)
    torch.set_num_threads(settings.threads)
    some = on_device(workload.instances(graph, settings, facts, data, "train", 1), settings)
    found = tune.suggest(
        graph,
        some,
        lambda copied, number, listeners: make_runtime(copied, replace(settings, max_active_keys=number), listeners),
        numbers=[number * settings.replicas for number in tune.NUMBERS],
    )
    if not quiet:
        print(found, flush=True)
    return found.in_flight


def train(
    job: Job,
    *,
    json: Path | None = None,
    model: Path | None = None,
    quiet: bool = False,
    listeners: tuple[Listener, ...] = (),
    callbacks: Sequence[Callback] = (),
) -> int:
    """Train, show, report; returns the exit code."""
    workload, settings, graph = job.workload, job.settings, job.graph
    torch.set_num_threads(settings.threads)
    meter = StalenessMeter()
    replicas = ReplicaMeter() if graph.replicas else None
    meters: tuple[Listener, ...] = (meter, *([replicas] if replicas is not None else []), *listeners)
    runtime = make_runtime(graph, settings, meters, job.hosts)
    if listeners:
        runtime.settings |= {"workload": workload.name, "graph": drawing_of(graph)}  # for reports
    totals = {"train": len(job.data.train), "valid": len(job.data.valid)}
    facts = Shown(settings.epochs, totals, workload.metric, meter.overall)
    kept = Kept(workload, settings, job.data, job.facts, graph)
    with ExitStack() as stack:
        stack.enter_context(runtime)
        ctrl_c = stack.enter_context(CtrlC())
        prepared = _prepare(runtime, kept, ("train", measured(job.data)), quiet, lambda: not ctrl_c.asked)
        display = stack.enter_context(make_display(facts, quiet=quiet))

        def described(result: FitResult, **more: Any) -> dict[str, Any]:
            placement = None if job.choice is None else {**job.choice.plain(), "hosts": job.hosts}
            more |= {"replicas": replicas, "prepared_seconds": prepared, "placement": placement}
            return report(workload.name, result, meter, asdict(settings), **more)

        file = RunFile(json, described, workload.metric, settings.target, workload.higher_is_better)

        watched = _Watched(display, file, runtime, ctrl_c)
        mode: Mode = "max" if workload.higher_is_better else "min"
        best = BestWeights(workload.metric, mode=mode, restore=False) if model is not None else None
        began, worked = time.perf_counter(), time.process_time()
        try:
            if ctrl_c.asked:
                raise FitInterrupted(FitResult.empty(workload.metric, settings.target))
            result = fit(
                runtime,
                train=lambda number: kept.instances("train", number),
                valid=lambda number: kept.instances(measured(job.data)),
                epochs=settings.epochs,
                metric=workload.metric,
                target=settings.target,
                higher_is_better=workload.higher_is_better,
                barrier=settings.barrier,
                callbacks=[watched, *([] if best is None else [best]), *callbacks],
            )
        except FitInterrupted as interrupt:
            result, ctrl_c.asked = interrupt.result, True
        except Exception as error:
            with suppress(OSError):  # keep the first error
                file.failed(error)
            raise
        # A Ctrl-C after the end of the last epoch has interrupted nothing.
        early = result.reached or result.stopped is not None
        interrupted = ctrl_c.asked and not early and result.epochs < settings.epochs
        controller = (time.process_time() - worked) / (time.perf_counter() - began)
    engine = runtime.stats()
    bound = None
    if isinstance(runtime, Processes) and len(engine.busy) > 1:
        bound = bounded(engine.busy, controller, job.choice, runtime.hosts)
    file.end("interrupted" if interrupted else "done", described(result, engine=engine, bounded=bound))
    if interrupted:
        display.say(f"interrupted after {duration(result)}")
    if result.stopped is not None and not quiet:
        display.say(f"stopped: {result.stopped}")
    display.say(summary(workload.name, workload.unit, result, meter, engine, replicas, prepared, bound))
    for log in (one for one in listeners if isinstance(one, LogWriter) and not quiet):
        display.say(f"log: {log.path}, {size(log.size)}")
    if best is not None and model is not None:
        _save(job, best, model, display)
    if interrupted:
        return INTERRUPTED
    return REACHED if result.reached or settings.target is None else NOT_REACHED


def _prepare(
    runtime: Runtime, kept: Kept, splits: Sequence[str], quiet: bool, going_on: Callable[[], bool] = lambda: True
) -> float:
    """Build and rehearse the instances of every epoch while ``going_on()``; returns the seconds it took."""
    if not runtime.may_play or not any(map(kept.holds, splits)):
        return 0.0
    began = time.perf_counter()
    if not quiet:
        print("preparing instances ... ", end="", flush=True)
    counts = []
    try:
        for split in filter(kept.holds, splits):
            made = list(takewhile(lambda _: going_on(), kept.instances(split)))
            runtime.rehearse(takewhile(lambda _: going_on(), made))
            counts.append(f"{len(made):,}")
    finally:
        seconds = time.perf_counter() - began
        if not quiet:
            print(f"{' + '.join(counts)} in {seconds:.1f} s", flush=True)
    return seconds


class _Watched(Callback):
    """The display, the file of ``--json``, and Ctrl-C as a request."""

    def __init__(self, display: Display, file: RunFile, runtime: Runtime, ctrl_c: CtrlC) -> None:
        self.display, self.file, self.runtime, self.ctrl_c = display, file, runtime, ctrl_c

    def on_turn(self, progress: Progress) -> None:
        if self.ctrl_c.asked:
            self.runtime.stop()
        self.display.turn(progress)

    def on_epoch_end(self, record: EpochRecord) -> None:
        self.display.epoch(record)
        self.file.epoch(record)


def _asked_for(args: argparse.Namespace, workload: Workload[Any]) -> list[Callback]:
    """Returns the callbacks for the options."""
    out: list[Callback] = []
    if args.patience is not None:
        out.append(EarlyStopping(workload.metric, args.patience, mode="max" if workload.higher_is_better else "min"))
    if args.csv is not None:
        out.append(CSVLogger(args.csv))
    if args.tensorboard is not None:
        out.append(TensorBoardLogger(args.tensorboard))
    return out


def _save(job: Job, best: BestWeights, path: Path, display: Display) -> None:
    """Write the model of the best epoch, and print that."""
    metric = job.workload.metric
    if best.state_dict is None:
        display.say(f"{path} was not written: no epoch was finished with a number as its {metric}")
        return
    reached = {"metric": metric, "value": best.value, "epoch": best.epoch}
    save(path, job.workload, job.settings, job.facts, best.state_dict, reached)
    display.say(f"saved the model of epoch {best.epoch} ({metric} {best.value:.4f}) to {path}")


@contextmanager
def _live(args: argparse.Namespace) -> Iterator[Live | None]:
    """Yields the live view, if requested. A port that is not available is an error before anything else is done."""
    if args.live is None:
        yield None
        return
    try:
        live = Live(port=args.live)
    except OSError as error:
        args.parser.error(f"--live: port {args.live}: {error.strerror}; give another, or none to take any that is free")
    with live:
        print(f"live view: {live.address}", flush=True)
        yield live


@contextmanager
def _files(log: Path | None, trace: Path | None) -> Iterator[tuple[Listener, ...]]:
    """Yields listeners that write these files. After an error they are removed; those of an interrupted run are
    kept."""
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
