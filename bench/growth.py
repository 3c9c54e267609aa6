"""Growth: how the time of an instance grows, one panel for each thing that can get larger.

    in flight     permuted layers         more instances share a call, so each takes less time, until calls are full
    hidden size   list reduction          products grow with the square, all else with the size or not at all
    tree depth    Tree-LSTM on chains     linear: one cell a level, and levels cannot be batched within a tree
    tree nodes    Tree-LSTM, any shape    linear, up to 10,001 nodes
    graph nodes   gated graph network     at most linear: nodes of a step are batched
    rows          list reduction          epochs of up to ten million: the time of a record stays as it is
    workers       list reduction          one replica each, weights shared: 1 / workers, as far as there are cores

Every panel has the slope of a line fitted in the logarithms: 1 is linear, 0 is no growth, -1 is half for twice as many.
Where a bound is known, the slope between the two largest sizes is checked against it.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from ampnet import Inline, Instance, Processes, Replicate, Seq, Tree, Update, compile
from ampnet.cli.report import write_json
from ampnet.data import generated
from ampnet.data.list_reduction import generate
from ampnet.models import Babi15, ListReduction, PermutedLayers, TreeLstm, list_reduction
from ampnet.runtime.runtime import Runtime
from bench.contender import lasting
from bench.machine import describe

Made = tuple[Runtime, list[Instance]]
ADAM = partial(torch.optim.Adam, lr=1e-4, fused=True)
BUCKET = 1_000
"""Sequences of an instance, in epochs of many."""
SLACK = 0.15
"""Of a slope, for other users of the machine."""
ACROSS = 3
"""Charts side by side."""


@dataclass(frozen=True, slots=True)
class Panel:
    """Something that gets larger."""

    name: str
    on: str
    """The model, and what stays as it is."""
    sizes: tuple[int, ...]
    make: Callable[[int], Made]
    wanted: str
    """What is expected of the slope, in words."""
    most: float | None = None
    """The slope between the two largest sizes is at most this; None: no bound."""
    whole: bool = False
    """Whether the size is the number of records of an epoch, which is timed as a whole, by record."""


@dataclass(frozen=True, slots=True)
class Curve:
    """What was found."""

    name: str
    on: str
    wanted: str
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    """Of an instance, by size."""
    slope: float
    """Of the whole curve, in the logarithms."""
    last: float
    """Between the two largest sizes."""
    most: float | None = None
    """The bound of ``last``; None: none."""
    kept: bool | None = None
    """Whether the bound was kept."""
    mib: tuple[float, ...] = ()
    """Resident memory after each size: what this process has in use."""


def in_flight(size: int) -> Made:
    torch.manual_seed(0)
    records = list(generated.permutations(512, 0, width=128))
    graph = compile(PermutedLayers(128), *records[0])
    update = Update(ADAM, 64, "instances")
    return Inline(graph, update=update, max_active_keys=size), list(graph.instances(records))


def hidden(size: int) -> Made:
    graph = list_reduction.build(size)
    made = list(list_reduction.instances(graph, generate(5_000, 0), 100, np.random.default_rng(0)))
    return Inline(graph, update=Update(ADAM, 1, "instances"), max_active_keys=1), made


def tree_depth(size: int) -> Made:
    torch.manual_seed(0)
    chain = _chain(size)
    graph = compile(TreeLstm(100, 64, 64), chain)
    update = Update(ADAM, 25, "instances")
    return Inline(graph, update=update, max_active_keys=25, enough_rows=None), [graph.instance(chain)] * 50


def _chain(depth: int) -> Tree:
    """A tree that is as deep as can be: every branch has a leaf and the branch below it."""
    leaves = depth + 1
    parents = np.full(2 * leaves - 1, -1)
    parents[:2] = leaves
    for level in range(1, depth):
        parents[[leaves + level - 1, 1 + level]] = leaves + level
    words, labels = torch.arange(leaves) % 100, torch.arange(2 * leaves - 1) % 5
    return Tree(parents, leaves={"word": words}, label=labels)


def tree_nodes(size: int) -> Made:
    torch.manual_seed(0)
    made = [_drawn(size, seed) for seed in range(5)]
    graph = compile(TreeLstm(100, 64, 64), made[0])
    update = Update(ADAM, 5, "instances")
    runtime = Inline(graph, update=update, max_active_keys=5, enough_rows=None)
    return runtime, [graph.instance(tree) for tree in made]


def _drawn(nodes: int, seed: int) -> Tree:
    """A binary tree with so many nodes: neighbours are joined in a drawn order until one is left."""
    rng, leaves = np.random.default_rng(seed), (nodes + 1) // 2
    parents, open_ = np.full(2 * leaves - 1, -1), list(range(leaves))
    for branch in range(leaves, 2 * leaves - 1):
        at = int(rng.integers(len(open_) - 1))
        parents[open_[at : at + 2]] = branch
        open_[at : at + 2] = [branch]
    return Tree(parents, leaves={"word": torch.arange(leaves) % 100}, label=torch.arange(2 * leaves - 1) % 5)


def epoch_rows(size: int) -> Made:
    graph = list_reduction.build(32)
    made = list(list_reduction.instances(graph, generate(100 * BUCKET, 0), BUCKET, np.random.default_rng(0)))
    whole = [one for one in made if one.records == BUCKET]
    return Inline(graph, update=Update(ADAM, 1, "instances"), max_active_keys=1), whole


def graph_nodes(size: int) -> Made:
    torch.manual_seed(0)
    records = list(generated.deductions(40, 0, nodes=size, hidden=16))
    graph = compile(Babi15(16), *records[0])
    update = Update(ADAM, 20, "instances")
    return Inline(graph, update=update, max_active_keys=20, enough_rows=None), list(graph.instances(records))


def workers(size: int) -> Made:
    torch.manual_seed(0)
    example = Seq(torch.zeros(2, dtype=torch.int64)), torch.tensor(0)
    graph = compile(ListReduction(), *example, replicas=Replicate(size, route="shortest", sync="shared"))
    made = list(list_reduction.instances(graph, generate(20_000, 0), 100, np.random.default_rng(0)))
    update = Update(ADAM, 1, "instances")
    return Processes(graph, workers=size, update=update, max_active_keys=4 * size), made


def panels(cores: int) -> list[Panel]:
    counts = tuple(n for n in (1, 2, 4, 8, 16) if n <= cores)
    return [
        Panel("instances in flight", "permuted layers, 128 wide", (1, 4, 16, 64, 256), in_flight, "falls, then flat"),
        Panel(
            "hidden size", "list reduction, buckets of 100", (32, 64, 128, 256, 512), hidden, "at most 2", 2.0 + SLACK
        ),
        Panel("depth of tree", "Tree-LSTM, hidden 64", (8, 32, 128, 512, 5000), tree_depth, "1: linear", 1 + SLACK),
        Panel("nodes of a tree", "Tree-LSTM, hidden 64", (101, 1_001, 10_001), tree_nodes, "1: linear", 1 + SLACK),
        Panel(
            "number of nodes",
            "graph network, hidden 16",
            (16, 64, 256, 1024),
            graph_nodes,
            "at most 1",
            1 + SLACK,
        ),
        Panel(
            "records of an epoch",
            f"list reduction, hidden 32, buckets of {BUCKET:,}",
            (10**5, 10**6, 10**7),
            epoch_rows,
            "0: an epoch is linear",
            SLACK,
            whole=True,
        ),
        Panel("workers", f"list reduction, a replica each, {cores} cores", counts, workers, "-1: all cores used"),
    ]


def measure(panel: Panel, seconds: float) -> Curve:
    """Time each size."""
    found, mib = [], []
    for size in panel.sizes:
        runtime, made = panel.make(size)
        with runtime:
            found.append(per_record(runtime, made, size) if panel.whole else per_instance(runtime, made, seconds))
            mib.append(resident())
    last = slope(panel.sizes[-2:], found[-2:])
    return Curve(
        panel.name,
        panel.on,
        panel.wanted,
        panel.sizes,
        tuple(found),
        slope(panel.sizes, found),
        last,
        panel.most,
        None if panel.most is None or len(panel.sizes) < 2 else last <= panel.most,
        tuple(mib),
    )


def per_record(runtime: Runtime, made: Sequence[Instance], records: int) -> float:
    """Seconds of a record in an epoch of so many, whose instances are handed over one after the other."""
    runtime.train(made)
    of_one = made[0].records
    began = time.perf_counter()
    stats = runtime.train(itertools.islice(itertools.cycle(made), records // of_one))
    assert stats.records == records // of_one * of_one
    return (time.perf_counter() - began) / stats.records


def resident() -> float:
    """MiB of memory that this process has in use; nan where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return float("nan")
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def per_instance(runtime: Runtime, made: Sequence[Instance], seconds: float) -> float:
    """Seconds of an instance in training, after a warm-up."""
    places = itertools.cycle(range(len(made)))
    runtime.train(made[i] for i in lasting(places, seconds / 4))
    began = time.perf_counter()
    stats = runtime.train(made[i] for i in lasting(places, seconds))
    return (time.perf_counter() - began) / stats.instances


def slope(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Of the line through the logarithms that is nearest; nan of a single point."""
    if len(sizes) < 2:
        return float("nan")
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def run(folder: Path, seconds: float, console: Console, *, print_json: bool = False) -> list[Curve]:
    """Measure all panels; writes ``growth.json`` and ``growth.png``."""
    torch.set_num_threads(1)
    curves = []
    for panel in panels(len(os.sched_getaffinity(0))):
        with Console(stderr=True).status(f"growth: {panel.name}"):
            curves.append(measure(panel, seconds))
        curve = curves[-1]
        times = ", ".join(f"{n}: {1e3 * t:.4g}" for n, t in zip(curve.sizes, curve.seconds, strict=True))
        mark = "    " if curve.kept is None else "ok  " if curve.kept else "MISS"
        ends = f"{curve.slope:5.2f}, at the end {curve.last:5.2f} ({curve.wanted})"
        text = f"{mark}  {curve.name:20} slope {ends}; ms by size {times}; {curve.on}"
        console.print(text, highlight=False, soft_wrap=True)
    found: dict[str, Any] = {"curves": [asdict(curve) for curve in curves], "machine": describe()}
    write_json(folder / "growth.json", found)
    paint(curves, folder / "growth.png")
    console.print(f"written to {folder / 'growth.json'} and .png", style="dim", highlight=False)
    if print_json:
        print(json.dumps(found), flush=True)
    return curves


def paint(curves: Sequence[Curve], path: Path) -> None:
    """A small chart for each, in logarithms, with the fitted line."""
    from matplotlib.figure import Figure

    from bench.picture import COLOURS, FAINT, INK, save

    figure = Figure(figsize=(10, 3.1 * -(-len(curves) // ACROSS)), layout="constrained")
    every = figure.subplots(-(-len(curves) // ACROSS), ACROSS, squeeze=False).flat
    for axes, curve in itertools.zip_longest(every, curves):
        if curve is None:
            axes.set_axis_off()
            continue
        times = 1e3 * np.array(curve.seconds)
        if len(curve.sizes) > 1:
            middle = np.exp(np.log(times).mean() - curve.slope * np.log(curve.sizes).mean())
            axes.loglog(curve.sizes, middle * np.power(curve.sizes, curve.slope), "--", color=FAINT, linewidth=0.9)
        axes.loglog(curve.sizes, times, "o-", color=COLOURS["ours"], markersize=4, linewidth=1.4)
        for size, t in zip(curve.sizes, times, strict=True):
            axes.annotate(f"{t:.3g}", (size, t), (0, 6), textcoords="offset points", ha="center", fontsize=7, color=INK)
        axes.set_title(f"{curve.name}\n", fontsize=10, loc="left", color=INK)
        slopes = f"slope {curve.slope:.2f}, at the end {curve.last:.2f} ({curve.wanted})"
        axes.text(0, 1.03, slopes, transform=axes.transAxes, fontsize=8, color=INK)
        axes.set_xlabel(curve.on, fontsize=7.5, color=FAINT)
        axes.set_xticks(curve.sizes, [str(size) for size in curve.sizes])
        axes.set_xlim(min(curve.sizes) / 1.3, max(curve.sizes) * 1.3)
        axes.set_ylim(min(times) / 2, max(times) * 2)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        axes.tick_params(labelsize=7.5, colors=FAINT)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.supylabel("ms of an instance", fontsize=8.5, color=INK)
    save(figure, path)
