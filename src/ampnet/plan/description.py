"""Description: what waves have in common that are computed by the same calls on the same memory.

    description    operations, sizes, which reads are slices      equal for such waves: a captured graph serves them all
    arrays         row indices, offsets, which rows are real      differ from wave to wave

It consists of tuples and numbers, so that it can be compared and looked up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ampnet.state import Ints

_NOTHING = np.zeros(0, dtype=np.int64)


class ReadSpec(NamedTuple):
    """How a slot reads: the slice from ``start`` to ``stop``, or the rows of an array by its number."""

    arena: int
    start: int
    stop: int
    rows: int | None


class BagSpec(NamedTuple):
    """The numbers of a bag's arrays."""

    arena: int
    rows: int
    offsets: int
    owners: int


class OpSpec(NamedTuple):
    """An operation. See `ampnet.plan.layout.Operation`."""

    site: int
    round: int
    start: int
    stop: int
    reads: tuple[ReadSpec, ...]
    bags: tuple[BagSpec, ...] = ()
    cuts: tuple[int, ...] = ()
    back: tuple[int, int] = (0, 0)
    targets: int | None = None
    judged: tuple[int, ...] = ()
    """Of a loss: the numbers of the arrays that say which rows and messages are real."""
    members: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Padded:
    """A padded wave: its description, its arrays, and what the host counts."""

    description: tuple[object, ...]
    """Equal for waves that are computed by the same calls on the same memory."""
    operations: tuple[OpSpec, ...]
    wholes: dict[int, tuple[ReadSpec, ...]]
    """What all operations of a site read together, by the site's number."""
    arenas: tuple[tuple[int, int], ...]
    """Of each arena: rows, and leading rows that depend on no parameter."""
    sizes: tuple[int, ...]
    """The lengths of the arrays."""
    flat: Ints
    """All arrays, one after the other."""
    heard: dict[int, int]
    """By site with parameters: the messages that get a gradient."""
    inputs: dict[int, int]
    """By site of an input: its real rows."""
    counts: tuple[int, ...]
    """Of each operation of a loss: how many rows (or selections) are judged."""
    told: tuple[int, int]
    """Operations and messages, as they are counted in statistics: those of the real wave."""
    generation: int

    def like(self, first: Padded) -> Padded:
        """The same, with the description of an equal wave and without the arrays, which take memory."""
        return replace(
            self,
            description=first.description,
            operations=first.operations,
            wholes=first.wholes,
            arenas=first.arenas,
            sizes=first.sizes,
            flat=_NOTHING,
        )
