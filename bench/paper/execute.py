"""Execute: one run with one seed, as a process of its own; its report becomes a file of results.

    Run, seed ──> python -m ampnet train ... --json FILE ──> trimmed report ──> NAME-sSEED.json, whole or not at all

A target that was not reached is a result (exit code 3). Anything else that goes wrong is `RunFailed`, and no file is
written. Ctrl-C ends the process that runs and is passed on; files of earlier runs stay.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ampnet.cli.report import write_json
from ampnet.experiments.catalog import WORKLOADS
from bench.machine import describe
from bench.paper.runs import Run
from bench.rows import CHECKOUT

REACHED, NOT_REACHED = 0, 3
"""Exit codes that come with a report."""
TAIL = 12
"""Lines of stderr that a failure shows."""
GRACE = 15.0
"""Seconds that a run has to end after Ctrl-C, before it is killed."""
KEPT = ("workload", "metric", "value", "value_epoch", "target", "reached", "epochs", "seconds", "train_inst_per_s")
ALSO = ("valid_inst_per_s", "prepared_seconds", "skipped", "version", "torch")
"""What is taken over from a report as it is."""
LEFT_OUT = ("affinity",)
"""Settings that are long and say little."""


class RunFailed(Exception):
    """A run ended without a result. The message is what it said last."""


@dataclass(frozen=True, slots=True)
class Job:
    """A run and one of its seeds."""

    run: Run
    seed: int

    def file(self, folder: Path) -> Path:
        """Where its result is."""
        return folder / f"{self.run.name}-s{self.seed}.json"

    def __str__(self) -> str:
        return f"{self.run.name} seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Executor:
    """How all runs are executed."""

    out: Path
    """The folder of results."""
    data_dir: Path | None = None
    limit: int | None = None
    """Use so few records, for two epochs: to try the harness out."""

    def __call__(self, job: Job) -> dict[str, Any]:
        """Execute it, store what came of it, return that."""
        machine = describe()
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "report.json")
            told = ["--json", str(report), "--quiet"]
            full = [sys.executable, "-m", *job.run.command(job.seed), *self._more(job.run), *told]
            began = time.monotonic()
            code, said = _finished(full, _environment(job.run))
            wall = time.monotonic() - began
            if code not in (REACHED, NOT_REACHED) or not report.exists():
                raise RunFailed(_tail(said) or f"ended with {code}, without a report")
            try:
                data = trimmed(json.loads(report.read_text(encoding="utf-8")))
            except (ValueError, KeyError) as error:
                raise RunFailed(f"its report cannot be read: {error!r}") from error
        found = {"run": described(job), "machine": machine, "wall_seconds": wall, "report": data}
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            write_json(job.file(self.out), found)
        except OSError as error:
            raise RunFailed(f"its result cannot be stored: {error}") from error
        return found

    def _more(self, run: Run) -> list[str]:
        """Options that are not part of the run: where data are, and how few of them are wanted."""
        more = []
        if self.data_dir is not None and (run.way == "torch" or WORKLOADS[run.workload].files):
            more += ["--data-dir", str(self.data_dir.resolve())]
        if self.limit is not None:
            more += ["--limit", str(self.limit), "--epochs", "2"]
            if run.way != "torch" and hasattr(WORKLOADS[run.workload].settings(), "valid_size"):
                more += ["--valid-size", str(self.limit)]
        return more


def described(job: Job) -> dict[str, Any]:
    """The run, for the file. Where somebody keeps Python and data is nobody's business."""
    run = job.run
    return {
        "name": run.name,
        "workload": run.workload,
        "way": run.way,
        "max_active_keys": run.max_active_keys,
        "replicas": run.replicas,
        "workers": run.workers,
        "seed": job.seed,
        "study": run.study,
        "cores": len(os.sched_getaffinity(0)),
        "commit": commit(),
        "command": run.typed(job.seed),
    }


@cache
def commit() -> str:
    """Of the checkout; with a plus where files were changed since. Empty where git cannot say."""
    try:
        said = [
            subprocess.run(["git", *args], cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout.strip()
            for args in (("rev-parse", "--short", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        ]
    except (OSError, subprocess.CalledProcessError):
        return ""
    return said[0] + "+" * bool(said[1])


def trimmed(report: Mapping[str, Any]) -> dict[str, Any]:
    """A report without what is bulky: histograms, how replicas shared the work, where nodes were."""
    staleness = report.get("staleness") or {}
    nodes = {name: _mean_max(of) for name, of in (staleness.get("per_node") or {}).items()}
    settings = {name: value for name, value in (report.get("settings") or {}).items() if name not in LEFT_OUT}
    return {
        **{name: report[name] for name in (*KEPT, *ALSO) if name in report},
        "staleness": {**_mean_max(staleness), "per_node": nodes},
        "settings": settings,
        "history": report["history"],
    }


def _mean_max(of: Mapping[str, Any]) -> dict[str, Any]:
    return {name: of.get(name) for name in ("mean", "max")}


def _environment(run: Run) -> dict[str, str]:
    """A thread for each process; the baseline has those that it is to have."""
    return {**os.environ, "OMP_NUM_THREADS": str(run.workers if run.way == "torch" else 1)}


def _finished(command: list[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """Exit code and stderr of a process that has ended."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as err:
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=err, env=environment, cwd=CHECKOUT, start_new_session=True
        )
        try:
            code = process.wait()
        except BaseException:
            _end(process)
            raise
        err.seek(0)
        return code, err.read()


def _end(process: subprocess.Popen[bytes]) -> None:
    """As Ctrl-C does, so that workers and shared memory are cleared away; if that is of no use, at once."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(GRACE)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _tail(said: str) -> str:
    return "\n".join([line for line in said.splitlines() if line.strip()][-TAIL:])
