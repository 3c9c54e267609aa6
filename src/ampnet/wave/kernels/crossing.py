"""Crossing: rows that one worker makes and another reads.

    worker 0     Sending.forward    rows ──────────────────> Receiving.forward     they are rows of an arena there
    worker 1     Sending.backward   <───────────── gradients  Receiving.backward   when all who read them are done

A passage plays neither before the slice it needs has arrived (`Passage.ready`).
"""

from __future__ import annotations

from ampnet.plan.layout import Operation
from ampnet.wave.kernels.kernel import Kernel


class Sending(Kernel):
    """Rows of this worker that another one reads."""

    answers = True

    def begin(self) -> None:
        self.out = self.layout.arenas[self.site.parts[0].arena]

    def forward(self, op: Operation) -> None:
        self.passage.send(op, self.rows(op, 0))

    def backward(self, op: Operation) -> None:
        g = self.passage.taken(op, len(op.reads[0]))
        if g is not None:
            self.add(op, 0, g)


class Receiving(Kernel):
    """Rows of another worker that this one reads."""

    answers = True

    def forward(self, op: Operation) -> None:
        rows = self.passage.taken(op, op.stop - op.start)
        assert rows is not None
        self.out.put(op.start, op.stop, rows)

    def backward(self, op: Operation) -> None:
        self.passage.send(op, self.gradient(op) if self.out.touched else None)
