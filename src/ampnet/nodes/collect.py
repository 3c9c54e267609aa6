"""Collect: joins the ways that a Dispatch has parted, and takes the field away in which it wrote its choice.

forward    way 1 ──┐  (instance=7, replica=0)                     remembers the way under the key
           way 2 ──┴──────────────────────────> (instance=7)
backward   way 1 <─┐  (instance=7, replica=0)
           way 2 <─┴──────────────────────────< (instance=7)      the field is put back
"""

from __future__ import annotations

from collections.abc import Sequence

from ampnet.message import Messages
from ampnet.nodes.node import Outputs, backward_to
from ampnet.nodes.phi import Phi


class Collect(Phi):
    """``Collect("replica", ("1", "2"))``: as its `Dispatch`."""

    def __init__(self, field: str, ports: Sequence[str], key: Sequence[str] | None = None) -> None:
        super().__init__(ports, key)
        self.field = field

    def forward(self, port: int, messages: Messages) -> Outputs:
        return super().forward(port, messages.with_states(messages.states.dropping(self.field)))

    def backward(self, port: int, messages: Messages) -> Outputs:
        origins = self.origins.take(messages)
        if isinstance(origins, int):
            return [backward_to(origins, self._marked(origins, messages))]
        ways = messages.by(origins, len(self.inputs))
        return [backward_to(origin, self._marked(origin, some)) for origin, some in ways]

    def _marked(self, origin: int, messages: Messages) -> Messages:
        return messages.with_states(messages.states.adding(**{self.field: origin}))

    def fields_out(self, port: int, arriving: Sequence[tuple[str, ...] | None]) -> tuple[str, ...] | None:
        first = super().fields_out(port, arriving)
        return None if first is None else tuple(f for f in first if f != self.field)
