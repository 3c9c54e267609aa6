"""Faults: what can go wrong in a wave, found by the operation that meets it.

    a payload that is not finite      at the door, in training
    an operation that fails           a row of the wrong width, an index out of range, a user's function
    a gradient that is not finite     before it is applied

It is named with node and state, and ends the run; or, where a loss has ``on_nan="skip"`` and it is about numbers, its
instance is left out of the sums and counted. States are those of the score: the wave is rehearsed once more, on states
alone, and no payload is computed a second time.

A gradient that is not finite stops at the row it came to: nodes nearer to the loss keep what the instance gave them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

from ampnet.errors import AmpnetError, DataError, LossError, NodeError, PlanError
from ampnet.message import Messages
from ampnet.native import calls
from ampnet.nodes.culprit import culprit
from ampnet.nodes.loss import Loss
from ampnet.nodes.node import Report
from ampnet.nodes.transform import Parameterised
from ampnet.plan.layout import Operation
from ampnet.plan.lot import Lot
from ampnet.plan.sites import Site
from ampnet.state import States
from ampnet.wave.kernels.trained import TrainedKernel
from ampnet.wave.passage import Passage


class Faults:
    """The faults of one player's waves. See the head of this file."""

    def __init__(self, worker: str, skips: bool) -> None:
        self.worker, self.skips = worker, skips

    def payloads(self, lot: Lot, passage: Passage) -> Iterator[tuple[int, Tensor]]:
        """The payloads of a lot. In training they must be finite; instances with others are refused or skipped."""
        for site, payload in lot.payloads():
            if lot.train and payload.is_floating_point() and not _all_finite([payload]):
                payload = self._without_poison(lot, site, payload, passage)
            yield site, payload

    def _without_poison(self, lot: Lot, site: int, payload: Tensor, passage: Passage) -> Tensor:
        bad = np.flatnonzero(_not_finite(payload))
        if not len(bad):
            return payload  # only their sum was too large
        owners, states = _owners(lot, site)
        if not self.skips:
            raise DataError(
                f"input '{_input(lot, site)}' has a payload that is not finite at {states.take(bad[:1]).describe()}: "
                f"the update would make weights NaN. Remedy: fix the data, or Loss(..., on_nan='skip') to leave out "
                f"such instances and count them"
            )
        gone = set(owners[bad].tolist())
        passage.skip(gone)
        out = payload.clone()
        out[torch.from_numpy(np.isin(owners, list(gone)))] = 0
        return out

    def check(self, unchecked: Sequence[tuple[Passage, Site]]) -> None:
        """Raise if a gradient that was added to the sums of these sites is not finite."""
        if not unchecked or self.skips:
            return
        evidence = [t for passage, site in unchecked for t in _evidence(passage, site)]
        if evidence and not _all_finite(evidence):
            bad = [one for one in unchecked if not _finite(iter(_evidence(*one)))]
            if bad:
                raise self._poisoned(bad)

    def _poisoned(self, bad: Sequence[tuple[Passage, Site]]) -> NodeError:
        """Name the first state at which a gradient, or what it is multiplied with, is not finite. Several passages may
        have added to the sums of these sites."""
        site, states = bad[0][1], None
        for passage, one in bad:
            for op in (m for o in passage.layout.operations if one in o.trained for m in o.members or [o]):
                rows = self._bad_rows(passage, op)
                if len(rows) and states is None:
                    site, states = one, self._states(passage, op, rows[:1])
        cause = LossError(
            "a gradient is not finite, although the loss is. Usual causes: numbers that overflowed on the way (exp, a "
            "division by zero, a learning rate that is too high). It was not applied. Remedy: clip_norm, or "
            "Loss(..., on_nan='skip') to leave out such instances and count them"
        )
        error = NodeError(site.name, "backward", states, self.worker, cause)
        error.__cause__ = cause
        return error

    def _bad_rows(self, passage: Passage, op: Operation) -> np.ndarray:
        """Rows of an operation that are not finite: their gradient, what they are made of, or what was kept."""
        kernel = passage.kernels.get(op.site.number)
        if kernel is None:  # one of a choice: its kernel is that of the first
            leader = next(o for o in passage.layout.operations if op.site in o.trained)
            kernel = passage.kernels[leader.site.number]
        found: list[Tensor] = []
        out = kernel.out
        if out.grad is not None and out.inverse is not None and len(out.grad) == len(out.rows_made):
            found = [out.grad[out.inverse[op.start : op.stop]]]  # equal rows are one, and so are their gradients
        elif isinstance(kernel, TrainedKernel) and not kernel.lifted:
            span = kernel.all()
            a, b = op.start - kernel.start, op.stop - kernel.start
            found = [t[a:b] for t in (span.g, *(x for x in span.xs if x is not None), *span.named.values())]
        elif out.grad is not None and len(out.grad) == out.rows:
            found = [out.grad[op.start : op.stop]]
        bad = np.zeros(op.stop - op.start, dtype=bool)
        for tensor in found:
            if tensor.is_floating_point() and len(tensor) == len(bad):
                bad |= _not_finite(tensor)
        return np.flatnonzero(bad)

    def clean(self, passage: Passage, op: Operation, trained: Sequence[Site]) -> None:
        """If instances may be skipped: add the gradients of a passage, without instances that are not finite."""
        for site in trained:
            assert isinstance(site.node, Parameterised)
            own = passage.own_sums(site.node)
            if own is None:
                continue
            if not _finite(list.__iter__(own)):
                kernel = passage.kernels[op.site.number]
                if not isinstance(kernel, TrainedKernel):
                    own = None
                else:
                    self._collect_without(passage, kernel)
                    own = passage.own_sums(site.node)
            if own is not None and _finite(list.__iter__(own)):
                own.settle()
                torch._foreach_add_(list(site.node.updater.adding), list(own))
            else:
                passage.skip(passage.lot.numbers)

    def _collect_without(self, passage: Passage, kernel: TrainedKernel) -> None:
        """Collect once more, without the rows that are not finite."""
        span = kernel.all()
        xs, span.xs = span.xs, [None if x is None else x.clone() for x in span.xs]
        for op in (op for op in passage.layout.operations if op.site is kernel.site):
            rows = self._bad_rows(passage, op)
            if len(rows):
                states = self._states(passage, op, rows)
                passage.skip(states.columns[0].tolist() if states is not None else passage.lot.numbers)
                at = torch.from_numpy(rows + op.start - kernel.start)
                for tensor in (span.g, *(x for x in span.xs if x is not None), *span.named.values()):
                    if tensor.is_floating_point():
                        tensor[at] = 0
        kernel.collect()
        span.xs = xs  # a span of a fixed layout is used again

    def stop(self, passage: Passage, op: Operation) -> None:
        """If instances may be skipped: zero a gradient that is not finite at the row where it arrives."""
        out = passage.kernels[op.site.number].out
        if out.grad is None or len(out.grad) != out.rows:  # no message has a row of it to itself
            return
        g = out.grad[op.start : op.stop]
        if math.isfinite(float(g.sum())):
            return
        bad = np.flatnonzero(_not_finite(g))
        if len(bad):
            states = self._states(passage, op, bad)
            passage.skip(passage.lot.numbers if states is None else states.columns[0].tolist())
            g[torch.from_numpy(bad).to(g.device)] = 0

    def _states(self, passage: Passage, op: Operation, rows: np.ndarray | None = None) -> States | None:
        with suppress(AmpnetError):
            states = passage.planner.states_of(passage.lot, op.site, op.round)
            return states if rows is None else states.take(rows)
        return None

    def named(self, passage: Passage, op: Operation, direction: str, error: Exception) -> Exception:
        """An error of an operation, with node and states."""
        op = getattr(passage.kernels[op.site.number], "playing", op)
        if isinstance(error, NodeError | PlanError):
            return error
        if op.site.source is not None:
            return NodeError(op.site.name, direction, None, self.worker, error)
        if op.site.node is None:
            numbers = passage.lot.numbers
            what = f"input '{_input(passage.lot, op.site.number)}'"
            return DataError(f"{what}, instances {numbers[0]} to {numbers[-1]}: {error}")
        states = self._states(passage, op)
        if direction == "forward" and states is not None and not isinstance(error, MemoryError):
            states = _culprit(passage, op, states)
        return NodeError(op.site.name, direction, states, self.worker, error)


def _owners(lot: Lot, site: int) -> tuple[np.ndarray, States]:
    """The instance, and the state, of every row of an input."""
    found = [m for end, m in lot.messages() if lot.sites.pumped_at(end).number == site]
    states = States.merge([m.states.take(np.repeat(np.arange(len(m)), m.row_counts())) for m in found])
    return states.columns[0], states


def _input(lot: Lot, site: int) -> str:
    return lot.sites.graph.inputs[lot.sites.sites[site].end.port].name


def _evidence(passage: Passage, site: Site) -> list[Tensor]:
    """Tensors that are finite if all gradients of a site's parameters are: the sums of matrices (a gradient that is not
    finite shows in every product with it), or what will be added to rows of a table."""
    node, kernel = site.node, passage.kernels.get(site.number)
    assert isinstance(node, Parameterised)
    updater = node.updater
    if kernel is not None and updater.touched is not None:
        return [] if kernel.out.grad is None else [kernel.out.grad]
    totals = [] if updater.went else list(list.__iter__(updater.adding))
    return [total for total in totals if total.dim() > 1] or totals


def left_out(passage: Passage) -> Report:
    """Instances with finite losses and a gradient that is not finite: they are counted as skipped."""
    numbers = np.array([sorted(passage.skipped - passage.told)])
    name = next(node.label for node in passage.planner.sites.nodes.values() if isinstance(node, Loss))
    nothing, count = np.zeros(numbers.shape[1], dtype=np.int64), numbers.shape[1]
    states = States.trusted(("instance",), numbers)
    return Report(name, states, True, torch.zeros(count), {}, nothing, skipped=np.arange(count))


def _not_finite(rows: Tensor) -> np.ndarray:
    """For each row, whether any of its numbers is not finite."""
    finite = torch.isfinite(rows)
    return ~(finite.flatten(1).all(1) if rows.dim() > 1 else finite).numpy(force=True)


def _all_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether all numbers are finite; False also if only their sum is not."""
    known = calls.finite(tensors)
    return math.isfinite(float(torch.stack([t.sum() for t in tensors]).sum())) if known is None else known


def _finite(tensors: Iterator[Tensor]) -> bool:
    return all(bool(torch.isfinite(t).all()) for t in tensors)


def _culprit(passage: Passage, op: Operation, states: States) -> States:
    """The state of the first row that fails alone; all of them where none does."""
    node, kernel = op.site.node, passage.kernels[op.site.number]
    if node is None or (len(node.inputs) != 1 and not isinstance(node, Parameterised)):
        return states
    try:
        reads = [kernel.rows(op, i) for i in range(len(op.reads))]
        x = torch.cat(reads, -1) if len(reads) > 1 else reads[0]
    except Exception:  # rows that cannot be concatenated
        return states
    return culprit(node, Messages.trusted(x, states, None, passage.train)).states
