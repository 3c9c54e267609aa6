"""List reduction on one core: our inline runtime beside plain torch, alternating, in one run.

The peer is what a torch user writes: sequences in buckets of 100 of one length, an embedding, a loop that
concatenates and applies a Linear and a ReLU, autograd, one fused Adam. Both have their batches made beforehand.

The peer updates once for every 100 sequences. Ours does so only where instances retire one by one: those that retire
together share an update, so with many in flight there are fewer, and part of the speed is optimizer steps not taken.
The column "updates" (of the recurrent layer, for every 100 sequences) says how many there were.

"by hand" is the same RNN wired node by node (`ampnet.models.by_hand`): what the front end compiles must not be slower.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from ampnet import Inline, Update
from ampnet.data.list_reduction import CLASSES, VOCABULARY, Sequences, buckets, generate
from ampnet.models import by_hand, list_reduction
from bench.alternate import Train, alternate

ADAM = partial(torch.optim.Adam, lr=1e-3, fused=True)
OURS: dict[str, dict[str, Any]] = {
    "ours, 1 in flight": {"max_active_keys": 1},
    "ours, 4 in flight (default)": {"max_active_keys": 4},
    "ours, 16 in flight": {"max_active_keys": 16},
    "ours, 96 in flight, widest batches": {"max_active_keys": 96, "enough_rows": None},
}
BY_HAND: dict[str, dict[str, Any]] = {
    "by hand, 1 in flight": {"max_active_keys": 1},
    "by hand, 4 in flight": {"max_active_keys": 4},
}
LANGUAGE = (("by hand, 1 in flight", ""), ("by hand, 4 in flight", " (default)"))
SINGLE: dict[str, dict[str, Any]] = {
    "ours, single sequences, 1000 in flight": {"max_active_keys": 1000, "enough_rows": None}
}


class Peer(nn.Module):
    """The same RNN in plain torch, for tokens [steps, sequences]."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, list_reduction.HIDDEN)
        self.recur = nn.Linear(2 * list_reduction.HIDDEN, list_reduction.HIDDEN)
        self.classify = nn.Linear(list_reduction.HIDDEN, CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        inputs = self.embedding(tokens)
        h = inputs.new_zeros(tokens.shape[1], list_reduction.HIDDEN)
        for step in inputs:
            h = torch.relu(self.recur(torch.cat((step, h), 1)))
        out: torch.Tensor = self.classify(h)
        return out


def peer(data: Sequences) -> Train:
    """Plain torch."""
    torch.manual_seed(0)
    model = Peer()
    optimizer = ADAM(model.parameters())
    batches = []
    for where in buckets(data, 100, np.random.default_rng(0)):
        tokens = np.ascontiguousarray(data.tokens[where, : data.lengths[where[0]]].T)
        batches.append((torch.from_numpy(tokens), torch.from_numpy(data.labels[where])))

    def train(seconds: float) -> tuple[float, float]:
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            for tokens, labels in batches[:100]:
                optimizer.zero_grad(set_to_none=True)
                nn.functional.cross_entropy(model(tokens), labels).backward()
                optimizer.step()
                count += len(labels)
        return count / (time.perf_counter() - began), 1.0

    return train


def ours(data: Sequences, bucket: int, frequency: int, wired: bool = False, **settings: Any) -> Train:
    """Our runtime, on the compiled model or on the graph wired by hand."""
    rng = np.random.default_rng(0)
    if wired:
        graph = by_hand.build(seed=0)
        instances = list(by_hand.instances(data, bucket, rng))
    else:
        graph = compiled = list_reduction.build(seed=0)
        instances = list(list_reduction.instances(compiled, data, bucket, rng))
    runtime = Inline(graph, update=Update(ADAM, frequency, "instances"), **settings)
    node = graph.parameterised()["linear1" if wired else "cell"]

    def train(seconds: float) -> tuple[float, float]:
        records, began, before = 0, time.perf_counter(), node.updater.version
        part = instances if bucket > 1 else instances[:5000]
        while time.perf_counter() - began < seconds:
            records += runtime.train(part).records
        return records / (time.perf_counter() - began), 100 * (node.updater.version - before) / records

    return train


def run(seconds: float, repeats: int) -> tuple[dict[str, Any], list[tuple[str, bool]]]:
    data = generate(30_000, seed=1)
    rows: dict[str, Train] = {"torch eager (peer)": peer(data)}
    rows |= {name: ours(data, 100, 1, **settings) for name, settings in OURS.items()}
    rows |= {name: ours(data, 100, 1, wired=True, **settings) for name, settings in BY_HAND.items()}
    rows |= {name: ours(data, 1, 100, **settings) for name, settings in SINGLE.items()}
    speeds, updates = alternate(rows, seconds, repeats)
    base = max(speeds["torch eager (peer)"])
    print(f"\n{'list reduction, one core, training':42} {'best':>10} {'median':>10} {'ratio':>7} {'updates':>8}")
    out: dict[str, Any] = {}
    for name, values in speeds.items():
        best, middle = max(values), statistics.median(values)
        out[name] = {"best": best, "median": middle, "ratio": best / base, "updates_per_100": updates[name]}
        print(f"{name:42} {best:10,.0f} {middle:10,.0f} {best / base:7.2f} {updates[name]:8.2f}")
    # Like with like: only settings that update as often as the peer count for the bound.
    fair = [n for n in out if n.startswith("ours") and out[n]["updates_per_100"] > 0.95]
    top = max(fair, key=lambda n: out[n]["ratio"])
    text = f"list reduction at least 0.8 x torch eager, same update size, one core: {out[top]['ratio']:.2f} ({top})"
    language = max(out[name]["best"] / out[name.replace("by hand", "ours") + end]["best"] for name, end in LANGUAGE)
    cost = f"the language costs nothing: by hand at most 1.05 x compiled: {language:.2f}"
    return out, [(text, out[top]["ratio"] >= 0.8), (cost, language <= 1.05)]
