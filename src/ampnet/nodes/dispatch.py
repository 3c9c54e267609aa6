"""Dispatch: sends a message to one of several ways, by turns or by who has the least to do, and writes it in the state.

    forward    chooses a way, adds it to the state as a field, and sends the message there
    backward   from whichever port, without the field, to the one input

    "round-robin"    1, 2, 3, 1, 2, 3 ...
    "shortest"       the port with the fewest messages in flight: sent, and not answered yet

Unlike a Cond's, the choice is no function of the state that comes in; from here on it is one, because it is part of the
state. `Collect` is the other end: it takes the field away again, and puts it back for the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from ampnet.message import Messages
from ampnet.nodes.node import Node, Outputs, backward_to, forward_to
from ampnet.state import Ints


class Dispatch(Node):
    """``Dispatch("replica", ("1", "2"), by="shortest")``: the field, and the ways."""

    role = "route"
    by_turns = True
    kind = "control"

    def __init__(self, field: str, ports: Sequence[str], by: Literal["round-robin", "shortest"]) -> None:
        self.field, self.outputs, self.by = field, tuple(ports), by
        self._under_way: Ints = np.zeros(len(self.outputs), dtype=np.int64)
        self._turn = 0

    def forward(self, port: int, messages: Messages) -> Outputs:
        choice = self._choose(len(messages))
        if messages.train:
            self._under_way += np.bincount(choice, minlength=len(self.outputs))
        chosen = messages.with_states(messages.states.adding(**{self.field: choice}))
        return [forward_to(way, some) for way, some in chosen.by(choice, len(self.outputs))]

    def _choose(self, count: int) -> Ints:
        """A route for each of ``count`` messages."""
        ways = len(self.outputs)
        turns = (self._turn + np.arange(count)) % ways
        self._turn = (self._turn + count) % ways
        if self.by == "round-robin":
            return turns
        # Ways as vessels: the messages fill them up to one level. Equal ones take turns to be first.
        order = np.argsort((np.arange(ways) - turns[0]) % ways) if count else np.arange(ways)
        levels = self._under_way[order]
        places = (levels[:, None] + np.arange(count)[None, :]).ravel()
        first = np.argsort(places, kind="stable")[:count]
        return order[first // max(count, 1)]

    def backward(self, port: int, messages: Messages) -> Outputs:
        self._under_way[port] -= len(messages)
        return [backward_to(0, messages.with_states(messages.states.dropping(self.field)))]

    def held(self) -> dict[str, int]:
        return {"under way": int(self._under_way.sum())}

    def forget(self) -> None:
        self._under_way[:] = 0
        self._turn = 0  # several workers may rehearse it: they go on together

    def fields_out(self, port: int, arriving: Sequence[tuple[str, ...] | None]) -> tuple[str, ...] | None:
        return None if arriving[0] is None else (*arriving[0], self.field)

    def describe(self) -> str:
        return f"Dispatch {self.by}"
