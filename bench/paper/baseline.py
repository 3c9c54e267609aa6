"""The baseline: an experiment of the paper in plain torch, synchronously in minibatches, to its target.

    python -m bench.paper.baseline mnist --target 0.97 --json mnist.json

Data, model, weights to start from, optimizer, learning rates and the order of records are those of ``ampnet train``
(`ampnet.experiments`). The model is a peer (`bench.peers`), batched by hand: of those that need nothing but torch and
are not compiled, the fastest. What differs is how it is trained: a batch goes forward and backward and makes an update
of all weights, then the next one does. Nothing is in flight, and no gradient is stale.

    epoch     batches of the training data             validation                  report
    clock     ░░████████░░████████░░███████            ████████                    as of ``ampnet train --json``
              [1]   [2]                                [3]

[1] A chunk of batches is collated while the clock stands. Chunks keep memory small: a hundred thousand molecules are
    never there at once.
[2] Forward, backward and update of each batch of the chunk. The metric is not computed here; ours does so.
[3] In inference mode, on batches that were collated before the first epoch.

The loss of a batch is the sum of all its losses divided by its records, as in `bench.contender`. Gradients are clipped
module by module, as ours are node by node.

Exit codes are those of ``ampnet train``: 0 done, 1 an error, 2 a wrong command line, 3 target not reached, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import isfinite, isnan
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from ampnet.cli.data import HELP, folder
from ampnet.cli.options import Parser, UsageError, file_to_write, fraction, positive, whole
from ampnet.cli.progress import Display, Facts, Plain
from ampnet.cli.report import duration, report, summary, write_json
from ampnet.data import Dataset
from ampnet.data.list_reduction import buckets
from ampnet.errors import AmpnetError, LossError
from ampnet.events.staleness import Staleness, StalenessMeter
from ampnet.experiments.catalog import WORKLOADS
from ampnet.experiments.list_reduction import Lists
from ampnet.experiments.running import policies
from ampnet.experiments.settings import Training
from ampnet.experiments.workload import Workload, measured, ordered
from ampnet.fitting import EpochRecord, FitResult
from ampnet.lang import Compiled, Seq
from ampnet.runtime.stats import RunStats
from ampnet.update.policy import MakeOptimizer
from bench.batch import Batch, Bucket
from bench.peers import ggsnn, list_reduction, mnist, tree_lstm
from bench.peers.peer import Collated, Peer

CHUNK = 256
"""Batches collated at once."""
VALID_BATCH = 100
"""Records in a batch of the validation."""
REACHED, FAILED, WRONG_USE, NOT_REACHED, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit codes."""


# -- what is trained


@dataclass(frozen=True)
class Job:
    """An experiment, ready to be trained."""

    workload: Workload[Any]
    settings: Training
    data: Dataset[Any]
    facts: Mapping[str, Any]
    graph: Compiled
    """Ours. Its model gives the weights to start from."""
    batch: int
    """Records in an update."""

    def batches(self, split: str, size: int, epoch: int | None = None) -> Iterator[Batch]:
        """The records of a split in batches: in the order of an epoch, from 1, or as they stand."""
        return BASELINES[self.workload.name].batches(self, split, size, epoch)


def make_job(workload: Workload[Any], settings: Training, batch: int, data_dir: Path | None = None) -> Job:
    """All that ``ampnet train`` would train."""
    data = workload.load(settings, data_dir)
    facts = workload.facts(settings, data)
    graph = workload.build(settings, facts)
    workload.begin(graph, settings, data, data_dir)
    return Job(workload, settings, data, facts, graph, batch)


def _stacked(job: Job, split: str, size: int, epoch: int | None) -> Iterator[Batch]:
    """Rows that are alike, many in one."""
    for records in _groups(ordered(job.data.splits[split], job.settings, epoch), size):
        columns = zip(*map(job.data.arguments, records), strict=True)
        yield Bucket(len(records), tuple(torch.stack(column) for column in columns))


def _of_one_length(job: Job, split: str, size: int, epoch: int | None) -> Iterator[Batch]:
    """Sequences, in the buckets of `ampnet.models.list_reduction.instances`."""
    assert isinstance(job.data, Lists)
    some = job.data.arrays[split]
    rng = None if epoch is None else np.random.default_rng((job.settings.seed, epoch))
    for where in buckets(some, size, rng):
        tokens = np.ascontiguousarray(some.tokens[where, : some.lengths[where[0]]].T)
        yield Bucket(len(where), (Seq(torch.from_numpy(tokens)), torch.from_numpy(some.labels[where])))


def _single(job: Job, split: str, size: int, epoch: int | None) -> Iterator[Batch]:
    """Records of any shape, side by side."""
    arguments = job.workload.arguments(job.settings, job.facts)
    for records in _groups(ordered(job.data.splits[split], job.settings, epoch), size):
        yield [arguments(record) for record in records]


def _groups(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """So many at a time; the last may be fewer."""
    rest = iter(items)
    while group := list(itertools.islice(rest, size)):
        yield group


@dataclass(frozen=True, slots=True)
class Baseline:
    """How an experiment is batched by hand."""

    peer: type[Peer]
    batches: Callable[[Job, str, int, int | None], Iterator[Batch]]
    batch: int | None = None
    """Records in an update; None: as many as in ours."""


BASELINES: dict[str, Baseline] = {
    "mnist": Baseline(mnist.Eager, _stacked, 100),
    "list-reduction": Baseline(list_reduction.Folded, _of_one_length, 100),
    "sentiment": Baseline(tree_lstm.Level, _single, 25),
    "babi15": Baseline(ggsnn.BabiSparse, _single),
    "qm9": Baseline(ggsnn.Qm9Sparse, _single),
}
"""By the name of the workload."""


def usual_batch(name: str) -> int:
    """Records in an update, where nothing else is said."""
    return BASELINES[name].batch or WORKLOADS[name].settings().frequency()


# -- how it is trained


@dataclass(slots=True)
class Total:
    """What came of some batches."""

    loss: float = 0.0
    metric: float = 0.0
    """Both are sums over all rows that have a loss."""
    rows: int = 0
    records: int = 0
    seconds: float = 0.0

    def per_row(self, value: float) -> float:
        return value / self.rows

    @property
    def per_second(self) -> float:
        return self.records / self.seconds if self.seconds > 0 else float("nan")


class Learner:
    """A peer with the weights of our model, and its optimizers. An update follows on every batch."""

    def __init__(self, job: Job) -> None:
        self.peer = BASELINES[job.workload.name].peer(job.graph.model)
        self.unit = getattr(job.graph.model, "unit", 1.0)
        self.absolute = getattr(job.settings, "loss", "squared") == "absolute"
        self.clip_norm = job.settings.clip_norm
        self.modules = [[p for p in child.parameters() if p.requires_grad] for child in self.peer.children()]
        self.optimizers = optimizers(self.peer, job)
        schedule = policies(job.settings.complete(), job.graph)[0].schedule
        self.schedules = [] if schedule is None else [schedule(optimizer) for optimizer in self.optimizers]

    def judge(self, prediction: Tensor, label: Tensor) -> Tensor:
        """The sum of the losses: the peer's, or absolute errors where the settings ask for them."""
        if self.absolute:
            return functional.l1_loss(prediction, label, reduction="sum")
        return self.peer.judge(prediction, label)

    def train(self, batches: Sequence[Collated], total: Total) -> None:
        """Learn from some batches, and add to the total."""
        self.peer.train()
        lost = torch.zeros(())
        for batch in batches:
            for optimizer in self.optimizers:
                optimizer.zero_grad(set_to_none=True)
            for prediction, label in self.peer.score(batch):
                loss = self.judge(prediction, label)
                (loss / batch.count).backward()
                lost += loss.detach()
                total.rows += len(label)
            if self.clip_norm is not None:
                for module in self.modules:
                    clip_grad_norm_(module, self.clip_norm)
            for optimizer in self.optimizers:
                optimizer.step()
            total.records += batch.count
        total.loss += float(lost)

    def end_epoch(self) -> None:
        """Learning rates fall."""
        for schedule in self.schedules:
            schedule.step()

    @torch.inference_mode()
    def valid(self, batches: Sequence[Collated], total: Total) -> None:
        """Go through some batches without a change, and add to the total."""
        self.peer.eval()
        lost, metric = torch.zeros(()), torch.zeros(())
        for batch in batches:
            for prediction, label in self.peer.score(batch):
                lost += self.judge(prediction, label)
                metric += self.peer.metric(prediction, label)
                total.rows += len(label)
            total.records += batch.count
        total.loss += float(lost)
        total.metric += float(metric) * self.unit


def optimizers(peer: Peer, job: Job) -> list[Optimizer]:
    """As ours, one for all parameters with the same settings. Where gradients are sparse, torch has no fused step."""
    common, own = policies(job.settings.complete(), job.graph)
    others = {node: update.optimizer for node, update in own.items() if update.optimizer is not common.optimizer}
    sparse = {f"{name}.weight" for name, one in peer.named_modules() if isinstance(one, nn.Embedding) and one.sparse}
    groups: dict[tuple[MakeOptimizer, bool], list[Tensor]] = {}
    for name, parameter in peer.named_parameters():
        if parameter.requires_grad:
            make = next((others[node] for node in others if name.startswith(f"{node}.")), common.optimizer)
            groups.setdefault((make, name in sparse), []).append(parameter)
    missing = set(others.values()) - {make for make, _ in groups}
    if missing:
        names = ", ".join(node for node, make in others.items() if make in missing)
        raise AmpnetError(f"rate_of: the baseline has no parameters of its own for {names}")
    return [(_without_fused(make) if is_sparse else make)(group) for (make, is_sparse), group in groups.items()]


def _without_fused(make: MakeOptimizer) -> MakeOptimizer:
    assert isinstance(make, partial)
    return partial(make.func, **{name: value for name, value in make.keywords.items() if name != "fused"})


# -- the run


@dataclass(slots=True)
class Stopwatch:
    """Time that counts."""

    clock: Callable[[], float] = time.perf_counter
    seconds: float = 0.0

    @contextmanager
    def running(self, total: Total) -> Iterator[None]:
        began = self.clock()
        yield
        spent = self.clock() - began
        self.seconds += spent
        total.seconds += spent


@dataclass(slots=True)
class Run:
    """Epochs until the target, or as many as there may be. ``result`` tells of those that are finished."""

    job: Job
    on_epoch: Callable[[EpochRecord], None] = lambda record: None
    watch: Stopwatch = field(default_factory=Stopwatch)
    totals: list[tuple[Total, Total]] = field(default_factory=list)
    """Training and validation of each epoch."""
    history: list[EpochRecord] = field(default_factory=list)

    def go(self) -> None:
        """All of it. What is random (dropout) follows from the seed."""
        job = self.job
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(job.settings.seed)
            learner = Learner(job)
            validation = [learner.peer.collate(b) for b in job.batches(measured(job.data), VALID_BATCH)]
            for number in range(1, job.settings.epochs + 1):
                self._epoch(number, learner, validation)
                if self.reached:
                    return

    def _epoch(self, number: int, learner: Learner, validation: Sequence[Collated]) -> None:
        train, valid = Total(), Total()
        for group in _groups(self.job.batches("train", self.job.batch, number), CHUNK):
            chunk = [learner.peer.collate(batch) for batch in group]  # [1]
            with self.watch.running(train):
                learner.train(chunk, train)  # [2]
            if not isfinite(train.loss):
                raise LossError(f"the loss of epoch {number} is {train.loss}. Usual cause: too high a learning rate")
        learner.end_epoch()
        with self.watch.running(valid):
            learner.valid(validation, valid)  # [3]
        record = EpochRecord(
            number,
            train.per_row(train.loss),
            {},
            valid.per_row(valid.loss),
            {self.job.workload.metric: valid.per_row(valid.metric)},
            train.per_second,
            valid.per_second,
            self.watch.seconds,
        )
        self.totals.append((train, valid))
        self.history.append(record)
        self.on_epoch(record)

    def _value(self, record: EpochRecord) -> float:
        return record.valid_metrics[self.job.workload.metric]

    @property
    def sign(self) -> int:
        """1 where a higher metric is better, else -1."""
        return 1 if self.job.workload.higher_is_better else -1

    @property
    def reached(self) -> bool:
        """Whether the last epoch has reached the target."""
        target = self.job.settings.target
        if target is None or not self.history:
            return False
        return self.sign * self._value(self.history[-1]) >= self.sign * target

    def result(self) -> FitResult:
        """As `ampnet.fit` gives it. Seconds are those of the watch."""
        known = [record for record in self.history if not isnan(self._value(record))]
        best = max(known, key=lambda record: self.sign * self._value(record), default=None)
        told = self.history[-1] if self.reached else best
        return FitResult(
            self.job.workload.metric,
            float("nan") if told is None else self._value(told),
            0 if told is None else told.epoch,
            self.job.settings.target,
            self.reached,
            len(self.history),
            self.watch.seconds,
            self.watch.seconds if self.reached else None,
            _rate([train for train, _ in self.totals]),
            _rate([valid for _, valid in self.totals]),
            0,
            tuple(self.history),
        )


def _rate(totals: Sequence[Total]) -> float:
    return Total(records=sum(t.records for t in totals), seconds=sum(t.seconds for t in totals)).per_second


class Synchronous(StalenessMeter):
    """Measures what there is to measure: nothing is stale."""

    def overall(self) -> Staleness:
        return Staleness(0, 0.0, 0, {})


def train(job: Job, *, json: Path, quiet: bool = False) -> int:
    """Train, show, report; returns the exit code."""
    torch.set_num_threads(job.settings.threads)
    workload, meter = job.workload, Synchronous()
    totals = {"train": len(job.data.train), "valid": len(job.data.valid)}
    display = Display() if quiet else Plain(Facts(job.settings.epochs, totals, workload.metric, meter.overall))
    run, interrupted = Run(job, display.epoch), False
    try:
        run.go()
    except KeyboardInterrupt:
        interrupted = True
    result, settings = run.result(), {**asdict(job.settings), "batch": job.batch}
    engine = RunStats("plain torch", None, 0, 0, 0)
    state = "interrupted" if interrupted else "done"
    write_json(json, {"state": state, **report(workload.name, result, meter, settings, engine)})
    if interrupted:
        display.say(f"interrupted after {duration(result)}")
    display.say(summary(workload.name, workload.unit, result, meter, engine))
    if interrupted:
        return INTERRUPTED
    return REACHED if result.reached or result.target is None else NOT_REACHED


# -- the command line


def make_parser() -> Parser:
    """A parser for each experiment, with its own defaults."""
    parser = Parser(
        prog="python -m bench.paper.baseline",
        description="Train an experiment of the paper in plain torch, synchronously in minibatches.",
        epilog="'WORKLOAD --help' lists its options and their defaults.",
    )
    workloads = parser.add_subparsers(title="workloads", dest="workload", metavar="WORKLOAD", required=True)
    for name in BASELINES:
        workload = WORKLOADS[name]
        one = workloads.add_parser(name, help=workload.about, description=f"Train {workload.about}, in plain torch.")
        one.set_defaults(parser=one)
        _add_options(one, workload)
    return parser


def _add_options(parser: Parser, workload: Workload[Any]) -> None:
    defaults, unit = workload.settings(), workload.unit
    goal = "none" if workload.paper_target is None else f"none; the paper's is {workload.paper_target:g}"
    better = "at least" if workload.higher_is_better else "at most"

    def add(option: str, text: str, type: Callable[[str], Any], metavar: str, default: Any, shown: str = "") -> None:
        given = f"{text} (default: {shown or default})"
        parser.add_argument(option, type=type, metavar=metavar, default=default, help=given)

    add("--batch", f"{unit} in an update", whole(1), "N", usual_batch(workload.name))
    add("--threads", "torch threads", whole(1), "N", defaults.threads)
    add("--epochs", "epochs at most", whole(1), "N", defaults.epochs)
    kind = fraction if workload.metric == "accuracy" else positive
    add("--target", f"stop once {workload.metric} of a validation is {better} this", kind, "X", defaults.target, goal)
    add("--seed", "of generated data, weights, order and dropout", whole(0), "N", defaults.seed)
    add("--limit", f"use the first N training {unit} only", whole(1), "N", defaults.limit, "all")
    add("--learning-rate", "learning rate of the first epoch", positive, "RATE", defaults.learning_rate)
    add("--decay", "factor of the learning rate after every epoch", fraction, "FACTOR", defaults.decay)
    parser.add_argument("--data-dir", type=folder, metavar="DIR", help=HELP)
    parser.add_argument("--json", type=file_to_write, metavar="FILE", required=True, help="write the report to FILE")
    parser.add_argument("--quiet", action="store_true", help="print the closing line only (default: off)")


SETTINGS = ("threads", "epochs", "target", "seed", "limit", "learning_rate", "decay")
"""Options that are settings of the workload."""


def main(argv: Sequence[str] | None = None) -> int:
    """Train what the command line asks for; returns the exit code."""
    parser = make_parser()
    try:
        args, extra = parser.parse_known_args(argv)
        if extra:
            args.parser.unknown(extra)
        return train(_job(args), json=args.json, quiet=args.quiet)
    except UsageError as error:
        return _fail(str(error), WRONG_USE)
    except (AmpnetError, OSError) as error:
        return _fail(f"baseline: {error}", FAILED)


def _job(args: argparse.Namespace) -> Job:
    workload = WORKLOADS[args.workload]
    settings = replace(workload.settings(), **{name: getattr(args, name) for name in SETTINGS})
    return make_job(workload, settings, args.batch, args.data_dir)


def _fail(message: str, code: int) -> int:
    print(message, file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
