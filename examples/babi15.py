"""A gated graph network on deductions (bAbI 15): which node of the graph is the answer?"""

from functools import partial

import torch
from torch import Tensor, nn

import ampnet
from ampnet import Edges, Seq
from ampnet.data.generated import deductions
from ampnet.lang import choose, each, loss, messages, repeat
from common import report, run


class Babi15(ampnet.Model):
    """Nodes with annotations x, edges with a kind, and the index of the node that is the answer."""

    def __init__(self, hidden: int = 5, kinds: int = 4) -> None:
        super().__init__()
        self.along = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(kinds))
        self.cell = nn.GRUCell(hidden, hidden)
        self.mix, self.score = nn.Linear(2 * hidden, hidden), nn.Linear(hidden, 1)

    def forward(self, nodes: Seq, edges: Edges, answer: Tensor) -> None:
        def step(h):
            arriving = messages(lambda h, edge: choose(edge.kind, self.along, h), edges, h)
            return each(self.cell, arriving, h)

        h = repeat(step, nodes.x, times=2)
        scores = each(lambda h, x: self.score(torch.tanh(self.mix(torch.cat((h, x), -1)))), h, nodes.x)
        loss(scores, answer, "selection")


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
