"""Schedule: which job starts when, and on which cores.

    cores     0  1  2  3
    timed    [ A: all  ]                      a timed run is alone on the cores of its class
             [ B: all  ]
    others   [C ][D    ]                      then the others, side by side: each has its cores, no two share one
             [E    ][F ]

`--jobs` limits the number side by side. After ``seconds`` no job starts, and none starts that took longer than the time
that is left. Failures are reported, and the other jobs go on. Ctrl-C ends the jobs that run; finished ones are stored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.paper.execute import Executor, Job, RunFailed, Started


@dataclass(slots=True)
class Outcome:
    """The end of all jobs."""

    done: list[Job] = field(default_factory=list)
    failed: list[tuple[Job, str]] = field(default_factory=list)
    """Jobs without a result, and the end of their stderr."""
    left: list[Job] = field(default_factory=list)
    """Jobs that were not started, or were interrupted."""
    interrupted: bool = False


@dataclass(slots=True)
class Schedule:
    """Executes jobs on a set of cores."""

    executor: Executor
    cores: Sequence[int]
    at_once: int = 1
    """Untimed jobs side by side, at most."""
    seconds: float | None = None
    """No job starts later than this."""
    expected: Callable[[Job], float | None] = lambda job: None
    """Returns the seconds that a job will take; None: not known."""
    on_result: Callable[[Job, Mapping[str, Any] | RunFailed], None] = lambda job, result: None
    """Called with the result file's contents, or with the failure."""
    clock: Callable[[], float] = time.monotonic

    def run(self, jobs: Sequence[Job]) -> Outcome:
        """Execute jobs: timed ones first, each kind in the given order."""
        outcome, began, running = Outcome(), self.clock(), list[Started]()
        waiting = sorted(jobs, key=lambda job: not job.run.timed)
        try:
            while waiting or running:
                left = None if self.seconds is None else self.seconds - (self.clock() - began)
                late = [job for job in waiting if left is not None and not self._fits(job, left)]
                outcome.left += late
                waiting = [job for job in waiting if job not in late]
                while (job := self._next(waiting, running)) is not None:
                    waiting.remove(job)
                    running.append(self.executor.start(job, self._cores(job, running)))
                    if len(running) > 1:
                        for one in running:
                            one.alone = False
                if running:
                    one = self.executor.wait(running)
                    running.remove(one)
                    self._finish(one, outcome)
        except KeyboardInterrupt:
            outcome.interrupted = True
            outcome.left += [*(one.job for one in running), *waiting]
        finally:
            for one in running:
                self.executor.end(one)
        return outcome

    def _fits(self, job: Job, left: float) -> bool:
        """Returns whether a job may start with this number of seconds left."""
        return left > 0 and (self.expected(job) or 0.0) <= left

    def _next(self, waiting: Sequence[Job], running: Sequence[Started]) -> Job | None:
        """Returns the first job that may start now."""
        if any(one.job.run.timed for one in running) or len(running) >= self.at_once:
            return None
        for job in waiting:
            if not running or (not job.run.timed and self._need(job) <= len(self._free(running))):
                return job
        return None

    def _cores(self, job: Job, running: Sequence[Started]) -> Sequence[int]:
        """Returns the cores of a job that starts now."""
        return self.cores[: job.run.cores] if job.run.timed else self._free(running)[: self._need(job)]

    def _need(self, job: Job) -> int:
        return min(job.run.width, len(self.cores))

    def _free(self, running: Sequence[Started]) -> Sequence[int]:
        taken = {core for one in running for core in one.cores}
        return [core for core in self.cores if core not in taken]

    def _finish(self, one: Started, outcome: Outcome) -> None:
        try:
            found = self.executor.finish(one)
        except RunFailed as error:
            outcome.failed.append((one.job, str(error)))
            self.on_result(one.job, error)
        else:
            outcome.done.append(one.job)
            self.on_result(one.job, found)
