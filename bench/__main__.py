"""Run the benchmarks: ``python -m bench`` (or ``make bench``). Every speed is a ratio within one run.

Results go to ``bench/results/`` with a description of the machine: ``inline.json`` for one core, ``processes.json`` for
worker processes, ``replicas.json`` for replicas of whole models. ``--seconds`` sets how long each measurement takes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from bench import hops, invocations, list_reduction, permuted_layers, processes, replicas
from bench.machine import describe

RESULTS = Path(__file__).parent / "results"
PARTS: dict[str, dict[str, Any]] = {
    "inline": {"invocations": invocations, "list_reduction": list_reduction, "permuted_layers": permuted_layers},
    "processes": {"hops": hops, "processes": processes},
    "replicas": {"replicas": replicas},
}
"""By file: what is measured."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds per measurement (default: 4)")
    parser.add_argument("--repeats", type=int, default=3, help="alternating repeats (default: 3)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of results (default: bench/results)")
    parser.add_argument("--only", choices=tuple(PARTS), help="one of the files (default: all)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    checks: list[tuple[str, bool]] = []
    args.out.mkdir(parents=True, exist_ok=True)
    for file, parts in PARTS.items():
        if args.only in (None, file):
            out: dict[str, Any] = {"machine": describe()}
            for name, part in parts.items():
                out[name], found = part.run(args.seconds, args.repeats)
                checks += found
            path = args.out / f"{file}.json"
            unfinished = path.with_suffix(".tmp")
            unfinished.write_text(json.dumps(out, indent=1) + "\n")
            unfinished.replace(path)
            print(f"\nwritten to {path}")
    for text, kept in checks:
        print(f"  {'ok  ' if kept else 'MISS'}  {text}")
    return 0 if all(kept for _, kept in checks) else 1


if __name__ == "__main__":
    raise SystemExit(main())
