"""The RNN of the paper's figure 2, wired by hand: a vanilla ReLU RNN over the tokens of a sequence.

State: (instance, t, length).

    tokens ──> embedding ──────────┐
                                   v
    h0 ──> phi ──────────────> concat ──> linear1 ──> relu ──> isu t+1 ──> cond
            ^                                                               │ │
            └──────────────── again: t < length ────────────────────────────┘ │ done: t = length
                                                                              v
                                                        label ──────────>  linear2 ──> loss

An instance is a bucket of sequences of one length (each message then has a row for every sequence) or a single
sequence.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from ampnet.data.list_reduction import CLASSES, VOCABULARY, Sequences, buckets
from ampnet.errors import DataError
from ampnet.graph import Graph
from ampnet.instance import Instance, feed
from ampnet.nodes import Concat, Cond, Embedding, Isu, Linear, Loss, Phi, Relu
from ampnet.state import Ints

HIDDEN = 128


def build(hidden: int = HIDDEN, seed: int = 0, dtype: torch.dtype = torch.float32) -> Graph:
    """The graph, with torch's default initialisation drawn from ``seed``, the recurrent part of linear1 orthogonal."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        embedding, linear1, linear2 = Embedding(VOCABULARY, hidden), Linear(2 * hidden, hidden), Linear(hidden, CLASSES)
        torch.nn.init.orthogonal_(linear1.updater.weights[0][:, hidden:])
    graph = Graph("list-reduction RNN")
    graph.add("embedding", embedding)
    graph.add("phi", Phi(("start", "loop")))
    graph.add("concat", Concat(("x", "h")))
    graph.add("linear1", linear1)
    graph.add("relu", Relu())
    graph.add("isu", Isu(lambda s: s.replace(t=s.t + 1), lambda s: s.replace(t=s.t - 1)))
    graph.add("cond", Cond(lambda s: s.t < s.length, ("done", "again")))
    graph.add("linear2", linear2)
    graph.add("loss", Loss("cross_entropy", key=("instance",)))

    graph.input("tokens", "embedding", fields=("t", "length"))
    graph.input("h0", "phi.start", fields=("t", "length"))
    graph.input("label", "loss.label")
    graph.connect("embedding", "concat.x")
    graph.connect("phi", "concat.h")
    graph.chain("concat", "linear1", "relu", "isu", "cond")
    graph.connect("cond.again", "phi.loop")
    graph.connect("cond.done", "linear2")
    graph.connect("linear2", "loss.prediction")
    return graph.to(dtype)  # the numbers are drawn in float32, whatever the dtype


def instance(data: Sequences, where: Ints, hidden: int = HIDDEN, dtype: torch.dtype = torch.float32) -> Instance:
    """The sequences at these positions, all of one length, as one instance."""
    n, length = len(where), int(data.lengths[where[0]]) if len(where) else 0
    if length < 1:
        raise DataError(f"list reduction: the sequence at {where.tolist()[:1]} has no token")
    if n > 1 and (data.lengths[where] != length).any():
        raise DataError(f"list reduction: the sequences at {where.tolist()[:3]}... differ in length; bucket them first")
    tokens = torch.from_numpy(np.ascontiguousarray(data.tokens[where, :length].T).reshape(-1))
    steps = np.arange(length)
    return Instance(
        {
            "tokens": feed(tokens, offsets=np.arange(length + 1) * n if n > 1 else None, t=steps, length=length),
            "h0": feed(torch.zeros(n, hidden, dtype=dtype), messages=1, t=0, length=length),
            "label": feed(torch.from_numpy(data.labels[where]), messages=1),
        },
        records=n,
    )


def instances(
    data: Sequences,
    bucket: int = 100,
    rng: np.random.Generator | None = None,
    hidden: int = HIDDEN,
    dtype: torch.dtype = torch.float32,
) -> Iterator[Instance]:
    """An epoch: all sequences in buckets of one length (or one by one, with ``bucket=1``), shuffled by ``rng``."""
    if bucket == 1:
        order = rng.permutation(len(data)) if rng is not None else np.arange(len(data))
        for i in order.tolist():
            yield instance(data, np.array([i]), hidden, dtype)
        return
    for where in buckets(data, bucket, rng):
        yield instance(data, where, hidden, dtype)


def eager(module: torch.nn.ModuleDict, data: Sequences, where: Ints) -> torch.Tensor:
    """The class scores of sequences of one length in plain torch, with the parameters of `Graph.module`.

    The oracle of tests, and the shortest way to say what the graph computes.
    """
    tokens = torch.from_numpy(data.tokens[where, : int(data.lengths[where[0]])])
    embedding, linear1 = module["embedding"], module["linear1"]
    weight = next(linear1.parameters())
    h = torch.zeros(len(where), weight.shape[0], dtype=weight.dtype)
    for t in range(tokens.shape[1]):
        h = torch.relu(linear1(torch.cat((embedding(tokens[:, t]), h), 1)))
    scores: torch.Tensor = module["linear2"](h)
    return scores
