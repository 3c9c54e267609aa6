"""Sums: what the gradients of a node's parameters have added up to.

After an update the sums hold what was applied. They are not set to zero there but marked, and the next addition writes
instead of adding: the gradient of a weight matrix is then written once, not read and written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from ampnet.native import calls


class Sums(list[Tensor]):
    """The sum of each parameter's gradients. Add to them at any time; call `settle` before reading them."""

    def __init__(self, totals: Iterable[Tensor]) -> None:
        super().__init__(totals)
        self._none, self._all = (False,) * len(self), (True,) * len(self)
        self.old = self._none
        """For each sum, whether it has been applied and counts as zero."""

    def __getitem__(self, i: int) -> Tensor:  # type: ignore[override]
        """The sum of a parameter, to be added to."""
        total = super().__getitem__(i)
        if self._begin(i) and not calls.clear(total):
            total.zero_()
        return total

    def _begin(self, i: int) -> bool:
        """From now on a sum does not count as zero. Returns whether it did."""
        old = self.old[i]
        if old:
            self.old = (*self.old[:i], False, *self.old[i + 1 :])
        return old

    def __iter__(self) -> Iterator[Tensor]:
        """All sums, to be added to."""
        return (self[i] for i in range(len(self)))

    def add_whole(self, g: Tensor, x: Tensor, weight: int = 0) -> None:
        """``self[weight] += g' x``, now."""
        total = super().__getitem__(weight)
        if total.dtype != g.dtype:  # the sum is wider than the rows (bfloat16)
            self[weight].add_(g.t() @ x)
            return
        old = self._begin(weight)
        if calls.product(total, g.t(), x, add=not old):
            return
        if old:
            torch.mm(g.t(), x, out=total)
        else:
            total.addmm_(g.t(), x)

    def add_rows(self, g: Tensor, weight: int) -> None:
        """``self[weight] += sum of all rows of g``, the gradient of a bias. Each row has as many numbers as that."""
        total = super().__getitem__(weight)
        rows = g if g.dim() == 2 else g.reshape(-1, g.shape[-1])
        flat = total.view(-1) if total.is_contiguous() else total
        if calls.sum_rows(flat, rows, add=not self.old[weight]):
            self._begin(weight)
        else:
            self[weight].add_(rows.sum(0, dtype=total.dtype).view(total.shape))

    def add_each(self, pieces: Sequence[Tensor | None]) -> None:
        """``self[i] += pieces[i]`` for every parameter that has a piece."""
        totals: tuple[list[Tensor], list[Tensor]] = [], []
        given: tuple[list[Tensor], list[Tensor]] = [], []
        for i, piece in enumerate(pieces):
            if piece is not None:
                old = self._begin(i)
                totals[old].append(super().__getitem__(i))
                given[old].append(piece)
        if given[False]:
            torch._foreach_add_(totals[False], given[False])
        if given[True]:
            torch._foreach_copy_(totals[True], given[True])

    def forget(self) -> None:
        """Mark all sums as applied: the next addition starts from zero."""
        self.old = self._all

    def settle(self) -> None:
        """Zero the sums that were applied and not added to since."""
        if self.old is not self._none and any(self.old):
            for i in range(len(self)):
                self[i]  # starts from zero

    def zero(self) -> None:
        """Restart from zero."""
        self.old = self._none
        for total in self:
            total.zero_()
