"""LinearBank: several Linear layers of one shape, of which each message goes through one. A choice and all its options.

    forward    y = act(x W_k' + b_k)      k = choice(state)        keeps x and, where there is an activation, y
    backward   dx = dy W_k     dW_k += dy' x     db_k += sum of dy

As Cond, layers and Phi, each layer sees a batch of its own, and a batch of eight rows costs as much Python as one of
eight hundred. Here messages are sorted by layer once, and each layer gets its slice: one turn of the worker, one
memory, one optimizer step for all of them. A layer that got no gradient since the last update is left out of it, as it
would be as a node of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ampnet.errors import GraphError, StateError
from ampnet.message import Messages, index_tensor
from ampnet.nodes.kept import Kept
from ampnet.nodes.linear import ACTIVATIONS
from ampnet.nodes.node import Outputs, StateFunction
from ampnet.nodes.transform import Parameterised, Residuals
from ampnet.state import Column
from ampnet.update.sums import Sums


class LinearBank(Parameterised):
    """``LinearBank(layers, lambda s: s.kind)``: the function gives the number of each message's layer.

    All layers have one shape, with or without bias. Gradients are counted, and updates made, for all of them together.
    """

    def __init__(
        self,
        layers: Sequence[nn.Linear],
        choice: Callable[..., Any],
        *,
        activation: Literal["relu", "tanh", "sigmoid"] | None = None,
        key: Sequence[str] | None = None,
    ) -> None:
        shapes = {(m.in_features, m.out_features, m.bias is not None) for m in layers}
        if len(shapes) != 1 or len({id(m) for m in layers}) != len(layers):
            raise GraphError([f"LinearBank takes different layers of one shape, got {sorted(shapes)}"])
        super().__init__(nn.ModuleList(layers), key)
        if len(self.parameters) != sum(len(list(m.parameters())) for m in layers):
            raise GraphError(["LinearBank takes layers with parameters of their own; some share one"])
        self.choice = StateFunction(choice)
        self.width, self.out, self._biased = shapes.pop()
        self.layers, self.activation = len(layers), activation
        self._active = None if activation is None else ACTIVATIONS[activation]
        self._step = 2 if self._biased else 1

    def make_updater(self) -> None:
        super().make_updater()
        self._moved = self.updater.moved = set[int]()

    def forward(self, port: int, messages: Messages) -> Outputs:
        choice = self._choice(messages)
        if len(choice) > 1 and (choice[1:] < choice[:-1]).any():
            messages = messages.take(np.argsort(choice, kind="stable"))  # the order of a batch has no meaning
        return super().forward(port, messages)

    def _choice(self, messages: Messages) -> Column:
        choice = np.asarray(self.choice.of(messages.states, self.shelf))
        if choice.shape != (len(messages),) or choice.dtype.kind not in "biu":
            raise StateError(f"the choice must be one integer per message, got {choice.dtype} of shape {choice.shape}")
        if len(choice) and (int(choice.min()) < 0 or int(choice.max()) >= self.layers):
            at = np.flatnonzero((choice < 0) | (choice >= self.layers))[:1]
            raise StateError(
                f"the choice is {int(choice[at[0]])} for {messages.states.take(at).describe()}; there are "
                f"{self.layers} layers, from 0 up"
            )
        return choice

    def apply(self, x: Tensor, w: Sequence[Tensor], messages: Messages) -> tuple[Tensor, Residuals]:
        self.check_rows(x, self.width, w[0].dtype)
        which = self._choice(messages)
        if messages.offsets is not None:
            which = np.repeat(which, messages.row_counts())
        y = x.new_empty(*x.shape[:-1], self.out)
        flat, out, each = _flat(x), _flat(y), _each(x)
        for k, a, b in _runs(which, each):
            if self._biased:
                torch.addmm(w[2 * k + 1], flat[a:b], w[2 * k].t(), out=out[a:b])
            else:
                torch.mm(flat[a:b], w[k].t(), out=out[a:b])
        numbers = torch.from_numpy(which.astype(np.int64))
        if self._active is None:
            return y, (x, numbers)
        y = self._active[0](y)  # in place: nobody has seen it yet
        return y, (x, numbers, y)

    def gradient(self, g: Tensor, kept: Kept, w: Sequence[Tensor], sums: Sums) -> Tensor:
        x, which = kept[0], kept[1].numpy()
        if self._active is not None:
            g = self._active[1](g, kept[2])
        back: Tensor | None = None
        if len(which) > 1 and (which[1:] < which[:-1]).any():  # put together from several batches
            order = np.argsort(which, kind="stable")
            which, back = which[order], index_tensor(order, g)
            g, x = g.index_select(0, back), x.index_select(0, back)
        dx = g.new_empty(*g.shape[:-1], self.width)
        flat, given, out, each = _flat(g), _flat(x), _flat(dx), _each(g)
        for k, a, b in _runs(which, each):
            at = self._step * k
            rows = flat[a:b]
            sums.add_product(rows, given[a:b], at, at + 1 if self._biased else None)
            torch.mm(rows, w[at], out=out[a:b])
            self._moved.update(range(at, at + self._step))
        return dx if back is None else torch.empty_like(dx).index_copy_(0, back, dx)

    def state_functions(self) -> dict[str, StateFunction]:
        return {"choice": self.choice}

    def describe(self) -> str:
        shown = f"{self.layers} × Linear {self.width}→{self.out}"
        return shown if self.activation is None else f"{shown} + {self.activation}"


def _flat(rows: Tensor) -> Tensor:
    """Rows of several dimensions as several rows."""
    return rows if rows.dim() == 2 else rows.flatten(0, -2)


def _each(rows: Tensor) -> int:
    """How many rows `_flat` makes of one."""
    return 1 if rows.dim() == 2 else int(np.prod(rows.shape[1:-1]))


def _runs(which: Column, each: int = 1) -> list[tuple[int, int, int]]:
    """(number, start, stop) of every run of equal numbers, each of which stands for so many rows."""
    if not len(which):
        return []
    cuts = np.flatnonzero(which[1:] != which[:-1]) + 1
    numbers = which[np.concatenate(([0], cuts))].tolist()
    starts = [0, *(cuts * each).tolist()]
    return list(zip(numbers, starts, [*starts[1:], len(which) * each], strict=True))
