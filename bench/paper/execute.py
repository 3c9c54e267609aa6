"""Execute: one run with one seed, as a process of its own; its report becomes a result file.

    Job ──start──> python -m ampnet train ... --json FILE, on some cores ──finish──> trimmed report ──> NAME-sSEED.json

A target that was missed is a result (exit code 3). So is a run whose loss was not finite any more: it has the epochs
before that, and the error under ``diverged``. Anything else that goes wrong is `RunFailed`, and no file is written.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ampnet.cli.report import write_json
from ampnet.experiments.catalog import WORKLOADS
from bench.machine import describe
from bench.paper.commit import commit
from bench.paper.runs import Run
from bench.rows import CHECKOUT

REACHED, FAILED, NOT_REACHED = 0, 1, 3
"""Exit codes of a run."""
DIVERGED = "LossError"
"""The error of a loss or a gradient that is not finite."""
TAIL = 12
"""Lines of stderr that a failure shows."""
GRACE = 15.0
"""Seconds that a run has to end after Ctrl-C, before it is killed."""
KEPT = ("workload", "metric", "value", "value_epoch", "target", "reached", "epochs", "seconds", "train_inst_per_s")
ALSO = ("valid_inst_per_s", "prepared_seconds", "skipped", "version", "torch")
"""Fields that are taken over from a report as they are."""
ENGINE = ("name", "reason", "waves", "in_flight")
"""Fields that are taken over from its engine."""
LEFT_OUT = ("affinity",)
"""Settings that are long and say little."""


class RunFailed(Exception):
    """A run ended without a result. The message is the end of its stderr."""


@dataclass(frozen=True, slots=True)
class Job:
    """A run and one of its seeds."""

    run: Run
    seed: int

    def file(self, folder: Path) -> Path:
        """Returns the path of its result."""
        return folder / f"{self.run.name}-s{self.seed}.json"

    def __str__(self) -> str:
        return f"{self.run.name} seed {self.seed}"


@dataclass(slots=True)
class Started:
    """A process that trains."""

    job: Job
    cores: tuple[int, ...]
    """The cores that it is kept to."""
    process: subprocess.Popen[bytes]
    folder: tempfile.TemporaryDirectory[str]
    """Holds its report."""
    said: IO[str]
    """Its stderr."""
    alone: bool = True
    """Whether no other run was executed meanwhile."""
    machine: Mapping[str, Any] = field(default_factory=describe)
    began: float = field(default_factory=time.monotonic)

    @property
    def report(self) -> Path:
        return Path(self.folder.name, "report.json")

    def close(self) -> None:
        """Remove its temporary files."""
        self.said.close()
        self.folder.cleanup()


@dataclass(frozen=True, slots=True)
class Executor:
    """Executes jobs."""

    out: Path
    """The folder of results."""
    data_dir: Path | None = None
    limit: int | None = None
    """Use this number of records, for two epochs: to try the harness out."""

    def start(self, job: Job, cores: Sequence[int]) -> Started:
        """Start a job on some cores."""
        folder = tempfile.TemporaryDirectory()
        said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - until `close`
        more = [*self._more(job.run), "--json", str(Path(folder.name, "report.json")), "--quiet"]
        process = subprocess.Popen(
            [sys.executable, "-m", *job.run.command(job.seed), *more],
            stdout=subprocess.DEVNULL,
            stderr=said,
            env=_environment(job.run),
            cwd=CHECKOUT,
            start_new_session=True,
        )
        with suppress(ProcessLookupError):  # it has ended already
            os.sched_setaffinity(process.pid, cores)
        return Started(job, tuple(cores), process, folder, said)

    def wait(self, running: Sequence[Started]) -> Started:
        """Wait until one of the jobs has ended, and return it."""
        watched = {os.pidfd_open(one.process.pid): one for one in running}
        try:
            ended, _, _ = select.select(list(watched), [], [])
            one = watched[ended[0]]
            one.process.wait()
            return one
        finally:
            for descriptor in watched:
                os.close(descriptor)

    def finish(self, one: Started) -> dict[str, Any]:
        """Store the result of a job that has ended, and return it."""
        wall = time.monotonic() - one.began
        try:
            one.said.seek(0)
            data = _report(one, one.said.read())
        finally:
            one.close()
        told = {**described(one.job, len(one.cores), one.alone), "limit": self.limit}
        found = {"run": told, "machine": one.machine, "wall_seconds": wall, "report": data}
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            write_json(one.job.file(self.out), found)
        except OSError as error:
            raise RunFailed(f"its result cannot be stored: {error}") from error
        return found

    def end(self, one: Started) -> None:
        """End a job without a result: as Ctrl-C does, so that workers and shared memory are cleared away."""
        process = one.process
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(GRACE)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        one.close()

    def _more(self, run: Run) -> list[str]:
        """Returns options that are not part of the run: the folder of data, and the number of records."""
        more = []
        if self.data_dir is not None and (run.way == "torch" or WORKLOADS[run.workload].files):
            more += ["--data-dir", str(self.data_dir.resolve())]
        if self.limit is not None:
            more += ["--limit", str(self.limit), "--epochs", "2"]
            if run.way != "torch" and hasattr(WORKLOADS[run.workload].settings(), "valid_size"):
                more += ["--valid-size", str(self.limit)]
        return more


def described(job: Job, cores: int, alone: bool) -> dict[str, Any]:
    """Returns the job for its file: without paths of the machine."""
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
        "cores": cores,
        "alone": alone,
        "commit": commit(),
        "command": run.typed(job.seed),
    }


def _report(one: Started, said: str) -> dict[str, Any]:
    """Returns the trimmed report of a process that has ended. Raises `RunFailed`."""
    code, found = one.process.returncode, one.report.exists()
    diverged = code == FAILED and DIVERGED in said
    if diverged and not found:
        return {**empty(one.job.run), "diverged": _tail(said)}
    if not found or (code not in (REACHED, NOT_REACHED) and not diverged):
        raise RunFailed(_tail(said) or f"ended with {code}, without a report")
    try:
        data = trimmed(json.loads(one.report.read_text(encoding="utf-8")))
    except (ValueError, KeyError) as error:
        raise RunFailed(f"its report cannot be read: {error!r}") from error
    return {**data, "diverged": _tail(said)} if diverged else data


def empty(run: Run) -> dict[str, Any]:
    """Returns the report of a run that did not finish an epoch."""
    nothing = dict.fromkeys(("value", "value_epoch", "train_inst_per_s", "valid_inst_per_s"))
    reached = {"target": run.target, "reached": False, "epochs": 0, "seconds": 0.0}
    metric = WORKLOADS[run.workload].metric
    return {"workload": run.workload, "metric": metric, **nothing, **reached, "settings": {}, "history": []}


def trimmed(report: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a report without its bulky fields: histograms, the load of replicas, the placement of nodes."""
    staleness = report.get("staleness") or {}
    nodes = {name: _mean_max(of) for name, of in (staleness.get("per_node") or {}).items()}
    settings = {name: value for name, value in (report.get("settings") or {}).items() if name not in LEFT_OUT}
    engine = report.get("engine") or {}
    return {
        **{name: report[name] for name in (*KEPT, *ALSO) if name in report},
        "engine": {name: engine[name] for name in ENGINE if name in engine},
        "staleness": {**_mean_max(staleness), "per_node": nodes},
        "settings": settings,
        "history": report["history"],
    }


def _mean_max(of: Mapping[str, Any]) -> dict[str, Any]:
    return {name: of.get(name) for name in ("mean", "max")}


def _environment(run: Run) -> dict[str, str]:
    """Returns the environment of a run: one thread for each process, or the threads of the baseline."""
    return {**os.environ, "OMP_NUM_THREADS": str(run.workers if run.way == "torch" else 1)}


def _tail(said: str) -> str:
    return "\n".join([line for line in said.splitlines() if line.strip()][-TAIL:])
