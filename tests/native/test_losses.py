"""Native losses against torch: the sum, the gradient and the usual metric of all rows in one call."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ampnet import native
from ampnet.native import calls

F32, F64 = torch.float32, torch.float64
BOTH = pytest.mark.parametrize("dtype", [F32, F64])
pytestmark = pytest.mark.skipif(not native.state().native, reason="kernels are not compiled here")


def check(judge: calls.Judge, g: Tensor, x: Tensor, loss: Tensor, weight: float, metric: float) -> None:
    """``loss``: the sum over all rows, of which torch makes the gradient."""
    tolerance = 1e-12 if g.dtype is F64 else 1e-5
    (wanted,) = torch.autograd.grad(weight * loss, x)
    torch.testing.assert_close(g, wanted, rtol=tolerance, atol=tolerance)
    assert judge.loss == pytest.approx(weight * float(loss.detach()), rel=10 * tolerance)
    assert judge.metric == pytest.approx(metric, rel=10 * tolerance)
    assert not judge.wrong


@BOTH
@pytest.mark.parametrize("weight", [1.0, 0.25])
@pytest.mark.parametrize("width", [1, 2, 7, 8, 16, 17, 40])
def test_cross_entropy(width: int, weight: float, dtype: torch.dtype) -> None:
    x = (5 * torch.randn(23, width + 3, dtype=dtype))[:, :width].requires_grad_()
    x.detach()[3] = 0  # all are the largest: torch's argmax is the first
    labels, g = torch.randint(width, (23,)), torch.empty(23, width, dtype=dtype)
    judge = calls.Judge()
    assert judge.cross_entropy(x.detach(), labels, g, weight)
    hits = float((x.argmax(1) == labels).sum())
    check(judge, g, x, F.cross_entropy(x, labels, reduction="sum"), weight, hits)


@BOTH
@pytest.mark.parametrize("sizes", [(1,), (3, 1, 40, 16), (54,) * 20])
def test_selection(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    x = torch.randn(sum(sizes), 1, dtype=dtype, requires_grad=True)
    labels = torch.tensor([n // 2 for n in sizes])
    judge, g = calls.Judge(), torch.empty(sum(sizes), 1, dtype=dtype)
    assert judge.selection(x.detach(), offsets, labels, g, 1.0)
    groups = x[:, 0].split(list(sizes))
    loss = torch.stack([F.cross_entropy(one[None], label[None]) for one, label in zip(groups, labels, strict=True)])
    hits = float(sum(int(one.argmax()) == int(label) for one, label in zip(groups, labels, strict=True)))
    check(judge, g, x, loss.sum(), 1.0, hits)


@BOTH
@pytest.mark.parametrize("shape", [(9,), (9, 1), (9, 5), (4, 3, 2)])
@pytest.mark.parametrize("squared", [False, True])
def test_errors(squared: bool, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, y = torch.randn(shape, dtype=dtype, requires_grad=True), torch.randn(shape, dtype=dtype)
    y[0] = x.detach()[0]  # no error: the gradient of its size is zero
    judge, g = calls.Judge(), torch.empty(shape, dtype=dtype)
    assert judge.errors(x.detach(), y, g, 0.5, squared=squared)
    d = (x - y).flatten(1) if len(shape) > 1 else (x - y)[:, None]
    loss = (d.square() if squared else d.abs()).mean(1).sum()
    check(judge, g, x, loss, 0.5, float(d.detach().abs().mean(1).sum()))


@BOTH
@pytest.mark.parametrize("shape", [(9,), (9, 5)])
def test_binary_cross_entropy(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, y = (20 * torch.randn(shape, dtype=dtype)).requires_grad_(), torch.rand(shape, dtype=dtype).round()
    judge, g = calls.Judge(), torch.empty(shape, dtype=dtype)
    assert judge.binary_cross_entropy(x.detach(), y, g, 1.0)
    rows = F.binary_cross_entropy_with_logits(x, y, reduction="none")
    right = ((x > 0) == (y > 0.5)).to(dtype)
    rows, right = (one if one.dim() == 1 else one.mean(1) for one in (rows, right))
    check(judge, g, x, rows.sum(), 1.0, float(right.sum()))


@pytest.mark.parametrize("label", [-1, 4])
def test_a_label_out_of_range_is_told_and_nothing_is_written_beside(label: int) -> None:
    judge, g = calls.Judge(), torch.empty(3, 4)
    assert judge.cross_entropy(torch.randn(3, 4), torch.tensor([0, label, 1]), g, 1.0)
    assert judge.wrong
    assert judge.selection(torch.randn(4, 1), None, torch.tensor([0, 0, 0, label]), torch.empty(4, 1), 1.0)
    assert judge.wrong


@BOTH
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_comes_through(bad: float, dtype: torch.dtype) -> None:
    judge, y = calls.Judge(), torch.zeros(3, 20, dtype=dtype)
    x, g = torch.zeros(3, 20, dtype=dtype), torch.empty(3, 20, dtype=dtype)
    x[1, 17] = bad
    if bad > 0 or bad != bad:  # a score of minus infinity is one that is never chosen
        assert judge.cross_entropy(x, torch.tensor([0, 1, 2]), g, 1.0)
        assert not np.isfinite(judge.loss)
    for squared in (False, True):
        assert judge.errors(x, y, g, 1.0, squared=squared)
        assert not np.isfinite(judge.loss)
    assert judge.binary_cross_entropy(x, y, g, 1.0)
    assert not np.isfinite(judge.loss)
    assert calls.finite([y, x]) is False
    assert calls.finite([y, g[:0]]) is True


@BOTH
@pytest.mark.parametrize("count", [1, 7, 16, 63, 64, 65, 1000])
def test_every_number_is_looked_at(count: int, dtype: torch.dtype) -> None:
    for at in {0, count // 2, count - 1}:
        x = torch.full((count,), 1e30, dtype=dtype)  # their sum would overflow
        assert calls.finite([x]) is True
        x[at] = float("nan")
        assert calls.finite([torch.ones(5, dtype=dtype), x]) is False


@BOTH
@pytest.mark.parametrize("count", [0, 1, 7, 16, 63, 64, 65, 1000])
def test_the_largest_is_found_wherever_it_is(count: int, dtype: torch.dtype) -> None:
    x = torch.linspace(-1, 1, count, dtype=dtype) if count else torch.empty(0, dtype=dtype)
    assert calls.largest(x) == (1.0 if count else 0.0)
    for at in {0, count // 2, count - 1} if count else ():
        for value in (-1e-3, -3e30, 3e30, -float("inf"), float("inf")):
            y = x * 1e-6
            y[at] = value
            assert calls.largest(y) == abs(float(y[at]))
        for sign in (1.0, -1.0):
            y[at] = float(np.copysign(np.nan, sign))
            y[at - 1] = float("inf") if count > 1 else y[at]
            assert calls.largest(y) != calls.largest(y)
