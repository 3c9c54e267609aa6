"""Sums: what the gradients of a node's parameters have added up to.

The gradient of a weight matrix is a product, dW += dy' x. For a batch of a few rows it costs little more than reading
and writing all of dW, and the same again for the next few rows. So small batches **wait**: their rows are kept, and one
product is made of those of many batches as soon as there are enough rows for it to run at full speed, or as soon as
anybody wants to see the sums:

    backward   8 rows, 11 rows, 9 rows ...            (dy, x) wait, nothing is multiplied
    `settle`   128 rows, or the sums are read         dW += [dy; dy; ...]' [x; x; ...]

Only the order of summation depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

ENOUGH = 64
"""A batch of so many rows is multiplied at once."""
_ROWS = 128
"""As soon as so many rows wait, they are multiplied."""
_BATCHES = 32
"""Or so many batches: each may keep memory alive that is larger than its own rows."""


class Sums(list[Tensor]):
    """The sum of each parameter's gradients. To add to them is always right; to read them, `settle` first."""

    def __init__(self, totals: Iterable[Tensor]) -> None:
        super().__init__(totals)
        self._old = [False] * len(self)
        """Which of them hold what has been applied already, and are to be written anew."""
        self._waiting: dict[tuple[int, int | None], list[tuple[Tensor, Tensor]]] = {}
        self._rows: dict[tuple[int, int | None], int] = {}

    def add_product(self, g: Tensor, x: Tensor, weight: int = 0, bias: int | None = None) -> None:
        """``self[weight] += g' x`` and ``self[bias] += sum of g``, now or later. Neither may be written to any more."""
        rows = g.shape[0]
        if rows >= ENOUGH:
            self._add(g, x, weight, bias)
            return
        which = weight, bias
        waiting = self._waiting.setdefault(which, [])
        waiting.append((g, x))
        rows += self._rows.get(which, 0)
        self._rows[which] = rows
        if rows >= _ROWS or len(waiting) >= _BATCHES:
            self._settle(which)

    def __getitem__(self, i: int) -> Tensor:  # type: ignore[override]
        """The sum of a parameter, to be added to."""
        total = super().__getitem__(i)
        if self._old[i]:
            self._old[i] = False
            total.zero_()
        return total

    def __iter__(self) -> Iterator[Tensor]:
        """All sums, to be added to."""
        return (self[i] for i in range(len(self)))

    def add_whole(self, g: Tensor, x: Tensor, weight: int = 0) -> None:
        """``self[weight] += g' x``, now."""
        total = super().__getitem__(weight)
        if total.dtype != g.dtype:  # the sum is wider than the rows (bfloat16)
            self[weight].add_(g.t() @ x)
        elif self._old[weight]:
            self._old[weight] = False
            torch.mm(g.t(), x, out=total)
        else:
            total.addmm_(g.t(), x)

    def forget(self) -> None:
        """All of them have been applied: whoever adds next starts from zero."""
        self._old = [True] * len(self)

    def settle(self) -> None:
        """Add what still waits."""
        for i, old in enumerate(self._old):
            if old:
                self[i]  # starts from zero
        for which in list(self._waiting):
            self._settle(which)

    def _settle(self, which: tuple[int, int | None]) -> None:
        waiting = self._waiting.pop(which)
        del self._rows[which]
        if len(waiting) == 1:
            self._add(*waiting[0], *which)
        else:
            self._add(torch.cat([g for g, _ in waiting]), torch.cat([x for _, x in waiting]), *which)

    def _add(self, g: Tensor, x: Tensor, weight: int, bias: int | None) -> None:
        self.add_whole(g, x, weight)
        if bias is not None:
            self[bias].add_(g.sum(0, dtype=self[bias].dtype))

    def zero(self) -> None:
        """Start anew; what waits is dropped."""
        self._waiting.clear()
        self._rows.clear()
        self._old = [False] * len(self)
        for total in self:
            total.zero_()

    def waiting(self) -> int:
        """Rows that have not been multiplied yet."""
        return sum(self._rows.values())
