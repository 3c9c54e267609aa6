"""Tally: sums and means of the reports of losses, for one stream.

Losses are grouped by name; a mean is over the rows that reached the losses of one name.

    one name           loss                                  accuracy, f1
    several            loss = the sum of the losses' means   mood.loss, mood.accuracy, size.loss, size.absolute_error

In inference, messages without a label have no loss, and are in no mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ampnet.errors import CheckpointError
from ampnet.message import take_rows
from ampnet.nodes.metrics import PER
from ampnet.nodes.node import Report
from ampnet.state import Column

_LATE = 256
"""Reports that wait to be read, at most."""


@dataclass(slots=True, eq=False)
class _Sums:
    """Sums over the losses of one name."""

    loss: float = 0.0
    rows: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    metric_rows: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, total: float, rows: int) -> None:
        self.metrics[name] = self.metrics.get(name, 0.0) + total
        self.metric_rows[name] = self.metric_rows.get(name, 0) + rows

    def means(self) -> dict[str, float]:
        """Returns the metrics: means over rows, or ratios of sums."""
        return {
            name: _mean(total, self.metrics.get(name + PER, self.metric_rows[name]))
            for name, total in self.metrics.items()
            if not name.endswith(PER)
        }


@dataclass(slots=True, eq=False)
class Tally:
    """Sums over the reports of a stream so far."""

    names: Mapping[str, str] = field(default_factory=dict)
    """Loss names by reporting node; a node that is missing here reports under its own name."""
    skipped: int = 0
    """The number of messages whose loss was not finite and whose gradient was skipped."""
    predictions: dict[int, list[tuple[str, dict[str, int], Tensor]]] = field(default_factory=dict)
    """By position in the stream, if kept: (Loss node, state, prediction rows) of each result."""
    _sums: dict[str, _Sums] = field(default_factory=dict)
    _late: list[tuple[str, Report]] = field(default_factory=list)
    """Reports whose numbers are on a GPU, where they may still be computed: they are read together, when somebody wants
    to know."""

    def settle(self) -> None:
        """Add the reports that have not been read yet."""
        late, self._late = self._late, []
        if not late:
            return
        tensors = [t.reshape(1).to(torch.float64) for _, r in late for t in (r.loss, *r.metrics.values())]
        numbers = iter(torch.cat(tensors).tolist())
        for name, report in late:
            self._add_one(name, next(numbers), {m: next(numbers) for m in report.metrics}, int(report.rows[0]))

    def _add_one(self, name: str, loss: float, metrics: Mapping[str, float], count: int) -> None:
        sums = self._sums[name]
        sums.loss += loss * count
        sums.rows += count
        for metric, value in metrics.items():
            sums.add(metric, value, count)

    @property
    def losses(self) -> dict[str, float]:
        """The mean of each loss, by name, in the order of the graph."""
        self.settle()
        order = dict.fromkeys([*self.names.values(), *self._sums])
        return {name: _mean(of.loss, of.rows) for name in order if (of := self._sums.get(name)) is not None}

    @property
    def loss(self) -> float:
        """The sum of the losses' means."""
        self.settle()
        means = [_mean(of.loss, of.rows) for of in self._sums.values() if of.rows]
        return sum(means) if means else float("nan")

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics by name; with losses of several names, prefixed with the loss's name and a dot."""
        self.settle()
        order = dict.fromkeys([*self.names.values(), *self._sums])
        if len(order) == 1:
            return {name: value for of in self._sums.values() for name, value in of.means().items()}
        out: dict[str, float] = {}
        for loss in order:
            if (of := self._sums.get(loss)) is not None:
                means = {"loss": _mean(of.loss, of.rows), **of.means()}
                out |= {f"{loss}.{name}": value for name, value in means.items()}
        return out

    def add(self, report: Report) -> None:
        """Add a report whose messages are all of this stream."""
        if not report.labelled:
            self.skipped += len(report.skipped)
            return
        name = self.names.get(report.node, report.node)
        sums = self._sums.get(name)
        if sums is None:
            sums = self._sums[name] = _Sums()
        if len(report.rows) == 1 and not len(report.skipped):
            if report.loss.is_cuda and all(values.is_cuda for values in report.metrics.values()):
                self._late.append((name, report))
                if len(self._late) >= _LATE:
                    self.settle()
                return
            numbers = {metric: float(value) for metric, value in report.metrics.items()}
            self._add_one(name, float(report.loss), numbers, int(report.rows[0]))
            return
        where = np.setdiff1d(np.arange(len(report.states)), report.skipped) if len(report.skipped) else slice(None)
        self.skipped += len(report.skipped)
        rows = report.rows[where]
        count = int(rows.sum())
        sums.loss += float(_numbers(report.loss)[where] @ rows)
        sums.rows += count
        for metric, values in report.metrics.items():
            sums.add(metric, float(_numbers(values)[where].sum()), count)

    def keep(self, report: Report, positions: Mapping[int, int]) -> None:
        """Keep the predictions of a report; ``positions`` maps instance numbers to positions in the stream."""
        if report.prediction is None:
            return
        offsets = report.offsets if report.offsets is not None else np.arange(len(report.states) + 1)
        for i in range(len(report.states)):
            state = report.states.row(i)
            rows = report.prediction[int(offsets[i]) : int(offsets[i + 1])].clone()
            self.predictions.setdefault(positions[state["instance"]], []).append((report.node, state, rows))

    def state(self) -> dict[str, Any]:
        """Returns the sums as plain data, exact: floats are Python's, which JSON keeps to the last bit."""
        if self.predictions:
            raise CheckpointError("a stream that keeps its predictions cannot be continued: run it from the start")
        self.settle()
        return {"skipped": self.skipped, "sums": {name: asdict(sums) for name, sums in self._sums.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from these sums."""
        self.skipped = int(state["skipped"])
        self._sums = {name: _Sums(**sums) for name, sums in state["sums"].items()}


def part_of(report: Report, where: Column) -> Report:
    """Returns the part of a report for the messages at these positions."""
    prediction, offsets = take_rows(report.prediction, report.offsets, where)
    index = torch.from_numpy(where).to(report.loss.device)
    return replace(
        report,
        states=report.states.take(where),
        loss=report.loss[index],
        metrics={name: values[index] for name, values in report.metrics.items()},
        rows=report.rows[where],
        prediction=prediction,
        offsets=offsets,
        skipped=np.flatnonzero(np.isin(where, report.skipped)),
    )


def is_loss(name: str) -> bool:
    """Whether a name among metrics is that of a loss: "loss", "mood.loss"."""
    return name == "loss" or name.endswith(".loss")


def by_loss(metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns the losses among these metrics, by name; empty if there is one loss."""
    return {name.removesuffix(".loss"): value for name, value in metrics.items() if name.endswith(".loss")}


def _mean(total: float, over: float) -> float:
    return total / over if over else float("nan")


def _numbers(values: Tensor) -> np.ndarray:
    return values.numpy() if values.dtype == torch.float64 else values.to(torch.float64).numpy(force=True)
