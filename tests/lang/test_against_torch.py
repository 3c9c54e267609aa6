"""Models against modules that others wrote: torch's recurrent networks, torch_geometric's graph network."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ampnet import Inline
from ampnet.lang import Compiled, Edges, Model, Seq, compile, each, fold, loss, scan
from ampnet.models.ggsnn import Propagation
from ampnet.testing import assert_close, assert_compiled

pytestmark = pytest.mark.usefixtures("float64")
WIDTH = 4
LENGTHS = (5, 1, 3)


def predictions(graph: Compiled, instances: list[Any]) -> list[list[Tensor]]:
    """Of every instance, in the order of the states of its results."""
    with Inline(graph, max_active_keys=2) as runtime:
        found = runtime.infer(graph.instances(instances), keep_predictions=True).predictions
    return [
        [r.reshape(-1) for _, _, r in sorted(found[i], key=lambda p: tuple(p[1].values()))] for i in range(len(found))
    ]


class Folded(Model):
    """A cell over a sequence; the loss looks at the last state, or at every one."""

    def __init__(self, cell: nn.GRUCell | nn.LSTMCell, every: bool) -> None:
        super().__init__()
        self.cell, self.every = cell, every

    def forward(self, xs: Seq, target: Tensor) -> None:
        start = self.zeros(WIDTH)
        first = (start, start) if isinstance(self.cell, nn.LSTMCell) else start
        if self.every:
            states, _ = scan(lambda h, x: self.cell(x, h), xs, first)
            each(lambda h: loss(h, target, "squared_error"), states[0] if isinstance(states, tuple) else states)
        else:
            last = fold(lambda h, x: self.cell(x, h), xs, first)
            loss(last[0] if isinstance(last, tuple) else last, target, "squared_error")


@pytest.mark.parametrize("every", [False, True], ids=["last state", "every state"])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_fold_with_a_cell_is_torchs_recurrent_network(kind: str, every: bool) -> None:
    cell: Any = {"gru": nn.GRUCell, "lstm": nn.LSTMCell}[kind](3, WIDTH)
    network: Any = {"gru": nn.GRU, "lstm": nn.LSTM}[kind](3, WIDTH)
    network.load_state_dict({f"{name}_l0": value for name, value in cell.state_dict().items()})
    data = [(Seq(torch.randn(n, 3)), torch.randn(WIDTH)) for n in LENGTHS]
    model = Folded(cell, every)
    graph = assert_compiled(model, data, max_active_keys=3)
    total = torch.zeros(())
    for (xs, target), found in zip(data, predictions(graph, data), strict=True):
        states = network(xs._columns["value"])[0]
        want = states if every else states[-1:]
        assert_close({"states": torch.stack(found)}, {"states": want.detach()})
        total = total + ((want - target) ** 2).mean(1).sum()
    wanted = torch.autograd.grad(total, list(network.parameters()))
    eager = torch.autograd.grad(sum(model.loss(*d) for d in data), list(cell.parameters()))
    names = list(cell.state_dict())
    assert_close(dict(zip(names, eager, strict=True)), dict(zip(names, wanted, strict=True)))


class Propagated(Model):
    """What the propagation gives at every node."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.propagate = Propagation(WIDTH, steps, 1)

    def forward(self, nodes: Seq, edges: Edges) -> None:
        h = self.propagate(edges, nodes.x)
        each(lambda h, x: loss(h, x, "squared_error"), h, nodes.x)


@pytest.mark.parametrize("steps", [1, 3])
def test_the_propagation_is_gated_graph_conv_of_torch_geometric(steps: int) -> None:
    geometric = pytest.importorskip("torch_geometric.nn")
    theirs = geometric.GatedGraphConv(WIDTH, num_layers=steps)
    model = Propagated(steps)
    with torch.no_grad():
        theirs.weight.copy_(model.propagate.along[0].weight.T.expand(steps, WIDTH, WIDTH))  # its message is h @ weight
    theirs.rnn.load_state_dict(model.propagate.cell.state_dict())
    data, indices = [], []
    for n, e in ((4, 7), (1, 0), (5, 3), (3, 0)):
        nodes, ends = Seq(x=torch.randn(n, WIDTH)), torch.randint(0, n, (2, e))
        data.append((nodes, Edges(nodes, ends[0].numpy(), ends[1].numpy(), kind=[0] * e)))
        indices.append(ends)
    graph = assert_compiled(model, data, max_active_keys=4)
    for (nodes, _), index, found in zip(data, indices, predictions(graph, data), strict=True):
        want = theirs(nodes._columns["x"], index).detach()
        assert_close({"states": torch.stack(found)}, {"states": want})


def test_the_cells_may_do_without_a_first_state() -> None:
    """As in torch, it is zeros where none is given."""

    class Single(Model):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.lstm = nn.GRUCell(3, WIDTH), nn.LSTMCell(3, WIDTH)

        def forward(self, x: Tensor, target: Tensor) -> None:
            h, c = self.lstm(x)
            loss(self.gru(x) + h * c, target, "squared_error")

    data = [(torch.randn(3), torch.randn(WIDTH)) for _ in range(3)]
    assert_compiled(Single(), data, max_active_keys=2)


def test_a_compiled_model_predicts_what_it_returns_eagerly() -> None:
    class Scorer(Model):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(3, 2)

        def forward(self, x: Tensor, label: Tensor) -> Any:
            scores = self.out(x)
            loss(scores, label)
            return scores

    model = Scorer()
    data = [(torch.randn(3), torch.tensor(1)) for _ in range(3)]
    for (x, label), (found,) in zip(data, predictions(compile(model, *data[0]), data), strict=True):
        assert_close({"scores": found}, {"scores": model(x, label).detach()})
