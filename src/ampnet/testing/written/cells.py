"""Cells: what one round of a loop does with the value that is carried along and the row of an element.

    start(model, h)                  the value before the first round
    step(model, carry, x, run)       the value after a round; ``run`` applies the inner program to a row
    out(carry)                       the row that is used afterwards

The same cells serve in trees with any number of children, where the carry is what the children gave, reduced. A tanh
keeps values small, however many rounds there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ampnet.testing.written.instances import WIDTH
from ampnet.testing.written.layers import Layers

Run = Callable[[Any], Any]
Step = Callable[[Layers, Any, Any, Run], Any]


class Cell(NamedTuple):
    """See the head of this file."""

    step: Step
    start: Callable[[Layers, Any], Any] = lambda model, h: h
    out: Callable[[Any], Any] = lambda carry: carry


def _plain(m: Layers, h: Any, x: Any, run: Run) -> Any:
    return torch.tanh(run(h))


def _gru(m: Layers, h: Any, x: Any, run: Run) -> Any:
    return torch.tanh(run(m.cell(x, h)))


def _join(m: Layers, h: Any, x: Any, run: Run) -> Any:
    return torch.tanh(run(m.join(torch.cat((h, x), -1))))


def _residual(m: Layers, h: Any, x: Any, run: Run) -> Any:
    return h + torch.tanh(run(m.other(h) + x))


def _norm(m: Layers, h: Any, x: Any, run: Run) -> Any:
    return m.norm(run(m.other(h) * x) + h)


def _gate(m: Layers, h: Any, x: Any, run: Run) -> Any:
    z = torch.sigmoid(m.linear(h) + m.other(x))
    return z * h + (1 - z) * torch.tanh(run(h * x))


def _forget(m: Layers, h: Any, x: Any, run: Run) -> Any:
    return torch.tanh(run(m.linear(x)))


def _lstm(m: Layers, carry: Any, x: Any, run: Run) -> Any:
    h, c = m.lstm(x, carry)
    return torch.tanh(run(h)), c


def _two(m: Layers, carry: Any, x: Any, run: Run) -> Any:
    a, b = carry
    return torch.tanh(run(m.other(b) + x)), a


CELLS: dict[str, Cell] = {
    "plain": Cell(_plain),
    "gru": Cell(_gru),
    "join": Cell(_join),
    "residual": Cell(_residual),
    "norm": Cell(_norm),
    "gate": Cell(_gate),
    "forget": Cell(_forget),
    "zeros": Cell(_gru, start=lambda m, h: m.zeros(WIDTH)),
    "learned": Cell(_gru, start=lambda m, h: m.begin),
    "lstm": Cell(_lstm, start=lambda m, h: (h, m.zeros(WIDTH)), out=lambda carry: carry[0]),
    "memory": Cell(_lstm, start=lambda m, h: (torch.tanh(h), h), out=lambda carry: carry[1]),
    "two": Cell(_two, start=lambda m, h: (h, m.linear(h)), out=lambda carry: carry[0] + carry[1]),
}
"""By name. "forget" reads nothing of the carry, "plain" nothing of the element; "zeros" and "learned" start from a
constant and from a bare parameter; the last three carry a pair."""
