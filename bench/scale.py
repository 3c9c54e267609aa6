"""Scale on paper: simulated training on 16 to 4,096 workers: ``python -m bench.scale [NAME ...]``.

    trial, here      costs of QM9 (hidden 100) and of a wide Tree-LSTM (hidden 1000), on one core
    simulations      cluster   computers of 16 cores, 10 Gb/s, 200 us               [1] copies of the model
                     homes     computers of one core, 100 Mb/s, 50 ms               [2] parted over 2, 4, 8 workers
                     mixed     of one core, a third each at 0.5, 1 and 2            [3] workers that are lost
    changes          what the runtime does not have, from simulations of its parts  [4]

Nothing here is measured but the costs; docs/scale.md says what follows, and what is assumed. A simulation is as long as
some thousand waves take; the same costs and seed give the same numbers. Results of names that are not given stay as
they are in the file.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ampnet import Update
from ampnet.data import generated
from ampnet.lang import compile
from ampnet.models import TreeLstm
from ampnet.placement import place
from ampnet.simulate import Hosts, Link, Machine, Result, Study
from bench.machine import describe
from bench.placement import Made, molecules

ROOT = Path(__file__).parents[1]
COUNTS = (16, 64, 256, 1024, 4096)
PARTS = (2, 4, 8)
CROWD = 0.05
"""By how much each further busy worker of a computer slows down all: docs/design.md, section 7, of 16 cores."""
LOCAL = Link(200e-6, 1.25e9, 200e-6)
HOME = Link(50e-3, 12.5e6, 200e-6)
RESTART = 5.0
"""Seconds."""


def trees(hidden: int) -> Made:
    torch.manual_seed(0)
    data = list(generated.trees(400, 0, most_leaves=38))
    graph = compile(TreeLstm(vocabulary=100, hidden=hidden), *data[0])
    return graph, [graph.instance(*d) for d in data]


WORKLOADS: dict[str, tuple[Callable[[], Made], int]] = {
    "qm9": (partial(molecules, 100), 32),
    "tree-lstm": (partial(trees, 1000), 25),
}
"""What is trained, and instances of an update, and of a wave."""


# -- machines


def cluster(workers: int) -> Machine:
    """Computers of 16 cores."""
    return Machine("cluster", (Hosts(min(16, workers), -(-workers // 16), crowd=CROWD),), between=LOCAL)


def homes(workers: int) -> Machine:
    """Computers of one core behind slow links. The first has a second one, for the controller."""
    return Machine("homes", (Hosts(2, workers=1), Hosts(1, workers - 1)), between=HOME)


def mixed(workers: int) -> Machine:
    """Computers of one core and of three speeds, one after the other."""
    hosts = tuple(Hosts(1, speed=(1.0, 2.0, 0.5)[i % 3]) for i in range(workers))
    return Machine("mixed", (replace(hosts[0], cores=2, workers=1), *hosts[1:]), between=LOCAL)


def sorted_by_speed(workers: int) -> Machine:
    """The same computers, neighbours alike."""
    third = workers // 3
    hosts = tuple(Hosts(1, n, speed=speed) for speed, n in ((1.0, third - 1), (2.0, third), (0.5, workers - 2 * third)))
    return Machine("mixed, sorted", (Hosts(2, workers=1), *hosts), between=LOCAL)


# -- one simulation


@dataclass
class Scale:
    """The simulations of one workload."""

    study: Study
    wave: int
    """Instances of a wave, and of an update."""
    cuts: dict[int, dict[str, int]] = field(default_factory=dict)
    """By workers of a replica: the worker of each node."""

    def __post_init__(self) -> None:
        self.one = self.study.simulate(cluster(1), seconds=self.long(200, 1)).throughput
        """Instances a second of one worker."""

    def long(self, waves: float, workers: int) -> float:
        """Seconds that this number of waves takes, if all workers or the controller are busy."""
        placing = self.study.placing
        alone = self.wave * placing.alone / placing.instances
        return waves * max(alone / workers, self.study.costs.controller(self.wave))

    def cut(self, parts: int) -> dict[str, int]:
        """The placement by the costs of shared memory, whatever the links are: over slow ones, placement by their costs
        leaves all nodes on one worker."""
        if parts not in self.cuts:
            self.cuts[parts] = place(self.study.graph, parts, {}, self.study.placing)
        return self.cuts[parts]

    def run(self, machine: Machine, parts: int = 1, seconds: float | None = None, **more: Any) -> tuple[Result, float]:
        """Returns a simulation, and its simulated seconds."""
        workers = machine.workers
        if seconds is None:
            waves = 5 * workers + 2000 if parts == 1 else 4 * workers // parts + 100
            seconds = self.long(waves, workers) + 60 * machine.between.latency + self.long(60, 1)
        if parts > 1:
            more = {
                "wave_size": self.wave,
                "max_active_keys": 2 * workers * self.wave,
                "affinity": self.cut(parts),
            } | more
        return self.study.simulate(
            machine, workers=workers, replicas=workers // parts, seconds=seconds, **more
        ), seconds

    def row(self, machine: Machine, parts: int = 1, seconds: float | None = None, **more: Any) -> dict[str, Any]:
        """A simulation as numbers."""
        began = time.perf_counter()
        found, seconds = self.run(machine, parts, seconds, **more)
        speed = sum(kind.speed for _, kind in machine.seats()) / machine.workers
        replicas = machine.workers // parts
        out = {
            "machine": machine.name,
            "workers": machine.workers,
            "parts": parts,
            "used": found.setting.parts,
            "throughput": found.throughput,
            "efficiency": found.throughput / (machine.workers * speed * self.one),
            "bound": bound(found),
            "busy": found.busy,
            "controller": found.controller,
            "link": sending(found),
            "staleness": found.stale,
            "round": found.round,
            "between_rounds": found.throughput / replicas * found.round,
            "losses": found.losses,
            "seconds": seconds,
        }
        took = time.perf_counter() - began
        print(
            f"  {machine.name:14}{machine.workers:5} workers, {parts} a replica {found.throughput:10,.0f}/s "
            f"{out['efficiency']:6.1%}  stale {found.stale:5.1f}  round {found.round:8,.1f} s  {out['bound']:32}"
            f"{took:5.1f} s",
            flush=True,
        )
        return out


def sending(found: Result) -> float:
    """The share of its bandwidth that the busiest computer sends with."""
    out: dict[int, float] = {}
    for (sender, _), size in found.links.items():
        out[sender] = out.get(sender, 0.0) + size
    return max(out.values(), default=0.0) / found.machine.between.bandwidth


def bound(found: Result) -> str:
    """What bounds the throughput."""
    if found.losses and found.busy < 0.8:
        return "losses"
    if sending(found) > 0.9:
        return "a link"
    return found.bound


# -- sections


def whole(scale: Scale) -> Iterator[dict[str, Any]]:
    """[1] Copies of the whole model."""
    for make in (cluster, homes, mixed):
        for workers in COUNTS:
            yield scale.row(make(workers))


def parted(scale: Scale) -> Iterator[dict[str, Any]]:
    """[2] Models parted over workers; ``used``: by how many of them, the others get no nodes."""
    for make in (cluster, homes, mixed, sorted_by_speed):
        for parts in PARTS:
            machine = make(16 if make in (cluster, homes) else 48)
            yield scale.row(machine, parts, seconds=100.0 if make is homes else None)
    for workers in (64, 256):
        for parts in PARTS:
            yield scale.row(cluster(workers), parts)


def in_flight(scale: Scale) -> Iterator[dict[str, Any]]:
    """[1, 2] More waves in flight for each worker, at home: copies of the whole model, and one model on four."""
    for workers, parts in ((16, 1), (256, 1), (4, 4)):
        for waves in (2, 8, 32) if parts == 1 else (1, 2, 4):
            seconds = 100.0 if parts > 1 else None
            row = scale.row(homes(workers), parts, seconds, max_active_keys=waves * workers * scale.wave)
            yield {**row, "waves": waves}


def lossy(scale: Scale) -> Iterator[dict[str, Any]]:
    """[3] Workers that are lost: all start again."""
    for every in (3600.0, 600.0):
        for workers in COUNTS:
            machine = replace(cluster(workers), loss_every=every, restart=RESTART)
            seconds = min(20 * every / workers + 40, scale.long(150_000, workers))
            row = scale.row(machine, seconds=seconds)
            yield {**row, "every": every, "expected": math.exp(-workers * RESTART / every)}


def groups(scale: Scale) -> Iterator[dict[str, Any]]:
    """[4] Groups of workers, each with a controller of its own; the largest machine has so many of them."""
    for workers in (16, 32, 64, 128):
        row = scale.row(cluster(workers))
        count = COUNTS[-1] // workers
        yield {**row, "groups": count, "of_all": count * row["throughput"]}


def recovery(scale: Scale) -> Iterator[dict[str, Any]]:
    """[4] Only a part of the workers starts again: the group of a lost worker, or the worker alone."""
    for every in (3600.0, 600.0):
        for workers in (1, 16):
            machine = replace(cluster(workers), loss_every=every, restart=RESTART)
            seconds = min(20 * every / workers + 40, scale.long(100_000, workers))
            yield {**scale.row(machine, seconds=seconds), "every": every}


def averaging(size: float) -> Iterator[dict[str, Any]]:
    """[4] Seconds to average weights of this many bytes, between computers: by formula, from the links."""
    for name, link in (("cluster", LOCAL), ("homes", HOME)):
        for computers in (16, 64, 256, 1024, 4096):
            step = link.latency + size / link.bandwidth
            yield {
                "machine": name,
                "computers": computers,
                "token": 2 * computers * step,
                "tree": 2 * math.ceil(math.log2(computers)) * step,
                "ring of slices": 2 * (computers - 1) * (link.latency + size / computers / link.bandwidth),
            }


SECTIONS: dict[str, Callable[[Scale], Iterator[dict[str, Any]]]] = {
    "whole": whole,
    "parted": parted,
    "in_flight": in_flight,
    "lossy": lossy,
    "groups": groups,
    "recovery": recovery,
}


SLOW = ("lossy", "recovery")
"""Sections that take hours of simulated time."""


def tried(name: str) -> Study:
    """Measure the costs of a workload."""
    make, wave = WORKLOADS[name]
    graph, instances = make()
    update = Update(partial(torch.optim.Adam, lr=1e-4, fused=True), wave, "instances")
    return Study.trial(graph, instances, update=update, max_active_keys=wave)


def run(name: str, study: Study) -> dict[str, Any]:
    """All sections of a workload."""
    wave, graph = WORKLOADS[name][1], study.graph
    scale = Scale(study, wave)
    size = float(sum(w.numel() * w.element_size() for n in graph.parameterised().values() for w in n.updater.weights))
    controller = study.costs.controller(wave)
    print(f"{name}: one worker {scale.one:,.0f}/s, {size / 1e6:.1f} MB; controller {1e3 * controller:.2f} ms a wave")
    out: dict[str, Any] = {
        "one": scale.one,
        "wave": wave,
        "bytes": size,
        "controller": controller,
        "hop": study.costs.hop,
        "notes": list(study.costs.notes),
    }
    for section, rows in SECTIONS.items():
        if section in SLOW and wave * 1000 / scale.one < 100:  # waves so short that hours have millions of them
            continue
        print(f" {section}", flush=True)
        out[section] = list(rows(scale))
    return {**out, "averaging": list(averaging(size))}


# -- picture


def draw(found: dict[str, Any], path: Path) -> None:
    """A row for each workload: throughput, losses, averaging."""
    from matplotlib.figure import Figure

    names = [name for name in WORKLOADS if name in found]
    figure = Figure(figsize=(13, 4.2 * len(names)), layout="constrained")
    for line, name in zip(figure.subplots(len(names), 3, squeeze=False), names, strict=True):
        one = found[name]
        speed, losses, means = line
        for machine in ("cluster", "homes", "mixed"):
            rows = [row for row in one["whole"] if row["machine"] == machine]
            speed.plot([r["workers"] for r in rows], [r["throughput"] for r in rows], marker="o", label=machine)
        rates = [n / 16 * one["groups"][0]["throughput"] for n in COUNTS]
        speed.plot(COUNTS, rates, linestyle="--", color="#2c3e50", label="cluster, a controller for each computer")
        speed.plot(COUNTS, [n * one["one"] for n in COUNTS], linestyle=":", color="#7f8c8d", label="linear")
        speed.set_yscale("log")
        speed.set_title(f"{name}: instances a second, by workers", loc="left", fontsize=10)
        for every, label in ((3600.0, "a loss an hour"), (600.0, "one in 10 minutes")):
            rows = [row for row in one.get("lossy", []) if row["every"] == every]
            free = {row["workers"]: row["throughput"] for row in one["whole"] if row["machine"] == "cluster"}
            shares = [row["throughput"] / free[row["workers"]] for row in rows]
            drawn = losses.plot([r["workers"] for r in rows], shares, marker="o", label=f"{label}, of each worker")
            expected = [math.exp(-n * RESTART / every) for n in COUNTS]
            losses.plot(COUNTS, expected, linestyle=":", color=drawn[0].get_color(), label="no loss for 5 s, formula")
        losses.set_ylim(0, 1.05)
        losses.set_title("share of the throughput without losses (cluster)", loc="left", fontsize=10)
        for machine, style in (("cluster", "-"), ("homes", "--")):
            rows = [row for row in one["averaging"] if row["machine"] == machine]
            for way, colour in (("token", "#c0392b"), ("tree", "#2980b9"), ("ring of slices", "#27ae60")):
                means.plot(
                    [r["computers"] for r in rows],
                    [r[way] for r in rows],
                    linestyle=style,
                    color=colour,
                    marker=".",
                    label=f"{way}, {machine}",
                )
        means.set_yscale("log")
        means.set_ylim(top=100 * max(row["token"] for row in one["averaging"]))
        means.set_title("seconds to average once, by computers (formula)", loc="left", fontsize=10)
        for axes in line:
            axes.set_xscale("log", base=2)
            axes.set_xticks(COUNTS, [f"{n:,}" for n in COUNTS])
            axes.legend(frameon=False, fontsize=8)
            axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", default=list(WORKLOADS), help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--json", type=Path, default=ROOT / "bench/results/scale.json", help="results")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs/pictures/scale.png")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = json.loads(given.json.read_text()) if given.json.exists() else {}
    for name in given.names:
        found[name] = run(name, tried(name))
        found["machine"] = describe()
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    draw(found, given.picture)


if __name__ == "__main__":
    main()
