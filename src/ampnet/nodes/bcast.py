"""Bcast: sends a message to several successors.

forward    the same payload (not copied) out of every port
backward   the sum of the gradients of all ports, when every port's is there; added in the order of the ports
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from ampnet.key import Packer
from ampnet.message import Messages
from ampnet.nodes.join import Join
from ampnet.nodes.keyed import Keyed
from ampnet.nodes.node import Node, Outputs, backward_to, forward_to


class Bcast(Node):
    """``Bcast(("message", "self"))``."""

    role = "route"
    kind = "aggregate"

    def __init__(self, ports: Sequence[str] = ("a", "b"), key: Sequence[str] | None = None) -> None:
        self.outputs = tuple(ports)
        self.key = Packer(key)
        self.join = Join(self.outputs, self.key, keep_states=False)

    def forward(self, port: int, messages: Messages) -> Outputs:
        return [forward_to(i, messages) for i in range(len(self.outputs))]

    def backward(self, port: int, messages: Messages) -> Outputs:
        out = []
        for joined in self.join.arrive(port, messages):
            total: Tensor | None = None
            for piece in joined.payloads:
                if piece is not None:
                    total = piece if total is None else total + piece
            out.append(backward_to(0, joined.last.with_payload(total)))
        return out

    def stores(self) -> Iterator[tuple[str, Keyed]]:
        yield from self.join.stores()

    def waits(self) -> list[str]:
        return self.join.waits()
