"""The paper's multi-layer perceptron on generated images. The simplest model: no control flow at all."""

from functools import partial

import torch
from torch import Tensor, nn

import ampnet
from ampnet.data.generated import images
from ampnet.lang import loss
from common import guess, report, run


class Mlp(ampnet.Model):
    """An image of 784 numbers, and its class."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.ModuleList(nn.Linear(784, 784) for _ in range(3))
        self.classify = nn.Linear(784, 10)

    def forward(self, image: Tensor, label: Tensor) -> None:
        h = image
        for layer in self.hidden:
            h = torch.relu(layer(h))
        loss(self.classify(h), label)


def main(epochs: int = 4, instances: int = 600) -> list[float]:
    torch.manual_seed(0)
    test = list(images(300, seed=0))
    graph = ampnet.compile(Mlp(), *test[0])
    update = ampnet.Update(partial(torch.optim.Adam, lr=2e-4), min_update_frequency=20, count="instances")
    losses = []
    with ampnet.Inline(graph, update=update, max_active_keys=40) as runtime:
        for epoch in range(1, epochs + 1):
            trained = runtime.train(graph.instances(images(instances, seed=epoch)))
            losses.append(trained.loss)
            report(epoch, trained, "images")
        tested = runtime.infer(graph.instances(test))
    guessed = guess(label for _, label in test)
    print(f"mlp: {tested.metrics['accuracy']:.1%} of the images right; always the same answer: {guessed:.1%}")
    return losses


if __name__ == "__main__":
    run(main)
