"""Loop: all the control of a loop in one node: where it begins, the next round, whether there is one, and the end.

    forward    start ──> round 0 ────┐                      ┌──> again     another round
                                     ├──> another round? ───┤
               back  ──> round + 1 ──┘                      └──> done      out of the loop

    backward   again, done ──> the same round ──> round 0: to start      else: round - 1, to back

The same as Isu, Phi, Cond and Isu. Where a message came from can be read off its round: nothing has to be remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ampnet.errors import StateError
from ampnet.message import Messages
from ampnet.nodes.node import Node, Output, Outputs, StateFunction, backward_to, forward_to
from ampnet.state import Ints, States

Move = tuple[Callable[..., States], Callable[..., States]]
"""From states to states, and back."""

START, BACK = 0, 1
DONE, AGAIN = 0, 1


class Loop(Node):
    """``Loop("t", onward=..., more=..., enter=..., leave=...)``: moves are pairs, a function of states and its inverse.

    ``field`` counts the rounds from 0. ``enter`` leads from the states before the loop to round 0 (None: they come with
    it), ``onward`` to the next round, ``leave`` out of the loop (None: states stay as they are). ``more`` says whether
    there is a round of this number.
    """

    role = "route"
    kind = "control"
    inputs = ("start", "back")
    outputs = ("done", "again")

    def __init__(
        self,
        field: str,
        *,
        onward: Move,
        more: Callable[..., Any],
        enter: Move | None = None,
        leave: Move | None = None,
        fields: tuple[Sequence[str], Sequence[str]] | None = None,
    ) -> None:
        """``fields``: of states inside of the loop and behind it, where they are known."""
        self.field = field
        self._onward = (StateFunction(onward[0]), StateFunction(onward[1]))
        self._enter = None if enter is None else (StateFunction(enter[0]), StateFunction(enter[1]))
        self._leave = None if leave is None else (StateFunction(leave[0]), StateFunction(leave[1]))
        self._more = StateFunction(more)
        self._fields = None if fields is None else (tuple(fields[1]), tuple(fields[0]))

    def forward(self, port: int, messages: Messages) -> Outputs:
        move = self._onward if port == BACK else self._enter
        if move is not None:
            messages = messages.with_states(move[0].of(messages.states, self.shelf))
        more: Ints = self._more.of(messages.states, self.shelf)
        count = int(np.count_nonzero(more))
        if count == len(messages):
            return [forward_to(AGAIN, messages)]
        if count == 0:
            return [self._done(messages)]
        return [
            forward_to(AGAIN, some) if way else self._done(some)
            for way, some in messages.by(np.asarray(more, dtype=np.int64), 2)
        ]

    def _done(self, messages: Messages) -> Output:
        if self._leave is None:
            return forward_to(DONE, messages)
        return forward_to(DONE, messages.with_states(self._leave[0].of(messages.states, self.shelf)))

    def backward(self, port: int, messages: Messages) -> Outputs:
        if port == DONE and self._leave is not None:
            messages = messages.with_states(self._leave[1].of(messages.states, self.shelf))
        first = messages.states.column(self.field) == 0
        count = int(np.count_nonzero(first))
        if count == 0:
            return [self._back(BACK, messages)]
        if count == len(messages):
            return [self._back(START, messages)]
        return [self._back(START if way else BACK, some) for way, some in messages.by(first.astype(np.int64), 2)]

    def _back(self, port: int, messages: Messages) -> Output:
        move = self._onward if port == BACK else self._enter
        if move is None:
            return backward_to(port, messages)
        return backward_to(port, messages.with_states(move[1].of(messages.states, self.shelf)))

    def probe(self, messages: Messages) -> bool:
        if not isinstance(self._more.of(messages.states, self.shelf), np.ndarray):
            raise StateError("whether there is another round must be told for each message")
        return True

    def state_functions(self) -> dict[str, StateFunction]:
        moves = {"onward": self._onward, "enter": self._enter, "leave": self._leave}
        named = {
            f"{name} ({which})": f
            for name, m in moves.items()
            if m
            for which, f in zip(("there", "back"), m, strict=True)
        }
        return {"more": self._more, **named}

    def fields_out(self, port: int, arriving: Sequence[tuple[str, ...] | None]) -> tuple[str, ...] | None:
        return None if self._fields is None else self._fields[port]
