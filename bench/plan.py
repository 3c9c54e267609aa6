"""Plans beside placements: ``python -m bench.plan [NAME ...]``: what `ampnet plan` finds, measured.

    plan        the way that the search finds for this machine: workers, replicas, copies, tiles, waves, placement
    default     two workers, placed by the costs of a trial, with the numbers in flight that the runtime takes by itself
    by hand     two workers, placed as somebody would who knows the model; for some models in several ways
    one         one process

All have the same updates and data, and take turns; the best turn of each counts.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ampnet import Inline, Processes, Update, replicate, tile
from ampnet.instance import Instance
from ampnet.placement.units import around
from ampnet.runtime.runtime import Runtime
from ampnet.simulate import Study, this_machine
from ampnet.simulate.plan import Candidate, Planner
from bench.machine import describe
from bench.placement import rate
from bench.simulate import Made, workloads

HANDS: Mapping[str, Mapping[str, Mapping[str, int]]] = {
    "qm9-100": {
        "cell apart": {"*": 0, "propagate_cell": 1},
        "readout apart": {"*": 0, "gate": 1, "value": 1, "mul": 1, "sum2": 1, "out": 1, "loss": 1},
    },
    "sst": {
        "branches apart": {"*": 0, "branch_cell": 1, "tree_beside": 1},
        "leaves apart": {"*": 0, "leaf_cell": 1, "embedding": 1},
    },
    "mnist": {"halves": {"*": 0, "hidden_2": 1, "classify": 1, "loss": 1}},
    "list-reduction": {"readout apart": {"*": 0, "classify": 1, "loss": 1}, "cell apart": {"*": 0, "cell": 1}},
    "babi15": {"cell apart": {"*": 0, "propagate_cell": 1}},
}
"""Placements by hand, by model: nodes by name or pattern."""
TURNS = 3
EQUAL = 0.97
"""A ratio from which two speeds count as equal."""


def runtime_of(way: Candidate | Mapping[str, int] | None, make: Any, update: Update, flight: int) -> Runtime:
    """The runtime of a plan, of a placement by hand, or the default one on two workers."""
    graph: Any = make()[0]
    if way is None or not isinstance(way, Candidate):
        affinity = "auto" if way is None else way
        return Processes(graph, workers=2, affinity=affinity, update=update, max_active_keys=flight)  # type: ignore[arg-type]
    settings: dict[str, Any] = {"update": update, "max_active_keys": way.max_active_keys, "wave_size": way.wave_size}
    if way.workers == 1:
        return Inline(graph, **settings)
    for name, count in way.tiles.items():
        tile(graph, name, count)
    for nodes, count in [(around(graph, name), count) for name, count in way.copies.items()]:
        replicate(graph, nodes, count, sync="shared")
    if way.replicas > 1:
        replicate(graph, None, way.replicas, route="shortest", sync="shared")
        return Processes(graph, workers=way.workers, **settings)
    return Processes(graph, workers=way.workers, affinity=way.result.setting.placed, **settings)


def ready(runtime: Runtime, instances: list[Instance]) -> Runtime:
    """The same, when all instances have been seen."""
    runtime.rehearse(instances)
    runtime.train(instances)
    return runtime


def run(name: str, seconds: float) -> dict[str, Any]:
    """All rows of a model."""
    make, frequency, sizes, _ = workloads()[name]
    update = Update(partial(torch.optim.Adam, lr=1e-4, fused=True), frequency, "instances")
    made: Made = make()
    graph, instances = made[0], made[1][:600]
    began = time.perf_counter()
    study = Study.trial(graph, instances, update=update, max_active_keys=sizes[1])
    plan = Planner(study, this_machine()).run()
    searched = time.perf_counter() - began
    print(f"\n{name}: {plan.best.words()}, {plan.speedup:.2f} x one process expected; {searched:.0f} s", flush=True)
    flight = 4 * sizes[1]
    ways: dict[str, Candidate | Mapping[str, int] | None] = {"plan": plan.best, "default": None, **HANDS[name]}
    best = dict.fromkeys(("one", *ways), 0.0)
    runtimes: dict[str, Runtime] = {"one": Inline(make()[0], update=update, max_active_keys=sizes[1])}
    try:
        for key, way in ways.items():
            runtimes[key] = ready(runtime_of(way, make, update, flight), instances)
        ready(runtimes["one"], instances)
        for _ in range(TURNS):
            for key, runtime in runtimes.items():
                best[key] = max(best[key], rate(runtime, instances, seconds / TURNS))
    finally:
        for runtime in runtimes.values():
            runtime.close()
    for key, value in best.items():
        print(f"  {key:16} {value:8,.0f}/s  {value / best['one']:5.2f} x one", flush=True)
    hands = {key: best["plan"] / best[key] for key in HANDS[name]}
    return {
        "plan": plan.best.words(),
        "expected": plan.speedup,
        "rates": best,
        "against_default": best["plan"] / best["default"],
        "against_hands": hands,
        "seconds_of_search": searched,
    }


def main() -> int:
    names = list(HANDS)
    parser = argparse.ArgumentParser(prog="python -m bench.plan", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", default=names, help=f"of {', '.join(names)}")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each row (default: 4)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results there")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = {name: run(name, given.seconds) for name in given.names}
    worse = [name for name, row in found.items() if row["against_default"] < EQUAL]
    beaten = [
        f"{n}: {hand}" for n, row in found.items() for hand, ratio in row["against_hands"].items() if ratio < EQUAL
    ]
    print(f"\nslower than the default placement: {', '.join(worse) or 'none'}")
    print(f"slower than by hand: {', '.join(beaten) or 'none'}")
    if given.json:
        given.json.write_text(json.dumps({"machine": describe(), "models": found}, indent=1) + "\n")
    return int(bool(worse) or len(beaten) > 1)


if __name__ == "__main__":
    raise SystemExit(main())
