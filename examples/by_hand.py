"""The same RNN wired node by node: the IR level, where states, keys and the inverse of every update are yours."""

from functools import partial

import numpy as np
import torch

import ampnet
from ampnet.data.list_reduction import generate
from ampnet.models import by_hand
from common import guess, report, run


def main(epochs: int = 6, instances: int = 10_000) -> list[float]:
    graph = by_hand.build(hidden=64, seed=0)
    data, test = generate(instances, seed=0), generate(1000, seed=1)
    update = ampnet.Update(partial(torch.optim.Adam, lr=0.005), count="instances")
    losses = []
    with ampnet.Inline(graph, update=update, max_active_keys=4) as runtime:
        for epoch in range(1, epochs + 1):
            trained = runtime.train(by_hand.instances(data, 50, np.random.default_rng(epoch), hidden=64))
            losses.append(trained.loss)
            report(epoch, trained, "lists")
        tested = runtime.infer(by_hand.instances(test, 50, hidden=64))
    right, guessed = tested.metrics["accuracy"], guess(test.labels)
    print(f"by-hand: {right:.1%} of the lists right; always the same answer: {guessed:.1%}")
    return losses


if __name__ == "__main__":
    run(main)
