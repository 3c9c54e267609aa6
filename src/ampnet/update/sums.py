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
        self._old = [False] * len(self)
        """The sums that have been applied and count as zero."""

    def __getitem__(self, i: int) -> Tensor:  # type: ignore[override]
        """The sum of a parameter, to be added to."""
        total = super().__getitem__(i)
        if self._old[i]:
            self._old[i] = False
            if not calls.clear(total):
                total.zero_()
        return total

    @property
    def old(self) -> tuple[bool, ...]:
        """For each sum, whether it has been applied and counts as zero."""
        return tuple(self._old)

    @old.setter
    def old(self, old: Sequence[bool]) -> None:
        self._old = list(old)

    def __iter__(self) -> Iterator[Tensor]:
        """All sums, to be added to."""
        return (self[i] for i in range(len(self)))

    def add_whole(self, g: Tensor, x: Tensor, weight: int = 0) -> None:
        """``self[weight] += g' x``, now."""
        total = super().__getitem__(weight)
        if total.dtype != g.dtype:  # the sum is wider than the rows (bfloat16)
            self[weight].add_(g.t() @ x)
            return
        old, self._old[weight] = self._old[weight], False
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
        if calls.sum_rows(flat, rows, add=not self._old[weight]):
            self._old[weight] = False
        else:
            self[weight].add_(rows.sum(0, dtype=total.dtype).view(total.shape))

    def add_each(self, pieces: Sequence[Tensor | None]) -> None:
        """``self[i] += pieces[i]`` for every parameter that has a piece."""
        totals: tuple[list[Tensor], list[Tensor]] = [], []
        given: tuple[list[Tensor], list[Tensor]] = [], []
        for i, piece in enumerate(pieces):
            if piece is not None:
                old, self._old[i] = self._old[i], False
                totals[old].append(super().__getitem__(i))
                given[old].append(piece)
        if given[False]:
            torch._foreach_add_(totals[False], given[False])
        if given[True]:
            torch._foreach_copy_(totals[True], given[True])

    def forget(self) -> None:
        """Mark all sums as applied: the next addition starts from zero."""
        self._old = [True] * len(self)

    def settle(self) -> None:
        """Zero the sums that were applied and not added to since."""
        for i, old in enumerate(self._old):
            if old:
                self[i]  # starts from zero

    def zero(self) -> None:
        """Restart from zero."""
        self._old = [False] * len(self)
        for total in self:
            total.zero_()
