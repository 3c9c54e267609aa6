"""Kept: the memory that all molecules of QM9 take while they are trained on, as instances and as scores.

    python -m bench.kept [--most 20000] [--out bench/results/kept.json]

    instances   payloads, states and structures, made before training
    scores      what each of them computes, made when it is first seen, kept for the next epoch
    wave        rows, gradients and residuals of what is in flight; layouts that are kept

Resident memory (RSS) is measured, of one process, after each of these. A model of hidden size 100, updates of 20.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ampnet import Inline, Update, compile
from ampnet.cli.report import write_json
from ampnet.data import load
from ampnet.data.qm9 import FEATURES, KINDS, arguments
from ampnet.models import Qm9
from bench.machine import describe
from bench.memory import resident

HIDDEN, STEPS, BATCH = 100, 4, 20


def settled() -> int:
    """Resident bytes, without memory that is free but not given back yet."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return resident()


def measure(folder: Path | None, most: int | None) -> dict[str, Any]:
    """Make the instances, train on them once, in the order of the file."""
    torch.set_num_threads(1)
    data = load("qm9", folder)
    records = data.train[: len(data.train) if most is None else most]
    sample = arguments(records[0])
    torch.manual_seed(0)
    graph = compile(Qm9(FEATURES, HIDDEN, STEPS, KINDS), *sample)
    update = Update(partial(torch.optim.Adam, lr=1e-3, fused=True), BATCH, "instances")
    with Inline(graph, max_active_keys=BATCH, update=update) as runtime:
        warm = [graph.instance(*arguments(record)) for record in records[:200]]
        runtime.train(warm)
        found: dict[str, Any] = {"process": settled()}
        instances = [graph.instance(*arguments(record)) for record in records]
        found["with instances"] = settled()
        seconds = []
        for epoch in ("first", "second"):
            began = time.process_time()
            runtime.train(instances)
            seconds.append(time.process_time() - began)
            found[f"after the {epoch} epoch"] = settled()
        assert runtime.player is not None
        planner, count = runtime.player.planner, len(instances)
        scores = len(planner._scores)
        pool = sum(t.nbytes for p in runtime.player._pools[id(planner)] for t in p._stores.values())
        found |= {
            "molecules": count,
            "scores": scores,
            "bytes of an instance": (found["with instances"] - found["process"]) / count,
            "bytes of a score, by its own count": planner._bytes / max(1, scores),
            "bytes of kept layouts, by their own count": planner._kept,
            "bytes of rows, gradients and residuals": pool,
            "instances, scores, layouts and waves": found["after the second epoch"] - found["process"],
            "CPU ms of a molecule, first epoch": 1e3 * seconds[0] / count,
            "CPU ms of a molecule, second epoch": 1e3 * seconds[1] / count,
        }
    return found


def main(argv: list[str] | None = None) -> int:
    """Print what was measured, and write it to a file."""
    parser = argparse.ArgumentParser(prog="python -m bench.kept", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=None, help="where the data are looked for first")
    parser.add_argument("--most", type=int, default=None, help="molecules (default: all)")
    parser.add_argument("--out", type=Path, default=Path("bench/results/kept.json"), help="(default %(default)s)")
    args = parser.parse_args(argv)
    found = measure(args.data, args.most)
    for name, value in found.items():
        print(f"{name:45} {value:16,.2f}" if isinstance(value, float) else f"{name:45} {value:16,}")
    write_json(args.out, {"kept": found, "machine": describe()})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
