"""Child-sum Tree-LSTM (Tai, Socher, Manning 2015): nodes have any number of children, each with a forget gate.

With ``children="family"`` the branch function gets the children's results as families: `reduce` adds them up, and
`each` computes a forget gate for every child, from the child's state and the parent's word.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import ampnet
from ampnet import Tree
from ampnet.lang import each, fold_tree, loss, reduce

WORDS, CLASSES = 30, 5


class ChildSumTree(ampnet.Model):
    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, hidden)
        self.gates, self.from_children = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, 3 * hidden, bias=False)
        self.forget, self.of_child = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden, bias=False)
        self.classify = nn.Linear(hidden, CLASSES)

    def cell(self, gates: Tensor, kept: Tensor | float) -> tuple[Tensor, Tensor]:
        i, o, u = gates.chunk(3, -1)
        c = torch.sigmoid(i) * torch.tanh(u) + kept
        return torch.sigmoid(o) * torch.tanh(c), c

    def leaf(self, node: Any) -> tuple[Tensor, Tensor]:
        return self.cell(self.gates(self.embedding(node.word)), 0.0)

    def branch(self, children: Any, node: Any) -> tuple[Tensor, Tensor]:
        x, (hs, cs) = self.embedding(node.word), children
        forget = self.forget(x)
        kept = each(lambda h, c: torch.sigmoid(forget + self.of_child(h)) * c, hs, cs)
        return self.cell(self.gates(x) + self.from_children(reduce(hs, "sum")), reduce(kept, "sum"))

    def forward(self, tree: Tree) -> Tensor:
        (h, _), _ = fold_tree(tree, self.leaf, self.branch, children="family")
        scores = each(self.classify, h)
        each(loss, scores, tree.label)
        return scores


def make_model() -> ampnet.Model:
    return ChildSumTree()


def make_data(count: int, seed: int) -> list[tuple[Tree]]:
    """A word has a mood from -1 to 1; the label of a node is the sum of the moods below it, from -2 to 2, plus 2."""
    random = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        n = int(torch.randint(1, 14, (), generator=random))
        parents = [-1, *(int(torch.randint(max(0, i - 4), i, (), generator=random)) for i in range(1, n))]
        words = torch.randint(0, WORDS, (n,), generator=random)
        mood = words % 3 - 1
        for i in range(n - 1, 0, -1):
            mood[parents[i]] += mood[i]
        rows.append((Tree(parents, word=words, label=mood.clamp(-2, 2) + 2),))
    return rows


def main() -> None:
    torch.manual_seed(0)
    train, test = make_data(300, seed=1), make_data(100, seed=0)
    graph = ampnet.compile(make_model(), *train[0])
    update = ampnet.Update(partial(torch.optim.Adam, lr=0.01), min_update_frequency=10, count="instances")
    with ampnet.Inline(graph, update=update, max_active_keys=50) as runtime:
        for epoch in range(1, 6):
            trained = runtime.train(graph.instances(train))
            print(f"epoch {epoch}: loss {trained.loss:.3f}; {trained.records_per_second:,.0f} trees/s")
        tested = runtime.infer(graph.instances(test))
    print(f"test: accuracy {tested.metrics['accuracy']:.2f}")


if __name__ == "__main__":
    main()
