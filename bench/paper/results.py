"""Results: the files of runs, read again and put together by run.

    NAME-s0.json, NAME-s1.json, ... ──> Measured: medians over the seeds, staleness, curves, machines

A file is of a run if it has its name and was made by its command; one of another command is left out, and told of.
One that was made in another way says so itself, in a note.

A seed that did not reach the target counts as infinitely many epochs and seconds: the median is that of all seeds, and
where half of them did not get there, there is none.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isinf
from pathlib import Path
from typing import Any

from bench.paper.figures import PAPER, Paper
from bench.paper.runs import RUNS, Run

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
    """Of the machine, when the run began; None: not known."""
    alone: bool
    """Whether it could use all cores of the machine; else others may have run beside it."""
    command: str
    """What was typed."""
    note: str
    """What else is to be said of it."""
    reaches: Callable[[float], bool]
    """Whether a value is at the target of the run."""

    @property
    def epochs(self) -> float:
        """To the target; infinite if it was not reached."""
        return self._first[0]

    @property
    def seconds(self) -> float:
        """Likewise."""
        return self._first[1]

    @property
    def _first(self) -> tuple[float, float]:
        """Epoch and seconds of the first validation at the target."""
        found = ((epoch, seconds) for epoch, seconds, value in self.curve() if self.reaches(value))
        return next(found, (inf, inf))

    def curve(self) -> list[tuple[int, float, float]]:
        """Epoch, seconds and value of every validation that has a value. What was prepared before is in the seconds."""
        metric, before = self.report["metric"], self.report.get("prepared_seconds", 0.0)
        points = ((r["epoch"], before + r["seconds"], r["valid_metrics"].get(metric)) for r in self.report["history"])
        return [(epoch, seconds, value) for epoch, seconds, value in points if value is not None]


@dataclass(frozen=True, slots=True)
class Measured:
    """All seeds of a run."""

    run: Run
    seeds: tuple[Seed, ...]

    @property
    def paper(self) -> Paper:
        return PAPER[self.run.workload]

    @property
    def reached(self) -> int:
        """Seeds that reached the target."""
        return sum(not isinf(seed.epochs) for seed in self.seeds)

    @property
    def epochs(self) -> float | None:
        """Median to the target; None: not reached."""
        return _finite(statistics.median(seed.epochs for seed in self.seeds))

    @property
    def seconds(self) -> float | None:
        """Likewise."""
        return _finite(statistics.median(seed.seconds for seed in self.seeds))

    @property
    def train(self) -> float | None:
        """Instances a second, median."""
        return self._median(lambda report: report.get("train_inst_per_s"))

    @property
    def valid(self) -> float | None:
        return self._median(lambda report: report.get("valid_inst_per_s"))

    @property
    def staleness(self) -> float | None:
        return self._median(lambda report: (report.get("staleness") or {}).get("mean"))

    @property
    def best(self) -> float | None:
        """The best validation of any seed."""
        values = [value for seed in self.seeds for _, _, value in seed.curve()]
        return (max if self.paper.higher_is_better else min)(values, default=None)

    @property
    def last(self) -> float | None:
        """Median of the metric after the last epoch."""
        ends = [curve[-1][2] for seed in self.seeds if (curve := seed.curve())]
        return statistics.median(ends) if ends else None

    @property
    def machines(self) -> list[Machine]:
        """Without repetition."""
        return list(dict.fromkeys(seed.machine for seed in self.seeds))

    def middle(self) -> Seed:
        """The seed that stands for the others: that of the median."""
        ordered = sorted(self.seeds, key=lambda seed: (seed.epochs, seed.seconds, seed.seed))
        return ordered[(len(ordered) - 1) // 2]

    def _median(self, of: Callable[[Mapping[str, Any]], float | None]) -> float | None:
        values = [value for seed in self.seeds if (value := of(seed.report)) is not None]
        return statistics.median(values) if values else None


@dataclass(frozen=True, slots=True)
class Results:
    """A folder of results."""

    measured: tuple[Measured, ...]
    """In the order of `RUNS`; runs without a file are not here."""
    missing: tuple[Run, ...]
    """Those without a file."""
    unknown: tuple[str, ...] = ()
    """Files that are not of these runs: of other names, of other commands, or no results at all."""

    def of(self, study: str, workload: str | None = None) -> list[Measured]:
        return [m for m in self.measured if m.run.study == study and workload in (None, m.run.workload)]

    def one(self, workload: str, way: str, max_active_keys: int, replicas: int = 1) -> Measured | None:
        """A line of the table."""
        wanted = (way, max_active_keys, replicas)
        found = (m for m in self.of("table", workload) if (m.run.way, m.run.max_active_keys, m.run.replicas) == wanted)
        return next(found, None)

    @property
    def machines(self) -> list[Machine]:
        """All of them, in the order in which lines have them."""
        return list(dict.fromkeys(machine for m in self.measured for machine in m.machines))


def read(folder: Path, runs: Sequence[Run] = RUNS) -> Results:
    """All files of results in the folder."""
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
    missing = tuple(run for run in runs if run.name not in found)
    return Results(measured, missing, tuple(unknown))


def stored(path: Path) -> Mapping[str, Any] | None:
    """What a file of results holds; None if it is something else, or is not there."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    whole = isinstance(data, dict) and {"run", "machine", "report", "wall_seconds"} <= data.keys()
    return data if whole else None


def of(run: Run, data: Mapping[str, Any]) -> bool:
    """Whether a file is of the run as it is today."""
    told = data["run"]
    return bool(told["name"] == run.name and (told.get("note") or told["command"] == run.typed(told["seed"])))


def _seed(run: Run, data: Mapping[str, Any]) -> Seed:
    told, where = data["run"], data["machine"]
    machine = tuple((name, where[name]) for name in MACHINE if name in where)
    load = float(where["load"]) if "load" in where else None
    alone = told.get("cores", where["cores"]) == where["cores"]
    note = told.get("note", "")
    return Seed(told["seed"], data["report"], machine, load, alone, told["command"], note, _reaches(run))


def _reaches(run: Run) -> Callable[[float], bool]:
    target = run.target
    if target is None:
        return lambda value: False
    return (lambda value: value >= target) if PAPER[run.workload].higher_is_better else (lambda value: value <= target)


def _finite(value: float) -> float | None:
    return None if isinf(value) else value
