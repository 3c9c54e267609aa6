"""Permuted layers on one core: eight layers, and every instance applies them in an order of its own.

    h = relu(layer[order[t]](h))   for t = 0 .. 7,   then a Linear, cross entropy; one update for every 64 instances

No two instances run the same program, so there is no batch to write down: plain torch runs them one by one, or a
loader-side planner groups them by hand. Two peers in plain torch:

* **one by one**: an instance forward and backward at a time, gradients accumulated, a step for every 64;
* **by depth**: at depth t the 64 instances are sorted by the layer they need, one product for each layer. Three ways
  to write it (indices back and forth; sort, split, one cat, one relu; padded to one bmm), of which the fastest counts.

Ours is given instances of `ampnet.models.PermutedLayers`, and batches what happens to wait. All have the same optimizer
and update size; the column "updates" is the number of updates for every 64 instances.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ampnet import Inline, Seq, Update, compile
from ampnet.models import PermutedLayers
from bench.alternate import Train, alternate

LAYERS = DEPTH = 8
WIDTH, CLASSES, BATCH = 256, 10, 64
ADAM = partial(torch.optim.Adam, lr=1e-3, fused=True)
IN_FLIGHT = (64, 256)


class Data:
    """Rows, labels, and for each instance the order of its layers."""

    def __init__(self, count: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.rows = torch.from_numpy(rng.standard_normal((count, WIDTH), dtype=np.float32))
        self.labels = torch.from_numpy(rng.integers(0, CLASSES, count))
        self.orders = np.stack([rng.permutation(LAYERS)[:DEPTH] for _ in range(count)])


class Peer(nn.Module):
    """The layers in plain torch."""

    def __init__(self) -> None:
        super().__init__()
        linear = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
        self.classify = nn.Linear(WIDTH, CLASSES)
        self.keep(linear)

    def keep(self, linear: list[nn.Linear]) -> None:
        """Take on the layers."""
        self.layers = nn.ModuleList(linear)

    def score(self, rows: Tensor, orders: np.ndarray) -> Iterator[tuple[Tensor, np.ndarray | None]]:
        """Class scores in pieces, with the instances each is of (None: all, in order)."""
        raise NotImplementedError


class OneByOne(Peer):
    """An instance at a time."""

    def score(self, rows: Tensor, orders: np.ndarray) -> Iterator[tuple[Tensor, np.ndarray | None]]:
        for i, order in enumerate(orders.tolist()):
            h = rows[i : i + 1]
            for layer in order:
                h = torch.relu(self.layers[layer](h))
            yield self.classify(h), np.array([i])


class Indexed(Peer):
    """By depth: rows picked by index for each layer, and put back."""

    def score(self, rows: Tensor, orders: np.ndarray) -> Iterator[tuple[Tensor, np.ndarray | None]]:
        h = rows
        for chosen in orders.T:
            out = torch.empty_like(h)
            for i, layer in enumerate(self.layers):
                where = torch.from_numpy(np.flatnonzero(chosen == i))
                if len(where):
                    out = out.index_copy(0, where, torch.relu(layer(h.index_select(0, where))))
            h = out
        yield self.classify(h), None


class Sorted(Peer):
    """By depth: sorted by layer, split, one cat and one relu; rows stay in that order until the next depth's sort."""

    def score(self, rows: Tensor, orders: np.ndarray) -> Iterator[tuple[Tensor, np.ndarray | None]]:
        h, at = rows, np.arange(len(rows))
        for t in range(orders.shape[1]):
            order = np.argsort(orders[at, t], kind="stable")
            at = at[order]
            counts = np.bincount(orders[at, t], minlength=LAYERS).tolist()
            parts = h.index_select(0, torch.from_numpy(order)).split(counts)
            h = torch.relu(torch.cat([f(x) for f, x in zip(self.layers, parts, strict=True) if len(x)]))
        yield self.classify(h), at


class Padded(Peer):
    """By depth: weights stacked, rows padded to the fullest layer, one batched product for all layers."""

    def keep(self, linear: list[nn.Linear]) -> None:
        self.weight = nn.Parameter(torch.stack([f.weight.detach().t() for f in linear]))
        self.bias = nn.Parameter(torch.stack([f.bias.detach().unsqueeze(0) for f in linear]))

    def score(self, rows: Tensor, orders: np.ndarray) -> Iterator[tuple[Tensor, np.ndarray | None]]:
        h, where = rows, np.arange(len(rows))
        for chosen in orders.T:
            counts = np.bincount(chosen, minlength=LAYERS)
            most = int(counts.max())
            order = np.argsort(chosen, kind="stable")
            layer = chosen[order]
            slot = layer * most + np.arange(len(order)) - (np.cumsum(counts) - counts)[layer]
            source = np.zeros(LAYERS * most, dtype=np.int64)
            source[slot] = where[order]
            where[order] = slot
            x = h.index_select(0, torch.from_numpy(source)).view(LAYERS, most, WIDTH)
            h = torch.relu(torch.baddbmm(self.bias, x, self.weight)).view(LAYERS * most, WIDTH)
        yield self.classify(h.index_select(0, torch.from_numpy(where))), None


PEERS: dict[str, type[Peer]] = {
    "torch, one by one": OneByOne,
    "torch by depth, index back and forth": Indexed,
    "torch by depth, sort, split, cat": Sorted,
    "torch by depth, padded to one bmm": Padded,
}


def peer(data: Data, kind: type[Peer]) -> Train:
    """Plain torch."""
    torch.manual_seed(0)
    model = kind()
    optimizer = ADAM(model.parameters())

    def step(first: int) -> None:
        where = slice(first, first + BATCH)
        labels = data.labels[where]
        for scores, at in model.score(data.rows[where], data.orders[where]):
            wanted = labels if at is None else labels[torch.from_numpy(at)]
            (nn.functional.cross_entropy(scores, wanted, reduction="sum") / BATCH).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def train(seconds: float) -> tuple[float, float]:
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            step(count % len(data.labels))
            count += BATCH
        return count / (time.perf_counter() - began), 1.0

    return train


def ours(data: Data, *, together: bool = True, **settings: Any) -> Train:
    """Our runtime. ``together``: the layers as one node, as the compiler does it; else as nodes of their own."""
    torch.manual_seed(0)
    arguments = [(data.rows[i], Seq(data.orders[i]), data.labels[i]) for i in range(len(data.labels))]
    graph = compile(PermutedLayers(WIDTH, LAYERS, CLASSES), *arguments[0], fuse_choice=together)
    runtime = Inline(graph, update=Update(ADAM, BATCH, "instances"), **settings)
    given = [graph.instance(*one) for one in arguments]
    node = graph.parameterised()["classify"]

    def train(seconds: float) -> tuple[float, float]:
        count, began, before = 0, time.perf_counter(), node.updater.version
        while time.perf_counter() - began < seconds:
            count += runtime.train(given).instances
        return count / (time.perf_counter() - began), BATCH * (node.updater.version - before) / count

    return train


def run(seconds: float, repeats: int) -> tuple[dict[str, Any], list[tuple[str, bool]]]:
    data = Data(64 * 64)
    rows: dict[str, Train] = {name: peer(data, kind) for name, kind in PEERS.items()}
    rows |= {f"ours, {n} in flight": ours(data, max_active_keys=n) for n in IN_FLIGHT}
    rows["ours, 64 in flight, layers apart"] = ours(data, together=False, max_active_keys=BATCH)
    speeds, updates = alternate(rows, seconds, repeats)
    best = {name: max(values) for name, values in speeds.items()}
    alone = best["torch, one by one"]
    by_depth = max(value for name, value in best.items() if name.startswith("torch by depth"))
    print(
        f"\n{'permuted layers, one core, training':42} {'best':>10} {'median':>10} {'x single':>9} {'x depth':>8} "
        f"{'updates':>8}"
    )
    out: dict[str, Any] = {}
    for name, values in speeds.items():
        top, middle = best[name], statistics.median(values)
        ratios = {"ratio_one_by_one": top / alone, "ratio_by_depth": top / by_depth}
        out[name] = {"best": top, "median": middle, **ratios, "updates_per_64": updates[name]}
        print(f"{name:42} {top:10,.0f} {middle:10,.0f} {top / alone:9.2f} {top / by_depth:8.2f} {updates[name]:8.2f}")
    mine = out[f"ours, {BATCH} in flight"]
    checks = []
    for bound, what, ratio in ((4, "one by one", mine["ratio_one_by_one"]), (2, "by depth", mine["ratio_by_depth"])):
        text = f"permuted layers at least {bound} x torch {what}, {BATCH} in flight, one core: {ratio:.2f}"
        checks.append((text, ratio >= bound))
    return out, checks
