"""The number of times that a layer is applied is part of the instance: a point is rotated by 20 degrees that often."""

from functools import partial

import torch
from torch import Tensor, nn

import ampnet
from ampnet.data.generated import rotations
from ampnet.lang import loss, repeat
from common import report, run


class AdaptiveDepth(ampnet.Model):
    """A point, the number of steps (an integer, so it may steer), and where the point should end."""

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(2, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, 2)

    def forward(self, point: Tensor, steps: int, target: Tensor) -> None:
        h = repeat(lambda h: torch.tanh(self.middle(h)), torch.tanh(self.first(point)), times=steps)
        loss(self.last(h), target, "squared_error")


def main(epochs: int = 6, instances: int = 1000) -> list[float]:
    torch.manual_seed(0)
    test = list(rotations(300, seed=0))
    graph = ampnet.compile(AdaptiveDepth(), *test[0])
    update = ampnet.Update(partial(torch.optim.Adam, lr=0.01), min_update_frequency=20, count="instances")
    losses = []
    with ampnet.Inline(graph, update=update, max_active_keys=60) as runtime:
        for epoch in range(1, epochs + 1):
            trained = runtime.train(graph.instances(rotations(instances, seed=epoch)))
            losses.append(trained.loss)
            report(epoch, trained, "points")
        tested = runtime.infer(graph.instances(test))
    still = torch.stack([(point - target).abs().mean() for point, _, target in test]).mean()
    error = tested.metrics["absolute_error"]
    print(f"adaptive-depth: off by {error:.3f} on average; without turning the point: {still:.3f}")
    return losses


if __name__ == "__main__":
    run(main)
