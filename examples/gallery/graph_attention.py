"""Graph attention (Velickovic and others 2018): a node weighs the messages of its neighbours by a softmax over them.

`messages` takes a function as its reduction: it gets the family of messages that arrive at a node.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

import ampnet
from ampnet import Edges, Seq
from ampnet.lang import each, loss, messages, reduce, softmax

KINDS, CLASSES = 6, 3


class GraphAttention(ampnet.Model):
    def __init__(self, hidden: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.embedding, self.classify = nn.Embedding(KINDS, hidden), nn.Linear(hidden, CLASSES)
        self.values = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(layers))
        self.scores = nn.ModuleList(nn.Linear(2 * hidden, 1) for _ in range(layers))

    def layer(self, h: Any, edges: Edges, value: nn.Module, score: nn.Module) -> Any:
        v = each(value, h)
        arrived = messages(
            lambda source, target: (leaky_relu(score(torch.cat((source, target), -1)), 0.2), source),
            edges,
            v,
            to=v,
            reduction=lambda m: reduce(each(torch.mul, softmax(m[0]), m[1]), "sum"),
        )
        return each(lambda v, a: torch.tanh(v + a), v, arrived)

    def forward(self, nodes: Seq, edges: Edges) -> Tensor:
        h = each(self.embedding, nodes.kind)
        for value, score in zip(self.values, self.scores, strict=True):
            h = self.layer(h, edges, value, score)
        scores = each(self.classify, h)
        each(loss, scores, nodes.label)
        return scores


def make_model() -> ampnet.Model:
    return GraphAttention()


def make_data(count: int, seed: int) -> list[tuple[Seq, Edges]]:
    """A node's class is the largest kind among those that point to it, modulo 3; its own kind where there are none."""
    random = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        n = int(torch.randint(2, 9, (), generator=random))
        kind = torch.randint(0, KINDS, (n,), generator=random)
        source, target = torch.randint(0, n, (2, 2 * n), generator=random)
        largest = kind.clone()
        for node in target.unique().tolist():
            largest[node] = kind[source[target == node]].max()
        nodes = Seq(kind=kind, label=largest % CLASSES)
        rows.append((nodes, Edges(nodes, source.tolist(), target.tolist())))
    return rows


def main() -> None:
    torch.manual_seed(0)
    train, test = make_data(300, seed=1), make_data(100, seed=0)
    graph = ampnet.compile(make_model(), *train[0])
    update = ampnet.Update(partial(torch.optim.Adam, lr=0.01), min_update_frequency=10, count="instances")
    with ampnet.Inline(graph, update=update, max_active_keys=50) as runtime:
        for epoch in range(1, 7):
            trained = runtime.train(graph.instances(train))
            print(f"epoch {epoch}: loss {trained.loss:.3f}; {trained.records_per_second:,.0f} graphs/s")
        tested = runtime.infer(graph.instances(test))
    print(f"test: accuracy {tested.metrics['accuracy']:.2f}")


if __name__ == "__main__":
    main()
