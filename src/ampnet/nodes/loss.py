"""Loss: joins prediction and label by key, starts the backward run and reports to the controller.

    forward    loss of each message = mean over its rows of l(prediction row, label row)
    backward   starts here: d loss / d prediction to the prediction, an empty answer to the label
    inference  reports the prediction (and loss and metrics where a label was given) and starts nothing

A **selection** is one choice among the rows of a message, however many there are: the prediction has a score for every
candidate, the label is a single number, which of them is right.

    scores   [s_0 s_1 s_2] [s_3 s_4]        label   2, 0
    loss     logsumexp(s_0 s_1 s_2) - s_2   logsumexp(s_3 s_4) - s_3        one a message
    gradient softmax of the message's scores, less 1 at the right one

A label of None (``Messages(None, states)``) is allowed in inference: it says that a prediction is wanted.
A loss that is not finite stops the run (``on_nan="stop"``) or leaves its gradient out and is counted (``"skip"``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ampnet.errors import LossError, PayloadError
from ampnet.key import Packer
from ampnet.message import Messages, index_tensor, rows_each
from ampnet.native import calls
from ampnet.nodes.join import Join, Joined
from ampnet.nodes.keyed import Keyed
from ampnet.nodes.metrics import Metric, Ratio, absolute, chosen, columns, correct, positive
from ampnet.nodes.node import Node, Output, Outputs, Report, backward_to
from ampnet.nodes.reduce import segment_logsumexp, segment_max, segment_sum
from ampnet.state import Column, Ints, States

LossFunction = Callable[[Tensor, Tensor], Tensor]
"""(prediction rows, label rows) -> the loss of each row, differentiable."""

_NONE = np.zeros(0, dtype=np.int64)
_NEVER = -(2**62)
"""A label that does not occur: torch would silently ignore its default, -100."""


class Loss(Node):
    """``Loss("cross_entropy")``, ``Loss("binary_cross_entropy")``, ``Loss("squared_error")``,
    ``Loss("absolute_error")``, ``Loss("selection")``, or any differentiable function of rows. Binary cross entropy
    takes logits; it and the errors are means over the numbers of a row.

    Cross entropies and selection report ``accuracy``, both errors ``absolute_error``; ``metrics`` are reported beside
    it, or in its place under the same name (see `ampnet.nodes.metrics`). ``weight`` multiplies the loss, as reported,
    and its gradient. ``loss_name`` is the loss's name in statistics, if not the node's own: losses of the same name are
    reported as one.
    """

    role = "loss"
    looks_at_states = True
    kind = "loss"
    inputs = ("prediction", "label")
    outputs = ()
    reports_as: str | None = None
    """The name in reports, where it is not the node's own: that of the loss of which this is a replica."""

    def __init__(
        self,
        function: Literal["cross_entropy", "binary_cross_entropy", "squared_error", "absolute_error", "selection"]
        | LossFunction = "cross_entropy",
        metrics: Mapping[str, Metric | Ratio] | None = None,
        on_nan: Literal["stop", "skip"] = "stop",
        key: Sequence[str] | None = None,
        *,
        weight: float = 1.0,
        loss_name: str | None = None,
    ) -> None:
        known: dict[str, tuple[str, Metric]] = {
            "cross_entropy": ("accuracy", correct),
            "binary_cross_entropy": ("accuracy", positive),
            "squared_error": ("absolute_error", absolute),
            "absolute_error": ("absolute_error", absolute),
            "selection": ("accuracy", chosen),
        }
        if isinstance(function, str) and function not in known:
            raise ValueError(f"Loss knows {', '.join(known)}, or takes a function of rows; got {function!r}")
        if on_nan not in ("stop", "skip"):
            raise ValueError(f"on_nan must be stop or skip, got {on_nan!r}")
        if function == "selection" and metrics:
            raise ValueError("a selection has one label for many rows, so there are no metrics by row")
        self.function, self.on_nan, self.weight, self._loss_name = function, on_nan, weight, loss_name
        self.selects = function == "selection"
        usual = dict([known[function]]) if isinstance(function, str) else {}
        self.metrics = columns(usual, metrics)
        self._usual = next((name for name, metric in usual.items() if self.metrics[name] is metric), None)
        """The metric that is computed together with the loss."""
        self._judge = calls.Judge()
        self._minus_one = torch.tensor(-1.0)
        self.key = Packer(key)
        self.join = Join(self.inputs, self.key, keep_states=True, same_rows=not self.selects)

    @property
    def label(self) -> str:
        """The name in reports."""
        return self.reports_as or self.name

    @property
    def loss_name(self) -> str:
        """The name in statistics."""
        return self._loss_name or self.label

    def forward(self, port: int, messages: Messages) -> Outputs:
        return [output for joined in self.join.arrive(port, messages) for output in self.judge(joined)]

    def judge(self, joined: Joined) -> list[Output]:
        prediction, label = joined.payloads
        last = joined.last
        batch = Messages.trusted(prediction, joined.states(0), joined.offsets(0), last.train)
        if prediction is None:
            raise PayloadError("got a prediction without a payload")
        counts = np.ones(len(batch), dtype=np.int64) if self.selects else batch.row_counts()
        if label is None:
            if last.train:
                raise LossError(f"no label for {batch.states.describe()}; only inference may leave it out")
            nothing = torch.full((len(batch),), torch.nan)
            total = segment_sum(prediction.flatten(1).sum(1), batch) if prediction.dim() > 1 else prediction
            bad = _not_finite(total) if prediction.is_floating_point() and len(total) == len(batch) else _NONE
            return [
                Report(
                    self.label,
                    batch.states,
                    False,
                    nothing,
                    {},
                    counts,
                    prediction,
                    batch.offsets,
                    skipped=bad,
                    labelled=False,
                )
            ]
        label_offsets = joined.offsets(1) if self.selects else last.offsets
        if self.selects:
            loss, g, metrics = self._selection(prediction, label, label_offsets, batch)
        else:
            rows, g = self._rows(prediction, label, batch)
            loss = _mean(rows, batch, counts)
            metrics = {name: segment_sum(m, batch) for name, m in self._measure(prediction, label).items()}
            if g is not None and batch.offsets is not None:
                g = _per_row(g, counts)
        if self.weight != 1:
            loss, g = loss * self.weight, None if g is None else g * self.weight
        if not last.train:
            bad = _not_finite(loss)
            return [
                Report(self.label, batch.states, False, loss, metrics, counts, prediction, batch.offsets, skipped=bad)
            ]
        assert g is not None
        answers = batch.with_payload(g)
        labels = Messages.trusted(None, joined.states(1), label_offsets, True)
        bad = _not_finite(loss)
        report = Report(self.label, batch.states, True, loss, metrics, counts, skipped=bad)
        if not len(bad):
            return [report, backward_to(0, answers), backward_to(1, labels)]
        if self.on_nan == "stop":
            raise LossError(
                f"the loss is {float(loss[int(bad[0])])} at {batch.states.take(bad[:1]).describe()}. Usual causes: a "
                f"learning rate that is too high, bad input. Remedy: clip_norm, or Loss(..., on_nan='skip') to leave "
                f"out such instances and count them"
            )
        good = np.setdiff1d(np.arange(len(batch)), bad, assume_unique=True)
        out: list[Output] = [report, backward_to(0, answers.with_payload(None).take(bad)), backward_to(1, labels)]
        if len(good):
            out.append(backward_to(0, answers.take(good)))
        return out

    def judge_all(
        self,
        prediction: Tensor,
        label: Tensor,
        offsets: Ints | None,
        label_offsets: Ints | None,
        states: Callable[[], States],
    ) -> tuple[Tensor | float, Tensor, dict[str, Tensor], int]:
        """Training messages whose single losses are not needed: the sum of losses and of metrics, each times its rows,
        the gradient, and the number of rows. ``states`` gives the messages' states, for an error."""
        n = len(prediction) if offsets is None else len(offsets) - 1
        known = self._in_one_call(prediction, label, offsets, label_offsets, n)
        if known is not None:
            return known
        batch = Messages.trusted(prediction, _Later(n, states), offsets, True)
        g: Tensor | None
        if self.selects:
            losses, g, metrics = self._selection(prediction, label, label_offsets, batch)
            count = n
        else:
            losses, g = self._rows(prediction, label, batch)
            metrics = self._measure(prediction, label)
            count = len(prediction)
            if g is not None and offsets is not None:
                g = _per_row(g, batch.row_counts())
        loss = losses.sum()
        assert g is not None
        if self.weight != 1:
            loss, g = loss * self.weight, g * self.weight
        return loss, g, {name: values.sum().view(1) for name, values in metrics.items()}, count

    def _in_one_call(
        self, prediction: Tensor, label: Tensor, offsets: Ints | None, label_offsets: Ints | None, n: int
    ) -> tuple[float, Tensor, dict[str, Tensor], int] | None:
        """What `judge_all` returns, computed natively. None if it is not, or a label is out of range."""
        function, judge, weight, x = self.function, self._judge, self.weight, prediction
        each, count = 1, n
        if not isinstance(function, str) or not calls.takes(x) or not n:
            return None
        if function == "selection":
            if x.numel() != len(x) or label.dtype != torch.int64 or label.numel() != n or rows_each(label_offsets) != 1:
                return None
            g = torch.empty_like(x, memory_format=torch.contiguous_format)
            done = judge.selection(x, offsets, label, g, weight)
        else:
            each, count = rows_each(offsets), len(x)  # the loss of a message is the mean over its rows
            if not each:
                return None
            if function == "cross_entropy":
                if label.dtype != torch.int64 or label.shape != x.shape[:-1] or x.dim() != 2:
                    return None
                g = torch.empty_like(x, memory_format=torch.contiguous_format)
                done = judge.cross_entropy(x, label, g, weight / each)
            elif label.shape != x.shape or label.dtype != x.dtype:
                return None
            else:
                g = torch.empty_like(x, memory_format=torch.contiguous_format)
                if function == "binary_cross_entropy":
                    done = judge.binary_cross_entropy(x, label, g, weight / each)
                else:
                    done = judge.errors(x, label, g, weight / each, squared=function == "squared_error")
        if not done or judge.wrong:
            return None
        found = {} if self._usual is None else {self._usual: torch.from_numpy(np.array([judge.metric]))}
        if len(self.metrics) > len(found):
            rest = self._measure(x, label, without=self._usual)
            found = {m: found[m] if m in found else rest[m].sum().view(1) for m in self.metrics}
        return each * judge.loss, g, found, count

    def _measure(self, prediction: Tensor, label: Tensor, without: str | None = None) -> dict[str, Tensor]:
        """Every metric of every row; ``without``: but this one."""
        out = {}
        for name, metric in self.metrics.items():
            if name == without:
                continue
            rows = metric(prediction, label)
            if not isinstance(rows, Tensor) or rows.shape != prediction.shape[:1]:
                shape = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
                raise PayloadError(
                    f"metric '{name}' must give a number for each of the {len(prediction)} rows, got {shape}. The mean "
                    f"is made later: return the values of the single rows"
                )
            out[name] = rows.to(torch.float32) if rows.dtype == torch.bool else rows
        return out

    def _rows(self, prediction: Tensor, label: Tensor, batch: Messages) -> tuple[Tensor, Tensor | None]:
        """Loss and gradient of every row."""
        if self.function == "cross_entropy":
            return self._cross_entropy(prediction, label, batch)
        if self.function in ("squared_error", "absolute_error"):
            return _error(prediction, label, squared=self.function == "squared_error")
        if self.function == "binary_cross_entropy":
            return _binary(prediction, label)
        assert not isinstance(self.function, str)
        with torch.enable_grad():
            leaf = prediction.detach().requires_grad_(batch.train)
            rows = self.function(leaf, label)
            if rows.shape != (prediction.shape[0],):
                raise PayloadError(f"the loss function must give a number per row, got shape {tuple(rows.shape)}")
            # A gradient may come as one number seen many times over; it is scaled, and summed into, later.
            g = torch.autograd.grad(rows.sum(), leaf)[0].contiguous() if batch.train else None
        return rows.detach(), g

    def _cross_entropy(self, prediction: Tensor, label: Tensor, batch: Messages) -> tuple[Tensor, Tensor | None]:
        classes = prediction.shape[-1]
        if label.dtype != torch.int64 or label.shape != prediction.shape[:-1] or prediction.dim() != 2:
            raise PayloadError(
                f"cross entropy needs rows of class scores and int64 labels, got {tuple(prediction.shape)} "
                f"{prediction.dtype} and {tuple(label.shape)} {label.dtype}"
            )
        logs = torch.log_softmax(prediction, 1)
        try:
            if label.is_cuda and bool(((label < 0) | (label >= classes)).any()):
                raise IndexError  # asked beforehand: a kernel that meets such a label takes the device down
            rows = torch.nn.functional.nll_loss(logs, label, reduction="none", ignore_index=_NEVER)
        except (IndexError, RuntimeError):
            wrong = ((label < 0) | (label >= classes)).nonzero()
            if not len(wrong):
                raise
            row = int(wrong[0])
            at = row if batch.offsets is None else int(np.searchsorted(batch.offsets, row, side="right")) - 1
            state = batch.states.take(np.array([at])).describe()
            raise LossError(
                f"label {int(label[row])} at {state} is out of range: there are {classes} classes, from 0 up"
            ) from None
        if not batch.train:
            return rows, None
        g = logs.exp_()
        picked = label.unsqueeze(1)
        g.scatter_add_(1, picked, self._minus_one.to(g).expand(picked.shape))
        return rows, g

    def _selection(
        self, prediction: Tensor, label: Tensor, label_offsets: Ints | None, batch: Messages
    ) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
        """Loss of every message, gradient of every row, and the metrics."""
        n, scores = len(batch), prediction.reshape(-1)
        if len(scores) != len(prediction) or prediction.dim() > 2:
            raise PayloadError(f"selection needs one score a row, got a prediction of shape {tuple(prediction.shape)}")
        if label.dtype != torch.int64 or label.numel() != n or rows_each(label_offsets) != 1:
            raise PayloadError(
                f"selection needs one int64 label a message, got {tuple(label.shape)} {label.dtype} for {n} messages"
            )
        offsets = batch.offsets if batch.offsets is not None else np.arange(n + 1)
        right, counts = label.numpy(force=True).reshape(-1), offsets[1:] - offsets[:-1]
        wrong = np.flatnonzero((right < 0) | (right >= counts))
        if len(wrong):
            at = int(wrong[0])
            raise LossError(
                f"label {int(right[at])} at {batch.states.take(wrong[:1]).describe()} is out of range: the message has "
                f"{int(counts[at])} rows to choose from, from 0 up"
            )
        total, g = segment_logsumexp(scores, batch)
        picked = index_tensor(offsets[:-1] + right, scores)
        loss = total - scores.index_select(0, picked)
        each = rows_each(batch.offsets)
        choice = scores.view(n, each).argmax(1) if each else segment_max(scores, batch)[1]
        metrics = {name: chosen(choice, label.reshape(-1)) for name in self.metrics}
        if not batch.train:
            return loss, None, metrics
        g.index_add_(0, picked, self._minus_one.to(g).expand(n))
        return loss, g.view(prediction.shape), metrics

    def backward(self, port: int, messages: Messages) -> Outputs:
        raise PayloadError("a Loss has no successor, so no gradient can come back to it")

    def stores(self) -> Iterator[tuple[str, Keyed]]:
        yield from self.join.stores()

    def waits(self) -> list[str]:
        return self.join.waits()

    def describe(self) -> str:
        name = self.function if isinstance(self.function, str) else getattr(self.function, "__name__", "loss")
        shown = f"Loss {name.replace('_', ' ')}"
        return shown if self.weight == 1 else f"{shown} × {self.weight:g}"


class _Later(States):
    """States that are computed lazily."""

    __slots__ = ("_count", "_find")

    def __init__(self, count: int, find: Callable[[], States]) -> None:
        object.__setattr__(self, "_count", count)
        object.__setattr__(self, "_find", find)

    def __len__(self) -> int:
        count: int = self._count  # type: ignore[assignment]
        return count

    def take(self, index: Column) -> States:
        found: States = self._find()  # type: ignore[operator]
        return found.take(index)


def _not_finite(losses: Tensor) -> Ints:
    """The positions of numbers that are not finite."""
    if not losses.numel() or math.isfinite(float(losses.sum())):
        return _NONE
    return np.flatnonzero(~torch.isfinite(losses).cpu().numpy())


def _error(prediction: Tensor, label: Tensor, squared: bool) -> tuple[Tensor, Tensor]:
    """Squared or absolute error of every row, and its gradient: ``2 d / width`` or ``sign(d) / width``, of which each
    number of a row has its own. Where a prediction is right, the gradient is zero."""
    width = _width(prediction, label)
    difference = prediction - label
    errors = difference * difference if squared else difference.abs()
    g = difference * (2 / width) if squared else difference.sign() * (1 / width)
    return errors.flatten(1).mean(1) if errors.dim() > 1 else errors, g


def _binary(prediction: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """Binary cross entropy of every row of logits, and its gradient ``(sigmoid(prediction) - label) / width``."""
    width = _width(prediction, label)
    rows = torch.nn.functional.binary_cross_entropy_with_logits(prediction, label, reduction="none")
    g = (torch.sigmoid(prediction) - label) * (1 / width)
    return rows.flatten(1).mean(1) if rows.dim() > 1 else rows, g


def _width(prediction: Tensor, label: Tensor) -> int:
    """Returns how many numbers a row has. Prediction and label must have the same shape and dtype."""
    if label.shape != prediction.shape:
        raise PayloadError(f"prediction is {tuple(prediction.shape)} and label {tuple(label.shape)}")
    if label.dtype != prediction.dtype:
        raise PayloadError(f"prediction is {prediction.dtype} and label {label.dtype}")
    return max(1, prediction[0].numel() if len(prediction) else 1)


def _mean(rows: Tensor, batch: Messages, counts: np.ndarray) -> Tensor:
    each = rows_each(batch.offsets)
    if each:
        return rows if each == 1 else rows.view(-1, each).mean(1)
    return segment_sum(rows, batch) / torch.as_tensor(np.maximum(counts, 1), device=rows.device).to(rows.dtype)


def _per_row(g: Tensor, counts: np.ndarray) -> Tensor:
    """The gradient of the mean over each message's rows."""
    if len(counts) == 1 or (len(counts) and (counts == counts[0]).all()):
        return g * (1 / max(1, int(counts[0])))
    share = index_tensor(np.repeat(np.maximum(counts, 1), counts), g).to(g.dtype)
    return g / share.view(-1, *[1] * (g.dim() - 1))
