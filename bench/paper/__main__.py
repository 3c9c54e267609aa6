"""``python -m bench.paper``: run the paper's experiments and write the page of results.

    run       (the default) runs everything that has no result of this code yet, then writes the page
    write     writes the page from the files that there are
    commit    prints the name of this code, for ``AMPNET_COMMIT`` in a copy without git

A run belongs to a machine with 2 cores (the default) or with 16 (``--cores 16``). A result of the same code and the
same command is not made again (``--again`` does). ``--quick`` runs a small part, into a folder of its own.

Exit codes: 0 all runs have a result, 1 some failed, 2 the command line was wrong, 3 the time was over before all had
run, 130 interrupted. Finished runs are kept in any case, and the same command goes on from there.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ampnet.cli.options import Parser, UsageError
from bench.paper.commit import UNKNOWN, commit
from bench.paper.execute import Executor, Job, RunFailed
from bench.paper.figures import PAPER
from bench.paper.page import PAGE, PICTURES, QUICK_RESULTS, RESULTS, sections, write
from bench.paper.plan import QUICK, QUICK_SECONDS, RUNS
from bench.paper.results import Results, current, stored
from bench.paper.runs import Run, chosen
from bench.paper.schedule import Outcome, Schedule

DONE, FAILED, WRONG_USE, LEFT, INTERRUPTED = 0, 1, 2, 3, 130
RUNNING = ("only", "again", "seeds", "data_dir", "limit", "list", "jobs", "seconds", "cores")
"""Options that only 'run' has."""


@dataclass(frozen=True, slots=True)
class Places:
    """The plan, and where its results, page and pictures are."""

    runs: Sequence[Run]
    results: Path
    page: Path
    pictures: Path

    @staticmethod
    def of(args: argparse.Namespace) -> Places:
        """Returns the places that the command line asks for."""
        out: Path | None = args.out or (QUICK_RESULTS if args.quick else None)
        runs = QUICK if args.quick else RUNS
        if out is None:
            return Places(runs, RESULTS, PAGE, PICTURES)
        return Places(runs, out, out / "results.md", out / "pictures")

    def write(self) -> Results:
        """Write page and pictures."""
        results = write(self.results, self.page, self.pictures, self.runs)
        for name in results.unknown:
            print(f"left out: {name} is not of a run in the list", file=sys.stderr)
        print(f"written: {self.page.name}, from {sum(len(m.seeds) for m in results.measured)} result files")
        return results


def main(argv: Sequence[str] | None = None) -> int:
    """Execute the command line; returns the exit code."""
    try:
        return _main(argv)
    except UsageError as error:
        print(error, file=sys.stderr)
        return WRONG_USE


def _main(argv: Sequence[str] | None) -> int:
    parser = make_parser()
    args = parser.parse_args(argv)
    if args.what == "commit":
        print(commit())
        return DONE
    places = Places.of(args)
    if args.what == "write":
        for option in RUNNING:
            if getattr(args, option) not in (None, False):
                parser.error(f"--{option.replace('_', '-')}: 'write' writes the page from all files that there are")
        places.write()
        return DONE
    _check(parser, args, places)
    runs = [run for run in chosen(args.only, places.runs) if run.cores == (args.cores or 2)]
    if args.list:
        for run in runs:
            seeds = f"{len(run.seeds)} seed{'s' * (len(run.seeds) != 1)}"
            print(f"{run.name:38} {seeds:8} {run.typed(run.seeds[0])}")
        return DONE
    return _run(args, places, runs)


def _check(parser: Parser, args: argparse.Namespace, places: Places) -> None:
    """Raise `UsageError` for options that do not go together."""
    if args.limit is not None and args.out is None:
        parser.error("--limit: results of a few records are not kept with the others; give a folder with --out")
    if args.quick and args.cores == 16:
        parser.error("--quick: is a part of the 2-core runs; leave out --cores")
    if args.quick and args.out is not None and args.out.resolve() == RESULTS:
        parser.error("--out: quick results are not kept with the others; give another folder")
    for pattern in args.only or ():
        found = chosen([pattern], places.runs)
        if not found:
            parser.error(f"--only: no run is called {pattern}; --list shows all names")
        if all(run.cores != (args.cores or 2) for run in found):
            parser.error(f"--only: {pattern} needs --cores {found[0].cores}")
    here = len(os.sched_getaffinity(0))
    if not args.list and args.limit is None and here < (args.cores or 2):
        parser.error(f"--cores: there are {here} here, and results are of {args.cores or 2}; --limit N tries it out")


def _run(args: argparse.Namespace, places: Places, runs: Sequence[Run]) -> int:
    """Run the jobs that have no result yet, and write the page; returns the exit code."""
    if not torch.cuda.is_available():
        for run in (run for run in runs if run.on_gpu):
            print(f"left out: {run.name} needs a GPU, and torch finds none here")
        runs = [run for run in runs if not run.on_gpu]
    every = jobs_of(runs, args.seeds)
    jobs = every if args.again else [job for job in every if not _done(job, places.results, args.limit)]
    print(plan(jobs, len(every), places.results), flush=True)
    if commit() == UNKNOWN:
        print("the commit of this code is not known: results of unknown commits count as its own; see AMPNET_COMMIT")
    seconds = QUICK_SECONDS if args.quick and args.seconds is None else args.seconds
    progress = Progress(len(jobs))
    schedule = Schedule(
        Executor(places.results, args.data_dir, args.limit),
        sorted(os.sched_getaffinity(0)),
        args.jobs or 1,
        seconds,
        lambda job: wall(job, places.results),
        progress,
    )
    outcome = schedule.run(jobs)
    code = told_end(outcome)
    if not outcome.interrupted:
        try:
            results = places.write()
        except ModuleNotFoundError as error:  # pictures need matplotlib
            print(f"the page is not written: {error}. 'python -m bench.paper write' writes it where that is installed")
            return code
        if args.quick:
            print("\n" + "\n\n".join(part.strip("\n") for part in sections(results)))
    return code


def jobs_of(runs: Sequence[Run], seeds: int | None = None) -> list[Job]:
    """Returns the jobs of some runs: the first seed of all runs, then the second, ..."""
    jobs = [Job(run, seed) for run in runs for seed in (run.seeds if seeds is None else range(seeds))]
    return sorted(jobs, key=lambda job: job.seed)


def _done(job: Job, out: Path, limit: int | None) -> bool:
    data = stored(job.file(out))
    return data is not None and current(job.run, data, commit(), limit)


def make_parser() -> Parser:
    """Returns the parser of the command line."""
    parser = Parser(
        prog="python -m bench.paper", description="The paper's tables and figures, reproduced; writes docs/results.md."
    )
    add = parser.add_argument
    add("what", nargs="?", choices=("run", "write", "commit"), default="run", help="what to do (default: run)")
    add("--cores", type=_cores, metavar="N", help="run the part for machines with 2 or with 16 cores (default: 2)")
    add("--quick", action="store_true", help="a small part, at most ten minutes, into a separate folder (default: off)")
    add("--only", action="append", metavar="GLOB", help="run only matching names; may be repeated (default: all)")
    add("--again", action="store_true", help="run also what has a result of this code (default: off)")
    add("--seeds", type=_whole, metavar="N", help="number of seeds of each run (default: each run's own number)")
    late = "start no run after S seconds, nor one that takes longer than what is left of them (default: no limit)"
    add("--seconds", type=_whole, metavar="S", help=late)
    add("--jobs", type=_whole, metavar="N", help="untimed runs side by side, on cores of their own (default: 1)")
    add("--data-dir", type=Path, metavar="DIR", help="folder of the data sets (default: see docs/data.md)")
    add("--limit", type=_whole, metavar="N", help="N training records and two epochs, to try it out (default: all)")
    out = "folder of results, page and pictures (default: bench/results/paper, docs; with --quick build/paper-quick)"
    add("--out", type=Path, metavar="DIR", help=out)
    add("--list", action="store_true", help="print names and commands, run nothing (default: off)")
    return parser


def _cores(text: str) -> int:
    if text not in ("2", "16"):
        raise argparse.ArgumentTypeError(f"{text!r}: there is a part for 2 cores, and one for 16")
    return int(text)


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


# -- what is printed


def plan(jobs: Sequence[Job], planned: int, out: Path) -> str:
    """Returns how much there is to do, and how long it took before."""
    known = [seconds for job in jobs if (seconds := wall(job, out)) is not None]
    told = f"{len(jobs)} run{'s' * (len(jobs) != 1)}"
    if len(jobs) < planned:
        told += f" ({planned - len(jobs)} of {planned} have a result of {commit()})"
    if known:
        told += f"; {len(known)} of them took {duration(sum(known))} before"
    return told


def wall(job: Job, out: Path) -> float | None:
    """Returns the seconds of this seed, or else of another seed of the run, in the files that there are."""
    paths = [job.file(out), *sorted(out.glob(f"{job.run.name}-s*.json"))]
    found = (data["wall_seconds"] for path in paths if (data := stored(path)) is not None)
    return next(map(float, found), None)


def duration(seconds: float) -> str:
    """Returns ``25 s``, ``7 min``, ``2.5 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


class Progress:
    """Prints a line for each job that has ended."""

    def __init__(self, count: int) -> None:
        self.count, self.ended = count, 0

    def __call__(self, job: Job, result: Mapping[str, Any] | RunFailed) -> None:
        self.ended += 1
        if isinstance(result, RunFailed):
            end = f"failed: {str(result).splitlines()[-1]}"
        else:
            end = told(job, result["report"])
        print(f"[{self.ended}/{self.count}] {job}: {end}", flush=True)


def told(job: Job, report: Mapping[str, Any]) -> str:
    """Returns ``97.6 % after 3 epochs, 25 s``."""
    value, epochs = PAPER[job.run.workload].shown(report["value"]), report["epochs"]
    missed = report["target"] is not None and not report["reached"]
    end = f" (target {report['target']:g} not reached)" if missed else ""
    end += " (diverged)" * ("diverged" in report)
    seconds = report["seconds"] + (report.get("prepared_seconds") or 0.0)
    return f"{value} after {epochs} epoch{'s' * (epochs != 1)}, {duration(seconds)}{end}"


def told_end(outcome: Outcome) -> int:
    """Print failures and what is left; returns the exit code."""
    for job, said in outcome.failed:
        print(f"\n{job} failed:\n{said}", file=sys.stderr)
    if outcome.left:
        why = "interrupted" if outcome.interrupted else "the time is over"
        names = ", ".join(map(str, outcome.left))
        print(f"{why}; the same command goes on with {len(outcome.left)} more: {names}", flush=True)
    if outcome.interrupted:
        return INTERRUPTED
    return FAILED if outcome.failed else LEFT if outcome.left else DONE


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that no process is left behind
    sys.exit(main())
