"""Simulated beside measured throughput: ``python -m bench.simulate [NAME ...]``.

A trial of each model measures its costs (`ampnet.simulate.trial`): waves of two sizes, in one process, on one worker,
in replicas and in two halves. Then it is run in other ways, which the trial did not see: placements by cost, other
wave sizes, other numbers of instances in flight, replicas of other sizes. (On two cores, two replicas are what the
trial finds out with how busy workers slow each other down.) Each is measured and simulated.

    error = simulated / measured - 1, of instances a second; likewise of the mean staleness, where it is 0.2 or more
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ampnet import Inline, Processes, Update, replicate
from ampnet.data import generated
from ampnet.events.staleness import StalenessMeter
from ampnet.lang import compile
from ampnet.models import Babi15
from ampnet.placement import Costs, Trial, place
from ampnet.runtime.runtime import Runtime
from ampnet.simulate.costs import Measured
from ampnet.simulate.machine import this_machine
from ampnet.simulate.setting import Setting, rules_of
from ampnet.simulate.simulation import Simulation
from ampnet.simulate.trial import Measurement
from ampnet.simulate.waves import Waves
from bench.machine import describe
from bench.placement import WORKLOADS as PLACED
from bench.placement import Made, rate

MEDIAN, WORST, STALE = 0.10, 0.25, 0.20
"""Bounds of the errors: of throughput (median, largest), of staleness (median)."""
TURNS = 2
"""Measurements of each way, some time apart; the faster one counts."""
SIMULATED = 20.0
"""Seconds of simulated time."""


def deductions() -> Made:
    torch.manual_seed(0)
    data = list(generated.deductions(1000, 0))
    graph = compile(Babi15(), *data[0])
    return graph, [graph.instance(*d) for d in data]


@dataclass(frozen=True)
class Config:
    """One way to run a model."""

    replicas: int
    parts: int
    flight: int
    """Instances in flight."""
    wave: int | None = None

    def __str__(self) -> str:
        way = f"{self.replicas} replicas" if self.replicas > 1 else f"{self.parts} workers" if self.parts > 1 else "one"
        return f"{way}, {self.flight} in flight" + ("" if self.wave is None else f", waves of {self.wave}")


def workloads() -> dict[str, tuple[Any, int, tuple[int, int], list[Config]]]:
    """By name: what makes it, instances of an update, the sizes that the trial sees, and the ways to run it."""
    cores = len(os.sched_getaffinity(0))
    many = [n for n in (2, 4, 8, 16) if n <= cores]
    parts = [n for n in (2, 4, 8) if n <= max(2, cores)]
    qm9 = [Config(n, 1, n * 32) for n in many] + [Config(1, n, n * 3 * 20, 20) for n in parts]
    return {
        "qm9-100": (PLACED["qm9-100"][0], 32, (8, 32), [*qm9, Config(1, 2, 48, 12), Config(1, 1, 20)]),
        "sst": (
            PLACED["sst"][0],
            25,
            (6, 24),
            [Config(1, 1, 12), *(Config(n, 1, n * 32) for n in many), *(Config(1, n, n * 30, 15) for n in parts)],
        ),
        "mnist": (
            PLACED["mnist"][0],
            1,
            (1, 2),
            [*(Config(n, 1, n * 4) for n in many), *(Config(1, n, n * 3, 1) for n in parts)],
        ),
        "list-reduction": (
            PLACED["list-reduction"][0],
            1,
            (1, 2),
            [*(Config(n, 1, n * 4) for n in many), *(Config(1, n, n * 3, 1) for n in parts)],
        ),
        "babi15": (
            deductions,
            20,
            (10, 40),
            [Config(1, 1, 20), *(Config(n, 1, n * 40) for n in many), *(Config(1, n, n * 60, 20) for n in parts)],
        ),
    }


def runtime_of(config: Config, made: Made, update: Update, costs: Costs, meter: StalenessMeter) -> Runtime:
    """A runtime for one way, and the placement by cost."""
    graph, _ = made
    settings: dict[str, Any] = {"update": update, "listeners": [meter], "max_active_keys": config.flight}
    if config.replicas * config.parts == 1:
        return Inline(graph, **settings)
    if config.replicas > 1:
        replicate(graph, None, config.replicas, route="shortest", sync="shared")
        return Processes(graph, workers=config.replicas, **settings)
    hosts = place(graph, config.parts, None, costs)
    return Processes(graph, workers=config.parts, affinity=hosts, wave_size=config.wave, **settings)


def simulated(config: Config, made: Made, update: Update, costs: Costs, measured: Measured) -> tuple[float, float]:
    """Instances a second, and the mean staleness."""
    graph, instances = made
    hosts = dict.fromkeys(graph.nodes, 0)
    if config.parts > 1:
        hosts = place(graph, config.parts, None, costs)
    waves = Waves(graph, hosts, instances, measured)
    setting = Setting(
        hosts,
        len(waves.workers),
        config.parts,
        config.replicas,
        "shared",
        config.flight,
        config.wave,
        processes=config.replicas * config.parts > 1,
        rules=rules_of(graph, update),
    )
    found = Simulation(waves, measured, setting, this_machine()).run(SIMULATED)
    messages = list(found.staleness.values())
    return found.throughput, statistics.fmean(one.mean for one in messages) if messages else 0.0


def once(
    config: Config, make: Any, instances: Any, update: Update, costs: Costs, seconds: float
) -> tuple[float, float]:
    """Measured: instances a second, and the mean staleness."""
    meter, own = StalenessMeter(), make()[0]
    with runtime_of(config, (own, instances), update, costs, meter) as runtime:
        runtime.rehearse(instances)
        runtime.train(instances)
        got = rate(runtime, instances, seconds)
    nodes = [one for one in meter.nodes().values() if one.messages]
    return got, statistics.fmean(one.mean for one in nodes) if nodes else 0.0


def run(name: str, seconds: float) -> Iterator[dict[str, Any]]:
    """All ways of a workload."""
    make, frequency, sizes, configs = workloads()[name]
    update = Update(partial(torch.optim.Adam, lr=1e-4, fused=True), frequency, "instances")
    graph, instances = make()
    instances = instances[:600]
    began = time.perf_counter()
    measured = Measurement(graph, instances, sizes, {"update": update}).run()
    costs = Trial(graph, update=update, max_active_keys=sizes[1]).run(instances[: 4 * sizes[1]])
    trial = time.perf_counter() - began
    print(f"\n{name}: trial {trial:.1f} s; crowd {measured.crowd:.0%}, hop {1e6 * measured.hop:.0f} us", flush=True)
    found = dict.fromkeys(configs, (0.0, 0.0))
    for _ in range(TURNS):
        for config in configs:
            found[config] = max(found[config], once(config, make, instances, update, costs, seconds))
    for config, (got, stale) in found.items():
        told, lag = simulated(config, (graph, instances), update, costs, measured)
        error = told / got - 1
        print(
            f"  {config!s:44} measured {got:8,.0f}  simulated {told:8,.0f}  {error:+5.0%}   "
            f"staleness {stale:5.2f} {lag:5.2f}",
            flush=True,
        )
        yield {
            "workload": name,
            "way": str(config),
            "measured": got,
            "simulated": told,
            "error": error,
            "staleness": stale,
            "simulated_staleness": lag,
        }


def main() -> int:
    names = list(workloads())
    parser = argparse.ArgumentParser(prog="python -m bench.simulate", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", default=names, help=f"of {', '.join(names)}")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement (default: 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results there")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for name in given.names for row in run(name, given.seconds)]
    errors = sorted(abs(row["error"]) for row in rows)
    stale = [abs(row["simulated_staleness"] / row["staleness"] - 1) for row in rows if row["staleness"] >= 0.2]
    median, worst = statistics.median(errors), errors[-1]
    of_stale = statistics.median(stale) if stale else 0.0
    print(f"\n{len(rows)} ways: median error {median:.1%}, largest {worst:.1%}; staleness, median {of_stale:.1%}")
    if given.json:
        summary = {"median": median, "worst": worst, "staleness": of_stale}
        given.json.write_text(json.dumps({"machine": describe(), "summary": summary, "rows": rows}, indent=1) + "\n")
    return int(median > MEDIAN or worst > WORST or of_stale > STALE)


if __name__ == "__main__":
    raise SystemExit(main())
