"""bAbI 15: a gated graph network, hidden 5, two steps, 54 nodes and 108 edges; Adam, updates of 20 and of 100 graphs.

The data is drawn (`ampnet.data.babi15`): the original has 8 nodes, and the paper inflates it to 54.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from ampnet.data.babi15 import HIDDEN, KINDS
from ampnet.data.generated import deductions
from ampnet.models import Babi15
from bench.peers import ggsnn as peers
from bench.peers.foreign import Foreign
from bench.peers.geometric import BabiGeometric
from bench.peers.peer import compiled
from bench.workload import Data, Ours, Target, Wanted, Workload

NODES, STEPS = 54, 2
EDGES = 2 * NODES
TRAIN, VALID = 4_000, 1_000


def data(wanted: Wanted) -> Data:
    parts = enumerate((TRAIN, VALID))
    train, valid = (wanted.batches(list(deductions(wanted.records(n), 2 * wanted.seed + i, NODES))) for i, n in parts)
    return Data("generated", train, valid)


def flops(data: Data) -> float:
    """One product for each edge."""
    step = EDGES * HIDDEN * HIDDEN + NODES * 2 * HIDDEN * 3 * HIDDEN
    return 3 * 2 * (STEPS * step + NODES * (2 * HIDDEN * HIDDEN + HIDDEN))


BABI15 = Workload(
    name="babi15",
    about=f"gated graph network, hidden {HIDDEN}, {NODES} nodes, Adam, updates of 20 graphs",
    unit="graphs",
    batch=20,
    data=data,
    model=lambda data: Babi15(HIDDEN, STEPS, KINDS),
    flops=flops,
    optimizer=partial(torch.optim.Adam, lr=0.01, fused=True),
    ours={"ours": Ours(in_flight=20, every=20)},
    peers={
        "torch sparse": peers.BabiSparse,
        "torch compile": compiled(peers.BabiSparse, dynamic=False),
        "pyg": BabiGeometric,
    },
    foreign={"jax": Foreign("bench.peers.jax_ggsnn:Babi")},
    base="torch sparse 1 thread",
    each=320,
    target=Target("accuracy", 1.0, batches=5),
    rival="torch sparse",
    external="babi15_ggsnn.py",
)

BABI15_100 = replace(
    BABI15,
    name="babi15-100",
    about=BABI15.about.replace("of 20", "of 100"),
    batch=100,
    ours={"ours": Ours(in_flight=100, every=100)},
    each=800,
    target=Target("accuracy", 1.0, batches=1),
)
