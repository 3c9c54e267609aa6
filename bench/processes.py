"""Worker processes beside the inline runtime, alternating, in one run.

* **MLP** (784 wide, four layers, instances of 100 images, SGD): a pipeline of layers over two workers, and over more
  where there are cores. The paper's measure is the speed against one instance in flight on the same workers.
* **QM9** (GGSNN, hidden 100 and 200, generated molecules, Adam): two workers, nodes placed by their measured cost.

Instances are made beforehand. "busy" is the share of the time that each worker spent in its nodes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ampnet import Inline, Instance, Processes, Update
from ampnet.data import generated
from ampnet.events.utilisation import UtilisationMeter
from ampnet.lang import Compiled, compile
from ampnet.models import Mlp, Qm9
from ampnet.runtime.runtime import Runtime
from bench.alternate import compare

Make = Callable[..., Runtime]
WIDE: dict[str, Any] = {"max_active_keys": 64}
"""Molecules are small."""


def mlp() -> tuple[Compiled, list[Instance], Update]:
    torch.manual_seed(0)
    graph = compile(Mlp(), *next(generated.images(1, 0)))
    data = list(generated.images(10_000, 0))
    images, labels = torch.stack([i for i, _ in data]), torch.stack([y for _, y in data])
    instances = [graph.bucket(100, images[i : i + 100], labels[i : i + 100]) for i in range(0, 10_000, 100)]
    return graph, instances, Update(partial(torch.optim.SGD, lr=0.05), 1, "instances")


def qm9(hidden: int) -> tuple[Compiled, list[Instance], Update]:
    torch.manual_seed(0)
    data = list(generated.molecules(2000, 0, most_atoms=27))
    graph = compile(Qm9(10, hidden), *data[0])
    return (
        graph,
        [graph.instance(*d) for d in data],
        Update(partial(torch.optim.Adam, lr=1e-3, fused=True), 20, "instances"),
    )


def speed(
    make: Callable[[], tuple[Compiled, list[Instance], Update]], runtime: Make, **settings: Any
) -> Callable[[float], float]:
    """How many records a second, for so many seconds."""
    graph, instances, update = make()
    running = runtime(graph, update=update, **settings)
    running.train(instances)

    def run(seconds: float) -> float:
        records, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            records += running.train(instances).records
        return records / (time.perf_counter() - began)

    run.runtime = running  # type: ignore[attr-defined]
    return run


def busy(make: Callable[[], tuple[Compiled, list[Instance], Update]], **settings: Any) -> dict[str, float]:
    """The share of the time that each worker is busy."""
    graph, instances, update = make()
    meter = UtilisationMeter()
    with Processes(graph, update=update, listeners=[meter], **settings) as running:
        running.train(instances)
    return {name: round(use.share, 2) for name, use in meter.workers().items()}


def run(seconds: float, repeats: int) -> tuple[dict[str, Any], list[tuple[str, bool]]]:
    cores = len(os.sched_getaffinity(0))
    workloads: dict[str, tuple[Callable[[], Any], dict[str, Any], dict[str, Any]]] = {
        "mlp": (mlp, {"max_active_keys": 1}, {"max_active_keys": 3}),
        "qm9, hidden 100": (partial(qm9, 100), WIDE, {**WIDE, "max_active_keys": 288}),
        "qm9, hidden 200": (partial(qm9, 200), WIDE, {**WIDE, "max_active_keys": 288}),
    }
    wanted = {"mlp": 1.6, "qm9, hidden 100": 1.2, "qm9, hidden 200": 1.5}
    out: dict[str, Any] = {"cores": cores}
    checks: list[tuple[str, bool]] = []
    for name, (make, inline, apart) in workloads.items():
        rows = {
            "inline": speed(make, Inline, **inline),
            "2 workers": speed(make, Processes, workers=2, pin=True, **apart),
        }
        if name == "mlp" and cores >= 4:
            for workers in (3, 4):
                rows[f"{workers} workers"] = speed(make, Processes, workers=workers, max_active_keys=2 * workers)
                rows[f"{workers} workers, 1 in flight"] = speed(make, Processes, workers=workers, max_active_keys=1)
        found = compare(name, rows, "inline", seconds, repeats)
        found["busy"] = busy(make, workers=2, **apart)
        print(f"{'  busy, 2 workers':42} {found['busy']}")
        out[name] = found
        ratio = found["2 workers"]["best"] / found["inline"]["best"]
        checks.append((f"{name}, 2 workers at least {wanted[name]} x inline: {ratio:.2f}", ratio >= wanted[name]))
        if "3 workers" in rows:
            best = max(found[f"{w} workers"]["best"] / found[f"{w} workers, 1 in flight"]["best"] for w in (3, 4))
            checks.append((f"{name}, 3 or 4 workers at least 2.4 x one in flight: {best:.2f}", best >= 2.4))
    return out, checks


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(*run(1.5, 3)[1], sep="\n")
