"""How often a layer is applied is part of the instance: a point is turned by 20 degrees so many times."""

from functools import partial

import torch

import ampnet
from ampnet.data.generated import rotations
from ampnet.models import AdaptiveDepth
from common import report, run


def main(epochs: int = 6, instances: int = 1000) -> list[float]:
    torch.manual_seed(0)
    test = list(rotations(300, seed=0))
    graph = ampnet.compile(AdaptiveDepth(features=2, hidden=32, outputs=2), *test[0])
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
