"""Loss: judges all predictions of a wave at once, and begins the backward.

In training nobody asks for the loss of one message, so a wave reports sums: one state (that of its last instance), the
mean loss over all rows, and how many there were. In inference every message is reported on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ampnet.message import Messages
from ampnet.nodes.loss import Loss
from ampnet.nodes.node import Report
from ampnet.state import Ints, States
from ampnet.wave.kernels.kernel import Kernel
from ampnet.wave.layout import Layout, Operation, Whole
from ampnet.wave.sites import Unplayable


class _Met:
    """A prediction and its label: looks like `ampnet.nodes.join.Joined`."""

    def __init__(self, payloads: Sequence[Tensor], batch: Messages, labels: Ints | None) -> None:
        self.payloads, self.last, self._labels = tuple(payloads), batch, labels

    def offsets(self, port: int) -> Ints | None:
        return self._labels if port else self.last.offsets

    def states(self, port: int) -> States:
        return self.last.states


class LossKernel(Kernel):
    """`Loss` nodes."""

    def begin(self, layout: Layout, whole: Whole, train: bool) -> None:
        super().begin(layout, whole, train)
        self.reports: list[Report] = []

    def forward(self, op: Operation) -> None:
        node = self.site.node
        assert isinstance(node, Loss)
        payloads = [read.rows() for read in op.reads]
        if self.train:
            self._learn(node, op, *payloads)
            return
        batch = self.layout.messages_of(op, payloads[1], False)
        labels = self.layout.labels_of(op) if node.selects else batch.offsets
        (report,) = node.judge(_Met(payloads, batch, labels))  # type: ignore[arg-type]
        assert isinstance(report, Report)
        self.reports.append(report)

    def _learn(self, node: Loss, op: Operation, prediction: Tensor, label: Tensor) -> None:
        loss, g, metrics, count = node.judge_all(
            prediction, label, self.layout.offsets_of(op), self.layout.labels_of(op) if node.selects else None
        )
        if not loss.is_cuda and not math.isfinite(float(loss)):
            raise Unplayable("a loss is not finite: such instances are left out one by one")
        op.kept = (g,)
        state = States.trusted(("instance",), np.array([[self.layout.numbers[-1]]]))
        self.reports.append(
            Report(node.label, state, True, loss.view(1) / count, metrics, np.array([count], dtype=np.int64))
        )

    def backward(self, op: Operation) -> None:
        (g,) = op.kept
        assert isinstance(g, torch.Tensor)
        op.reads[0].add(g)
