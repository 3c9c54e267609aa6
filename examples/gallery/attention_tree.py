"""Operators that look at their operands by attention: what is (max 3 (min 7 5))?

An inner node of the tree is an operator, with any number of children. It has a query, and `attention` over the family
of its children gives its result.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import ampnet
from ampnet import Tree
from ampnet.lang import attention, each, fold_tree, loss

DIGITS, OPERATORS = 10, 2
"""Operator 0 is the largest of its children, 1 the smallest."""


class AttentionTree(ampnet.Model):
    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.digit, self.ask = nn.Embedding(DIGITS, hidden), nn.Embedding(OPERATORS, hidden)
        self.key, self.value, self.join = (nn.Linear(hidden, hidden) for _ in range(3))
        self.classify = nn.Linear(hidden, DIGITS)

    def branch(self, children: Any, node: Any) -> Tensor:
        keys, values = each(self.key, children), each(self.value, children)
        return torch.tanh(self.join(attention(self.ask(node.operator), keys, values, heads=4)))

    def forward(self, tree: Tree) -> Tensor:
        h, root = fold_tree(tree, lambda node: self.digit(node.digit), self.branch, children="family")
        each(lambda h, label: loss(self.classify(h), label), h, tree.label)
        return self.classify(root)


def make_model() -> ampnet.Model:
    return AttentionTree()


def make_data(count: int, seed: int) -> list[tuple[Tree]]:
    random = torch.Generator().manual_seed(seed)
    return [(make_tree(random),) for _ in range(count)]


def make_tree(random: torch.Generator) -> Tree:
    parents, labels, digits, operators = list[int](), list[int](), list[int](), list[int]()

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=random))

    def grow(parent: int, depth: int) -> int:
        here = len(parents)
        parents.append(parent)
        labels.append(0)
        if depth == 0 or (parent >= 0 and number(0, 2)):
            digits.append(number(0, DIGITS))
            labels[here] = digits[-1]
        else:
            operators.append(number(0, OPERATORS))
            best = min if operators[-1] else max
            labels[here] = best([grow(here, depth - 1) for _ in range(number(2, 5))])
        return labels[here]

    grow(-1, 2)
    leaves, branches = {"digit": torch.tensor(digits)}, {"operator": torch.tensor(operators)}
    return Tree(parents, leaves=leaves, branches=branches, label=torch.tensor(labels))


def main() -> None:
    torch.manual_seed(0)
    train, test = make_data(300, seed=1), make_data(100, seed=0)
    graph = ampnet.compile(make_model(), *train[0])
    update = ampnet.Update(partial(torch.optim.Adam, lr=0.01), min_update_frequency=10, count="instances")
    with ampnet.Inline(graph, update=update, max_active_keys=50) as runtime:
        for epoch in range(1, 7):
            trained = runtime.train(graph.instances(train))
            print(f"epoch {epoch}: loss {trained.loss:.3f}; {trained.records_per_second:,.0f} trees/s")
        tested = runtime.infer(graph.instances(test))
    print(f"test: accuracy {tested.metrics['accuracy']:.2f}")


if __name__ == "__main__":
    main()
