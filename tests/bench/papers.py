"""Result files of `bench.paper`, made up."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.paper import execute
from bench.paper.execute import Job
from bench.paper.figures import PAPER
from bench.paper.plan import RUNS

BY_NAME = {run.name: run for run in RUNS}
MACHINE = {"processor": "Abacus", "cores": 2, "python": "3.11.7", "torch": "2.13", "load": "0.50"}
LARGE = MACHINE | {"processor": "Difference Engine", "cores": 16}


def store(
    folder: Path,
    name: str,
    values: Sequence[float] = (0.9, 0.98),
    *,
    seed: int = 0,
    train: float = 1000.0,
    machine: Mapping[str, Any] | None = None,
    staleness: float = 0.0,
    epoch_seconds: float = 10.0,
    alone: bool = True,
    commit: str | None = None,
    diverged: bool = False,
) -> None:
    """Write a file as `execute` does: an epoch takes ten seconds, and the target is reached or not."""
    job = Job(BY_NAME[name], seed)
    run, paper = job.run, PAPER[job.run.workload]
    metric = "accuracy" if paper.higher_is_better else "absolute_error"
    best = (max if paper.higher_is_better else min)(values, default=None)
    sign = 1 if paper.higher_is_better else -1
    reached = run.target is not None and best is not None and sign * best >= sign * run.target
    history = [
        {"epoch": i, "seconds": epoch_seconds * i, "valid_metrics": {metric: v}, "train_loss": 1.0}
        for i, v in enumerate(values, 1)
    ]
    report = {
        "metric": metric,
        "value": best,
        "target": run.target,
        "reached": reached,
        "epochs": len(values),
        "seconds": epoch_seconds * len(values),
        "train_inst_per_s": train,
        "valid_inst_per_s": 2 * train,
        "staleness": {"mean": staleness, "max": 1, "histogram": {"0": 5}, "per_node": {"a": {"mean": 0, "max": 0}}},
        "settings": {"vectors": "wordvec300", "affinity": {"a": 1}},
        "history": history,
    }
    told = execute.described(job, run.cores, alone) | ({} if commit is None else {"commit": commit})
    where = machine or (MACHINE if run.cores == 2 else LARGE)
    end = {"diverged": "LossError"} if diverged else {}
    found = {"run": told | {"limit": None}, "machine": where, "wall_seconds": 12.0}
    folder.mkdir(exist_ok=True)
    job.file(folder).write_text(json.dumps({**found, "report": execute.trimmed(report) | end}))


def cells(table: str, start: str, second: str | None = None) -> list[str]:
    """Returns the cells of the line of a table that starts so."""
    begin = f"| {start} |" if second is None else f"| {start} | {second} |"
    (line,) = [line for line in table.splitlines() if line.startswith(begin)]
    return [cell.strip() for cell in line.strip("|").split("|")]
