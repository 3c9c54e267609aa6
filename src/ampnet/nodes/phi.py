"""Phi: joins several ways into one and remembers by which one each message came.

              start ──┐                             start <──┐  came by "start"
    forward           ├─> out          backward              ├─< gradient of the same key
              loop  ──┘                             loop  <──┘  came by "loop"

A loop begins here: the first message of an instance comes by "start", every later one by "loop", and the gradients run
the loop backwards until the first one leaves by "start".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ampnet.key import Packer
from ampnet.message import Messages
from ampnet.nodes.keyed import Keyed, Marks
from ampnet.nodes.node import Node, Outputs, backward_to, forward_to


class Phi(Node):
    """``Phi(("start", "loop"))``. ``key`` must tell apart any two messages that are out at the same time."""

    role = "route"
    kind = "control"
    passing = (True, False)

    def __init__(self, ports: Sequence[str] = ("start", "loop"), key: Sequence[str] | None = None) -> None:
        self.inputs = tuple(ports)
        self.key = Packer(key)
        self.origins = Marks(self.key, "its memory of origins", len(self.inputs))

    def forward(self, port: int, messages: Messages) -> Outputs:
        if messages.train:
            self.origins.put(self.key.pack(messages.states), port)
        return [forward_to(0, messages)]

    def backward(self, port: int, messages: Messages) -> Outputs:
        origins = self.origins.take(messages)
        if isinstance(origins, int):
            return [backward_to(origins, messages)]
        return [backward_to(origin, some) for origin, some in messages.by(origins, len(self.inputs))]

    def stores(self) -> Iterator[tuple[str, Keyed]]:
        yield "origins", self.origins
