"""Loss: judges all predictions of a wave at once, and begins the backward."""

from __future__ import annotations

from collections.abc import Sequence

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
        batch = self.layout.messages_of(op, payloads[1], self.train)
        labels = self.layout.labels_of(op) if node.selects else batch.offsets
        outputs = node.judge(_Met(payloads, batch, labels))  # type: ignore[arg-type]
        report = outputs[0]
        assert isinstance(report, Report)
        self.reports.append(report)
        if not self.train:
            return
        if len(report.skipped):
            raise Unplayable("a loss is not finite: such instances are left out one by one")
        answer = outputs[1]
        assert not isinstance(answer, Report)
        op.kept = (answer[2].payload,)

    def backward(self, op: Operation) -> None:
        (g,) = op.kept
        assert g is not None
        op.reads[0].add(g)
