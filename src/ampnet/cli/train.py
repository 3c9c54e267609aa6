"""``ampnet train WORKLOAD``: train a workload of the paper, in this process or on worker processes.

    Settings ──> data, graph, runtime ──> fit ──> display while it runs; summary, JSON and the model afterwards

The workloads and their settings are in `ampnet.experiments`.

The first Ctrl-C, SIGTERM or SIGHUP lets the instances in flight complete, so that the log is that of a complete run,
and writes the results so far; the second ends the run at once. A file that cannot be written (a full disk) does not
keep the others from being written; the exit code is then 1.
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
from typing import TYPE_CHECKING, Any

import torch

from ampnet import tune
from ampnet.cli import placing
from ampnet.cli.choosing import Choice, bounded, choose, chosen
from ampnet.cli.interrupt import Stopping
from ampnet.cli.options import Parser
from ampnet.cli.progress import Display, make_display
from ampnet.cli.progress import Facts as Shown
from ampnet.cli.report import duration, report, size, summary
from ampnet.cli.resume import checkpoint_of, merge, resume_of
from ampnet.cli.run_json import RunFile, State
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
from ampnet.experiments.kept import Kept, KeptHere
from ampnet.experiments.running import make_graph, make_runtime, on_device
from ampnet.experiments.saved import save
from ampnet.experiments.settings import Training
from ampnet.experiments.workload import Facts, Workload, measured
from ampnet.fitting import (
    BestWeights,
    Callback,
    Checkpoint,
    CSVLogger,
    EarlyStopping,
    EpochRecord,
    FitInterrupted,
    FitResult,
    Run,
    TensorBoardLogger,
    fit,
)
from ampnet.fitting.better import Mode
from ampnet.lang import Compiled
from ampnet.placement import place
from ampnet.runtime.distributed import Distributed
from ampnet.runtime.runtime import Runtime

if TYPE_CHECKING:
    from ampnet.serve.serving import Serving

REACHED, FAILED, NOT_REACHED = 0, 1, 3
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
    data_dir: Path | None = None
    """The folder of the data set, if it was named."""


def run(args: argparse.Namespace) -> int:
    """Train a workload with the settings of the command line."""
    merge(args, WORKLOADS[args.of])
    _refuse(args)
    if args.serve is not None:
        _check_serve(args)
    with _live(args) as live:
        return _run(args, live)


def _run(args: argparse.Namespace, live: Live | None) -> int:
    workload = WORKLOADS[args.of]
    given = settings = settings_of(args, workload)
    callbacks = _asked_for(args, workload)
    if args.save is not None:
        settings = replace(settings, barrier=True)  # the saved weights are those that were measured
    if settings.cluster is None and (note := placing.crowded(settings.complete().workers)) is not None:
        print(f"ampnet: {note}", file=sys.stderr, flush=True)
    if settings.decay < 1 and (decay := settings.stretched_decay()) != settings.decay:
        note = f"--decay {settings.decay:g} is {decay:.3g} with {settings.replicas} replicas, which take more epochs"
        print(f"ampnet: {note} (docs/asynchrony.md)", file=sys.stderr, flush=True)
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
        if choice.max_active_keys is not None:
            settings = replace(settings, max_active_keys=choice.max_active_keys)
        if not args.quiet:
            print(choice.line(), flush=True)
    tuned, settings = settings.max_active_keys == "auto", settings.complete()
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
        if choice.hosts is not None and choice.way.replicas == 1 and not by_hand:
            by_hand = choice.hosts
        hosts = place(graph, workers, by_hand, choice.way.costs, settings.memory_per_worker)
    workload.begin(graph, settings, data, args.data_dir)
    if tuned:
        settings = replace(settings, max_active_keys=_in_flight(workload, settings, data, facts, graph, args.quiet))
    with Stopping() as stopping, _files(args.log, args.trace) as files:
        listeners: tuple[Listener, ...] = files
        if live is not None:
            records = {"train": len(data.train), "valid": len(data.splits[measured(data)])}
            live.describe(graph, settings.epochs, records)
            listeners = (*files, live)
        job = Job(workload, settings, data, facts, graph, choice, hosts, args.data_dir)
        records = {name: len(split) for name, split in data.splits.items()}
        code = train(
            job,
            ctrl_c=stopping,
            json=args.json,
            model=args.save,
            quiet=args.quiet,
            listeners=listeners,
            callbacks=callbacks,
            checkpoint=checkpoint_of(args, given, settings, records, facts),
            serve=args.serve,
            resume=resume_of(args),
        )
    return code or (FAILED if any(one.fault for one in files) else REACHED)


def _refuse(args: argparse.Namespace) -> None:
    """Raise `UsageError` for incompatible options."""
    taken: dict[Path, str] = {}
    for option in ("--json", "--log", "--trace", "--save", "--csv"):
        path = getattr(args, option[2:])
        if path is not None and taken.setdefault(path.resolve(), option) != option:
            args.parser.error(f"{option}: the same file as {taken[path.resolve()]}; give another one")
    _refuse_in_cluster(args)
    alone = args.workers == 1 or (args.workers is None and args.replicas == 1 and not isinstance(args.replicate, dict))
    alone = alone and args.cluster is None
    if alone:
        for option, given in (
            ("--affinity", args.affinity != "auto"),
            ("--pin", args.pin),
            ("--max-restarts", args.max_restarts != WORKLOADS[args.of].settings().max_restarts),
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


def _refuse_in_cluster(args: argparse.Namespace) -> None:
    """Raise `UsageError` for options that a cluster does not have."""
    if args.cluster is None:
        return
    for option, given in (("--workers", args.workers), ("--replicas", args.replicas)):
        if given == "auto":
            args.parser.error(f"{option}: auto measures this machine, not a cluster; give a number")
    if args.sync == "shared":
        args.parser.error("--sync: machines share no memory; give updates, epoch, ring or gradients")
    if args.pin:
        args.parser.error("--pin: Ray places the processes of a cluster; leave it out")


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
    ctrl_c: Stopping,
    json: Path | None = None,
    model: Path | None = None,
    quiet: bool = False,
    listeners: tuple[Listener, ...] = (),
    callbacks: Sequence[Callback] = (),
    checkpoint: Checkpoint | None = None,
    resume: bool | str = False,
    serve: int | None = None,
) -> int:
    """Train, show, report; returns the exit code. ``serve``: the port where predictions are served."""
    workload, settings, graph = job.workload, job.settings, job.graph
    torch.set_num_threads(settings.threads)
    meter = StalenessMeter()
    replicas = ReplicaMeter() if graph.replicas else None
    meters: tuple[Listener, ...] = (meter, *([replicas] if replicas is not None else []), *listeners)
    kept = Kept(workload, settings, job.data, job.facts, graph)
    splits = ("train", measured(job.data))
    data = None if settings.cluster is None else KeptHere(kept, job.data_dir, splits)
    runtime = make_runtime(graph, settings, meters, job.hosts, data)
    if listeners:
        runtime.settings |= {"workload": workload.name, "graph": drawing_of(graph)}  # for reports
        runtime.settings["training"] = asdict(settings)  # for simulations
    totals = {"train": len(job.data.train), "valid": len(job.data.valid)}
    facts = Shown(settings.epochs, totals, workload.metric, meter.overall)
    with ExitStack() as stack:
        stack.enter_context(runtime)
        prepared = _prepare(runtime, kept, splits, quiet, lambda: not ctrl_c.asked)
        if serve is not None:
            server = stack.enter_context(_served(job, runtime, serve))
            callbacks = [*callbacks, server]
        display = stack.enter_context(make_display(facts, quiet=quiet))

        def described(result: FitResult, **more: Any) -> dict[str, Any]:
            placement = None if job.choice is None else {**job.choice.plain(), "hosts": job.hosts}
            more |= {"replicas": replicas, "prepared_seconds": prepared, "placement": placement}
            return report(workload.name, result, meter, asdict(settings), **more)

        file = RunFile(json, described, workload.metric, settings.target, workload.higher_is_better)

        watched = _Watched(display, file, ctrl_c, quiet)
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
                checkpoint=checkpoint,
                resume=resume,
            )
        except FitInterrupted as interrupt:
            result, ctrl_c.asked = interrupt.result, True
        except Exception as error:
            with suppress(OSError):  # keep the first error
                file.failed(error)
            if file.epochs:
                _keep(job, best, model, listeners, display)
            if watched.last is not None:
                display.say(f"the last checkpoint is {watched.last}; --resume continues from it")
            raise
        # A Ctrl-C after the end of the last epoch has interrupted nothing.
        early = result.reached or result.stopped is not None
        interrupted = ctrl_c.asked and not early and result.epochs < settings.epochs
        controller = (time.process_time() - worked) / (time.perf_counter() - began)
    engine = runtime.stats()
    bound = None
    if isinstance(runtime, Distributed) and len(engine.busy) > 1:
        bound = bounded(engine.busy, controller, job.choice, runtime.hosts)
    state: State = "interrupted" if interrupted else "done"
    written = _written(lambda: file.end(state, described(result, engine=engine, bounded=bound)))
    if interrupted:
        goes_on = "" if watched.last is None else f"; --resume continues from {watched.last}"
        display.say(f"interrupted after {duration(result)}{goes_on}")
    if result.stopped is not None and not quiet:
        display.say(f"stopped: {result.stopped}")
    display.say(summary(workload.name, workload.unit, result, meter, engine, replicas, prepared, bound))
    for log in (one for one in listeners if isinstance(one, LogWriter) and not quiet):
        display.say(f"log: {log.path}, {size(log.size)}")
    if best is not None and model is not None:
        written &= _written(lambda: _save(job, best, model, display))
    if interrupted:
        return ctrl_c.code
    if not written or any(isinstance(one, CSVLogger) and one.fault for one in callbacks):
        return FAILED
    return REACHED if result.reached or settings.target is None else NOT_REACHED


def _written(write: Callable[[], None]) -> bool:
    """Write a file; returns whether that worked. An error is one line, so that other files can still be written."""
    try:
        write()
    except OSError as error:
        print(f"ampnet: {error}", file=sys.stderr, flush=True)
        return False
    return True


def _keep(
    job: Job, best: BestWeights | None, model: Path | None, listeners: Sequence[Listener], display: Display
) -> None:
    """After an error, if an epoch was complete: write the model of the best one, and keep log and trace."""
    if best is not None and model is not None and best.state_dict is not None:
        _written(lambda: _save(job, best, model, display))
    for writer in listeners:
        if isinstance(writer, LogWriter | PerfettoWriter):
            _written(writer.close)


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

    def __init__(self, display: Display, file: RunFile, ctrl_c: Stopping, quiet: bool) -> None:
        self.display, self.file, self.ctrl_c, self.quiet = display, file, ctrl_c, quiet
        self.last: Path | None = None
        """The last checkpoint."""

    def on_begin(self, run: Run) -> None:
        self.run = run
        if run.resumed is not None:
            self.last = run.resumed.path
            self.file.resumed(run.resumed, run.history)
        if run.begins is not None and not self.quiet:
            self.display.say(run.begins)

    def on_checkpoint(self, path: Path, seconds: float) -> None:
        here = Path.cwd()
        self.last = path.relative_to(here) if path.is_relative_to(here) else path
        if not self.quiet:
            self.display.say(f"checkpoint: {self.last}, {seconds:.2f} s")

    def on_turn(self, progress: Progress) -> None:
        if self.ctrl_c.asked:
            self.run.interrupt()
        self.display.turn(progress)

    def on_epoch_end(self, record: EpochRecord) -> None:
        self.display.epoch(record)
        self.file.epoch(record)
        if self.ctrl_c.asked:  # epochs may be shorter than the time between two turns
            self.run.interrupt()


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


def _check_serve(args: argparse.Namespace) -> None:
    """Raise an error before any work if predictions cannot be served."""
    from ampnet.serve.server import bound, import_uvicorn

    import_uvicorn()
    try:
        bound("127.0.0.1", args.serve).close()
    except OSError as error:
        args.parser.error(f"--serve: port {args.serve}: {error.strerror}; give another, or 0 to take any that is free")


def _served(job: Job, runtime: Runtime, port: int) -> Serving:
    """Returns the server of predictions, and prints its address."""
    from ampnet.cli.serve import tell
    from ampnet.serve import serve
    from ampnet.serve.workloads import described

    made = serve(runtime, port=port, **described(job.workload, job.settings, job.facts))
    tell(made)
    return made


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
def _files(log: Path | None, trace: Path | None) -> Iterator[tuple[LogWriter | PerfettoWriter, ...]]:
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
