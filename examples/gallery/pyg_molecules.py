"""A graph network on `torch_geometric.data.Data`, taken as it is: node and edge attributes become columns.

A made-up molecule has atoms (``x``), bonds in both directions (``edge_index``, ``edge_attr``) and one number for the
whole of it (``y``). Needs torch_geometric.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import ampnet
from ampnet import Edges, Seq
from ampnet.lang import each, from_pyg, loss, messages, reduce, repeat

ATOMS, BONDS = 5, 3
"""Kinds of atoms and of bonds, both one-hot."""


class Molecule(ampnet.Model):
    def __init__(self, hidden: int = 24, rounds: int = 3) -> None:
        super().__init__()
        self.rounds = rounds
        self.atom, self.cell = nn.Linear(ATOMS, hidden), nn.GRUCell(hidden, hidden)
        self.message, self.out = nn.Linear(hidden + BONDS, hidden), nn.Linear(hidden, 1)

    def forward(self, nodes: Seq, edges: Edges, y: Tensor) -> Tensor:
        h = each(lambda atom: torch.tanh(self.atom(atom.x)), nodes)
        h = repeat(lambda h: self.step(h, edges), h, times=self.rounds)
        energy = reduce(each(self.out, h), "sum")
        loss(energy, y, "squared_error")
        return energy

    def step(self, h: Any, edges: Edges) -> Any:
        arrived = messages(lambda h, edge: self.message(torch.cat((h, edge.edge_attr), -1)), edges, h)
        return each(lambda m, h: self.cell(torch.relu(m), h), arrived, h)


def molecules(count: int, seed: int) -> list[Any]:
    """A chain of 2 to 9 atoms each; y is a sum over bonds of what kind of atoms and bond they join."""
    from torch_geometric.data import Data

    random = torch.Generator().manual_seed(seed)
    strength = torch.linspace(-1, 1, ATOMS)
    out = []
    for _ in range(count):
        n = int(torch.randint(2, 10, (), generator=random))
        kinds = torch.randint(0, ATOMS, (n,), generator=random)
        bonds = torch.randint(0, BONDS, (n - 1,), generator=random)
        y = (strength[kinds[1:]] * strength[kinds[:-1]] * (1 + bonds)).sum().view(1, 1)
        a, b = torch.arange(n - 1), torch.arange(1, n)
        ends = torch.stack((torch.cat((a, b)), torch.cat((b, a))))
        x, attributes = torch.eye(ATOMS)[kinds], torch.eye(BONDS)[torch.cat((bonds, bonds))]
        out.append(Data(x=x, edge_index=ends, edge_attr=attributes, y=y))
    return out


def make_model() -> ampnet.Model:
    return Molecule()


def make_data(count: int, seed: int) -> list[dict[str, Any]]:
    return [from_pyg(data) for data in molecules(count, seed)]


def main() -> None:
    try:
        train, test = molecules(300, seed=1), molecules(100, seed=0)
    except ImportError:
        print("pyg_molecules needs torch_geometric: pip install torch_geometric")
        return
    torch.manual_seed(0)
    graph = ampnet.compile(make_model(), train[0])
    update = ampnet.Update(partial(torch.optim.Adam, lr=0.01), min_update_frequency=10, count="instances")
    with ampnet.Inline(graph, update=update, max_active_keys=50) as runtime:
        for epoch in range(1, 7):
            trained = runtime.train(graph.instances(train, shuffle=True, seed=epoch))
            print(f"epoch {epoch}: loss {trained.loss:.3f}")
        tested = runtime.infer(test)
    spread = torch.cat([data.y for data in test]).std()
    print(f"test: mean error {tested.metrics['absolute_error']:.2f}; spread of the data {spread:.2f}")


if __name__ == "__main__":
    main()
