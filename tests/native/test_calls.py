"""Native kernels against torch: every shape of tail, every stride of callers, and numbers that are not finite."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
import torch
from torch import Tensor

from ampnet import native
from ampnet.native import calls
from ampnet.nodes import gates
from ampnet.nodes.squash import squash, unsquash

F32, F64 = torch.float32, torch.float64
BOTH = pytest.mark.parametrize("dtype", [F32, F64])
pytestmark = pytest.mark.skipif(not native.state().native, reason="kernels are not compiled here")


@pytest.fixture(autouse=True)
def _taken() -> Iterator[None]:
    """What is tested here is computed natively."""
    before = calls.count
    yield
    assert calls.count > before


def close(a: Tensor, b: Tensor) -> None:
    tolerance = 1e-12 if a.dtype is F64 else 2e-5
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def rows(count: int, width: int, dtype: torch.dtype, gap: int = 0) -> Tensor:
    """Rows with other numbers between them."""
    return torch.randn(count, width + gap, dtype=dtype)[:, :width]


SIZES = (1, 3, 5, 14, 15, 16, 17, 31, 33, 70)


@BOTH
def test_products_of_all_shapes(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for m, k, n in [*product(SIZES, (1, 5, 19), SIZES), (29, 300, 40), (200, 513, 33), (1, 0, 7), (0, 4, 4)]:
        x, w, bias = rows(m, k, dtype, 3), rows(k, n, dtype, 2), torch.randn(n, dtype=dtype)
        out = rows(m, n, dtype, 1)
        assert calls.product(out, x, w, bias)
        close(out, x @ w + bias)
        before = out.clone()
        assert calls.product(out, x, w, add=True, alpha=-0.5)
        close(out, before - 0.5 * (x @ w))


@BOTH
@pytest.mark.parametrize("m", [1, 13, 14, 100])
def test_products_with_turned_factors(m: int, dtype: torch.dtype) -> None:
    """A weight as it is stored (its columns are not adjacent), and rows turned: the gradient of a weight."""
    x, w, g = rows(m, 37, dtype), rows(45, 37, dtype), rows(m, 45, dtype)
    out, total = rows(m, 45, dtype), torch.zeros(45, 37, dtype=dtype)
    assert calls.product(out, x, w.t())
    close(out, x @ w.t())
    assert calls.product(total, g.t(), x, add=True)
    close(total, g.t() @ x)


@BOTH
def test_products_of_more_rows_than_a_cache_holds(dtype: torch.dtype) -> None:
    """They go through all panels in several blocks; which rows are in which changes no bit."""
    x, w, bias = rows(1700, 300, dtype), rows(90, 300, dtype) / 10, torch.randn(90, dtype=dtype)
    out, turned, few = rows(1700, 90, dtype), torch.zeros(1700, 90, dtype=dtype), torch.empty(40, 90, dtype=dtype)
    assert calls.product(out, x, w.t(), bias)
    close(out, x @ w.t() + bias)
    assert calls.product(few, x[800:840], w.t(), bias)
    assert torch.equal(few, out[800:840])
    assert calls.product(turned, x.t().contiguous().t(), w.t().contiguous(), add=True)
    close(turned, x @ w.t())


@BOTH
def test_columns_beside_the_end_of_a_factor_in_place(dtype: torch.dtype) -> None:
    """Rows as far apart as a copied panel's are not taken for one: what is behind the last one is not read."""
    w = torch.randn(6, 32, dtype=dtype)
    for width in (12, 20, 5):
        x, out = rows(7, 6, dtype), rows(7, width, dtype)
        assert calls.product(out, x, w[:, 32 - width :])
        close(out, x @ w[:, 32 - width :])


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid"])
@BOTH
def test_a_product_with_an_activation(activation: str, dtype: torch.dtype) -> None:
    x, w, bias = rows(20, 300, dtype), rows(300, 21, dtype) / 10, torch.randn(21, dtype=dtype)
    out = rows(20, 21, dtype)
    assert calls.product(out, x, w, bias, activation=calls.ACTIVATIONS[activation])
    close(out, getattr(torch, activation)(x @ w + bias))
    assert calls.product(out.zero_(), x, w, add=True, activation=calls.ACTIVATIONS[activation])
    close(out, getattr(torch, activation)(x @ w))


def test_products_are_the_same_with_any_number_of_threads_and_with_any_rows_beside() -> None:
    threads, x, w = torch.get_num_threads(), torch.randn(700, 300), torch.randn(300, 200)
    outs = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            out = torch.empty(700, 200)
            assert calls.product(out, x, w)
            outs.append(out)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*outs)
    few = torch.empty(3, 200)
    assert calls.product(few, x[50:53], w)
    assert torch.equal(few, outs[0][50:53])


@BOTH
def test_activations_over_their_whole_range(dtype: torch.dtype) -> None:
    x = torch.cat([torch.linspace(-40, 40, 9001, dtype=dtype), torch.logspace(-9, 2, 500, dtype=dtype)])[None]
    few = 4 * torch.finfo(dtype).eps
    for name in ("relu", "tanh", "sigmoid"):
        y, expected = x.clone(), getattr(torch, name)(x)
        squash(y, calls.ACTIVATIONS[name])
        torch.testing.assert_close(y, expected, rtol=few, atol=torch.finfo(dtype).tiny)
        g, oracle = torch.randn_like(x), x.clone().requires_grad_()
        getattr(torch, name)(oracle).backward(g)
        unsquash(g, y, calls.ACTIVATIONS[name])
        assert oracle.grad is not None
        torch.testing.assert_close(g, oracle.grad, rtol=1e3 * few, atol=few)


@BOTH
def test_nothing_that_is_not_finite_is_lost(dtype: torch.dtype) -> None:
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([[nan, inf, -inf, 1.0, 0.0]], dtype=dtype)
    for name in ("relu", "tanh", "sigmoid"):
        y = x.clone()
        squash(y, calls.ACTIVATIONS[name])
        expected = getattr(torch, name)(x)
        assert torch.equal(y.isnan(), expected.isnan())
        assert torch.equal(y.isinf(), expected.isinf())
    out = torch.empty(1, 2, dtype=dtype)
    assert calls.product(out, x[:, :1], torch.ones(1, 2, dtype=dtype))
    assert out.isnan().all()


@BOTH
@pytest.mark.parametrize("n", [1, 5, 16, 21])
def test_gates_of_a_gru(n: int, dtype: torch.dtype) -> None:
    gi, gh, h, g = rows(7, 3 * n, dtype), rows(7, 3 * n, dtype), rows(7, n, dtype, 2), rows(7, n, dtype, 1)

    def both() -> list[Tensor]:
        kept = tuple(torch.empty(7, n, dtype=dtype) for _ in range(4))
        y, di, dh, through = (torch.empty(7, k * n, dtype=dtype) for k in (1, 3, 3, 1))
        gates.gru(gi, gh, h, kept, y)  # type: ignore[arg-type]
        gates.gru_back(g.clone(), h, kept, di, dh, through)  # type: ignore[arg-type]
        return [y, di, dh, through]

    ours = both()
    with native.disabled():
        theirs = both()
    for a, b in zip(ours, theirs, strict=True):
        close(a, b)


CELLS = {
    "leaf": (3, gates.Cell(0, 2, 1)),
    "lstm": (4, gates.Cell(0, 2, 3, 1, 1)),
    "branch": (5, gates.Cell(0, 4, 3, 1, 2)),
}


@BOTH
@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("n", [1, 5, 16, 21])
def test_gates_of_cells(name: str, n: int, dtype: torch.dtype) -> None:
    many, cell = CELLS[name]
    given, c, g = rows(7, many * n, dtype), rows(7, cell.children * n, dtype, 3), rows(7, 2 * n, dtype)

    def both() -> list[Tensor]:
        products, y, squashed = given.clone(), torch.empty(7, 2 * n, dtype=dtype), torch.empty(7, n, dtype=dtype)
        cells = c if cell.children else None
        cell.run(products, cells, y, squashed)
        dc = None if cells is None else torch.empty(c.shape, dtype=dtype)
        cell.back(products, cells, squashed, g.clone(), dc)
        return [y, products, *([] if dc is None else [dc])]

    ours = both()
    with native.disabled():
        theirs = both()
    for a, b in zip(ours, theirs, strict=True):
        close(a, b)


@BOTH
@pytest.mark.parametrize("width", [1, 5, 16, 40])
def test_rows_fetched_added_back_and_summed_up(width: int, dtype: torch.dtype) -> None:
    x, index = rows(9, width, dtype, 2), torch.tensor([3, 3, 0, 8, 5, 3])
    out = rows(6, width, dtype, 1)
    assert calls.fetch(out, x, index)
    assert torch.equal(out, x[index])
    total, g = rows(9, width, dtype, 4), rows(6, width, dtype)
    expected = total.clone().index_add_(0, index, g)
    assert calls.add_back(total, g, index)
    close(total, expected)
    offsets = torch.tensor([0, 2, 2, 6])
    sums = torch.stack([x[index[a:b]].sum(0) for a, b in ((0, 2), (2, 2), (2, 6))])
    out = rows(3, width, dtype)
    assert calls.sum_up(out, x, index, offsets)
    close(out, sums)
    assert calls.sum_up(out, x, index, offsets, add=True)
    close(out, 2 * sums)
    column = torch.randn(width, dtype=dtype)
    before = column.clone()
    assert calls.sum_rows(column, x, add=True)
    close(column, before + x.sum(0))
    assert calls.sum_rows(column, x[:0], add=False)
    assert not column.any()
    assert calls.clear(out)
    assert not out.any()


def test_the_sum_of_many_rows_is_as_exact_as_torch() -> None:
    x = torch.rand(100_000, 3) + 1000
    total = torch.empty(3)
    assert calls.sum_rows(total, x, add=False)
    torch.testing.assert_close(total.double(), x.double().sum(0), rtol=1e-5, atol=0)


def test_what_kernels_do_not_take_is_left_to_torch() -> None:
    half, whole = torch.ones(2, 2, dtype=torch.bfloat16), torch.ones(2, 2)
    assert not calls.product(half, half, half)
    assert not calls.product(whole, half, whole)
    assert not calls.fetch(whole, torch.ones(2, 4)[:, ::2], None)
    assert not calls.add_back(whole, torch.ones(2, 1), None), "numbers that torch would repeat"
    assert not calls.sum_rows(torch.ones(2), torch.ones(2, 2, 2), add=True)
    assert calls.clear(whole)
    with native.disabled():
        assert not calls.clear(whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 5, 40])
def test_means_and_logs_of_sums(dtype: torch.dtype, width: int) -> None:
    """Beside autograd, rows in any order and read more than once; a mean of no rows is zero."""
    torch.manual_seed(0)
    rows = torch.randn(9, width, dtype=dtype)
    rows[3, 0] = -torch.inf
    index = torch.tensor([4, 0, 3, 4, 8, 2])
    for offsets in (torch.tensor([0, 3, 3, 6]), torch.tensor([0, 1, 4, 6])):
        counts = offsets.diff()
        g = torch.randn(3, width, dtype=dtype)
        for name in ("mean", "logsumexp"):
            if name == "logsumexp" and not bool((counts > 0).all()):
                continue
            leaf = rows.clone().requires_grad_()
            x = leaf if name == "logsumexp" else leaf.masked_fill(leaf.isinf(), 0)
            pieces = x.index_select(0, index).split(counts.tolist())
            want = torch.stack([_reduced(name, piece) for piece in pieces])
            (want_g,) = torch.autograd.grad(want, leaf, g)
            out, total = torch.empty_like(g), torch.zeros_like(rows)
            if name == "mean":
                assert calls.mean(out, x.detach(), index, offsets)
                assert calls.mean_back(total, g, index, offsets)
                total[leaf.isinf()] = 0
            else:
                shares = rows.new_empty(len(index), width)
                assert calls.logsumexp(out, x.detach(), index, offsets, shares)
                assert calls.logsumexp_back(total, g, index, offsets, shares)
            torch.testing.assert_close(out, want.detach())
            torch.testing.assert_close(total, want_g)


def _reduced(name: str, rows: torch.Tensor) -> torch.Tensor:
    if name == "logsumexp":
        return rows.logsumexp(0)
    return rows.mean(0) if len(rows) else rows.sum(0)
