"""Result: reports what a model returns for an instance. The end of a graph that predicts.

    forward    reports the rows of every message, with their states, to the controller
    backward   never comes: a graph that ends in results has no loss, so it is not trained

A graph for training has no Result: what a model returns is computed by a separate graph (`ampnet.lang.prediction`).
"""

from __future__ import annotations

import torch

from ampnet.errors import PayloadError
from ampnet.message import Messages
from ampnet.nodes.node import Node, Outputs, Report


class Result(Node):
    """One value that ``forward`` returns."""

    role = "result"
    looks_at_states = True
    kind = "loss"
    outputs = ()

    def forward(self, port: int, messages: Messages) -> Outputs:
        if messages.train:
            raise PayloadError("a graph that ends in results cannot be trained; its model's own graph can")
        return [self.report(messages)]

    def report(self, messages: Messages) -> Report:
        """The rows of these messages, as a report without a loss."""
        if messages.payload is None:
            raise PayloadError("got a result without a payload")
        nothing = torch.full((len(messages),), torch.nan)
        return Report(
            self.name, messages.states, False, nothing, {}, messages.row_counts(), messages.payload, messages.offsets,
            labelled=False,
        )  # fmt: skip

    def backward(self, port: int, messages: Messages) -> Outputs:
        raise PayloadError("a Result has no successor, so no gradient can come back to it")
