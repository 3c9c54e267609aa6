"""A gated graph network on deductions (bAbI 15): which node of the graph is the answer?"""

from functools import partial

import torch

import ampnet
from ampnet.data.generated import deductions
from ampnet.models import Babi15
from common import report, run


def main(epochs: int = 4, instances: int = 400) -> list[float]:
    torch.manual_seed(0)
    test = list(deductions(200, seed=0, nodes=20))
    graph = ampnet.compile(Babi15(), *test[0])
    update = ampnet.Update(partial(torch.optim.Adam, lr=0.03), min_update_frequency=10, count="instances")
    losses = []
    with ampnet.Inline(graph, update=update, max_active_keys=30) as runtime:
        for epoch in range(1, epochs + 1):
            trained = runtime.train(graph.instances(deductions(instances, seed=epoch, nodes=20)))
            losses.append(trained.loss)
            report(epoch, trained, "graphs")
        tested = runtime.infer(graph.instances(test))
    right = tested.metrics["accuracy"]
    print(f"babi-15: {right:.1%} of the questions answered; one of four species, at random: 25.0%")
    return losses


if __name__ == "__main__":
    run(main)
