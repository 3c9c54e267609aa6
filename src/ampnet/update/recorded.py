"""Recorded: the steps of optimizers as captured graphs, one for each set of nodes and settings.

    first time     the step's calls are made
    second time    they are made, and recorded
    from then on   one launch

A learning rate is a constant of the recorded calls, so a new rate (an epoch's schedule) is a new recording; where it
changes with every update, nothing comes a second time and nothing is recorded.
"""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ampnet.update.steps import Stepper

_KEPT = 16


def capture(calls: Callable[[], None], pool: Any) -> torch.cuda.CUDAGraph:
    """Record calls as a graph, without making them. ``pool``: the handle of the memory of graphs that never run at
    once."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    collects = gc.isenabled()
    gc.disable()  # a tensor of another graph must not be freed meanwhile
    torch.cuda.synchronize()
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                calls()
            except BaseException:
                with suppress(Exception):  # it says only that something failed before
                    graph.capture_end()
                raise
            graph.capture_end()
    finally:
        torch.cuda.synchronize()
        if collects:
            gc.enable()
    return graph


@dataclass(slots=True, eq=False)
class _Step:
    state: list[tuple[list[Tensor], ...]]
    gradients: list[Tensor]
    graph: torch.cuda.CUDAGraph | None = None

    def holds(self, state: Sequence[object], gradients: Sequence[Tensor]) -> bool:
        """Whether it was recorded with these very tensors."""
        if len(self.state) != len(state) or len(self.gradients) != len(gradients):
            return False
        same = all(a is b for a, b in zip(self.state, state, strict=True))
        return same and all(a is b for a, b in zip(self.gradients, gradients, strict=True))


class RecordedSteps:
    """See the head of this file."""

    def __init__(self, pool: Any) -> None:
        """``pool``: a handle of `torch.cuda.graph_pool_handle`."""
        self._pool = pool
        self._known: OrderedDict[tuple[object, ...], _Step] = OrderedDict()

    def step(self, steppers: Sequence[Stepper], gradients: list[Tensor], count: int) -> None:
        """One step of several optimizers of one kind and equal settings, as `Stepper.step_all`."""
        first, key = steppers[0], (steppers[0].settings(), count, *map(id, steppers))
        state = [one._look() for one in steppers]
        known = self._known.get(key)
        if known is None or not known.holds(state, gradients):
            first.step_all(steppers, gradients, count)
            self._known[key] = _Step([one._look() for one in steppers], list(gradients))
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
            return
        self._known.move_to_end(key)
        if known.graph is None:
            first.step_all(steppers, gradients, count)
            if (steppers[0].settings(), count, *map(id, steppers)) == key:
                known.graph = capture(lambda: first.launch(steppers, gradients, count), self._pool)
            return
        known.graph.replay()
        for one in steppers:
            one.optimizer._opt_called = True  # type: ignore[attr-defined]
            one.taken()
