"""Ahead: on a device, the time of a molecule with and without planning the next wave while this one is computed.

    python -m bench.ahead [--device cuda]

    without   [plan][give 1 to the device][wait][plan][give 2 ...
    with      [plan][give 1][plan 2][wait     ][give 2 ...             the device computes during plan 2

QM9 with generated molecules, hidden 100; every structure is new in every epoch (scores are dropped), or known (scores
are kept, layouts are not). The order is another in every epoch.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from ampnet import Inline, Instance, Update
from bench.contender import _on, placed
from bench.workload import Wanted, compiled, instances
from bench.workloads.qm9 import QM9


def epoch(runtime: Inline, given: Sequence[Instance], *, ahead: bool, fresh: bool) -> float:
    """Seconds of an epoch."""
    assert runtime.player is not None
    planner = runtime.player.planner
    planner.forget_layouts()
    planner._keeps, planner.ahead = False, ahead
    if fresh:
        planner._scores.clear()
        planner._bytes = 0
    began = time.perf_counter()
    runtime.train(given)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def main(argv: list[str] | None = None) -> int:
    """Print milliseconds of a molecule, the best of some turns."""
    parser = argparse.ArgumentParser(prog="python -m bench.ahead", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--molecules", type=int, default=4000)
    parser.add_argument("--waves", type=int, nargs="+", default=[20, 500], help="molecules of a wave")
    parser.add_argument("--turns", type=int, default=4)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    for size in args.waves:
        data = QM9.data(Wanted(QM9.batch, "generated", most=args.molecules // QM9.batch))
        graph = placed(compiled(QM9, data, QM9.ours["ours"]), args.device)
        given = [_on(one, args.device) for batch in data.train for one in instances(graph, batch)]
        update = Update(partial(torch.optim.Adam, lr=1e-3, fused=True), size, "instances")
        rng, best = np.random.default_rng(0), dict[Any, float]()
        with Inline(graph, max_active_keys=size, update=update) as runtime:
            for turn in range(1 + args.turns):
                for fresh in (True, False):
                    for ahead in (False, True):
                        mixed = [given[i] for i in rng.permutation(len(given))]
                        took = 1e3 * epoch(runtime, mixed, ahead=ahead, fresh=fresh) / len(given)
                        if turn:
                            best[fresh, ahead] = min(best.get((fresh, ahead), took), took)
        for fresh in (True, False):
            a, b = best[fresh, False], best[fresh, True]
            kind = "fresh" if fresh else "known"
            print(f"waves of {size:4}, {kind} structures: {a:.4f} ms without, {b:.4f} ahead, {a / b:.2f} x", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
