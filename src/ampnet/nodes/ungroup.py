"""Ungroup: a message of several rows becomes a message per row. The opposite of Group.

forward    rows x_0 x_1 x_2 under state s -> x_0 under state(s, 0), x_1 under state(s, 1), ...     nothing is copied
backward   the rows' gradients, in order, under s, when all are in; at once if there are no rows
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ampnet.errors import StateError
from ampnet.message import Messages
from ampnet.nodes.fanout import FansOut
from ampnet.nodes.node import Outputs, StateFunction, backward_to, forward_to
from ampnet.state import States


class Ungroup(FansOut):
    """``Ungroup(lambda s, i: s.adding(node=i))``: ``s`` the state of each row's message, ``i`` its place there."""

    def __init__(self, state: Callable[..., States], key: Sequence[str] | None = None) -> None:
        self.state = StateFunction(state, extra=1)
        super().__init__(key)

    def forward(self, port: int, messages: Messages) -> Outputs:
        offsets = messages.offsets if messages.offsets is not None else np.arange(len(messages) + 1)
        owner = np.repeat(np.arange(len(messages)), np.diff(offsets))
        rows = np.arange(messages.rows)
        states = self.state(messages.states.take(owner), rows - offsets[owner], shelf=self.shelf)
        if not isinstance(states, States) or len(states) != len(rows):
            raise StateError(f"the state function must give {len(rows)} States, one a row, got {states!r}")
        out = []
        if len(rows):
            out.append(forward_to(0, Messages.trusted(messages.payload, states, None, messages.train)))
        if messages.train:
            childless = self.fanout.send(messages, states, owner, rows, np.ones(len(rows), dtype=np.int64))
            if childless is not None:
                out.append(backward_to(0, childless))
        return out

    def state_functions(self) -> dict[str, StateFunction]:
        return {"state": self.state}
