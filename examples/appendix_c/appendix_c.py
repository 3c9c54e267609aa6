"""The paper's appendix C beside a simulation: a GGSNN for QM9 on a network of seven devices of 1 TFLOPS each.

    paper        one sum: the operations of the slowest stage, at the rate of a device, times 0.5
    simulation   every operation and every crossing of the same network, event by event (`ampnet.simulate`)

    worker 0-3   along 0 ... along 3      H x H each, a quarter of the bonds    <──┐
    worker 4     sum, update gate         2H x H, all atoms                     <──┤ the new states h, in all 4 steps;
    worker 5     reset gate               2H x H, all atoms                     <──┤ their gradients come back
    worker 6     candidate, new states    2H x H, all atoms                     ───┘

The first simulation has the paper's idealisation: a device takes time for matrix products only, links take none. Then
one assumption after the other is dropped. What comes out (``python examples/appendix_c/appendix_c.py``):

* **Operations: they agree.** With the paper's three units for a backward, simulated throughput is within a few percent
  of the sum. The waves of AMPNet have two products there, for the gradient of the input and of the weights (a product
  reads a transposed matrix as it is), so the bound is 64 / 48 = 1.33 times as high.
* **Stages: they agree.** Both gates and the candidate have equal work, so three devices are busy all the time if enough
  graphs are in flight, each with forward and backward in turn. The four others are busy for an eighth of it.
* **Network: they differ by a factor of 23.** The paper's 1.2 Gb/s is one matrix of states for each graph. In each of 4
  steps the states go to three readers (the linears along bonds, which together read one matrix, and both gates), and as
  many gradients go back: the worker of the new states sends 23 matrices a graph, and needs 29 Gb/s for the paper's
  throughput.
* **The factor 0.5 is not much for what it stands for.** Elementwise work and copies at 34 GB/s alone leave less than a
  third of the ideal throughput: H = 200 is not wide enough for products to dominate.
* **In flight: the sum has no latency.** A graph alone keeps the busiest device busy for less than half of the time, and
  the pipeline is full with 16. Links of 50 us need more than 32.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import ampnet
from ampnet.lang import Compiled, Edges, Model, Seq, choose, compile, each, loss, messages, reduce, repeat
from ampnet.placement.memory import memory_of
from ampnet.simulate import Hosts, Link, Machine, Measured, Result, Study
from ampnet.simulate.costs import Affine, Line, Operations, flops_of
from ampnet.simulate.setting import Setting, rules_of
from ampnet.simulate.simulation import Simulation
from ampnet.simulate.waves import Waves

FLOAT = 4
"""Bytes of a number."""
DEVICES = 7


# -- the paper's sum


@dataclass(frozen=True)
class Sum:
    """The assumptions of appendix C, each a line, and what follows from them."""

    hidden: int = 200
    atoms: int = 30
    bonds: int = 30
    kinds: int = 4
    """Kinds of bonds, each with a linear of its own."""
    steps: int = 4
    forward: int = 2
    """Operations for each weight and row: a multiplication and an addition."""
    backward: int = 6
    """Likewise: three units, for a transposed matrix, a product, and adding up the weights' gradients."""
    rate: float = 1e12
    """FLOP/s of a device."""
    reached: float = 0.5
    """The share of the rate that is left after all that the sum does not count."""
    copies: int = 4
    """Of each weight: itself, its gradient, and two for Adam."""

    @property
    def stage(self) -> float:
        """Weights times rows of the slowest device, in a step: a gate of all atoms, or a linear along its bonds."""
        return max(2 * self.atoms * self.hidden**2, self.bonds * self.hidden**2 / self.kinds)

    @property
    def operations(self) -> float:
        """Of the slowest device, for a graph."""
        return (self.forward + self.backward) * self.stage * self.steps

    @property
    def throughput(self) -> float:
        """Graphs a second."""
        return self.reached * self.rate / self.operations

    @property
    def network(self) -> float:
        """Bits a second: one matrix of states for each graph."""
        return 8 * FLOAT * self.throughput * max(self.atoms, self.bonds) * self.hidden

    @property
    def memory(self) -> float:
        """Bytes of a device."""
        return self.copies * 2 * self.hidden**2 * FLOAT


PAPER = Sum()
OURS = replace(PAPER, backward=4, reached=1.0)
"""Backward has two products, and nothing is left out."""


# -- the same network


class Network(Model):
    """A GGSNN whose GRU is written out, so that each of its three linears can be on a device of its own."""

    def __init__(self, given: Sum) -> None:
        super().__init__()
        h, self.steps = given.hidden, given.steps
        self.embed = nn.Embedding(10, h)
        self.along = nn.ModuleList(nn.Linear(h, h, bias=False) for _ in range(given.kinds))
        self.update, self.reset, self.candidate = (nn.Linear(2 * h, h) for _ in range(3))
        self.out = nn.Linear(h, 1)

    def gru(self, m: Tensor, h: Tensor) -> Tensor:
        z = torch.sigmoid(self.update(torch.cat((m, h), -1)))
        r = torch.sigmoid(self.reset(torch.cat((m, h), -1)))
        return (1 - z) * h + z * torch.tanh(self.candidate(torch.cat((m, r * h), -1)))

    def step(self, bonds: Edges, h: Any) -> Any:
        arriving = messages(lambda h, bond: choose(bond.kind, self.along, h), bonds, h)
        return each(self.gru, arriving, h)

    def forward(self, atoms: Seq, bonds: Edges, target: Tensor) -> Tensor:
        h = each(lambda atom: self.embed(atom.kind), atoms)
        h = repeat(lambda h: self.step(bonds, h), h, times=self.steps)
        prediction: Tensor = self.out(reduce(h, "sum"))
        loss(prediction, target, "squared_error")
        return prediction


def molecule(given: Sum, rng: np.random.Generator) -> tuple[Seq, Edges, Tensor]:
    """A ring: every atom has one bond to the next, so there are as many of both."""
    atoms = Seq(kind=torch.from_numpy(rng.integers(0, 10, given.atoms)))
    order = rng.permutation(given.atoms)
    kinds = rng.permutation(np.arange(given.bonds) % given.kinds)
    return atoms, Edges(atoms, order, np.roll(order, 1), kind=kinds), torch.tensor([float(rng.normal())])


def placed(graph: Compiled) -> dict[str, int]:
    """The worker of each node: what only adds, gates or routes is beside the linear that reads it."""
    where = {"sum": 4, "none": 4, "cat": 4, "update": 4, "cat2": 5, "reset": 5, "cat3": 6, "candidate": 6, "add": 6}
    where |= {f"along_{i}": i for i in range(4)}
    return {name: where.get(name, 0) for name in graph.nodes}  # embedding, readout and loss: on the first


PASSES = {"along": 2, "sum": 2, "update": 2, "reset": 2, "cat3": 5, "candidate": 2, "add": 4}
"""Numbers that a row's elementwise work reads and writes, by node, in units of H: activations and gathers 2; m and
r x h side by side 5; (1 - z) h + z c 4. Backward has twice as many."""


def costs_of(graph: Compiled, given: Sum, memory: float = math.inf) -> Measured:
    """Costs of an ideal device: products, and passes over memory of this bandwidth (bytes a second)."""
    h, lines = given.hidden, dict[tuple[str, int, int], Line]()
    for name, product in flops_of(graph).items():
        if name != "out":
            weights = product / 2
            units = (
                given.backward / 2 - 1
            )  # one is the gradient of the input, the rest belongs to the weights' gradient
            flops = (given.forward * weights, 2 * weights, 2 * units * weights)
            lines |= {(name, 0, direction): Line(0.0, 0.0, count) for direction, count in enumerate(flops)}
    for name in graph.nodes:
        numbers = PASSES.get(name.partition("_")[0], 0)
        for direction in (0, 1):
            line = lines.get((name, 0, direction), Line())
            seconds = (1 + direction) * numbers * h * FLOAT / memory
            lines[name, 0, direction] = replace(line, row=seconds)
    widths = {(name, 0): h * FLOAT * (2 if name.startswith("cat") else 1) for name in graph.nodes}
    widths |= {("out", 0): FLOAT, ("loss", 0): FLOAT}
    operations, none = Operations(lines, given.rate), Affine()
    return Measured(
        alone=operations,
        turns=operations,
        layout=none,
        layout_part=none,
        inline=none,
        worker=none,
        part=none,
        hop=0.0,
        controller=none,
        crowd=0.0,
        updates={},
        widths=widths,
        copied=memory,
    )


MATRIX = PAPER.atoms * PAPER.hidden * FLOAT
"""Bytes of the states of a graph."""
IN_TURN = 2 * (4 * PAPER.steps + 1)
"""Crossings of a graph one after the other: in each step to the linears along bonds, to the sum, to the reset gate and
to the candidate, at last to the readout; and back."""
NO_LINK = Link(0.0, math.inf, 0.0)
"""A link that takes no time."""


def link(gigabits: float, microseconds: float) -> Link:
    """A link of this bandwidth and latency, which takes none of the processor."""
    return Link(1e-6 * microseconds, 1e9 * gigabits / 8, 0.0)


class Pipeline:
    """The network on seven devices, with costs."""

    def __init__(self, given: Sum = OURS, memory: float = math.inf, instances: int = 48) -> None:
        """``memory``: bandwidth of a device's memory; without it, elementwise work takes no time."""
        rng = np.random.default_rng(0)
        torch.manual_seed(0)
        data = [molecule(given, rng) for _ in range(instances)]
        self.given, self.graph = given, compile(Network(given), *data[0])
        self.instances = [self.graph.instance(*one) for one in data]
        self.update = ampnet.Update(partial(torch.optim.Adam, lr=1e-3), 20, "instances")
        self.hosts = placed(self.graph)
        self.memory = memory_of(self.graph, dict.fromkeys(self.graph.parameterised(), self.update))
        self.use(costs_of(self.graph, given, memory))

    def use(self, costs: Measured) -> None:
        """Simulate with these costs."""
        self.costs = costs
        self.waves = Waves(self.graph, self.hosts, self.instances, costs)

    def run(
        self,
        flight: int = 32,
        between: Link = NO_LINK,
        flops: float | None = PAPER.rate,
        graphs: int = 400,
        machine: Machine | None = None,
    ) -> Result:
        """Simulate the time that this number of graphs takes at least: on the busiest device, on the link of its
        worker, or one after the other through all crossings."""
        if machine is None:
            machine = Machine("seven devices", (Hosts(1, DEVICES, flops=flops),), NO_LINK, between)
        setting = Setting(
            self.hosts, DEVICES, max_active_keys=flight, wave_size=1, rules=rules_of(self.graph, self.update)
        )
        made = Simulation(self.waves, self.costs, setting, machine, memory=self.memory)
        sent = matrices(self.waves.wave(1)) * MATRIX
        slowest = max(1 / OURS.throughput, sent / between.bandwidth, IN_TURN * between.latency / flight)
        return made.run(graphs * slowest)


# -- tables


def assumptions(pipeline: Pipeline) -> list[tuple[str, str, str, str]]:
    """Each assumption: the paper's value, ours, and where ours is from."""
    p, weights = PAPER, pipeline.graph.nodes["update"].updater.weights  # type: ignore[attr-defined]
    one = pipeline.waves.wave(1)
    busiest = max(sum(map(sum, part.flops)) for part in one.parts)
    kept = max(sum(size for name, size in pipeline.memory.items() if pipeline.hosts[name] == i) for i in range(1, 7))
    return [
        ("hidden width H", f"{p.hidden}", f"{weights[0].shape[0]}", "the model"),
        ("atoms N, bonds E", f"{p.atoms}, {p.bonds}", f"{p.atoms}, {p.bonds}", "rings of 30"),
        ("kinds of bonds C", f"{p.kinds}", f"{p.kinds}: 8, 8, 7 and 7 bonds", "the data; the paper divides by 4"),
        ("steps", f"{p.steps}", f"{p.steps}", "the model"),
        ("forward, for a weight and row", f"{p.forward}", f"{OURS.forward}", "a product"),
        ("backward, for a weight and row", f"{p.backward}", f"{OURS.backward}", "two products, nothing is transposed"),
        ("operations of the busiest device", f"{p.operations / 1e6:.1f} M", f"{busiest / 1e6:.1f} M", "a planned wave"),
        ("device", "1 TFLOPS", "1 TFLOPS", "set"),
        ("share of it that is reached", f"{p.reached}", "1, then the rows below", "what the simulation is for"),
        ("memory of a device, weights", f"{p.memory / 1e6:.2f} MB", f"{kept / 1e6:.2f} MB", "with biases"),
        ("matrices that cross, for a graph", "1", f"{matrices(one):.1f}", "crossings of the busiest sender"),
    ]


def matrices(wave: Any) -> float:
    """Matrices of states that the worker of the new states sends for a graph, forward and backward."""
    crossings = [one for one in wave.parts[6].crosses if one is not None]
    sent: float = sum(one.bytes for one in crossings if one.sends or not one.still)
    return sent / MATRIX


@dataclass(frozen=True)
class Row:
    """One simulation."""

    title: str
    result: Result
    flight: int
    latency: float = 0.0
    """Seconds; for the picture."""

    @property
    def network(self) -> float:
        """Bits a second that the busiest device sends."""
        return 8 * max(one.sent for one in self.result.workers)

    def cells(self) -> Sequence[str]:
        one = self.result
        rate = one.throughput
        busy = " ".join(f"{100 * worker.busy:3.0f}" for worker in one.workers)
        share = f"{rate / PAPER.throughput:.2f}"
        return self.title, f"{rate:,.0f}", share, f"{self.network / 1e9:.1f}", busy, f"{one.stale:.1f}"


IDEAL = "ideal (backward 4)"
HEAD = ("", "graphs/s", "x paper", "Gb/s", "busy of devices 0 to 6, %", "stale")
FLIGHTS = (1, 2, 4, 8, 16, 32)
LATENCIES = (1, 10, 50)
MEMORY = 34e9
"""Bytes a second: two channels of DDR4-2133, as beside the accelerators of that time."""


def table(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Aligned columns; the first ones to the left."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i < left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def rows(pipeline: Pipeline, graphs: int, measured: bool = False) -> list[Row]:
    """All simulations of the table, in its order."""
    run = partial(pipeline.run, graphs=graphs)
    counted = Pipeline(replace(PAPER, reached=1.0))
    out = [
        Row("the paper's operations (backward 6)", counted.run(graphs=graphs), 32),
        Row(IDEAL, run(), 32),
        Row("devices at half their rate", run(flops=PAPER.reached * PAPER.rate), 32),
    ]
    out += [Row(f"ideal, {n} in flight", run(n), n) for n in FLIGHTS[:-1]]
    slow = PAPER.network / 1e9
    for gigabits in (slow, 10.0, 40.0):
        out.append(Row(f"links of {gigabits:.1f} Gb/s", run(32, link(gigabits, 0)), 32))
    for us in LATENCIES:
        out += [Row(f"latency {us} us, {n} in flight", run(n, latency(us)), n, 1e-6 * us) for n in FLIGHTS]
    dense = Pipeline(memory=MEMORY)
    out.append(Row("elementwise work and copies at 34 GB/s", dense.run(graphs=graphs), 32))
    out.append(Row("that, 40 Gb/s and 10 us", dense.run(32, link(40, 10), graphs=graphs), 32, 10e-6))
    if measured:
        out.append(on_this_processor())
    return out


def latency(microseconds: float) -> Link:
    """A link of any bandwidth."""
    return link(math.inf, microseconds)


def on_this_processor() -> Row:
    """Seven cores like this machine's, with costs measured here, links in shared memory."""
    pipeline = Pipeline()
    study = Study.trial(pipeline.graph, pipeline.instances, update=pipeline.update, max_active_keys=8)
    pipeline.use(study.costs)
    found = pipeline.run(machine=Machine("seven cores", (Hosts(DEVICES),)), graphs=30_000)
    return Row("costs measured on this processor", found, 32)


def draw(found: Sequence[Row], path: Path) -> None:
    """Throughput of the rows, and by the number of graphs in flight."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5.2), layout="constrained")
    left, right = figure.subplots(1, 2, gridspec_kw={"width_ratios": (3, 2)})
    shown = [row for row in found if row.flight == 32]
    places = range(len(shown))
    bars = left.barh(places, [row.result.throughput for row in shown], color="#86b9ea")
    left.bar_label(bars, labels=[f" {row.result.throughput:,.0f}" for row in shown], fontsize=8)
    left.set_yticks(places, [row.title for row in shown], fontsize=8)
    left.invert_yaxis()
    left.axvline(PAPER.throughput, color="#c0392b", linewidth=1)
    left.text(PAPER.throughput, -0.75, f"the paper: {PAPER.throughput:,.0f}", color="#c0392b", fontsize=8, ha="center")
    left.set_xlim(0, 1.15 * max(row.result.throughput for row in shown))
    left.set_title("graphs a second, 32 in flight", loc="left", fontsize=10, pad=14)
    curves: Mapping[float, str] = {0.0: "no latency", **{1e-6 * us: f"{us} us" for us in LATENCIES}}
    for seconds, label in curves.items():
        points = [row for row in found if row.latency == seconds and ("in flight" in row.title or row.title == IDEAL)]
        points.sort(key=lambda row: row.flight)
        right.plot([r.flight for r in points], [r.result.throughput for r in points], marker="o", label=label)
    right.axhline(OURS.throughput, color="#7f8c8d", linewidth=1, linestyle="--")
    right.text(1, OURS.throughput, "bound of the busiest device", color="#7f8c8d", fontsize=8, va="bottom")
    right.set_xscale("log", base=2)
    right.set_xticks(FLIGHTS, [str(n) for n in FLIGHTS])
    right.set_ylim(0, 1.12 * OURS.throughput)
    right.set_title("by graphs in flight, for the latency of links", loc="left", fontsize=10, pad=14)
    right.legend(frameon=False, fontsize=8, loc="lower right")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def main(out: Path, graphs: int = 400, measured: bool = False) -> list[Row]:
    """Print both tables, and draw the picture."""
    pipeline = Pipeline()
    print("the paper's sum")
    print(f"  throughput  {PAPER.reached} x 1e12 / (64 N H^2) = {PAPER.throughput:,.0f} graphs/s")
    print(f"  network     32 x throughput x max(N, E) x H = {PAPER.network / 1e9:.2f} Gb/s")
    print(f"  memory      4 x 2H x H x 4 bytes = {PAPER.memory / 1e6:.2f} MB a device")
    print(f"  without its 0.5: {2 * PAPER.throughput:,.0f}; with two products backward: {OURS.throughput:,.0f}\n")
    print(table([("assumption", "the paper", "simulated", "from"), *assumptions(pipeline)], 4))
    found = rows(pipeline, graphs, measured)
    print("\n" + table([HEAD, *(row.cells() for row in found)]))
    by_title = {row.title: row for row in found}
    counted, ideal = found[0].result.throughput, by_title[IDEAL]
    alone = by_title["ideal, 1 in flight"].result
    print(f"\noperations agree: {counted:,.0f} simulated, {2 * PAPER.throughput:,.0f} by the paper without its 0.5")
    print(f"backward differs: two products instead of three units, so the bound is {OURS.throughput:,.0f}")
    needed = ideal.network / (8 * FLOAT * ideal.result.throughput * PAPER.atoms * PAPER.hidden)
    print(f"the network differs: {needed:.1f} matrices a graph leave the busiest device, where the paper has one:")
    print("  4 steps, forward and backward, three readers of the states")
    print(f"one graph in flight has {alone.throughput / ideal.result.throughput:.0%} of the throughput of 32")
    draw(found, out)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, default=Path("appendix_c.png"), help="the picture")
    parser.add_argument("--graphs", type=int, default=400, help="length of each simulation (default: 400)")
    parser.add_argument("--measured", action="store_true", help="also with costs measured on this processor (10 s)")
    torch.set_num_threads(1)
    main(**vars(parser.parse_args()))
