"""``python -m bench.paper``: run the paper's experiments again, one after the other, and write the page of results.

    run      (the default) runs everything, or what is asked for, then writes the page
    write    writes the page from the files that there are

Exit codes: 0 all runs have a result, 1 some failed, 2 the command line was wrong, 130 interrupted. What was finished is
kept in any case, and ``--missing`` goes on from there.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ampnet.cli.options import Parser, UsageError
from bench.paper.execute import Executor, Job, RunFailed
from bench.paper.figures import PAPER
from bench.paper.page import PAGE, PICTURES, RESULTS, write
from bench.paper.results import of, stored
from bench.paper.runs import chosen

DONE, FAILED, WRONG_USE, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line asks for; returns the exit code."""
    try:
        return _main(argv)
    except UsageError as error:
        print(error, file=sys.stderr)
        return WRONG_USE


def _main(argv: Sequence[str] | None) -> int:
    parser = make_parser()
    args = parser.parse_args(argv)
    if args.limit is not None and args.out is None:
        parser.error("--limit: results of a few records are not to be kept; say where they go with --out")
    if args.what == "write":
        for option in ("only", "missing", "seeds", "data_dir", "limit", "list"):
            if getattr(args, option) not in (None, False):
                parser.error(f"--{option.replace('_', '-')}: 'write' writes the page from all files that there are")
        return _write(args)
    for pattern in args.only or ():
        if not chosen([pattern]):
            parser.error(f"--only: no run is called {pattern}; --list shows all names")
    runs = chosen(args.only)
    if args.list:
        for run in runs:
            seeds = f"{len(run.seeds)} seed{'s' * (len(run.seeds) != 1)}"
            print(f"{run.name:28} {seeds:8} {run.typed(run.seeds[0])}")
        return DONE
    out = args.out or RESULTS
    if not torch.cuda.is_available():
        for run in (run for run in runs if run.on_gpu):
            print(f"left out: {run.name} needs a GPU, and torch finds none here")
        runs = [run for run in runs if not run.on_gpu]
    jobs = [Job(run, seed) for run in runs for seed in (run.seeds if args.seeds is None else range(args.seeds))]
    if args.missing:
        jobs = [job for job in jobs if (data := stored(job.file(out))) is None or not of(job.run, data)]
    print(plan(jobs, out), flush=True)
    code = run_all(jobs, Executor(out, args.data_dir, args.limit))
    written = _write(args) if code != INTERRUPTED else DONE
    return code or written


def make_parser() -> Parser:
    """All options, with their defaults."""
    parser = Parser(
        prog="python -m bench.paper", description="The paper's Table 1 and appendix again; writes docs/results.md."
    )
    add = parser.add_argument
    add("what", nargs="?", choices=("run", "write"), default="run", help="what to do (default: run, then write)")
    add("--only", action="append", metavar="GLOB", help="runs with such names only; may be repeated (default: all)")
    add("--missing", action="store_true", help="only what has no file of results yet (default: off)")
    add("--seeds", type=_whole, metavar="N", help="so many seeds of each run (default: each run's own number)")
    add("--data-dir", type=Path, metavar="DIR", help="where data sets are (default: as docs/data.md says)")
    add("--limit", type=_whole, metavar="N", help="N training records, two epochs: to try this out (default: all)")
    out = "folder of results; the page is then written there too (default: bench/results/paper, docs/results.md)"
    add("--out", type=Path, metavar="DIR", help=out)
    add("--list", action="store_true", help="show names and commands, run nothing (default: off)")
    return parser


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def plan(jobs: Sequence[Job], out: Path) -> str:
    """How much there is to do, and how long it took before."""
    known = [wall for job in jobs if (wall := _wall(job, out)) is not None]
    told = f"{len(jobs)} run{'s' * (len(jobs) != 1)}"
    if known:
        told += f"; {len(known)} of them took {duration(sum(known))} before"
    return told


def _wall(job: Job, out: Path) -> float | None:
    """Seconds of this seed, or else of another seed of the run, in the files that there are."""
    paths = [job.file(out), *sorted(out.glob(f"{job.run.name}-s*.json"))]
    found = (data["wall_seconds"] for path in paths if (data := stored(path)) is not None)
    return next(map(float, found), None)


def duration(seconds: float) -> str:
    """``25 s``, ``7 min``, ``2.5 h``"""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def run_all(jobs: Sequence[Job], execute: Executor) -> int:
    """One after the other, a line for each. What fails is told, and the others go on."""
    failed: list[tuple[Job, str]] = []
    for number, job in enumerate(jobs, 1):
        place = f"[{number}/{len(jobs)}] {job}"
        try:
            print(f"{place}: {told(job, execute(job)['report'])}", flush=True)
        except RunFailed as error:
            failed.append((job, str(error)))
            print(f"{place}: failed: {str(error).splitlines()[-1]}", flush=True)
        except KeyboardInterrupt:
            print(f"{place}: interrupted; {number - 1} before it are done, --missing goes on", flush=True)
            return INTERRUPTED
    for job, said in failed:
        print(f"\n{job} failed:\n{said}", file=sys.stderr)
    return FAILED if failed else DONE


def told(job: Job, report: Mapping[str, Any]) -> str:
    """``97.6 % after 3 epochs, 25 s``"""
    value, epochs = PAPER[job.run.workload].shown(report["value"]), report["epochs"]
    missed = report["target"] is not None and not report["reached"]
    end = f" (target {report['target']:g} not reached)" if missed else ""
    seconds = report["seconds"] + report.get("prepared_seconds", 0.0)
    return f"{value} after {epochs} epoch{'s' * (epochs != 1)}, {duration(seconds)}{end}"


def _write(args: argparse.Namespace) -> int:
    out: Path | None = args.out
    page = PAGE if out is None else out / "results.md"
    results = write(RESULTS, page, PICTURES) if out is None else write(out, page, out / "pictures")
    for name in results.unknown:
        print(f"left out: {name} is not of a run in the list", file=sys.stderr)
    print(f"written: {page.name}, from {sum(len(m.seeds) for m in results.measured)} files of results")
    return DONE


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that nothing that runs is left behind
    sys.exit(main())
