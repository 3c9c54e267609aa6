"""List reduction: a vanilla ReLU RNN, hidden 128, at most ten tokens; buckets of 100 sequences of one length, Adam.

The data is drawn as the paper defines it (`ampnet.data.list_reduction`), so there is no other.

* "ours by hand" is the same RNN wired node by node: what the front end compiles must not be slower.
* "ours single sequences" has no buckets: every sequence is an instance, a thousand are in flight, and what waits at a
  node is batched as it comes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import torch

from ampnet import Instance, Seq
from ampnet.data.list_reduction import CLASSES, Sequences, buckets, generate
from ampnet.graph import Graph
from ampnet.lang import Compiled
from ampnet.models import ListReduction, by_hand
from ampnet.models.list_reduction import HIDDEN
from bench.batch import Batch, Bucket
from bench.peers import list_reduction as peers
from bench.peers.foreign import Foreign
from bench.peers.peer import compiled
from bench.workload import Bound, Data, Ours, Target, Wanted, Workload

TRAIN, VALID = 100_000, 10_000


def data(wanted: Wanted) -> Data:
    least = 9 * 2 * wanted.batch  # so that there are whole buckets of most lengths, however little is asked for
    sizes = (max(wanted.records(most), least) for most in (TRAIN, VALID))
    drawn = [generate(size, 2 * wanted.seed + i) for i, size in enumerate(sizes)]
    train, valid = (_buckets(sequences, wanted.batch, wanted.seed)[: wanted.most] for sequences in drawn)
    return Data("generated", train, valid, {"length": float(drawn[0].lengths.mean())})


def _buckets(sequences: Sequences, size: int, seed: int) -> list[Bucket]:
    """Whole buckets, in a drawn order."""
    out = []
    for where in buckets(sequences, size, np.random.default_rng(seed)):
        if len(where) == size:
            tokens = np.ascontiguousarray(sequences.tokens[where, : sequences.lengths[where[0]]].T)
            out.append(Bucket(size, (Seq(torch.from_numpy(tokens)), torch.from_numpy(sequences.labels[where]))))
    return out


def flops(data: Data) -> float:
    """As the paper draws it: every step multiplies [embedding, state]."""
    return 3 * (data.facts["length"] * 2 * (2 * HIDDEN) * HIDDEN + 2 * HIDDEN * CLASSES)


def wired(workload: Workload, data: Data, ours: Ours) -> Graph:
    return by_hand.build(HIDDEN, seed=0)


def wired_instances(graph: Graph, batch: Batch) -> list[Instance]:
    assert isinstance(batch, Bucket)
    tokens, labels = batch.arguments[0]._column("value"), batch.arguments[1]
    lengths = np.full(batch.count, len(tokens))
    given = Sequences(tokens.t().contiguous().numpy(), lengths, labels.numpy())
    return [by_hand.instance(given, np.arange(batch.count), HIDDEN)]


def single(graph: Graph, batch: Batch) -> list[Instance]:
    """Every sequence of a bucket by itself."""
    assert isinstance(graph, Compiled)
    assert isinstance(batch, Bucket)
    tokens, labels = batch.arguments[0]._column("value").t().contiguous(), batch.arguments[1]
    return [graph.instance(Seq(row), label) for row, label in zip(tokens, labels, strict=True)]


_OURS = Ours(in_flight=1, every=1)
LIST_REDUCTION = Workload(
    name="list-reduction",
    about=f"ReLU RNN, hidden {HIDDEN}, Adam, updates of 100 sequences of one length",
    unit="sequences",
    batch=100,
    data=data,
    model=lambda data: ListReduction(HIDDEN),
    flops=flops,
    optimizer=partial(torch.optim.Adam, lr=1e-3, fused=True),
    ours={
        "ours": _OURS,
        "ours by hand": replace(_OURS, graph=wired, instances=wired_instances),
        "ours single sequences": Ours(in_flight=1000, every=100, instances=single),
    },
    peers={
        "torch eager": peers.Concat,
        "torch nn.RNN": peers.Recurrent,
        "torch folded": peers.Folded,
        "torch compile": compiled(peers.Folded, dynamic=False),
    },
    foreign={
        "jax scan": Foreign("bench.peers.jax_list_reduction:Scan"),
        "jax unrolled": Foreign("bench.peers.jax_list_reduction:Unrolled"),
    },
    base="torch eager 1 thread",
    each=128,
    target=Target("accuracy", 0.97),
    rival="torch eager",
    bounds=(
        Bound("ours", "torch eager 1 thread", 0.8),
        Bound("ours", "ours by hand", 0.95),
        Bound("ours 16 replicas", "torch *", 10.0),
    ),
    external="list_reduction_rnn.py",
)
