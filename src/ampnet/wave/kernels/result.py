"""Result: hands the rows that a model returns to the controller, with their states."""

from __future__ import annotations

from ampnet.nodes.result import Result
from ampnet.plan.layout import Operation
from ampnet.wave.kernels.kernel import Kernel


class ResultKernel(Kernel):
    """`Result` nodes."""

    def forward(self, op: Operation) -> None:
        assert isinstance(self.site.node, Result)
        self.passage.report(self.site.node.report(self.layout.messages_of(op, self.rows(op, 0), False)))
