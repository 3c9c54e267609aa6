"""Results: the result files, read again and grouped by run.

    NAME-s0.json, NAME-s1.json, ... ──> Measured: medians over the seeds, staleness, curves, machines, commits

A file belongs to a run if it has its name and was made by its command. Other files are left out, and reported.

A seed that did not reach the target counts as infinitely many epochs and seconds: the median is over all seeds, and
there is none where half of them did not reach it. Seconds and rates are those of runs that were alone on the machine.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isinf
from pathlib import Path
from typing import Any

from bench.paper.figures import PAPER, Paper
from bench.paper.plan import RUNS
from bench.paper.runs import Run

MACHINE = ("processor", "cores", "gpu", "python", "torch")
"""What makes two machines different; the load does not."""

Machine = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Seed:
    """One file."""

    seed: int
    report: Mapping[str, Any]
    machine: Machine
    load: float | None
    """Load of the machine when the run began; None: not known."""
    alone: bool
    """Whether no other run was executed beside it."""
    commit: str
    command: str
    reaches: Callable[[float], bool]
    """Returns whether a value is at the target of the run."""

    @property
    def epochs(self) -> float:
        """Epochs to the target; infinite if it was not reached."""
        return self._first[0]

    @property
    def seconds(self) -> float:
        """Seconds to the target; infinite if it was not reached."""
        return self._first[1]

    @property
    def diverged(self) -> bool:
        """Whether it ended because a loss or a gradient was not finite."""
        return "diverged" in self.report

    @property
    def _first(self) -> tuple[float, float]:
        """Epoch and seconds of the first validation at the target."""
        found = ((epoch, seconds) for epoch, seconds, value in self.curve() if self.reaches(value))
        return next(found, (inf, inf))

    def curve(self) -> list[tuple[int, float, float]]:
        """Returns epoch, seconds and value of every validation. The seconds include the preparation of instances."""
        metric, before = self.report["metric"], self.report.get("prepared_seconds") or 0.0
        points = ((r["epoch"], before + r["seconds"], r["valid_metrics"].get(metric)) for r in self.report["history"])
        return [(epoch, seconds, value) for epoch, seconds, value in points if value is not None]


@dataclass(frozen=True, slots=True)
class Measured:
    """All seeds of a run that have a file."""

    run: Run
    seeds: tuple[Seed, ...]

    @property
    def paper(self) -> Paper:
        return PAPER[self.run.workload]

    @property
    def reached(self) -> int:
        """Number of seeds that reached the target."""
        return sum(not isinf(seed.epochs) for seed in self.seeds)

    @property
    def epochs(self) -> float | None:
        """Median epochs to the target; None: not reached."""
        return _finite(statistics.median(seed.epochs for seed in self.seeds))

    @property
    def slowest(self) -> float | None:
        """Epochs to the target of the slowest seed; None: it did not reach it."""
        return _finite(max(seed.epochs for seed in self.seeds))

    @property
    def alone(self) -> bool:
        """Whether seconds and rates may be reported."""
        return all(seed.alone for seed in self.seeds)

    @property
    def seconds(self) -> float | None:
        """Median seconds to the target; None: not reached, or not alone."""
        return _finite(statistics.median(seed.seconds for seed in self.seeds)) if self.alone else None

    @property
    def train(self) -> float | None:
        """Median training instances per second; None: not alone."""
        return self._median(lambda report: report.get("train_inst_per_s")) if self.alone else None

    @property
    def valid(self) -> float | None:
        """Median validation instances per second; None: not alone."""
        return self._median(lambda report: report.get("valid_inst_per_s")) if self.alone else None

    @property
    def staleness(self) -> float | None:
        """Median of the seeds' mean staleness."""
        return self._median(lambda report: (report.get("staleness") or {}).get("mean"))

    @property
    def best(self) -> float | None:
        """The best validation of any seed."""
        values = [value for seed in self.seeds for _, _, value in seed.curve()]
        return (max if self.paper.higher_is_better else min)(values, default=None)

    @property
    def last(self) -> float | None:
        """Median of the metric after the last epoch; None if a seed diverged."""
        if any(seed.diverged for seed in self.seeds):
            return None
        ends = [curve[-1][2] for seed in self.seeds if (curve := seed.curve())]
        return statistics.median(ends) if ends else None

    @property
    def diverged(self) -> int:
        """Number of seeds that diverged."""
        return sum(seed.diverged for seed in self.seeds)

    @property
    def machines(self) -> list[Machine]:
        """Returns each machine once."""
        return list(dict.fromkeys(seed.machine for seed in self.seeds))

    def middle(self) -> Seed:
        """Returns the seed of the median."""
        ordered = sorted(self.seeds, key=lambda seed: (seed.epochs, seed.seconds, seed.seed))
        return ordered[(len(ordered) - 1) // 2]

    def _median(self, of: Callable[[Mapping[str, Any]], float | None]) -> float | None:
        values = [value for seed in self.seeds if (value := of(seed.report)) is not None]
        return statistics.median(values) if values else None


Line = tuple[Run, Measured | None]
"""A planned run and its results, if it was run."""


@dataclass(frozen=True, slots=True)
class Results:
    """A folder of results."""

    runs: tuple[Run, ...]
    """The plan."""
    measured: tuple[Measured, ...]
    """Runs with a file, in the order of the plan."""
    unknown: tuple[str, ...] = ()
    """Files that belong to no run: of other names, of other commands, or no results at all."""

    @property
    def missing(self) -> list[Run]:
        """Planned runs without a file."""
        found = {one.run.name for one in self.measured}
        return [run for run in self.runs if run.name not in found]

    def lines(self, study: str, workload: str | None = None, cores: int | None = None) -> list[Line]:
        """Returns the planned runs of a study, with their results."""
        found = {one.run.name: one for one in self.measured}
        return [
            (run, found.get(run.name))
            for run in self.runs
            if run.study == study and workload in (None, run.workload) and cores in (None, run.cores)
        ]

    def of(self, study: str, workload: str | None = None, cores: int | None = None) -> list[Measured]:
        """Returns the results of a study."""
        return [one for _, one in self.lines(study, workload, cores) if one is not None]

    def fastest(self, workload: str, *, torch: bool) -> Measured | None:
        """Returns the run that reaches the target first on 16 cores, of torch or of ours."""
        runs = [one for one in self.of("table", workload, 16) if (one.run.way == "torch") == torch]
        timed = [one for one in runs if one.seconds is not None]
        return min(timed, key=lambda one: one.seconds or 0.0, default=None)

    @property
    def machines(self) -> list[Machine]:
        """Returns all machines, in the order of the plan."""
        return list(dict.fromkeys(machine for one in self.measured for machine in one.machines))

    @property
    def commits(self) -> Counter[str]:
        """Returns the commits of the files, with the number of files of each."""
        return Counter(seed.commit for one in self.measured for seed in one.seeds)


def read(folder: Path, runs: Sequence[Run] = RUNS) -> Results:
    """Returns all results in a folder."""
    known = {run.name: run for run in runs}
    found: dict[str, list[Seed]] = {}
    unknown: list[str] = []
    for path in sorted(folder.glob("*.json")):
        data = stored(path)
        run = None if data is None else known.get(data["run"]["name"])
        if data is None or run is None or not of(run, data):
            unknown.append(path.name)
        else:
            found.setdefault(run.name, []).append(_seed(run, data))
    measured = tuple(
        Measured(run, tuple(sorted(found[run.name], key=lambda seed: seed.seed))) for run in runs if run.name in found
    )
    return Results(tuple(runs), measured, tuple(unknown))


def stored(path: Path) -> Mapping[str, Any] | None:
    """Returns the contents of a result file; None if it is something else, or not there."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    whole = isinstance(data, dict) and {"run", "machine", "report", "wall_seconds"} <= data.keys()
    return data if whole else None


def of(run: Run, data: Mapping[str, Any]) -> bool:
    """Returns whether a file is of the run as it is planned now."""
    told = data["run"]
    return bool(told["name"] == run.name and told["command"] == run.typed(told["seed"]))


def current(run: Run, data: Mapping[str, Any], commit: str, limit: int | None = None) -> bool:
    """Returns whether a file is of the run and of this code, with this ``--limit``: it need not be run again."""
    told = data["run"]
    return of(run, data) and told.get("commit") == commit and told.get("limit") == limit


def _seed(run: Run, data: Mapping[str, Any]) -> Seed:
    told, where = data["run"], data["machine"]
    machine = tuple((name, where[name]) for name in MACHINE if name in where)
    load = float(where["load"]) if "load" in where else None
    # Older files do not say it: those that were kept to a part of the cores had others beside them.
    alone = told.get("alone", told.get("cores", where["cores"]) == where["cores"])
    commit = told.get("commit") or "unknown"
    return Seed(told["seed"], data["report"], machine, load, alone, commit, told["command"], _reaches(run))


def _reaches(run: Run) -> Callable[[float], bool]:
    target = run.target
    if target is None:
        return lambda value: False
    return (lambda value: value >= target) if PAPER[run.workload].higher_is_better else (lambda value: value <= target)


def _finite(value: float) -> float | None:
    return None if isinf(value) else value
