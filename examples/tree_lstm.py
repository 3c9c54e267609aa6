"""The binary Tree-LSTM on generated trees: no two trees have the same shape, and there is a loss at every node."""

from functools import partial

import torch
from torch import Tensor, nn

import ampnet
from ampnet import Tree
from ampnet.data.generated import trees
from ampnet.lang import each, fold_tree, loss
from ampnet.nodes import TreeBranchCell, TreeLeafCell
from common import guess, report, run


class TreeLstm(ampnet.Model):
    """A tree with a word at every leaf and a label at every node. The cells give [h, c] side by side."""

    def __init__(self, hidden: int = 24) -> None:
        super().__init__()
        self.width = hidden
        self.embedding = nn.Embedding(100, hidden)
        self.leaf_cell, self.branch_cell = TreeLeafCell(hidden, hidden), TreeBranchCell(hidden)
        self.classify = nn.Linear(hidden, 5)

    def forward(self, tree: Tree) -> None:
        states, _root = fold_tree(
            tree,
            leaf=lambda node: self.leaf_cell(self.embedding(node.word)),
            branch=lambda left, right: self.branch_cell(torch.cat((left, right), -1)),
        )
        each(self.judge_node, states, tree.label)

    def judge_node(self, state: Tensor, label: Tensor) -> None:
        loss(self.classify(state[: self.width]), label)


def main(epochs: int = 5, instances: int = 400) -> list[float]:
    torch.manual_seed(0)
    test = list(trees(200, seed=0))
    graph = ampnet.compile(TreeLstm(), *test[0])
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
