"""Rows: the blocks that are functions of a row, and what such a block may read besides the row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from ampnet.testing.written.instances import WIDTH
from ampnet.testing.written.layers import Layers


@dataclass(frozen=True)
class Around:
    """The scope of a program."""

    at: dict[str, Any]
    """The instance's spaces, and its row "x"."""
    outer: Any
    """The row that the program was given."""
    x: Any
    """The row of the element that the program is about, or of the instance."""
    word: Any
    rare: Any
    target: Any
    label: Any
    """The target of a loss."""
    ints: tuple[Any, ...]
    """Integers that the program may read."""
    spaces: frozenset[str] = frozenset()
    """Spaces whose elements are being gone through."""

    def inside(self, space: str, element: Any) -> Around:
        """At one element of a space."""
        at = self.at | {"letters": element.letters} if space == "words" else self.at
        spaces, ints = self.spaces | {space}, (*self.ints, element.kind, element.index)
        here = replace(self, at=at, x=element.x, ints=ints, spaces=spaces)
        if space == "bonds":
            return here
        return replace(here, word=element.word, rare=element.rare, target=element.x, label=element.label)


def _best(m: Layers, h: Any, around: Around) -> Any:
    scores, largest = m.best(h)
    return scores + m.few(largest)


ROWS: dict[str, Callable[[Layers, Any, Around], Any]] = {
    "linear": lambda m, h, around: m.linear(h),
    "other": lambda m, h, around: m.other(h),
    "tanh": lambda m, h, around: torch.tanh(h),
    "relu": lambda m, h, around: torch.relu(h),
    "sigmoid": lambda m, h, around: torch.sigmoid(h),
    "softmax": lambda m, h, around: torch.softmax(h, -1),
    "norm": lambda m, h, around: m.norm(h),
    "scale": lambda m, h, around: h * m.scale,
    "shift": lambda m, h, around: h - m.shift,
    "beside": lambda m, h, around: m.join(torch.cat((m.scale, h), -1)),
    "outer": lambda m, h, around: m.join(torch.cat((h, around.outer), -1)),
    "first": lambda m, h, around: h + around.at["x"],
    "given": lambda m, h, around: around.x * 2,
    "detach": lambda m, h, around: h.detach(),
    "centred": lambda m, h, around: h - h.mean(-1, keepdim=True),
    "cumsum": lambda m, h, around: torch.cumsum(h, -1),
    "roll": lambda m, h, around: torch.cat((h[1:], h[:1]), -1),
    "few": lambda m, h, around: h + m.few(around.word),
    "many": lambda m, h, around: h * m.many(around.rare),
    "known": lambda m, h, around: h + m.known(around.word),
    "prelu": lambda m, h, around: m.prelu(h),
    "sequence": lambda m, h, around: m.sequence(h),
    "own": lambda m, h, around: m.own(h),
    "bilinear": lambda m, h, around: m.bilinear(h, around.x),
    "frozen": lambda m, h, around: m.frozen(h),
    "partly": lambda m, h, around: m.partly(h),
    "scores": lambda m, h, around: m.scores(h)[:WIDTH],
    "twin": lambda m, h, around: m.twin(h),
    "shared": lambda m, h, around: m.shared(h),
    "rnn": lambda m, h, around: m.rnn(around.x, h),
    "best": _best,
}
"""Row-wise blocks, by name."""
