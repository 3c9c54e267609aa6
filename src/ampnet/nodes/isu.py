"""Isu: the invertible state update.

    forward    state -> f(state)               nothing is kept, the payload passes
    backward   state -> inverse(state)         so that the gradient finds the caches of the messages before the update

``inverse(f(s)) == s`` for every state that occurs. It is tried on sample states before a run, and on the first real
batches; a wrong inverse that shows later ends as a named error where the gradient finds no partner.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ampnet.errors import StateError
from ampnet.message import Messages
from ampnet.nodes.node import Node, Outputs, StateFunction, backward_to, forward_to
from ampnet.state import Column, States

_TRIALS = 8


class Isu(Node):
    """``Isu(lambda s: s.replace(t=s.t + 1), lambda s: s.replace(t=s.t - 1))``."""

    role = "route"
    kind = "control"

    def __init__(
        self,
        function: Callable[..., States],
        inverse: Callable[..., States],
        when: Callable[..., Column] | None = None,
    ) -> None:
        """``when``: for which states the inverse holds, where not for all (those that come out of a loop, say)."""
        self.function, self.inverse = StateFunction(function), StateFunction(inverse)
        self.when = StateFunction(when) if when is not None else None
        self._trials = 0

    def forward(self, port: int, messages: Messages) -> Outputs:
        states = self._states(self.function.of(messages.states, self.shelf), messages, "f")
        if self._trials < _TRIALS:
            self._trials += 1
            back = self._states(self.inverse.of(states, self.shelf), messages, "inverse")
            if back != messages.states:
                raise StateError(explain_wrong_inverse(messages.states, states, back))
        return [forward_to(0, messages.with_states(states))]

    def backward(self, port: int, messages: Messages) -> Outputs:
        states = self._states(self.inverse.of(messages.states, self.shelf), messages, "inverse")
        return [backward_to(0, messages.with_states(states))]

    @staticmethod
    def _states(result: object, messages: Messages, which: str) -> States:
        if not isinstance(result, States) or len(result) != len(messages):
            raise StateError(f"{which} must give the {len(messages)} new States, got {result!r}; use s.replace(...)")
        return result

    def probe(self, messages: Messages) -> bool:
        self.forward(0, messages)
        return True

    def state_functions(self) -> dict[str, StateFunction]:
        return {"f": self.function, "inverse": self.inverse}


def explain_wrong_inverse(before: States, after: States, back: States) -> str:
    """Name the first state that the inverse does not restore."""
    at = 0
    if back.fields == before.fields:
        at = int(np.flatnonzero((back.columns != before.columns).any(0))[0])
    one = np.array([at])
    return (
        f"the inverse is wrong: f takes {before.take(one).describe()} to {after.take(one).describe()}, and inverse "
        f"takes that to {back.take(one).describe()}"
    )
