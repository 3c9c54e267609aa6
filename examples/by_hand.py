"""The RNN of list reduction wired node by node: the IR level, where states, keys and inverses are yours.

tokens ──> embedding ──┐
                       v
h0 ──> phi ──────> concat ──> linear1 ──> relu ──> isu: t + 1 ──> cond
        ^                                                          │ │
        └───────────────── again: t < length ──────────────────────┘ │ done
                                            label ──────> linear2 ───┴──> loss
"""

from functools import partial

import numpy as np
import torch

import ampnet
from ampnet.data.list_reduction import CLASSES, VOCABULARY, generate
from ampnet.models.by_hand import instances as as_instances
from ampnet.nodes import Concat, Cond, Embedding, Isu, Linear, Loss, Phi, Relu
from common import guess, report, run


def build(hidden: int = 64) -> ampnet.Graph:
    graph = ampnet.Graph("list-reduction RNN")
    graph.add("embedding", Embedding(VOCABULARY, hidden))
    graph.add("phi", Phi(("start", "loop")))  # join: a loop begins here
    graph.add("concat", Concat(("x", "h")))
    graph.add("linear1", Linear(2 * hidden, hidden))
    graph.add("relu", Relu())
    graph.add("isu", Isu(lambda s: s.replace(t=s.t + 1), lambda s: s.replace(t=s.t - 1)))  # and its inverse
    graph.add("cond", Cond(lambda s: s.t < s.length, ("done", "again")))
    graph.add("linear2", Linear(hidden, CLASSES))
    graph.add("loss", Loss("cross_entropy", key=("instance",)))

    graph.input("tokens", "embedding", fields=("t", "length"))  # what an instance consists of
    graph.input("h0", "phi.start", fields=("t", "length"))
    graph.input("label", "loss.label")
    graph.connect("embedding", "concat.x")
    graph.connect("phi", "concat.h")
    graph.chain("concat", "linear1", "relu", "isu", "cond")
    graph.connect("cond.again", "phi.loop")
    graph.connect("cond.done", "linear2")
    graph.connect("linear2", "loss.prediction")
    return graph


def main(epochs: int = 6, instances: int = 10_000) -> list[float]:
    torch.manual_seed(0)
    graph = build()
    data, test = generate(instances, seed=0), generate(1000, seed=1)
    update = ampnet.Update(partial(torch.optim.Adam, lr=0.005), count="instances")
    losses = []
    with ampnet.Inline(graph, update=update, max_active_keys=4) as runtime:
        for epoch in range(1, epochs + 1):  # an instance is a bucket: 50 lists of one length
            trained = runtime.train(as_instances(data, 50, np.random.default_rng(epoch), hidden=64))
            losses.append(trained.loss)
            report(epoch, trained, "lists")
        tested = runtime.infer(as_instances(test, 50, hidden=64))
    right, guessed = tested.metrics["accuracy"], guess(test.labels)
    print(f"by-hand: {right:.1%} of the lists right; always the same answer: {guessed:.1%}")
    return losses


if __name__ == "__main__":
    run(main)
