"""Replicas of whole models beside one, alternating, in one run: each on a worker of its own, weights shared.

* **list reduction**: buckets of 100 sequences, an update for each bucket.
* **QM9** (GGSNN, hidden 100) and **SST** (Tree-LSTM, hidden 300): single molecules and trees, an update for 20 and 25
  of them at each replica. Generated data of the same shape.

"One" is the inline runtime: all of the model in one process, the fastest that there is for one core. Instances are
made beforehand. Where there are more cores, more replicas follow. "controller" is the processor time that the caller's
process takes for one instance.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from ampnet import Inline, Instance, Processes, Update, replicate
from ampnet.data import generated
from ampnet.data.list_reduction import generate
from ampnet.lang import Compiled, compile
from ampnet.models import Qm9, TreeLstm, list_reduction
from bench.alternate import compare

Made = tuple[Compiled, list[Instance]]
Row = Callable[[float], float]


def sequences() -> Made:
    graph = list_reduction.build()
    return graph, list(list_reduction.instances(graph, generate(50_000, 0), 100, np.random.default_rng(0)))


def molecules() -> Made:
    torch.manual_seed(0)
    data = list(generated.molecules(4000, 0, most_atoms=27))
    graph = compile(Qm9(10, 100), *data[0])
    return graph, [graph.instance(*d) for d in data]


def trees() -> Made:
    torch.manual_seed(0)
    data = list(generated.trees(2000, 0, most_leaves=38))
    graph = compile(TreeLstm(vocabulary=100), *data[0])
    return graph, [graph.instance(*d) for d in data]


WORKLOADS: dict[str, tuple[Callable[[], Made], int, int, int, dict[str, Any]]] = {
    "list reduction": (sequences, 1, 1, 4, {}),
    "qm9": (molecules, 20, 64, 128, {}),
    "sst": (trees, 25, 50, 100, {}),
}
"""Instances, instances in an update, in flight for one, in flight for each of several, further settings."""
WANTED = {
    "list reduction": {2: 1.8, 4: 3.6, 8: 7.0, 16: 13.0},
    "qm9": {2: 1.8},
    "sst": {2: 1.8},
}


def row(name: str, n: int, sync: str = "shared") -> Row:
    """How many records a second, with n replicas."""
    make, frequency, alone, each, settings = WORKLOADS[name]
    graph, instances = make()
    update = Update(partial(torch.optim.Adam, lr=1e-3, fused=True), frequency, "instances")
    if n == 1:
        runtime: Any = Inline(graph, update=update, max_active_keys=alone, **settings)
    else:
        replicate(graph, None, n, route="shortest", sync=sync)
        runtime = Processes(graph, workers=n, update=update, max_active_keys=n * each, **settings)
    runtime.train(instances)

    def run(seconds: float) -> float:
        records, count, began, worked = 0, 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - began < seconds:
            stats = runtime.train(instances)
            records, count = records + stats.records, count + stats.instances
        run.controller = (time.process_time() - worked) / count  # type: ignore[attr-defined]
        return records / (time.perf_counter() - began)

    run.runtime = runtime  # type: ignore[attr-defined]
    return run


def run(seconds: float, repeats: int) -> tuple[dict[str, Any], list[tuple[str, bool]]]:
    cores = len(os.sched_getaffinity(0))
    counts = [n for n in (2, 4, 8, 16) if n <= cores]
    out: dict[str, Any] = {"cores": cores}
    checks: list[tuple[str, bool]] = []
    for name in WORKLOADS:
        rows = {"one": row(name, 1)}
        rows |= {f"{n} replicas": row(name, n) for n in counts if n in WANTED[name] or n == counts[-1]}
        rows[f"{counts[0]} replicas, means at an epoch's end"] = row(name, counts[0], "epoch")
        out[name] = found = compare(name, rows, "one", seconds, repeats)
        for r in list(rows)[1:]:
            found[r]["controller"] = rows[r].controller  # type: ignore[attr-defined]
        print(f"{'  controller, an instance':42} {1e6 * found[list(rows)[1]]['controller']:7.0f} us")
        for n, least in WANTED[name].items():
            if n in counts:
                ratio = found[f"{n} replicas"]["ratio"]
                checks.append((f"{name}, {n} replicas at least {least} x one: {ratio:.2f}", ratio >= least))
    return out, checks


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(*run(1.5, 4)[1], sep="\n")
