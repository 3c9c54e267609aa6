"""Run the benchmarks: ``python -m bench`` (or ``make bench``). Every speed is a ratio within one run.

Results go to ``bench/results/`` with a description of the machine. ``--seconds`` sets how long each measurement takes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from bench import invocations, list_reduction, permuted_layers
from bench.machine import describe

RESULTS = Path(__file__).parent / "results"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds per measurement (default: 4)")
    parser.add_argument("--repeats", type=int, default=3, help="alternating repeats (default: 3)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of results (default: bench/results)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    out: dict[str, Any] = {"machine": describe()}
    checks: list[tuple[str, bool]] = []
    parts = {"invocations": invocations, "list_reduction": list_reduction, "permuted_layers": permuted_layers}
    for name, part in parts.items():
        out[name], found = part.run(args.seconds, args.repeats)
        checks += found
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "inline.json"
    part_path = path.with_suffix(".tmp")
    part_path.write_text(json.dumps(out, indent=1) + "\n")
    part_path.replace(path)
    print(f"\nwritten to {path}")
    for text, kept in checks:
        print(f"  {'ok  ' if kept else 'MISS'}  {text}")
    return 0 if all(kept for _, kept in checks) else 1


if __name__ == "__main__":
    raise SystemExit(main())
