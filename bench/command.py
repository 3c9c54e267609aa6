"""What ``ampnet bench`` does: rows, rounds, then a table, a file of results and a picture for each workload."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from ampnet.cli.report import write_json
from bench import growth, parts
from bench.external import USUAL, external_rows
from bench.machine import describe
from bench.picture import paint
from bench.result import result_of
from bench.rounds import Tell, Turns, rounds
from bench.rows import CHECKOUT, OURS, Row, Settings, gemm_row, rows_of
from bench.table import make_console, show, show_races
from bench.workload import Workload
from bench.workloads import WORKLOADS

RESULTS = CHECKOUT / "bench" / "results"
REPEATS, RACES = 3, 1
"""Turns of every contender, and runs to the target, unless told otherwise."""


def run(args: argparse.Namespace) -> int:
    """Measure what was asked for; 1 where a row failed or a bound was missed."""
    if args.device == "cuda" and not torch.cuda.is_available():
        args.parser.error("--device: torch finds no CUDA device here; leave it out, or give cpu")
    args.out = RESULTS if args.out is None else args.out
    everything = args.what == "all"
    if args.what in WORKLOADS or everything:
        names = list(WORKLOADS) if everything else [args.what]
        chosen = [(workload, _rows(workload, args)) for name in names for workload in WORKLOADS[name]]
        if not any(rows for _, rows in chosen):
            known = ", ".join(f"'{row.name}'" for row in _all_rows(chosen[0][0], args))
            args.parser.error(f"--rows: {' '.join(args.rows)} is no row; there are: {known}")
    args.out.mkdir(parents=True, exist_ok=True)
    kept = True
    console = make_console(args.json)
    if args.what in WORKLOADS or everything:
        measure = _race if args.to_target else _compare
        for workload, rows in chosen:
            kept &= not rows or measure(workload, rows, args, console)
    if args.what == "growth" or everything:
        curves = growth.run(args.out, args.seconds_a_point, console, print_json=args.json)
        kept &= all(curve.kept is not False for curve in curves)
    if args.what == "parts" or everything:
        kept &= parts.run(args.out, args.seconds, args.repeats or REPEATS, None if everything else args.rows)
    return 0 if kept else 1


def settings_of(args: argparse.Namespace) -> Settings:
    return Settings(
        seconds=args.seconds,
        warmup=min(1.0, args.seconds),
        valid_seconds=min(1.0, args.seconds),
        device=args.device,
        data="generated" if args.to_target and args.data == "auto" else args.data,  # what the targets are for
        data_dir=None if args.data_dir is None else str(args.data_dir.resolve()),
        most=args.batches,
        to_target=args.to_target,
    )


def _all_rows(workload: Workload, args: argparse.Namespace) -> list[Row]:
    settings, cores = settings_of(args), args.cores or os.cpu_count() or 1
    folder = args.external or (USUAL if USUAL.is_dir() else None)
    return [*rows_of(workload, settings, cores), *external_rows(workload, folder, settings, cores)]


def _rows(workload: Workload, args: argparse.Namespace) -> list[Row]:
    """Those that were asked for; to the target, ours and one peer unless others were."""
    rows = _all_rows(workload, args)
    if args.rows:
        return [row for row in rows if any(fnmatchcase(row.name, pattern) for pattern in args.rows)]
    if args.to_target:
        return [row for row in rows if row.name in (OURS, _plain(f"{workload.rival} 1 thread", args))]
    return rows


def _plain(row: str, args: argparse.Namespace) -> str:
    """On a GPU, rows do not tell threads."""
    return row if args.device == "cpu" else row.removesuffix(" 1 thread")


def _compare(workload: Workload, rows: Sequence[Row], args: argparse.Namespace, console: Console) -> bool:
    settings, repeats = settings_of(args), args.repeats or REPEATS
    counts = {row.cores for row in rows}
    ends = sorted({min(counts), max(counts)})  # between them the peak is not measured: a turn of its own takes time
    peaks = [gemm_row(n, replace(settings, to_target=False)) for n in ends]
    with _told(workload, repeats, console) as tell:
        every = rounds([*peaks, *rows], repeats, settings.seconds, tell)
    base = _plain(args.base or workload.base, args)
    result = result_of(workload, every[len(peaks) :], every[: len(peaks)], settings, repeats, base)
    show(result, console)
    path = args.out / f"{_file(workload, args)}.json"
    write_json(path, result.to_json())
    if result.lines:
        paint(result, path.with_suffix(".png"))
    console.print(f"written to {shown(path)} and .png\n", style="dim", highlight=False, soft_wrap=True)
    if args.json:
        print(json.dumps(result.to_json()), flush=True)
    return not result.failed and all(check.kept for check in result.checks)


def _race(workload: Workload, rows: Sequence[Row], args: argparse.Namespace, console: Console) -> bool:
    repeats, target = args.repeats or RACES, workload.target
    with _told(workload, repeats, console) as tell:
        every = rounds(rows, repeats, target.seconds, tell)
    races: dict[str, list[dict[str, Any]]] = {turns.row.name: turns.found for turns in every if turns.found}
    title = f"{workload.name}: to {target.metric.replace('_', ' ')} {target.value:g}, {workload.about}"
    if races:
        show_races(title, races, console)
    failed = _failures(every, console)
    path = args.out / f"{_file(workload, args)}-to-target.json"
    found = {"workload": workload.name, "about": workload.about, "races": races, "failed": failed}
    write_json(path, {**found, "machine": describe()})
    console.print(f"written to {shown(path)}\n", style="dim", highlight=False, soft_wrap=True)
    if args.json:
        print(json.dumps(found), flush=True)
    return not failed


def _failures(every: Sequence[Turns], console: Console) -> dict[str, str]:
    failed = {turns.row.name: turns.failed for turns in every if turns.failed is not None}
    for row, why in failed.items():
        console.print(f"failed: {row}: {why}", style="red", highlight=False, markup=False)
    return failed


@contextmanager
def _told(workload: Workload, repeats: int, console: Console) -> Iterator[Tell]:
    """While rounds go on, a line that says whose turn it is; where nobody looks at it, nothing."""
    with Console(stderr=True).status(workload.name) as status:

        def tell(number: int, row: Row) -> None:
            status.update(f"{workload.name}, round {number + 1} of {repeats}: {row.name}")

        yield tell


def _file(workload: Workload, args: argparse.Namespace) -> str:
    return workload.name if args.device == "cpu" else f"{workload.name}-{args.device}"


def shown(path: Path) -> str:
    inside = path.resolve().is_relative_to(Path.cwd())
    return str(path.resolve().relative_to(Path.cwd()) if inside else path)
