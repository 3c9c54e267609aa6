"""Sink: takes messages that are not used.

    forward    answers each message at once, without a gradient; in inference does nothing
    backward   never comes: nothing leaves a Sink

Every forward message of a training instance must be answered before it can retire. A value that a program computes and
then leaves aside (the hidden state after the last step, the other half of a Split) ends here.
"""

from __future__ import annotations

from ampnet.errors import PayloadError
from ampnet.message import Messages
from ampnet.nodes.node import Node, Outputs, backward_to


class Sink(Node):
    """Ends messages that no node uses; they are answered without a gradient."""

    role = "route"
    kind = "control"
    outputs = ()

    def forward(self, port: int, messages: Messages) -> Outputs:
        return [backward_to(0, messages.with_payload(None))] if messages.train else []

    def backward(self, port: int, messages: Messages) -> Outputs:
        raise PayloadError("a Sink has no successor, so no gradient can come back to it")
