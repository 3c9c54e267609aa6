"""Module: a node with autograd inside, over all messages of an operation at once.

    forward     in training with a tape, which is kept with the operation
    backward    the gradients of what it read, by the tape; those of the parameters are added up
    collect     hands them on

A tape holds the tensors of weights that it was made with. It is good for the backward if the passage is still given the
same tensors, and nobody wrote to them meanwhile:

    stash       the passage pins tensors that no update writes to       the tape is good, whatever was updated
    current     an update writes into the tensors of the weights        the forward is repeated, with what they are now
    derived     the backward is given other tensors (`ampnet.update.remedies`)                repeated, with those

A tape reads its rows where they are: within a passage they are written once, and its memory is used again when it ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from ampnet.nodes.lengths import Lengths
from ampnet.nodes.module import Module, Tape
from ampnet.plan.layout import Operation
from ampnet.wave.kernels.kernel import Kernel

if TYPE_CHECKING:
    from ampnet.wave.passage import Passage


@dataclass(frozen=True, slots=True, eq=False)
class Taped:
    """A tape and the weights that it was made with."""

    tape: Tape
    weights: Sequence[Tensor]
    written: Sequence[int]
    """How often each of them had been written to."""
    version: int
    """The node's version: another process may write to shared weights, and an optimizer to ``parameter.data``."""


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
        self._tapes: dict[int, Taped] = {}
        """By round."""
        self._sums: list[Tensor | None] = [None] * len(node.parameters)

    def end(self) -> None:
        self._tapes, self._sums = {}, []

    def forward(self, op: Operation) -> None:
        weights = self.passage.weights(self.node)
        if self.train:
            tape = self._tape(op, weights)
            written, version = [w._version for w in weights], self.node.updater.seen_version()
            self._tapes[op.round] = Taped(tape, list(weights), written, version)
            y = tape.y.detach()
        else:
            y = self.node.compute(self._rows(op), weights, self._lengths(op))
        self.out.put(op.start, op.stop, y)

    def _tape(self, op: Operation, weights: Sequence[Tensor]) -> Tape:
        xs = self._rows(op)
        wanted = [read.moved and x.is_floating_point() for read, x in zip(op.reads, xs, strict=True)]
        return self.node.taped(xs, weights, self._lengths(op), wanted)

    def _rows(self, op: Operation) -> list[Tensor]:
        """The input rows of an operation, in place. ``data`` counts writes by itself: autograd refuses a tape whose
        inputs were written to, and other rows of the arena are."""
        return [self.rows(op, i).data for i in range(len(op.reads))]

    def _lengths(self, op: Operation) -> list[Lengths]:
        if not self.node.body.grouped:
            return []
        if op.round not in self._known:
            self._known[op.round] = self.layout.lengths_of(op)
        return self._known[op.round]

    def backward(self, op: Operation) -> None:
        made, weights = self._tapes.pop(op.round), self.passage.weights(self.node)
        tape = made.tape if self._is_good(made, weights) else self._tape(op, weights)
        dxs, dw = tape.gradients(self.gradient(op))
        for i, dx in enumerate(dxs):
            if dx is not None:
                self.add(op, i, dx)
        self._sums = [b if a is None else a if b is None else a + b for a, b in zip(self._sums, dw, strict=True)]

    def _is_good(self, made: Taped, weights: Sequence[Tensor]) -> bool:
        """Whether a tape holds for the backward, which is to use these weights."""
        before = zip(weights, made.weights, made.written, strict=True)
        if not all(now is then and now._version == written for now, then, written in before):
            return False
        pinned = self.node.name in self.passage.pins or self.node.updater.whole in self.passage.held
        return pinned or made.version == self.node.updater.seen_version()

    def collect(self) -> None:
        self.passage.sums(self.node).add_each(self._sums)
