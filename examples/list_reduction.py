"""The RNN of list reduction, written for one list. Lists of all lengths are computed together, without padding."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

import ampnet
from ampnet import Seq
from ampnet.data.list_reduction import CLASSES, VOCABULARY, arguments, generate
from ampnet.lang import fold, loss
from common import guess, report, run


class ListReduction(ampnet.Model):
    """The tokens of a list (an operation and up to nine digits), and its result."""

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.width = hidden
        self.embedding = nn.Embedding(VOCABULARY, hidden)
        self.cell = nn.Linear(2 * hidden, hidden)
        self.classify = nn.Linear(hidden, CLASSES)
        nn.init.orthogonal_(self.cell.weight.detach()[:, hidden:])

    def forward(self, tokens: Seq, label: Tensor) -> None:
        last = fold(self.step, tokens, self.zeros(self.width))
        loss(self.classify(last), label)

    def step(self, h: Tensor, token: Tensor) -> Tensor:
        return torch.relu(self.cell(torch.cat((self.embedding(token), h), -1)))


def lists(count: int, seed: int) -> Iterator[tuple[Seq, Tensor]]:
    return map(arguments, generate(count, seed=seed))


def main(epochs: int = 4, instances: int = 10_000) -> list[float]:
    torch.manual_seed(0)
    test = list(lists(1000, seed=0))
    graph = ampnet.compile(ListReduction(), *test[0])
    update = ampnet.Update(partial(torch.optim.Adam, lr=0.005), min_update_frequency=50, count="instances")
    losses = []
    with ampnet.Inline(graph, update=update, max_active_keys=200) as runtime:
        for epoch in range(1, epochs + 1):
            trained = runtime.train(graph.instances(lists(instances, seed=epoch)))
            losses.append(trained.loss)
            report(epoch, trained, "lists")
        tested = runtime.infer(graph.instances(test))
    right, guessed = tested.metrics["accuracy"], guess(label for _, label in test)
    print(f"list-reduction: {right:.1%} of the lists right; always the same answer: {guessed:.1%}")
    return losses


if __name__ == "__main__":
    run(main)
