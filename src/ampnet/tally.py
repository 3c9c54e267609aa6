"""Tally: what the reports of losses add up to, for one stream.

The mean loss and each metric are over the rows that had one: a stream may have several losses with different metrics,
and in inference messages without a label, which have no loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from ampnet.message import take_rows
from ampnet.nodes.node import Report
from ampnet.state import Column


@dataclass(slots=True, eq=False)
class Tally:
    """Sums over the reports of a stream so far."""

    loss_sum: float = 0.0
    loss_rows: int = 0
    metric_sums: dict[str, float] = field(default_factory=dict)
    metric_rows: dict[str, int] = field(default_factory=dict)
    skipped: int = 0
    """Messages whose loss was not finite and whose gradient was left out."""
    predictions: dict[int, list[tuple[str, dict[str, int], Tensor]]] = field(default_factory=dict)
    """By position in the stream, where they are kept: (Loss node, state, prediction rows) of each result."""

    @property
    def loss(self) -> float:
        return _mean(self.loss_sum, self.loss_rows)

    @property
    def metrics(self) -> dict[str, float]:
        return {name: _mean(total, self.metric_rows[name]) for name, total in self.metric_sums.items()}

    def add(self, report: Report) -> None:
        """Add a report, all of it about messages of this stream."""
        if len(report.rows) == 1 and report.labelled and not len(report.skipped):
            count = int(report.rows[0])
            self.loss_sum += float(report.loss) * count
            self.loss_rows += count
            for name, values in report.metrics.items():
                self.metric_sums[name] = self.metric_sums.get(name, 0.0) + float(values)
                self.metric_rows[name] = self.metric_rows.get(name, 0) + count
            return
        where = np.setdiff1d(np.arange(len(report.states)), report.skipped) if len(report.skipped) else slice(None)
        self.skipped += len(report.skipped)
        rows = report.rows[where]
        count = int(rows.sum())
        if report.labelled:
            self.loss_sum += float(_numbers(report.loss)[where] @ rows)
            self.loss_rows += count
        for name, values in report.metrics.items():
            self.metric_sums[name] = self.metric_sums.get(name, 0.0) + float(_numbers(values)[where].sum())
            self.metric_rows[name] = self.metric_rows.get(name, 0) + count

    def keep(self, report: Report, positions: Mapping[int, int]) -> None:
        """Keep the predictions of a report; ``positions`` leads from instance numbers to places in the stream."""
        if report.prediction is None:
            return
        offsets = report.offsets if report.offsets is not None else np.arange(len(report.states) + 1)
        for i in range(len(report.states)):
            state = report.states.row(i)
            rows = report.prediction[int(offsets[i]) : int(offsets[i + 1])].clone()
            self.predictions.setdefault(positions[state["instance"]], []).append((report.node, state, rows))


def part_of(report: Report, where: Column) -> Report:
    """The part of a report that is about the messages at these positions."""
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


def _mean(total: float, rows: int) -> float:
    return total / rows if rows else float("nan")


def _numbers(values: Tensor) -> np.ndarray:
    return values.numpy() if values.dtype == torch.float64 else values.to(torch.float64).numpy(force=True)
