"""Loss: judges all predictions of a wave at once, and begins the backward.

In training the loss of one message is not needed, so a wave reports sums: one state (that of its last instance), the
mean loss over all rows, and how many there were. In inference every message is reported on.

A loss that is not finite ends the run, named with its state, or is left out of the wave and counted (``on_nan``). With
it goes all of its instance: from here on no gradient of it comes to any node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ampnet.message import Messages
from ampnet.nodes.loss import Loss
from ampnet.nodes.node import Report
from ampnet.plan.layout import Operation
from ampnet.state import Ints, States
from ampnet.wave.kernels.kernel import Kernel


class _Met:
    """A prediction and its label: looks like `ampnet.nodes.join.Joined`."""

    def __init__(self, payloads: Sequence[Tensor | None], batch: Messages, labels: Ints | None) -> None:
        self.payloads, self.last, self._labels = tuple(payloads), batch, labels

    def offsets(self, port: int) -> Ints | None:
        return self._labels if port else self.last.offsets

    def states(self, port: int) -> States:
        return self.last.states


class LossKernel(Kernel):
    """`Loss` nodes."""

    answers = True

    def begin(self) -> None:
        assert isinstance(self.site.node, Loss)
        self.node = self.site.node

    def forward(self, op: Operation) -> None:
        prediction = self.rows(op, 0)
        label = None if op.reads[1].arena.data is None else self.rows(op, 1)
        if self.train and label is not None:
            self._learn(op, prediction, label)
            return
        batch = self.layout.messages_of(op, prediction, self.train)
        for output in self.node.judge(_Met((prediction, label), batch, self._labels(op, batch))):  # type: ignore[arg-type]
            if isinstance(output, Report):
                self.passage.report(output)

    def _labels(self, op: Operation, batch: Messages) -> Ints | None:
        return self.layout.labels_of(op) if self.node.selects else batch.offsets

    def _learn(self, op: Operation, prediction: Tensor, label: Tensor) -> None:
        node, offsets = self.node, self.layout.offsets_of(op)
        labels = self.layout.labels_of(op) if node.selects else None
        loss, g, metrics, count = node.judge_all(
            prediction, label, offsets, labels, lambda: self.layout.messages_of(op, prediction, True).states
        )
        op.kept = (g,)
        if self.passage.skipped or not math.isfinite(float(loss)):
            self._judge_one_by_one(op, prediction, label)
            return
        state = States.trusted(("instance",), np.array([[self.layout.numbers[-1]]]))
        mean = loss.view(1) / count if isinstance(loss, Tensor) else torch.from_numpy(np.array([loss / count]))
        self.passage.report(Report(node.label, state, True, mean, metrics, np.array([count])))

    def _judge_one_by_one(self, op: Operation, prediction: Tensor, label: Tensor) -> None:
        """A loss is not finite, or its instance is skipped already: raise with its state, or skip it."""
        batch = self.layout.messages_of(op, prediction, True)
        met = _Met((prediction, label), batch, self._labels(op, batch))
        report = self.node.judge(met)[0]  # type: ignore[arg-type]
        assert isinstance(report, Report)
        instances = batch.states.columns[0]
        self.passage.skip(instances[report.skipped].tolist())
        skipped = np.flatnonzero(np.isin(instances, list(self.passage.skipped)))
        self.passage.told.update(instances[skipped].tolist())
        self.passage.report(replace(report, skipped=skipped))

    def backward(self, op: Operation) -> None:
        (g,) = op.kept
        assert g is not None
        if self.passage.skipped:
            batch = self.layout.messages_of(op, None, True)
            gone = np.isin(batch.states.columns[0], list(self.passage.skipped))
            counts = 1 if batch.offsets is None else np.diff(batch.offsets)
            g[torch.from_numpy(np.repeat(gone, counts)).to(g.device)] = 0
        self.add(op, 0, g)
