"""Cond: routes a message by its state to one of several successors.

forward    out of port f(state)            nothing is kept
backward   whichever port it comes back on, to the one input
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ampnet.errors import StateError
from ampnet.message import Messages
from ampnet.nodes.node import Node, Outputs, StateFunction, backward_to, forward_to


class Cond(Node):
    """``Cond(lambda s: s.t < s.length, ("done", "again"))``: the function gives each message's port number.

    A truth value counts as 0 (False) or 1 (True), so name the port of False first.
    """

    role = "route"
    kind = "control"
    passing = (False, True)

    def __init__(self, function: Callable[..., Any], ports: Sequence[str] = ("false", "true")) -> None:
        self.function = StateFunction(function)
        self.outputs = tuple(ports)

    def forward(self, port: int, messages: Messages) -> Outputs:
        choice = self.function.of(messages.states, self.shelf)
        if not isinstance(choice, np.ndarray) or choice.shape != (len(messages),) or choice.dtype.kind not in "biu":
            raise StateError(
                f"the routing function must give one integer or truth value per message: {len(messages)} expected, "
                f"got {getattr(choice, 'dtype', type(choice).__name__)} of shape {np.shape(choice)}"
            )
        if not len(choice):
            return []
        ports = len(self.outputs)
        if len(choice) == 1 and 0 <= (port := int(choice[0])) < ports:
            return [forward_to(port, messages)]
        if choice.min() < 0 or choice.max() >= ports:
            at = np.flatnonzero((choice < 0) | (choice >= ports))[:1]
            state = messages.states.take(at).describe()
            raise StateError(f"the routing function chose port {int(choice[at[0]])} of {ports} for {state}")
        if choice.dtype.kind == "u":
            choice = choice.astype(np.int64)
        return [forward_to(port, some) for port, some in messages.by(choice, ports)]

    def backward(self, port: int, messages: Messages) -> Outputs:
        return [backward_to(0, messages)]

    def probe(self, messages: Messages) -> bool:
        self.forward(0, messages)
        return True

    def state_functions(self) -> dict[str, StateFunction]:
        return {"route": self.function}
