"""``python -m bench.gpt``: the GPT's pipelines, one after the other; see `bench.gpt`.

    python -m bench.gpt --seconds 32 --out bench/results/gpt.json --picture docs/pictures/gpt.png
    python -m bench.gpt --quick --out quick.json               a tiny model, to see whether it works

How many updates last about ``--seconds`` in a synchronous pipeline is measured first, and then the same for all
contenders. Each run is added to the file when it ends. The command goes on where it was interrupted: runs that the file
has, with the same settings, are not repeated (``--again`` repeats them).

Exit codes: 0 all that is asked for was reached, 1 something was missed, 2 a run failed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from examples.gpt.model import Sizes, stages
from torch import nn

from ampnet.cli.report import write_json
from bench.gpt.picture import paint
from bench.gpt.result import checks_of, lines_of, table
from bench.gpt.settings import CONTENDERS, FURTHER, Setting
from bench.machine import describe

REACHED, MISSED, FAILED = 0, 1, 2
QUICK = Setting("ours", 4, 0, Sizes(blocks=8, width=32, heads=2, context=32), snapshots=3, held_out=32)
PATIENCE = 120.0
"""Seconds that a run may take beyond four times those it was given."""
LEAST = 8
"""Updates after the warm-up, at least."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what the file does not have; prints the table and writes the picture."""
    args = _options(arguments)
    base = QUICK if args.quick else Setting("ours", 4, 0)
    chosen = {name: getattr(args, name) for name in ("in_flight", "learning_rate", "sequences", "seed")}
    base = replace(base, **{name: value for name, value in chosen.items() if value is not None})
    runs, failed = _earlier(args, base), False
    for count in args.microbatches:
        base = replace(base, microbatches=count)
        updates = args.updates or _planned(runs, count) or _updates(base, args.seconds)
        for contender in args.contenders:
            data = asdict(replace(base, contender=contender, updates=updates))
            if any(run["setting"] == data for run in runs):
                continue
            print(f"{contender}, {count} microbatches, {updates} updates ...", flush=True)
            turn = _turn(data, PATIENCE + 4 * args.seconds)
            if turn is None:
                failed = True
                continue
            runs = [*runs, {"seconds": args.seconds, "machine": describe(), "setting": data, "turn": turn}]
            write_json(args.out, {"runs": runs, "lines": [asdict(line) for line in lines_of(runs)]})
    checks: list[tuple[str, bool]] = []
    if runs:
        lines = lines_of(runs)
        checks = checks_of(lines)
        print(table(lines), *(f"  {'ok  ' if kept else 'MISS'}  {text}" for text, kept in checks), sep="\n")
        if args.picture is not None:
            paint(runs, args.picture)
    return FAILED if failed else REACHED if all(kept for _, kept in checks) else MISSED


def _earlier(args: argparse.Namespace, base: Setting) -> list[dict[str, Any]]:
    """Returns the runs of the file that can be compared with those to come."""
    if args.again or not args.out.exists():
        return []
    varied = ("contender", "microbatches", "updates")
    wanted = {name: value for name, value in asdict(base).items() if name not in varied}
    found: list[dict[str, Any]] = json.loads(args.out.read_text())["runs"]
    runs = [
        run
        for run in found
        if run["seconds"] == args.seconds
        and {name: value for name, value in run["setting"].items() if name not in varied} == wanted
        and args.updates in (None, run["setting"]["updates"])
    ]
    if len(runs) < len(found):
        print(f"{len(found) - len(runs)} runs of {args.out} have other settings, and are left out")
    return runs


def _planned(runs: Sequence[dict[str, Any]], microbatches: int) -> int | None:
    """Returns the updates of earlier runs, so that all contenders have the same."""
    return next((run["setting"]["updates"] for run in runs if run["setting"]["microbatches"] == microbatches), None)


def _updates(setting: Setting, seconds: float) -> int:
    """Returns the updates that last so long in a synchronous pipeline without any cost of communication."""
    each = _stage_seconds(setting) * (setting.microbatches + setting.stages - 1)
    return setting.warm + max(LEAST, round(seconds / each))


def _stage_seconds(setting: Setting) -> float:
    """Returns the seconds that the forward and backward of a microbatch take in one stage, with one thread."""
    torch.set_num_threads(1)
    stage = nn.Sequential(*(part for _, part in stages(setting.model(), setting.stages)[1]))
    rows = torch.randn(setting.sequences, setting.sizes.context, setting.sizes.width, requires_grad=True)
    times = []
    for _ in range(10):
        began = time.perf_counter()
        stage(rows).sum().backward()
        times.append(time.perf_counter() - began)
    return sorted(times)[len(times) // 2]


def _turn(data: dict[str, Any], limit: float) -> dict[str, Any] | None:
    """One run in a process of its own; None, and its last words are printed, if it failed or took too long."""
    command = [sys.executable, "-m", "bench.gpt.turn", json.dumps(data), str(os.getpid())]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=limit)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)  # its stages, too
        process.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        print(f"it took longer than {limit:.0f} seconds", file=sys.stderr)
        return None
    said = [line for line in out.splitlines() if line.startswith("{")]
    if process.returncode or not said:
        print("\n".join(err.splitlines()[-15:]), file=sys.stderr)
        return None
    turn: dict[str, Any] = json.loads(said[-1])
    return turn


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.gpt", description="Pipelines of a small GPT, compared.")
    add = parser.add_argument
    add("--seconds", type=float, default=32.0, help="about how long a synchronous run lasts (default: 32)")
    add("--out", type=Path, default=Path("bench/results/gpt.json"), help="file of results, continued if it exists")
    add("--picture", type=Path, help="where to draw the curves (default: nowhere)")
    add("--microbatches", type=int, nargs="+", default=[4, 8, 16], help="in an update (default: 4 8 16)")
    every, usual = [*CONTENDERS, *FURTHER], " ".join(CONTENDERS)
    add("--contenders", nargs="+", choices=every, default=list(CONTENDERS), help=f"who runs (default: {usual})")
    add("--updates", type=int, help="updates of each run, instead of --seconds")
    add("--again", action="store_true", help="forget the results in the file")
    add("--quick", action="store_true", help="a tiny model: shows that it works, and no speed")
    add("--in-flight", type=int, help="ours: microbatches in flight (default: 5)")
    add("--learning-rate", type=float, help="of AdamW (default: 0.001)")
    add("--sequences", type=int, help="sequences in a microbatch (default: 2)")
    add("--seed", type=int, help="of weights and order (default: 0)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
