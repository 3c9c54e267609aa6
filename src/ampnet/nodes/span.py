"""Span: the rows that a node with parameters computes in one go, and what it computes them with.

A node is described once, by three functions of a span; waves and message passing differ in where its tensors come from:

    run(span)       writes ``y`` from the parts ``xs`` and the weights ``w``; keeps what the backward will read
    back(span)      from ``g``, the gradient of ``y``: adds to the gradients of the parts; may write into ``g`` and into
                    what was kept, so that both hold what `collect` will multiply
    collect(span)   adds the gradients of the weights to ``sums``, of all rows of a span at once

    message passing     a span is a batch of messages; forward, backward and collect are about the same rows or fewer
    waves               `run` and `back` see one round, `collect` all rounds of a wave as one span

An entry of ``xs`` is None where the rows are known to be zero, or their product is in ``y`` already (``begun``).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ampnet.nodes.products import Products
from ampnet.update.sums import Sums


class Span:
    """Base of both kinds. See the head of this file."""

    __slots__ = ("alone", "begun", "g", "memo", "products", "sums", "w", "widths", "xs", "y")

    xs: list[Tensor | None]
    widths: Sequence[int]
    """The widths of the parts, also of absent ones."""
    y: Tensor
    g: Tensor
    w: Sequence[Tensor]
    sums: Sums
    products: Products
    begun: bool
    """Whether ``y`` holds products already, to which others are to be added."""
    memo: tuple[object, object] | None
    """A cache of the node in a reused span: (sources, result)."""
    alone: bool
    """Whether `run`, `back` and `collect` are all about these very rows, one after the other."""

    def x(self, part: int) -> Tensor:
        """A part that must be there."""
        x = self.xs[part]
        assert x is not None
        return x

    def keep(self, name: str, width: int) -> Tensor:
        """``[rows, width]`` to be written by `run` and read, or written, by `back` and `collect`."""
        raise NotImplementedError

    def kept(self, name: str) -> Tensor:
        """Returns the result of `keep`, which must exist."""
        raise NotImplementedError

    def wants(self, part: int) -> bool:
        """Whether the gradient of a part is wanted."""
        raise NotImplementedError

    def add(self, part: int, dx: Tensor) -> None:
        """Add to the gradient of a part. Nobody writes into ``dx`` later."""
        raise NotImplementedError

    def add_product(self, part: int, d: Tensor, w: Tensor) -> None:
        """Add ``d w`` to the gradient of a part."""
        raise NotImplementedError

    def end(self) -> None:
        """Drop weights that only its passage used: a copy of an earlier version, or an estimate."""


class BatchSpan(Span):
    """A batch of messages: every tensor is made for it."""

    __slots__ = ("dxs", "named", "wanted")

    def __init__(self, xs: Sequence[Tensor], w: Sequence[Tensor], kept: dict[str, Tensor], wanted: bool = True) -> None:
        """``kept``: what a forward kept, or where to put what it keeps."""
        self.xs, self.w, self.named, self.wanted = list(xs), w, kept, wanted
        self.products, self.begun, self.alone, self.memo = _PLAIN, False, True, None
        self.widths = [x.shape[-1] for x in xs if x.dim() > 1]
        self.dxs: list[Tensor | None] = [None] * len(xs)

    def keep(self, name: str, width: int) -> Tensor:
        if name not in self.named:
            self.named[name] = self.y.new_empty(self.y.shape[0], width)
        return self.named[name]

    def kept(self, name: str) -> Tensor:
        return self.named[name]

    def wants(self, part: int) -> bool:
        return self.wanted and self.x(part).is_floating_point()

    def add(self, part: int, dx: Tensor) -> None:
        if self.wants(part):
            old = self.dxs[part]
            self.dxs[part] = dx if old is None else old + dx

    def add_product(self, part: int, d: Tensor, w: Tensor) -> None:
        if self.wants(part):
            self.add(part, d @ w)

    def beside(self) -> Tensor | None:
        """The gradients of all parts; a part without one has zeros. None where no part has any."""
        if all(dx is None for dx in self.dxs):
            return None
        if len(self.dxs) == 1:
            return self.dxs[0]
        pieces = [torch.zeros_like(self.x(i)) if dx is None else dx for i, dx in enumerate(self.dxs)]
        return torch.cat(pieces, -1)


_PLAIN = Products()
