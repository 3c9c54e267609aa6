"""Metrics: numbers that a Loss reports beside its loss. Nothing is trained by them.

    a function of rows       (prediction rows, label rows) -> a number per row         reported: the mean over rows
    Ratio(top, bottom)       two such functions                                        reported: sum / sum

Accuracy is a mean over rows. Precision, recall and F1 are not: they are ratios of sums over all rows, which a mean of
ratios of batches is not equal to.

    found = lambda scores, label: (scores.argmax(-1) == 1).float()
    right = lambda scores, label: found(scores, label) * (label == 1)
    f1 = Ratio(lambda s, y: 2 * right(s, y), lambda s, y: found(s, y) + (y == 1))         2 TP / (2 TP + FP + FN)

Each loss function has a default metric (accuracy or absolute error); ``metrics=`` adds to it, or replaces it by one
of the same name. A report has columns of sums: one for a function, two for a ratio, the second with `PER` in its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Metric = Callable[[Tensor, Tensor], Tensor]
"""(prediction rows, label rows) -> a number per row; reported as its mean."""

PER = " per"
"""How the column of what a metric is divided by is called, after the metric's own name."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A metric that is a ratio of two sums over rows: F1, precision, recall."""

    top: Metric
    """The summands of the numerator: a number per row."""
    bottom: Metric
    """The summands of the denominator. If the sum is zero, the metric is NaN."""


def columns(usual: Mapping[str, Metric], given: Mapping[str, Metric | Ratio] | None) -> dict[str, Metric]:
    """The columns of sums that a loss reports, by name: its usual metrics and those given."""
    out = dict(usual)
    for name, metric in (given or {}).items():
        if name == "loss" or name.endswith(PER):
            raise ValueError(f"a metric cannot be called {name!r}: that is the loss itself, or a part of a ratio")
        out[name] = metric.top if isinstance(metric, Ratio) else metric
        out.pop(name + PER, None)
        if isinstance(metric, Ratio):
            out[name + PER] = metric.bottom
    return out


def correct(prediction: Tensor, label: Tensor) -> Tensor:
    """1 for each row of scores whose highest is that of the label."""
    return (prediction.argmax(-1) == label).to(torch.float32)


def positive(prediction: Tensor, label: Tensor) -> Tensor:
    """The share of a row's logits that have the sign of their label: above 0 for a label above 0.5."""
    right = ((prediction > 0) == (label > 0.5)).to(torch.float32)
    return right.flatten(1).mean(1) if right.dim() > 1 else right


def chosen(choice: Tensor, label: Tensor) -> Tensor:
    """1 for each choice that is the label."""
    return (choice == label).to(torch.float32)


def absolute(prediction: Tensor, label: Tensor) -> Tensor:
    """Mean absolute difference over the numbers of each row."""
    difference = (prediction - label).abs()
    return difference.flatten(1).mean(1) if difference.dim() > 1 else difference
