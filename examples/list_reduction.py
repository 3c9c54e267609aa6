"""The paper's RNN on list reduction, compiled from a model for one list; lists of one length go in buckets."""

from functools import partial

import numpy as np
import torch

import ampnet
from ampnet.data.list_reduction import generate
from ampnet.models import list_reduction
from common import guess, report, run


def main(epochs: int = 6, instances: int = 10_000) -> list[float]:
    graph = list_reduction.build(hidden=64, seed=0)
    data, test = generate(instances, seed=0), generate(1000, seed=1)
    update = ampnet.Update(partial(torch.optim.Adam, lr=0.005), count="instances")
    losses = []
    with ampnet.Inline(graph, update=update, max_active_keys=4) as runtime:
        for epoch in range(1, epochs + 1):
            trained = runtime.train(list_reduction.instances(graph, data, bucket=50, rng=np.random.default_rng(epoch)))
            losses.append(trained.loss)
            report(epoch, trained, "lists")
        tested = runtime.infer(list_reduction.instances(graph, test, bucket=50))
    right, guessed = tested.metrics["accuracy"], guess(test.labels)
    print(f"list-reduction: {right:.1%} of the lists right; always the same answer: {guessed:.1%}")
    return losses


if __name__ == "__main__":
    run(main)
