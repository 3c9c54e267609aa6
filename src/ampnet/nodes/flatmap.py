"""Flatmap: one message becomes several with generated states and the same payload.

forward    (payload, state) -> (payload, state_1), (payload, state_2), ...      a message per out-edge, say
backward   the sum of their gradients under the original state, when all are in; at once, and zero, if there are none
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ampnet.errors import StateError
from ampnet.message import Messages
from ampnet.nodes.fanout import FansOut
from ampnet.nodes.node import Outputs, StateFunction, backward_to, forward_to
from ampnet.state import Column, States


class Flatmap(FansOut):
    """``Flatmap(generate)``: ``generate(s, structure)`` gives ``(owner, states)``, for all messages at once: the new
    states grouped by message, and which message each is of (rising positions in ``s``)::

        def out_edges(s, structure):
            owner, edge = structure.entries("out", s.node)
            return owner, s.take(owner).adding(edge=edge)
    """

    def __init__(self, generate: Callable[..., tuple[Column, States]], key: Sequence[str] | None = None) -> None:
        self.generate = StateFunction(generate)
        super().__init__(key)

    def forward(self, port: int, messages: Messages) -> Outputs:
        result = self.generate(messages.states, shelf=self.shelf)
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], States):
            raise StateError(f"the generating function must give (owner, States), got {type(result).__name__}")
        owner, states = np.asarray(result[0], dtype=np.int64), result[1]
        if owner.shape != (len(states),) or (np.diff(owner) < 0).any():
            raise StateError(f"the generating function gave {len(states)} states and owners {owner.shape}, not rising")
        if len(owner) and not 0 <= owner[0] <= owner[-1] < len(messages):
            raise StateError(f"the generating function names message {int(owner[-1])} of {len(messages)} as an owner")
        out = []
        if len(states):
            out.append(forward_to(0, messages.take(owner).with_states(states)))
        if messages.train:
            offsets = messages.offsets if messages.offsets is not None else np.arange(len(messages) + 1)
            counts = messages.row_counts()
            childless = self.fanout.send(messages, states, owner, offsets[:-1][owner], counts[owner])
            if childless is not None:
                out.append(backward_to(0, childless))
        return out

    def state_functions(self) -> dict[str, StateFunction]:
        return {"generate": self.generate}
