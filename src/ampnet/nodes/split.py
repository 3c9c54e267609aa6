"""Split: takes rows apart into columns, one output port for each piece.

forward    x -> x[:, :a], x[:, a:a+b], ...       each under the same state
backward   the concatenated gradients of all pieces, when every port's is there
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from ampnet.errors import PayloadError
from ampnet.key import Packer
from ampnet.message import Messages
from ampnet.nodes.join import Join, Joined
from ampnet.nodes.keyed import Keyed
from ampnet.nodes.node import Node, Outputs, Piece, backward_to, forward_to


class Split(Node):
    """``Split({"h": 128, "c": 128})``: widths by port name, in order."""

    role = "rows"
    kind = "aggregate"

    def __init__(self, widths: Mapping[str, int], key: Sequence[str] | None = None) -> None:
        self.outputs = tuple(widths)
        self.widths = tuple(widths.values())
        self.key = Packer(key)
        self.join = Join(self.outputs, self.key, keep_states=False)

    def forward(self, port: int, messages: Messages) -> Outputs:
        x = messages.payload
        if x is None or x.dim() < 2 or x.shape[-1] != sum(self.widths):
            shape = None if x is None else tuple(x.shape)
            raise PayloadError(f"expects rows of width {sum(self.widths)}, got a payload of shape {shape}")
        return [forward_to(i, messages.with_payload(p)) for i, p in enumerate(x.split(self.widths, -1))]

    def backward(self, port: int, messages: Messages) -> Outputs:
        complete = self.join.arrive(port, messages)
        return [backward_to(0, joined.last.with_payload(self._beside(joined))) for joined in complete]

    def _beside(self, joined: Joined) -> Tensor | None:
        known = next((p for p in joined.payloads if p is not None), None)
        if known is None:
            return None
        pieces = [
            known.new_zeros(*known.shape[:-1], width) if p is None else p
            for p, width in zip(joined.payloads, self.widths, strict=True)
        ]
        return torch.cat(pieces, -1)

    def view(self, port: int) -> list[Piece]:
        start = sum(self.widths[:port])
        return [(0, (start, start + self.widths[port]))]

    def stores(self) -> Iterator[tuple[str, Keyed]]:
        yield from self.join.stores()

    def waits(self) -> list[str]:
        return self.join.waits()

    def describe(self) -> str:
        return f"Split {'+'.join(map(str, self.widths))}"
