"""What a newcomer from plain torch tries first, and is told; and labels that are not known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ampnet import DataError, Inline, ModelError, Stream
from ampnet.lang import Model, Seq, Tree, compile, each, fold, fold_tree, loss, reduce
from ampnet.testing import assert_compiled


class Net(Model):
    """A recurrent cell, or whatever a test makes of it."""

    def __init__(self, then: Any) -> None:
        super().__init__()
        self.cell, self.out, self.lstm = nn.GRUCell(4, 4), nn.Linear(4, 4), nn.LSTM(4, 4)
        self.then = then

    def forward(self, tokens: Seq, steps: int, y: Tensor) -> None:
        loss(self.then(self, tokens, steps), y, "squared_error")


@pytest.mark.parametrize(
    ("then", "said"),
    [
        (lambda net, tokens, n: reduce(tokens) / len(tokens), "len.* of 'tokens' differs .*'tokens.length' is an int"),
        (lambda net, tokens, n: each(net.out, tokens).mean(0), r"'\.mean' is given a value .* reduce\(family, 'sum'\)"),
        (lambda net, tokens, n: net.out(n), "torch's linear is given an integer of the instance; .* as a tensor"),
        (lambda net, tokens, n: torch.tanh(n), "torch's tanh is given an integer of the instance"),
        (lambda net, tokens, n: torch.mul(net.out(net.zeros(4)), n), "torch's mul is given an integer of the instance"),
        (lambda net, tokens, n: net.out(torch.randn(4)), "torch's randn draws random numbers"),
        (lambda net, tokens, n: net.out(tokens), "torch's linear is given a value that there is for each element of"),
    ],
)
def test_the_line_and_the_remedy_are_named(then: Any, said: str) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        compile(Net(then), Seq(torch.zeros(3, 4)), 2, torch.zeros(4))
    assert caught.value.line is not None
    assert caught.value.line.file == __file__
    assert str(caught.value).count(__file__) == 1


def test_the_last_output_of_an_lstm_is_its_last_state() -> None:
    net = Net(lambda net, tokens, n: net.lstm(tokens)[0][-1] - net.lstm(tokens)[1][0][0] + net.lstm(tokens)[0][0])
    data = [(Seq(torch.randn(k, 4).double()), 2, torch.randn(4).double()) for k in (3, 1, 2)]
    assert_compiled(net.double(), data, max_active_keys=3)


def test_random_numbers_are_free_again_after_a_compilation() -> None:
    net = Net(lambda net, tokens, n: fold(lambda h, x: net.cell(x, h), tokens, net.zeros(4)))
    compile(net, Seq(torch.zeros(3, 4)), 2, torch.zeros(4))
    assert torch.randn(3).shape == (3,)


class Judged(Model):
    """A label for every node of a tree, and a kind."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.join = nn.Embedding(5, 4), nn.Linear(8, 4)

    def forward(self, tree: Tree) -> None:
        states, _ = fold_tree(
            tree, lambda leaf: self.words(leaf.word), lambda a, b: torch.tanh(self.join(torch.cat((a, b), -1)))
        )
        each(lambda state, label: loss(state, label), states, tree.label)


def tree(**columns: Any) -> Tree:
    return Tree([2, 2, -1], leaves={"word": torch.tensor([1, 2])}, **columns)


def test_a_tree_without_labels_can_be_predicted_but_not_learnt_from() -> None:
    known = tree(label=torch.tensor([1, 2, 0]))
    model = Judged()
    graph = compile(model, known)
    with Inline(graph) as runtime:
        (stats,) = runtime.run([Stream([graph.instance(tree())], train=False, keep_predictions=True)])
    predicted = {state["tree"]: rows[0] for _, state, rows in stats.predictions[0]}
    for number, judged in enumerate(model.judge(known)):
        torch.testing.assert_close(predicted[number], judged.prediction.detach())


def test_a_column_that_is_missing_is_named() -> None:
    graph = compile(Judged(), tree(label=torch.tensor([1, 2, 0])))
    with pytest.raises(DataError, match=r"needs a column 'word' in Tree\(3 elements: label\); there are: label"):
        graph.instance(Tree([2, 2, -1], label=torch.tensor([1, 2, 0])))
