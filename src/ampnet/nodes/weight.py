"""Weight: a parameter that is itself the value: the state before the first step, a learnt token, a table of one row.

forward    y = w, once for every row of the message, whatever the message holds      keeps nothing but the version
backward   dw += sum of dy                                                           the answer is empty
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ampnet.message import Messages
from ampnet.native import calls
from ampnet.nodes.span import Span
from ampnet.nodes.transform import Parameterised


class Holder(nn.Module):
    """A module of one parameter."""

    def __init__(self, name: str, parameter: nn.Parameter) -> None:
        super().__init__()
        self.register_parameter(name, parameter)


class Weight(Parameterised):
    """``Weight(nn.Parameter(torch.zeros(128)), name="h0")``: the parameter as a row. It has the shape of one row."""

    saturates = False

    def __init__(self, parameter: nn.Parameter, name: str = "weight", key: Sequence[str] | None = None) -> None:
        super().__init__(Holder(name, parameter), key)
        self.label = name

    def rows_of(self, messages: Messages) -> Tensor:
        """The payload of a message is ignored; it may be empty."""
        return messages.payload if messages.payload is not None else torch.empty(messages.rows, 0)

    def shape_out(self, x: Tensor) -> Sequence[int]:
        return self.updater.weights[0].shape

    def run(self, span: Span) -> None:
        y, row = span.y, span.w[0]
        flat = y.view(len(y), -1) if y.is_contiguous() else y
        if not calls.fetch(flat, row.reshape(1, -1).expand(len(y), -1), None):
            y.copy_(row)

    def back(self, span: Span) -> None:
        pass

    def collect(self, span: Span) -> None:
        span.sums.add_rows(span.g.reshape(len(span.g), -1), 0)

    def reference(self, x: Tensor) -> Tensor:
        return self.parameters[self.label].expand(x.shape[0], *self.parameters[self.label].shape)

    def describe(self) -> str:
        shape = "×".join(map(str, self.updater.weights[0].shape))
        return f"Weight {shape}" if shape else "Weight"
