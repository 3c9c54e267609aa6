"""``ampnet train WORKLOAD``: train a workload of the paper, in this process or on worker processes.

    Settings ──> data, graph, runtime ──> fit ──> display while it runs; summary, JSON and the model afterwards

What there is to train, and with which settings, is described in `ampnet.experiments`.

Ctrl-C is a request, not an accident: the first lets the instances in flight come back, so that the log is that of a
whole run, and reports what was reached; the second ends the run on the spot.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from itertools import takewhile
from math import isnan
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ampnet import tune
from ampnet.cli import placing
from ampnet.cli.choosing import Choice, bounded, choose, chosen
from ampnet.cli.interrupt import CtrlC
from ampnet.cli.options import Parser
from ampnet.cli.progress import Display, make_display
from ampnet.cli.progress import Facts as Shown
from ampnet.cli.report import duration, report, size, summary, write_json
from ampnet.cli.train_options import add_options, settings_of
from ampnet.controller import Progress
from ampnet.data import Dataset
from ampnet.errors import GraphError
from ampnet.events.log import Listener, LogWriter
from ampnet.events.perfetto import PerfettoWriter
from ampnet.events.replicas import ReplicaMeter
from ampnet.events.report.drawing import drawing_of
from ampnet.events.staleness import StalenessMeter
from ampnet.experiments.catalog import WORKLOADS
from ampnet.experiments.kept import Kept
from ampnet.experiments.running import make_graph, make_runtime, on_device
from ampnet.experiments.saved import save, snapshot
from ampnet.experiments.settings import Training
from ampnet.experiments.workload import Facts, Workload, measured
from ampnet.fit import EpochRecord, FitInterrupted, FitResult, fit
from ampnet.lang import Compiled
from ampnet.placement import place
from ampnet.runtime.processes import Processes
from ampnet.runtime.runtime import Runtime

REACHED, NOT_REACHED, INTERRUPTED = 0, 3, 130
"""Exit codes."""


def add_parser(commands: Any, common: Parser) -> None:
    """Add the command, and under it one parser for each workload."""
    parser = commands.add_parser("train", help="train a workload", description="Train a workload of the paper.")
    parser.set_defaults(parser=parser)
    workloads = parser.add_subparsers(title="workloads", dest="workload", metavar="WORKLOAD")
    for workload in WORKLOADS.values():
        one = workloads.add_parser(
            workload.name, parents=[common], help=workload.about, description=f"Train {workload.about}."
        )
        one.set_defaults(parser=one, run=run, of=workload, data_dir=None)
        add_options(one, workload)


@dataclass(frozen=True)
class Job:
    """What is to be trained."""

    workload: Workload[Any]
    settings: Training
    data: Dataset[Any]
    facts: Facts
    graph: Compiled
    choice: Choice | None = None
    """Why there are so many workers, replicas and tiles; None: nothing was to be chosen."""
    hosts: Mapping[str, int] | None = None
    """The worker of each node; None: the runtime finds out."""


def run(args: argparse.Namespace) -> int:
    """Train a workload as the command line asks for."""
    _refuse(args)
    workload: Workload[Any] = args.of
    settings = settings_of(args, workload)
    if args.save is not None:
        settings = replace(settings, barrier=True)  # what is saved is what was measured
    data = workload.load(settings, args.data_dir)
    facts = workload.facts(settings, data)
    try:
        if settings.replicate is not None or settings.tile:  # whether there are such nodes is said before any trial
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
    with _files(args.log, args.trace) as listeners:
        job = Job(workload, settings, data, facts, graph, choice, hosts)
        return train(job, json=args.json, model=args.save, quiet=args.quiet, listeners=listeners)


def _refuse(args: argparse.Namespace) -> None:
    """Options that do not go together."""
    taken: dict[Path, str] = {}
    for option in ("--json", "--log", "--trace", "--save"):
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
        defaults = args.of.settings()
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
    """What is wrong with replicas or tiles, and the option that asks for it."""
    text = error.faults[0] if isinstance(error, GraphError) else str(error)
    option = "--route" if text.startswith("route=") else "--tile" if "tile" in text else "--replicate"
    return f"{option}: {text}"


def _check_nodes(parser: Parser, settings: Training, graph: Compiled) -> None:
    """Whether the nodes exist that settings were given for."""
    names = sorted({*map(graph.called, graph.parameterised())})
    for option, given in (("--update-after", settings.update_after), ("--rate-of", settings.rate_of)):
        for name in given:
            if not any(name == node or fnmatchcase(node, name) for node in names):
                parser.error(f"{option}: no node with parameters is called '{name}'; there are {', '.join(names)}")


def _in_flight(
    workload: Workload[Any], settings: Training, data: Dataset[Any], facts: Facts, graph: Compiled, quiet: bool
) -> int:
    """How many instances to have in flight, as tried on copies of the graph."""
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
    turns = [listener.turn for listener in listeners if isinstance(listener, PerfettoWriter)]
    totals = {"train": len(job.data.train), "valid": len(job.data.valid)}
    facts = Shown(settings.epochs, totals, workload.metric, meter.overall)
    best = _Best(job) if model is not None else None
    kept = Kept(workload, settings, job.data, job.facts, graph)
    with ExitStack() as stack:
        stack.enter_context(runtime)
        ctrl_c = stack.enter_context(CtrlC())
        prepared = _prepare(runtime, kept, ("train", measured(job.data)), quiet, lambda: not ctrl_c.asked)
        display = stack.enter_context(make_display(facts, quiet=quiet))

        def turn(progress: Progress) -> None:
            if ctrl_c.asked:
                runtime.stop()
            display.turn(progress)
            for note in turns:
                note(progress)

        def epoch(record: EpochRecord) -> None:
            display.epoch(record)
            if best is not None:
                best.look(record)

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
                on_epoch=epoch,
                on_turn=turn,
            )
        except FitInterrupted as interrupt:
            result, ctrl_c.asked = interrupt.result, True
        # A Ctrl-C that came when nothing was left to cut short has interrupted nothing.
        interrupted = ctrl_c.asked and not result.reached and result.epochs < settings.epochs
        controller = (time.process_time() - worked) / (time.perf_counter() - began)
    engine = runtime.stats()
    bound = None
    if isinstance(runtime, Processes) and len(engine.busy) > 1:
        bound = bounded(engine.busy, controller, job.choice, runtime.hosts)
    if json is not None:
        data = report(
            workload.name,
            result,
            meter,
            asdict(settings),
            engine,
            interrupted=interrupted,
            replicas=replicas,
            prepared_seconds=prepared,
            placement=None if job.choice is None else {**job.choice.plain(), "hosts": job.hosts},
            bounded=bound,
        )
        write_json(json, data)
    if interrupted:
        display.say(f"interrupted after {duration(result)}")
    display.say(summary(workload.name, workload.unit, result, meter, engine, replicas, prepared, bound))
    for log in (one for one in listeners if isinstance(one, LogWriter) and not quiet):
        display.say(f"log: {log.path}, {size(log.size)}")
    if best is not None and model is not None:
        best.save(model, display)
    if interrupted:
        return INTERRUPTED
    return REACHED if result.reached or settings.target is None else NOT_REACHED


def _prepare(
    runtime: Runtime, kept: Kept, splits: Sequence[str], quiet: bool, going_on: Callable[[], bool] = lambda: True
) -> float:
    """Make and rehearse what comes again in every epoch, as long as it is to go on; returns the seconds it took."""
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


class _Best:
    """The weights of the best epoch so far. They are taken between two streams, when nothing is in flight."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.state: dict[str, Tensor] | None = None
        self.value, self.epoch = float("nan"), 0

    def look(self, record: EpochRecord) -> None:
        """An epoch has ended."""
        value = record.valid_metrics[self.job.workload.metric]
        better = value > self.value if self.job.workload.higher_is_better else value < self.value
        if self.state is None or better or isnan(self.value):
            self.state, self.value, self.epoch = snapshot(self.job.graph), value, record.epoch

    def save(self, path: Path, display: Display) -> None:
        """Write them, and say so."""
        if self.state is None:
            display.say(f"{path} was not written: no epoch was finished")
            return
        workload = self.job.workload
        reached = {"metric": workload.metric, "value": self.value, "epoch": self.epoch}
        save(path, workload, self.job.settings, self.job.facts, self.state, reached)
        display.say(f"saved the model of epoch {self.epoch} ({workload.metric} {self.value:.4f}) to {path}")


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
