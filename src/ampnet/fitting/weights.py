"""Best weights: keep a copy of the weights of the best epoch, and restore it at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ampnet.fitting.better import Best, Mode
from ampnet.fitting.callback import Callback, Run
from ampnet.fitting.records import EpochRecord, FitResult


class BestWeights(Callback):
    """Copies the weights after each epoch that is the best so far, by ``metric`` (see `EarlyStopping`).

    Epochs end at rest (``at_rest``): the copy is made when nothing is in flight and all updates are made, also on
    worker processes, which have the weights in shared memory. So it is exactly what the validation measured; the cost
    is that epochs do not overlap.

    With ``restore``, the model has the best epoch's weights after `fit`, also after an interrupt. ``state_dict`` holds
    them in any case, on the CPU; ``epoch`` and ``value`` identify the epoch.
    """

    at_rest = True

    def __init__(self, metric: str = "loss", *, mode: Mode | None = None, restore: bool = True) -> None:
        self.metric, self.mode, self.restore = metric, mode, restore
        self.best = Best(metric, mode)
        self.state_dict: dict[str, Tensor] | None = None
        """The weights of the best epoch; None before the first."""

    @property
    def epoch(self) -> int:
        """The best epoch; 0 before the first."""
        return self.best.epoch

    @property
    def value(self) -> float:
        """Its value of the metric."""
        return self.best.value

    def on_begin(self, run: Run) -> None:
        run.check(self.metric)
        graph = run.runtime.graph
        self._module = getattr(graph, "model", None) or graph.module()
        self.best, self.state_dict = Best(self.metric, self.mode), None

    def state(self) -> dict[str, Any]:
        return {"best": self.best.state(), "weights": self.state_dict}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.best.restore(state["best"])
        self.state_dict = None if state["weights"] is None else dict(state["weights"])

    def on_epoch_end(self, record: EpochRecord) -> None:
        if self.best.improves(record):
            values = self._module.state_dict().items()
            self.state_dict = {name: value.detach().to("cpu", copy=True) for name, value in values}

    def on_end(self, result: FitResult) -> None:
        if self.restore and self.state_dict is not None:
            self._module.load_state_dict(self.state_dict)
