"""The binary Tree-LSTM on generated trees: every tree has another shape, and a loss at every node."""

from functools import partial

import torch

import ampnet
from ampnet.data.generated import trees
from ampnet.models import TreeLstm
from common import guess, report, run


def main(epochs: int = 5, instances: int = 400) -> list[float]:
    torch.manual_seed(0)
    test = list(trees(200, seed=0))
    graph = ampnet.compile(TreeLstm(vocabulary=100, embedding=24, hidden=24), *test[0])
    update = ampnet.Update(partial(torch.optim.Adam, lr=0.02), min_update_frequency=10, count="instances")
    losses = []
    with ampnet.Inline(graph, update=update, max_active_keys=30) as runtime:
        for epoch in range(1, epochs + 1):
            trained = runtime.train(graph.instances(trees(instances, seed=epoch)))
            losses.append(trained.loss)
            report(epoch, trained, "trees")
        tested = runtime.infer(graph.instances(test))
    guessed = guess(label for (tree,) in test for label in tree.label.values)
    print(f"tree-lstm: {tested.metrics['accuracy']:.1%} of the nodes right; always the same answer: {guessed:.1%}")
    return losses


if __name__ == "__main__":
    run(main)
