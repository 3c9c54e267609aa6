"""Every instance applies the layers in its own order. No depth can be batched as a whole; rows still meet at layers."""

from functools import partial

import torch
from torch import Tensor, nn

import ampnet
from ampnet import Seq
from ampnet.data.generated import permutations
from ampnet.lang import choose, fold, loss
from common import guess, report, run


class PermutedLayers(ampnet.Model):
    """A row, the numbers of the layers to apply to it, in order, and its class."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.classify = nn.Linear(width, 4)

    def forward(self, x: Tensor, order: Seq, label: Tensor) -> None:
        layers = [lambda h, layer=layer: torch.relu(layer(h)) for layer in self.layers]
        h = fold(lambda h, number: choose(number, layers, h), order, x)
        loss(self.classify(h), label)


def main(epochs: int = 6, instances: int = 3000) -> list[float]:
    torch.manual_seed(0)
    data = partial(permutations, width=16, layers=3, applied=3, classes=4)
    test = list(data(500, seed=0))
    graph = ampnet.compile(PermutedLayers(), *test[0])
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
