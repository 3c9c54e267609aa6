"""Result: what came of all turns of a workload, as plain data: for the table, the picture and the file of results."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

from bench.machine import describe
from bench.rounds import Turns
from bench.rows import Settings
from bench.standing import Standing, standings
from bench.workload import Workload


@dataclass(frozen=True, slots=True)
class Line:
    """A row of the table."""

    row: str
    kind: str
    cores: int
    """How many it may keep busy."""
    best: float
    """Records a second in training, of the best turn."""
    median: float
    spread: float
    """From the slowest turn to the fastest, as a part of the median."""
    ratio: float | None
    """The best against the best of the base; None where the base was not run."""
    gflops: float | None
    """Useful GFLOP/s in training."""
    of_peak: float | None
    """A part of what matrix products get with as many threads."""
    valid: float | None
    """Records a second in inference, of the best turn."""
    updates: float | None
    """For as many records as the workload has in one; None: not known."""
    loss_first: float | None
    loss_last: float | None
    mib: float
    """Peak of resident memory, of the largest process."""
    data: str | None
    """"real" or "generated"."""
    turns: tuple[float, ...]
    """All speeds of training, in the order of rounds."""


@dataclass(frozen=True, slots=True)
class Check:
    """Whether a bound was kept."""

    text: str
    kept: bool


@dataclass(frozen=True, slots=True)
class Result:
    """All of a workload."""

    workload: str
    about: str
    unit: str
    base: str
    lines: Sequence[Line]
    skipped: Mapping[str, str]
    """By row: why it did not take part."""
    failed: Mapping[str, str]
    """By row: what it said when it failed."""
    peak: Mapping[str, float]
    """By the number of threads: GFLOP/s of the fastest matrix product."""
    checks: Sequence[Check]
    standing: Sequence[Standing]
    """Ours beside others on the same cores."""
    settings: Mapping[str, Any]
    machine: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def result_of(
    workload: Workload, every: Sequence[Turns], peaks: Sequence[Turns], settings: Settings, repeats: int, base: str
) -> Result:
    """Put together what came of all turns."""
    peak = {str(t.row.cores): max(one["gflops"] for one in t.found) for t in peaks if t.found}
    fastest = {t.row.name: max(one["train"] for one in t.found) for t in every if t.found}
    flops = next((one["flops"] for t in every for one in t.found if "flops" in one), None)
    lines = [_line(turns, fastest.get(base), flops, peak) for turns in every if turns.found]
    skipped = {t.row.name: t.row.skipped for t in every if t.row.skipped is not None}
    failed = {t.row.name: t.failed for t in every if t.failed is not None}
    told = {**asdict(settings), "repeats": repeats, "batch": workload.batch}
    told["data_dir"] = None  # where somebody keeps data is nobody's business
    checks = _checks(workload, fastest)
    stand = standings([asdict(line) for line in lines], settings.device)
    return Result(
        workload.name,
        workload.about,
        workload.unit,
        base,
        lines,
        skipped,
        failed,
        peak,
        checks,
        stand,
        told,
        describe(),
    )


def _line(turns: Turns, base: float | None, flops: float | None, peak: Mapping[str, float]) -> Line:
    speeds = [float(one["train"]) for one in turns.found]
    valids = [float(one["valid"]) for one in turns.found if one.get("valid")]
    best, middle, last = max(speeds), statistics.median(speeds), turns.found[-1]
    useful = None if flops is None else best * flops / 1e9
    most = peak.get(str(turns.row.cores))
    return Line(
        turns.row.name,
        turns.row.kind,
        turns.row.cores,
        best,
        middle,
        (best - min(speeds)) / middle,
        None if base is None else best / base,
        useful,
        None if useful is None or most is None else useful / most,
        max(valids) if valids else None,
        last.get("updates"),
        last.get("loss_first"),
        last.get("loss_last"),
        max(one["bytes"] for one in turns.found) / (1 << 20),
        last.get("data"),
        tuple(speeds),
    )


def _checks(workload: Workload, fastest: Mapping[str, float]) -> list[Check]:
    out = []
    for bound in workload.bounds:
        others = [speed for row, speed in fastest.items() if fnmatchcase(row, bound.than)]
        if bound.row in fastest and others:
            ratio = fastest[bound.row] / max(others)
            text = f"{workload.name}: '{bound.row}' at least {bound.least:g} x '{bound.than}': {ratio:.2f}"
            out.append(Check(text, ratio >= bound.least))
    return out
