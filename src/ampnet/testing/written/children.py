"""Children: the ways in which the branch of a binary tree reads its two children.

leaf(model, h)                             the result of a leaf
branch(model, left, right, node, run)      the result of a branch; ``run`` applies the inner program to a row
out(carry)                                 the row of a node's result
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ampnet.lang import choose
from ampnet.testing.written.cells import Run
from ampnet.testing.written.instances import WIDTH
from ampnet.testing.written.layers import Layers

Branch = Callable[[Layers, Any, Any, Any, Run], Any]


class Children(NamedTuple):
    """See the head of this file."""

    branch: Branch
    leaf: Callable[[Layers, Any], Any] = lambda m, h: h
    out: Callable[[Any], Any] = lambda carry: carry


def _rows(read: Callable[[Layers, Any, Any, Any], Any]) -> Children:
    """Children that return a row each."""
    return Children(lambda m, left, right, node, run: torch.tanh(run(read(m, left, right, node))))


def _residual(m: Layers, left: Any, right: Any, node: Any, run: Run) -> Any:
    return torch.tanh(run(m.join(torch.cat((left, right), -1)))) + left


def _kinds(m: Layers, left: Any, right: Any, node: Any) -> Any:
    ways = [
        lambda a, b: m.join(torch.cat((a, b), -1)),
        lambda a, b: m.linear(a) + m.other(b),
        lambda a, b: a * node.x,
    ]
    return choose(node.kind, ways, left, right)


# -- children that return two values each: (h, c)


def _lstm(m: Layers, left: Any, right: Any, node: Any, run: Run) -> Any:
    h, c = m.lstm(left[0], (right[0], left[1] + right[1]))
    return torch.tanh(run(h)), c


def _lstm_of_one(m: Layers, left: Any, right: Any, node: Any, run: Run) -> Any:
    h, c = m.lstm(node.x, right)
    return torch.tanh(run(h)) + left[0], c


def _gates(m: Layers, left: Any, right: Any, node: Any, run: Run) -> Any:
    c = torch.sigmoid(m.linear(left[0])) * left[1] + torch.sigmoid(m.other(right[0])) * right[1]
    return torch.tanh(run(torch.tanh(c) * node.x)), c


def _first_only(m: Layers, left: Any, right: Any, node: Any, run: Run) -> Any:
    h = torch.tanh(run(m.join(torch.cat((left[0], right[0]), -1))))
    return h, m.other(h)


def _second_only(m: Layers, left: Any, right: Any, node: Any, run: Run) -> Any:
    return torch.tanh(run(left[1] + right[1])), torch.tanh(left[1] * right[1])


def _crossed(m: Layers, left: Any, right: Any, node: Any, run: Run) -> Any:
    return torch.tanh(run(right[1])), m.other(left[0])


def _tree_lstm(m: Layers, left: Any, right: Any, node: Any, run: Run) -> Any:
    made = m.tree_branch(torch.cat((*left, *right), -1))
    return torch.tanh(run(made[:WIDTH])), made[WIDTH:]


def _tree_lstm_leaf(m: Layers, h: Any) -> Any:
    made = m.tree_leaf(h)
    return made[:WIDTH], made[WIDTH:]


def _number(m: Layers, left: Any, right: Any, node: Any, run: Run) -> Any:
    return torch.tanh(run(left[0] * right[1] + right[0])), torch.tanh(left[1] - right[1])


def _matrix(m: Layers, left: Any, right: Any, node: Any, run: Run) -> Any:
    return torch.tanh(left @ right + torch.outer(node.x, run(m.linear(node.x))))


def _pairs(branch: Branch, leaf: Callable[[Layers, Any], Any] | None = None) -> Children:
    return Children(branch, leaf or (lambda m, h: (h, torch.tanh(m.other(h)))), lambda carry: carry[0])


READS: dict[str, Children] = {
    "cat": _rows(lambda m, a, b, node: m.join(torch.cat((a, b), -1)) + node.x),
    "swapped": _rows(lambda m, a, b, node: m.join(torch.cat((b, a), -1))),
    "twice": _rows(lambda m, a, b, node: m.join(torch.cat((a, a), -1)) * b),
    "apart": _rows(lambda m, a, b, node: m.linear(a) + m.other(b)),
    "sum": _rows(lambda m, a, b, node: a + b),
    "difference": _rows(lambda m, a, b, node: a - b),
    "product": _rows(lambda m, a, b, node: a * b),
    "larger": _rows(lambda m, a, b, node: torch.maximum(a, b)),
    "left": _rows(lambda m, a, b, node: m.other(a)),
    "right": _rows(lambda m, a, b, node: m.linear(b)),
    "left itself": _rows(lambda m, a, b, node: a),
    "neither": _rows(lambda m, a, b, node: m.linear(node.x)),
    "gru": _rows(lambda m, a, b, node: m.cell(a, b)),
    "gru swapped": _rows(lambda m, a, b, node: m.cell(b, a)),
    "norm": _rows(lambda m, a, b, node: m.norm(a + b) * node.x),
    "bilinear": _rows(lambda m, a, b, node: m.bilinear(a, b)),
    "words": _rows(lambda m, a, b, node: a * m.few(node.word) + b),
    "kinds": _rows(_kinds),
    "residual": Children(_residual),
    "lstm": _pairs(_lstm),
    "lstm of one": _pairs(_lstm_of_one),
    "gates": _pairs(_gates),
    "first only": _pairs(_first_only),
    "second only": _pairs(_second_only),
    "crossed": _pairs(_crossed),
    "tree lstm": _pairs(_tree_lstm, _tree_lstm_leaf),
    "number": _pairs(_number, lambda m, h: (h, torch.tanh(h.sum()))),
    "matrix": Children(_matrix, lambda m, h: torch.outer(h, m.other(h)), lambda carry: carry.sum(0)),
}
"""By name. Those from "lstm" to "number" return two values, of which a branch may leave some unread; "number" a row
and a single number, "matrix" a square."""
