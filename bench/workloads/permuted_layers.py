"""Permuted layers: eight layers, and every instance applies them in an order of its own; Adam, updates of 64 instances.

    h = relu(layer[order[t]](h))   for t = 0 .. 7,   then a Linear and cross entropy

No two instances run the same program, so there is no batch to write down: plain torch runs them one by one, or a
loader groups them by hand, by depth. "ours" computes whole instances, in waves; "ours by messages" passes messages,
and each layer takes those that wait for it, whatever their depth.
"""

from __future__ import annotations

from functools import partial

import torch

from ampnet.data.generated import permutations
from ampnet.models import PermutedLayers
from bench.peers import permuted_layers as peers
from bench.workload import Bound, Data, Ours, Target, Wanted, Workload

WIDTH, LAYERS, DEPTH, CLASSES = 256, 8, 8, 10
TRAIN, VALID = 64 * 64, 16 * 64


def data(wanted: Wanted) -> Data:
    train, valid = (
        list(permutations(wanted.records(n), 2 * wanted.seed + i, WIDTH, LAYERS, DEPTH, CLASSES))
        for i, n in enumerate((TRAIN, VALID))
    )
    return Data("generated", wanted.batches(train), wanted.batches(valid))


def flops(data: Data) -> float:
    """Three times the products of the forward, less the gradient of the given row."""
    return 3 * 2 * (DEPTH * WIDTH * WIDTH + WIDTH * CLASSES) - 2 * WIDTH * WIDTH


PERMUTED_LAYERS = Workload(
    name="permuted-layers",
    about=f"{LAYERS} layers of {WIDTH}, each instance in its own order, Adam, updates of 64 instances",
    unit="instances",
    batch=64,
    data=data,
    model=lambda data: PermutedLayers(WIDTH, LAYERS, CLASSES),
    flops=flops,
    optimizer=partial(torch.optim.Adam, lr=1e-3, fused=True),
    ours={
        "ours": Ours(in_flight=64, every=64),
        "ours by messages": Ours(in_flight=64, every=64, settings={"waves": False}),
    },
    peers={
        "torch one by one": peers.OneByOne,
        "torch by depth sorted": peers.Sorted,
        "torch by depth padded": peers.Padded,
    },
    base="torch by depth padded 1 thread",
    each=1024,
    target=Target("accuracy", 0.55, batches=8),
    rival="torch by depth padded",
    bounds=(
        Bound("ours", "torch one by one 1 thread", 4.0),
        Bound("ours", "torch by depth * 1 thread", 2.0),
        Bound("ours 2 replicas", "torch by depth * [12] thread*", 3.5),
    ),
)
