"""Every instance applies the layers in an order of its own. Depths cannot be batched; messages meet at layers."""

from functools import partial

import torch

import ampnet
from ampnet.data.generated import permutations
from ampnet.models import PermutedLayers
from common import guess, report, run


def main(epochs: int = 6, instances: int = 3000) -> list[float]:
    torch.manual_seed(0)
    data = partial(permutations, width=16, layers=3, applied=3, classes=4)
    test = list(data(500, seed=0))
    graph = ampnet.compile(PermutedLayers(width=16, layers=3, classes=4), *test[0])
    update = ampnet.Update(partial(torch.optim.Adam, lr=0.01), min_update_frequency=10, count="instances")
    losses = []
    with ampnet.Inline(graph, update=update, max_active_keys=40) as runtime:
        for epoch in range(1, epochs + 1):
            trained = runtime.train(graph.instances(data(instances, seed=epoch)))
            losses.append(trained.loss)
            report(epoch, trained, "rows")
        tested = runtime.infer(graph.instances(test))
    right, guessed = tested.metrics["accuracy"], guess(label for _, _, label in test)
    print(f"permuted-layers: {right:.1%} right; always the same answer: {guessed:.1%}")
    return losses


if __name__ == "__main__":
    run(main)
