"""Gated graph sequence neural networks (Li, Tarlow, Brockschmidt, Zemel 2015), as in the paper's two experiments.

    m_v = sum over edges (u -t-> v) of W_t h_u            h_v = GRU(m_v, h_v)            repeated ``steps`` times

bAbI 15 selects a node, QM9 predicts one number for the whole graph. As in `torch_geometric`'s GatedGraphConv, the
products along edges have no bias, and the cell is `nn.GRUCell`.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from ampnet.lang import Edges, Model, Seq, choose, each, loss, messages, reduce, repeat


class Propagation(nn.Module):
    """The common part: ``steps`` rounds of messages along typed edges."""

    def __init__(self, hidden: int, steps: int, kinds: int) -> None:
        super().__init__()
        self.steps = steps
        self.along = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(kinds))
        self.cell = nn.GRUCell(hidden, hidden)

    def step(self, edges: Edges, h: Any) -> Any:
        arriving = messages(lambda h, edge: choose(edge.kind, self.along, h), edges, h)
        return each(self.cell, arriving, h)

    def forward(self, edges: Edges, h: Any) -> Any:
        return repeat(lambda h: self.step(edges, h), h, times=self.steps)


def glorot_(module: nn.Module) -> None:
    """Initialise linear layers and GRU cells by Glorot and Bengio (2010): uniform weights that keep the variance of
    rows and gradients, the three gates of a cell each by itself, and biases of zero."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.GRUCell):
            for name, parameter in layer.named_parameters(recurse=False):
                if name.startswith("bias"):
                    nn.init.zeros_(parameter)
                else:
                    for gate in parameter.detach().chunk(3 if isinstance(layer, nn.GRUCell) else 1):
                        nn.init.xavier_uniform_(gate)


class Babi15(Model):
    """Nodes with annotations ``x``, typed edges, and the index of the node that is the answer.

    Weights begin by Glorot's rule: at a width of 5, torch's smaller ones leave one seed in seven on a plateau for more
    than six epochs of 100 graphs (docs/asynchrony.md).
    """

    def __init__(self, hidden: int = 5, steps: int = 2, kinds: int = 4) -> None:
        super().__init__()
        self.propagate = Propagation(hidden, steps, kinds)
        self.mix = nn.Linear(2 * hidden, hidden)
        self.score = nn.Linear(hidden, 1)
        glorot_(self)

    def forward(self, nodes: Seq, edges: Edges, answer: Tensor) -> Any:
        h = self.propagate(edges, nodes.x)
        scores = each(lambda h, x: self.score(torch.tanh(self.mix(torch.cat((h, x), -1)))), h, nodes.x)
        loss(scores, answer, "selection")
        return scores


class Qm9(Model):
    """Atoms with features ``x``, typed bonds, and a property of the molecule.

    Features are padded with zeros to the hidden width, as in Gilmer et al. 2017. The readout is gated: the sum over
    atoms of ``sigmoid(i([h, x])) * tanh(j([h, x]))``, then tanh and a linear layer. Absolute errors are reported
    times ``unit``. The loss is their square, or with ``loss="absolute_error"`` the errors themselves.
    """

    def __init__(
        self,
        features: int,
        hidden: int = 100,
        steps: int = 4,
        kinds: int = 4,
        unit: float = 1.0,
        loss: Literal["squared_error", "absolute_error"] = "squared_error",
    ) -> None:
        super().__init__()
        self.padding, self.unit, self.minimised = hidden - features, unit, loss
        self.propagate = Propagation(hidden, steps, kinds)
        self.gate = nn.Linear(2 * hidden, hidden)
        self.value = nn.Linear(2 * hidden, hidden)
        self.out = nn.Linear(hidden, 1)

    def readout(self, h: Tensor, x: Tensor) -> Tensor:
        both = torch.cat((h, x), -1)
        return torch.sigmoid(self.gate(both)) * torch.tanh(self.value(both))

    def forward(self, atoms: Seq, bonds: Edges, target: Tensor) -> Tensor:
        x = each(lambda x: torch.cat((x, self.zeros(self.padding)), -1), atoms.x)
        h = self.propagate(bonds, x)
        molecule = reduce(each(self.readout, h, x), "sum")
        prediction: Tensor = self.out(torch.tanh(molecule))
        loss(prediction, target, self.minimised, metrics={"absolute_error": self.error})
        return prediction

    def error(self, predicted: Tensor, target: Tensor) -> Tensor:
        return (predicted - target).abs().sum(-1) * self.unit
