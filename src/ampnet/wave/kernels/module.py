"""Module: a node with autograd inside, over all messages of an operation at once.

    forward     in training with a tape, which is kept with the operation
    backward    the gradients of what it read, by the tape; those of the parameters are added up
    collect     hands them on

A tape is of the weights that it saw. If they were updated since (waves take turns, or nodes are on several workers),
the forward is repeated with the weights that the backward is to see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from ampnet.nodes.lengths import Lengths
from ampnet.nodes.module import Module, Tape
from ampnet.plan.layout import Operation
from ampnet.wave.kernels.kernel import Kernel

if TYPE_CHECKING:
    from ampnet.wave.passage import Passage


class ModuleKernel(Kernel):
    """`Module` nodes."""

    def begin(self) -> None:
        self._known: dict[int, list[Lengths]] = {}
        """By round: the same in every wave, where a layout is used again."""

    def renew(self, passage: Passage) -> None:
        super().renew(passage)
        node = self.site.face
        assert isinstance(node, Module)
        self.node = node
        self._tapes: dict[int, tuple[int, Tape]] = {}
        """By round: the version of the weights, and the tape."""
        self._sums: list[Tensor | None] = [None] * len(node.parameters)

    def forward(self, op: Operation) -> None:
        weights = self.passage.weights(self.node)
        if self.train:
            version, tape = self.node.updater.seen_version(), self._tape(op, weights)
            self._tapes[op.round] = version, tape
            y = tape.y.detach()
        else:
            y = self.node.compute(self._rows(op), weights, self._lengths(op))
        self.out.put(op.start, op.stop, y)

    def _tape(self, op: Operation, weights: list[Tensor]) -> Tape:
        xs = self._rows(op)
        wanted = [read.moved and x.is_floating_point() for read, x in zip(op.reads, xs, strict=True)]
        return self.node.taped(xs, weights, self._lengths(op), wanted)

    def _rows(self, op: Operation) -> list[Tensor]:
        """Returns a copy of the rows that an operation reads: an arena is written to later, and a tape keeps its
        inputs."""
        rows = [self.rows(op, i) for i in range(len(op.reads))]
        shared = self.train
        return [x.clone() if shared and r.places() is None else x for x, r in zip(rows, op.reads, strict=True)]

    def _lengths(self, op: Operation) -> list[Lengths]:
        if not self.node.body.grouped:
            return []
        if op.round not in self._known:
            self._known[op.round] = self.layout.lengths_of(op)
        return self._known[op.round]

    def backward(self, op: Operation) -> None:
        version, tape = self._tapes.pop(op.round)
        if version != self.node.updater.seen_version():
            tape = self._tape(op, self.passage.weights(self.node))
        dxs, dw = tape.gradients(self.gradient(op))
        for i, dx in enumerate(dxs):
            if dx is not None:
                self.add(op, i, dx)
        self._sums = [b if a is None else a if b is None else a + b for a, b in zip(self._sums, dw, strict=True)]

    def collect(self) -> None:
        self.passage.sums(self.node).add_each(self._sums)
