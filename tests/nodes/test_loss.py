"""Loss: starts the backward run, reports, and refuses what it cannot judge."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from ampnet.errors import LossError, PayloadError
from ampnet.message import Messages
from ampnet.nodes import Loss
from ampnet.nodes.node import Direction, Outputs, Report
from ampnet.state import States
from ampnet.testing import assert_close


def judge(
    node: Loss,
    prediction: torch.Tensor,
    label: torch.Tensor | None,
    offsets: list[int] | None = None,
    train: bool = True,
) -> Outputs:
    starts = None if offsets is None else np.array(offsets)
    n = len(prediction) if starts is None else len(starts) - 1
    states = States.of(instance=np.arange(n) + 3)
    node.forward(1, Messages(label, states, starts, train=train))
    return node.forward(0, Messages(prediction, states, starts, train=train))


def parts(outputs: Outputs) -> tuple[Report, dict[int, list[Messages]]]:
    (report,) = [o for o in outputs if isinstance(o, Report)]
    back: dict[int, list[Messages]] = {}
    for output in outputs:
        if not isinstance(output, Report):
            assert output[0] is Direction.BACKWARD
            back.setdefault(output[1], []).append(output[2])
    return report, back


@pytest.mark.parametrize("offsets", [None, [0, 2, 3, 6], [0, 2, 4, 6]])
@pytest.mark.parametrize(
    "kind", ["cross_entropy", "binary_cross_entropy", "squared_error", "absolute_error", "function"]
)
def test_losses_and_gradients_equal_autograd(kind: str, offsets: list[int] | None) -> None:
    torch.manual_seed(0)
    prediction = torch.randn(6, 4, dtype=torch.float64)
    label = torch.randint(0, 4, (6,)) if kind == "cross_entropy" else torch.randn(6, 4, dtype=torch.float64)

    def smooth(p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return nn.functional.smooth_l1_loss(p, t, reduction="none").sum(1)

    if kind == "absolute_error":
        prediction[1, 2] = label[1, 2]  # what is right has no gradient
    errors = {
        "binary_cross_entropy": nn.functional.binary_cross_entropy_with_logits,
        "squared_error": nn.functional.mse_loss,
        "absolute_error": nn.functional.l1_loss,
    }
    node = Loss(smooth if kind == "function" else kind)  # type: ignore[arg-type]
    report, back = parts(judge(node, prediction, label, offsets))
    leaf = prediction.clone().requires_grad_()
    starts = offsets or list(range(7))
    want = []
    for a, b in itertools.pairwise(starts):
        p, t = leaf[a:b], label[a:b]
        if kind == "cross_entropy":
            want.append(nn.functional.cross_entropy(p, t))
        else:
            want.append(errors[kind](p, t) if kind in errors else smooth(p, t).mean())
    (g,) = torch.autograd.grad(torch.stack(want).sum(), leaf)
    ((answer,), (empty,)) = back[0], back[1]
    assert answer.payload is not None and empty.payload is None
    assert_close({"g": answer.payload, "loss": report.loss}, {"g": g, "loss": torch.stack(want).detach()})
    assert report.train and report.prediction is None
    assert not any(node.held().values())


def test_cross_entropy_reports_accuracy_and_errors_the_absolute_error() -> None:
    scores = torch.tensor([[2.0, 1.0], [0.0, 1.0], [5.0, 1.0]])
    report, _ = parts(judge(Loss("cross_entropy"), scores, torch.tensor([0, 1, 1]), [0, 2, 3]))
    assert report.metrics["accuracy"].tolist() == [2.0, 0.0]
    assert report.rows.tolist() == [2, 1]
    for kind in ("squared_error", "absolute_error"):
        node = Loss(kind)  # type: ignore[arg-type]
        report, _ = parts(judge(node, torch.tensor([[1.0], [3.0]]), torch.tensor([[2.0], [0.0]])))
        assert report.metrics["absolute_error"].tolist() == [1.0, 3.0]
    logits, wanted = torch.tensor([[1.0, -2.0], [3.0, 1.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    report, _ = parts(judge(Loss("binary_cross_entropy"), logits, wanted))
    assert report.metrics["accuracy"].tolist() == [1.0, 0.5]
    report, _ = parts(judge(Loss(metrics={"first": lambda p, t: p[:, 0]}), scores, torch.tensor([0, 1, 1])))
    assert report.metrics["first"].tolist() == [2.0, 0.0, 5.0]


def test_inference_returns_the_prediction_and_starts_nothing() -> None:
    scores = torch.tensor([[2.0, 1.0], [0.0, 1.0]])
    report, back = parts(judge(Loss(), scores, torch.tensor([0, 0]), train=False))
    assert not back and report.prediction is scores and report.metrics["accuracy"].tolist() == [1.0, 0.0]
    report, back = parts(judge(Loss(), scores, None, train=False))
    assert not back and report.prediction is scores and math.isnan(float(report.loss[0]))


def test_a_label_out_of_range_is_named() -> None:
    with pytest.raises(LossError, match=r"label 4 at \(instance=4\) is out of range: there are 3 classes"):
        judge(Loss(), torch.zeros(4, 3), torch.tensor([0, 1, 4, 2]), [0, 1, 4])
    with pytest.raises(LossError, match=r"label -1 at \(instance=3\)"):
        judge(Loss(), torch.zeros(1, 3), torch.tensor([-1]))


def test_a_loss_that_is_not_a_number_stops_or_is_skipped() -> None:
    scores = torch.tensor([[2.0, 1.0], [math.nan, 1.0], [0.0, 1.0]])
    with pytest.raises(LossError, match=r"the loss is nan at \(instance=4\).*on_nan='skip'"):
        judge(Loss(), scores, torch.tensor([0, 1, 1]))
    report, back = parts(judge(Loss(on_nan="skip"), scores, torch.tensor([0, 1, 1])))
    assert report.skipped.tolist() == [1]
    empty, good = sorted(back[0], key=lambda m: m.payload is not None)
    assert empty.payload is None and empty.states.instance.tolist() == [4]
    assert good.states.instance.tolist() == [3, 5] and bool(torch.isfinite(good.payload).all())  # type: ignore[arg-type]


def select(
    node: Loss, scores: torch.Tensor, offsets: list[int] | None, label: torch.Tensor | None, train: bool = True
) -> Outputs:
    starts = None if offsets is None else np.array(offsets)
    n = len(scores) if starts is None else len(starts) - 1
    states = States.of(instance=np.arange(n) + 3)
    node.forward(0, Messages(scores, states, starts, train=train))
    return node.forward(1, Messages(label, states, train=train))


@pytest.mark.parametrize("offsets", [[0, 2, 3, 7], [0, 2, 4, 6], None])
@pytest.mark.parametrize("flat", [True, False])
def test_selection_equals_autograd(offsets: list[int] | None, flat: bool) -> None:
    torch.manual_seed(0)
    starts = offsets or [0, 1, 2, 3]
    scores = 1000 * torch.randn(starts[-1], dtype=torch.float64)
    label = torch.tensor([b - a - 1 for a, b in itertools.pairwise(starts)])
    node = Loss("selection", weight=0.5)
    report, back = parts(select(node, scores if flat else scores.unsqueeze(1), offsets, label))
    leaf = scores.clone().requires_grad_()
    want = [
        0.5 * nn.functional.cross_entropy(leaf[a:b], t)
        for (a, b), t in zip(itertools.pairwise(starts), label, strict=True)
    ]
    (g,) = torch.autograd.grad(torch.stack(want).sum(), leaf)
    ((answer,), (empty,)) = back[0], back[1]
    assert answer.payload is not None and answer.payload.dim() == (1 if flat else 2) and empty.payload is None
    assert_close({"g": answer.payload.flatten(), "loss": report.loss}, {"g": g, "loss": torch.stack(want).detach()})
    assert (None if answer.offsets is None else answer.offsets.tolist()) == offsets and empty.offsets is None
    assert report.rows.tolist() == [1, 1, 1]
    assert not any(node.held().values())


def test_selection_is_right_where_the_first_of_the_largest_is_the_label() -> None:
    scores, offsets = torch.tensor([1.0, 3.0, 3.0, 5.0, 0.0, 9.0]), [0, 3, 5, 6]
    report, _ = parts(select(Loss("selection"), scores, offsets, torch.tensor([1, 1, 0])))
    assert report.metrics["accuracy"].tolist() == [1.0, 0.0, 1.0]
    report, _ = parts(select(Loss("selection"), scores, offsets, torch.tensor([[2], [0], [0]])))
    assert report.metrics["accuracy"].tolist() == [0.0, 1.0, 1.0]


def test_selection_in_inference_reports_every_score() -> None:
    scores, offsets = torch.tensor([1.0, 3.0, 3.0]), [0, 2, 3]
    for label in (torch.tensor([0, 0]), None):
        report, back = parts(select(Loss("selection"), scores, offsets, label, train=False))
        assert not back and report.prediction is scores and report.offsets is not None
        assert report.offsets.tolist() == offsets and report.rows.tolist() == [1, 1]
        assert report.labelled is (label is not None)


def test_selection_names_what_it_cannot_judge() -> None:
    scores, offsets = torch.zeros(3), [0, 2, 3]
    with pytest.raises(LossError, match=r"label 1 at \(instance=4\) is out of range: the message has 1 rows to choose"):
        select(Loss("selection"), scores, offsets, torch.tensor([0, 1]))
    with pytest.raises(LossError, match=r"label -1 at \(instance=3\)"):
        select(Loss("selection"), scores, offsets, torch.tensor([-1, 0]))
    with pytest.raises(LossError, match=r"label 0 at \(instance=4\) is out of range: the message has 0 rows"):
        select(Loss("selection"), scores, [0, 3, 3], torch.tensor([0, 0]))
    with pytest.raises(PayloadError, match=r"one score a row, got a prediction of shape \(3, 2\)"):
        select(Loss("selection"), torch.zeros(3, 2), offsets, torch.tensor([0, 0]))
    with pytest.raises(PayloadError, match="one int64 label a message"):
        select(Loss("selection"), scores, offsets, torch.zeros(2))
    with pytest.raises(ValueError, match="no metrics by row"):
        Loss("selection", metrics={"first": lambda p, t: p})


def test_selection_leaves_out_what_is_not_a_number() -> None:
    scores = torch.tensor([1.0, math.nan, 3.0])
    report, back = parts(select(Loss("selection", on_nan="skip"), scores, [0, 2, 3], torch.tensor([0, 0])))
    assert report.skipped.tolist() == [0]
    empty, good = sorted(back[0], key=lambda m: m.payload is not None)
    assert empty.states.instance.tolist() == [3] and good.states.instance.tolist() == [4]


def test_the_weight_multiplies_loss_and_gradient() -> None:
    scores, label = torch.tensor([[2.0, 1.0], [0.0, 1.0]]), torch.tensor([0, 0])
    one, back = parts(judge(Loss(), scores, label, [0, 2]))
    half, half_back = parts(judge(Loss(weight=0.5), scores, label, [0, 2]))
    assert torch.equal(half.loss, one.loss * 0.5)
    assert torch.equal(half_back[0][0].payload, back[0][0].payload * 0.5)  # type: ignore[arg-type,operator]
    assert torch.equal(half.metrics["accuracy"], one.metrics["accuracy"])
    assert Loss(weight=0.5).describe() == "Loss cross entropy × 0.5"


@pytest.mark.parametrize(
    ("node", "prediction", "label", "words"),
    [
        (Loss(), torch.zeros(2, 3), torch.zeros(2), "int64 labels"),
        (Loss("squared_error"), torch.zeros(2, 3), torch.zeros(2, 1), r"prediction is \(2, 3\) and label \(2, 1\)"),
        (Loss("absolute_error"), torch.zeros(2, 3), torch.zeros(2), r"prediction is \(2, 3\) and label \(2,\)"),
        (Loss("absolute_error"), torch.zeros(2), torch.zeros(2, dtype=torch.int64), "float32 and label torch.int64"),
        (Loss(lambda p, t: p.sum()), torch.zeros(2, 3), torch.zeros(2, 3), "a number per row"),
    ],
)
def test_wrong_shapes_are_named(node: Loss, prediction: torch.Tensor, label: torch.Tensor, words: str) -> None:
    with pytest.raises(PayloadError, match=words):
        judge(node, prediction, label)


def test_training_needs_a_label() -> None:
    with pytest.raises(LossError, match="no label for"):
        judge(Loss(), torch.zeros(2, 3), None)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="knows cross_entropy, binary_cross_entropy, squared_error, absolute_error"):
        Loss("hinge")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="stop or skip"):
        Loss(on_nan="ignore")  # type: ignore[arg-type]
