"""A gated graph network that predicts one number for a molecule, as for QM9; on generated molecules."""

from functools import partial

import torch
from torch import Tensor, nn

import ampnet
from ampnet import Edges, Seq
from ampnet.data.generated import molecules
from ampnet.lang import choose, each, loss, messages, reduce, repeat
from common import report, run


class Qm9(ampnet.Model):
    """Atoms with features x, bonds with a kind, and a property of the molecule, read out as a gated sum over atoms."""

    def __init__(self, features: int = 5, hidden: int = 24, kinds: int = 2) -> None:
        super().__init__()
        self.padding = hidden - features
        self.along = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(kinds))
        self.cell = nn.GRUCell(hidden, hidden)
        self.gate, self.value = nn.Linear(2 * hidden, hidden), nn.Linear(2 * hidden, hidden)
        self.out = nn.Linear(hidden, 1)

    def forward(self, atoms: Seq, bonds: Edges, target: Tensor) -> None:
        def step(h):
            arriving = messages(lambda h, bond: choose(bond.kind, self.along, h), bonds, h)
            return each(self.cell, arriving, h)

        x = each(lambda x: torch.cat((x, self.zeros(self.padding)), -1), atoms.x)
        molecule = reduce(each(self.read, repeat(step, x, times=2), x), "sum")
        loss(self.out(torch.tanh(molecule)), target, "squared_error")

    def read(self, h: Tensor, x: Tensor) -> Tensor:
        both = torch.cat((h, x), -1)
        return torch.sigmoid(self.gate(both)) * torch.tanh(self.value(both))


def main(epochs: int = 6, instances: int = 600) -> list[float]:
    torch.manual_seed(0)
    data = partial(molecules, features=5, kinds=2, most_atoms=10)
    test = list(data(200, seed=0))
    graph = ampnet.compile(Qm9(), *test[0])
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
