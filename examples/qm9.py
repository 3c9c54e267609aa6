"""A gated graph network that predicts a number of a whole molecule, as for QM9; generated molecules."""

from functools import partial

import torch

import ampnet
from ampnet.data.generated import molecules
from ampnet.models import Qm9
from common import report, run


def main(epochs: int = 6, instances: int = 600) -> list[float]:
    torch.manual_seed(0)
    data = partial(molecules, features=5, kinds=2, most_atoms=10)
    test = list(data(200, seed=0))
    graph = ampnet.compile(Qm9(features=5, hidden=24, steps=2, kinds=2), *test[0])
    update = ampnet.Update(partial(torch.optim.Adam, lr=0.005), min_update_frequency=10, count="instances")
    losses = []
    with ampnet.Inline(graph, update=update, max_active_keys=30) as runtime:
        for epoch in range(1, epochs + 1):
            trained = runtime.train(graph.instances(data(instances, seed=epoch)))
            losses.append(trained.loss)
            report(epoch, trained, "molecules")
        tested = runtime.infer(graph.instances(test))
    targets = torch.cat([target for _, _, target in test])
    always = float((targets - targets.median()).abs().mean())
    error = tested.metrics["absolute_error"]
    print(f"qm9: off by {error:.3f} on average; always the median: {always:.3f}")
    return losses


if __name__ == "__main__":
    run(main)
