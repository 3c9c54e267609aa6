"""Placement: what it expects beside what is got: ``python -m bench.placement [NAME ...] --workers 2 4 8``.

    one core           the inline runtime, waves of one update each                                 1
    --workers 2        a plain cut by measured costs                                   expected 1.5   got 1.4
    --replicate gru=2  the copies and tiles that placement proposes for so many workers
    --replicas 2       for comparison: copies of the whole model

Several waves for each worker are in flight; all rows have updates of the same size. "busy" is the share of the time in
which each worker computes, as expected and as got. Each row takes turns with one core; the best turn of each counts.
Instances come in another order in every epoch, as in training.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ampnet import Inline, Instance, Processes, Update, replicate, tile
from ampnet.data import generated
from ampnet.lang import Compiled, compile
from ampnet.models import Mlp, Qm9
from ampnet.placement import Trial, place
from ampnet.placement.expect import FLIGHT
from ampnet.placement.units import around
from ampnet.placement.ways import Way, Ways, best
from ampnet.runtime.runtime import Runtime
from bench.machine import describe
from bench.replicas import sequences, trees

Made = tuple[Compiled, list[Instance]]
TURNS = 3
"""Of each row, with one core in between."""


def molecules(hidden: int) -> Made:
    torch.manual_seed(0)
    data = list(generated.molecules(1024, 0, most_atoms=27))
    graph = compile(Qm9(10, hidden), *data[0])
    return graph, [graph.instance(*d) for d in data]


def images() -> Made:
    torch.manual_seed(0)
    data = list(generated.images(6400, 0))
    graph = compile(Mlp(), *data[0])
    pixels, labels = torch.stack([x for x, _ in data]), torch.stack([y for _, y in data])
    return graph, [graph.bucket(100, pixels[i : i + 100], labels[i : i + 100]) for i in range(0, 6400, 100)]


WORKLOADS: dict[str, tuple[Callable[[], Made], int]] = {
    "mnist": (images, 1),
    "sst": (trees, 25),
    "qm9-100": (partial(molecules, 100), 32),
    "qm9-200": (partial(molecules, 200), 32),
    "list-reduction": (sequences, 1),
}
"""What is trained, and instances of an update, and of a wave."""


def rate(runtime: Runtime, instances: list[Instance], seconds: float) -> float:
    """Instances a second in the midst of a stream: as they are pumped, from a third of the time on."""
    began = time.perf_counter()
    pumped: list[float] = []
    rng = np.random.default_rng(0)

    def stream() -> Iterator[Instance]:
        for i in chain.from_iterable(rng.permutation(n).tolist() for n in repeat(len(instances))):
            now = time.perf_counter() - began
            if now > seconds:
                return
            if now > seconds / 3:
                pumped.append(now)
            yield instances[i]

    runtime.train(stream())
    return (len(pumped) - 1) / (pumped[-1] - pumped[0])


def ready(runtime: Runtime, instances: list[Instance]) -> Runtime:
    """The same, when all instances have been seen."""
    runtime.rehearse(instances)
    runtime.train(instances)
    return runtime


def changed(way: Way, make: Callable[[], Made]) -> Made:
    """A graph with the copies and tiles of a way."""
    graph, instances = make()
    for name, count in way.tiles.items():
        tile(graph, name, count)
    for nodes, count in [(around(graph, name), count) for name, count in way.copies.items()]:
        replicate(graph, nodes, count, sync="shared")
    if way.replicas > 1:
        replicate(graph, None, way.replicas, route="shortest", sync="shared")
    return graph, instances


def measure(
    way: Way, make: Callable[[], Made], one: Callable[[], float], wave: int, update: Update, seconds: float, flight: int
) -> tuple[float, list[float]]:
    """How many times as fast as ``one``, turn by turn, by the best of both; and how busy each worker was."""
    graph, instances = changed(way, make)
    hosts = place(graph, way.workers, None, way.costs)
    places = flight * way.workers * wave
    settings: dict[str, Any] = {"max_active_keys": places, "wave_size": wave if way.replicas == 1 else None}
    mine, others = [], []
    with Processes(graph, workers=way.workers, affinity=hosts, update=update, **settings) as runtime:
        ready(runtime, instances)
        for _ in range(TURNS):
            mine.append(rate(runtime, instances, seconds / TURNS))
            others.append(one())
        return max(mine) / max(others), list(runtime.stats().busy)


def run(name: str, counts: list[int], seconds: float, flight: int, whole: bool) -> dict[str, Any]:
    """All rows of a workload."""
    make, wave = WORKLOADS[name]
    graph, instances = make()
    update = Update(partial(torch.optim.Adam, lr=1e-3, fused=True), wave, "instances")
    costs = Trial(graph, update=update, max_active_keys=wave).run(instances[: max(32, 4 * wave)])
    out: dict[str, Any] = {"nodes": costs.seconds, "beside": costs.beside, "alone": costs.alone}
    print(f"\n{name}: a trial says {costs.instances / costs.alone:,.0f}/s", flush=True)
    ways = Ways(graph, costs, len(os.sched_getaffinity(0)))
    with Inline(graph, update=update, max_active_keys=wave) as runtime:
        ready(runtime, instances)
        one = partial(rate, runtime, instances, seconds / TURNS)
        for workers in counts:
            proposed = best(ways.with_copies(workers))
            replicas = [ways.of_workers(workers, workers)] if whole else []
            for way in (ways.of_workers(workers), *([proposed] if proposed else []), *replicas):
                got, busy = measure(way, make, one, wave, update, seconds, flight)
                shares = " ".join(f"{e:.0%}/{g:.0%}" for e, g in zip(way.expected.busy, busy, strict=False))
                print(f"  {way.options():56} expected {way.speedup:4.2f}  got {got:4.2f}  busy {shares}", flush=True)
                out[way.options()] = {"workers": workers, "expected": way.speedup, "got": got, "busy": busy}
    return out


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.placement", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", default=list(WORKLOADS), help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--workers", nargs="+", type=int, default=[2], metavar="N", help="(default: 2)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each row (default: 3)")
    parser.add_argument("--flight", type=int, default=FLIGHT, help="waves in flight for each worker (default: 3)")
    parser.add_argument("--whole", action="store_true", help="also copies of the whole model, for comparison")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results there")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = {name: run(name, given.workers, given.seconds, given.flight, given.whole) for name in given.names}
    if given.json:
        given.json.write_text(json.dumps({"machine": describe(), **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
