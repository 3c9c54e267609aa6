"""Preparation: the padded waves of a player, kept as they will be loaded.

    lot ──> scores ──> layout ──> padded to the capacities of its size ──> indices on the device
      └────────── kept: the same instances together again ───────────────────────┘

Capacities are those of all waves with about as many instances (up to the next power of two). Where they have grown,
what was padded before is padded again when it comes, so that in the long run there are few descriptions.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ampnet.plan.capacity import Capacities
from ampnet.plan.description import Padded
from ampnet.plan.layout import Layout
from ampnet.plan.lot import Lot
from ampnet.plan.padding import pad
from ampnet.plan.planner import Planner
from ampnet.wave.arena import Pool

_KINDS = 256
"""Descriptions kept at most."""
_BYTES = 2**28
"""Bytes of prepared waves kept at most."""
_OBJECTS = 4096
"""Approximate bytes of the Python objects of a prepared wave."""
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A wave that is ready to be loaded."""

    padded: Padded
    kind: int
    """The number of its description."""
    index: Tensor
    """`Padded.flat`, on the device."""


class Preparation:
    """See the head of this file."""

    def __init__(self, planner: Planner, device: torch.device) -> None:
        self._planner, self._device = planner, device
        self.capacities: dict[int, Capacities] = {}
        self.kept: OrderedDict[tuple[object, ...], Prepared] = OrderedDict()
        self._bytes = 0
        self._kinds: OrderedDict[object, tuple[int, Padded]] = OrderedDict()
        """By description: its number, and the first wave that had it."""
        self._described = itertools.count()

    def prepare(self, lot: Lot, behind: Sequence[Lot]) -> Prepared:
        """The wave of these instances. ``behind``: those staged after them. Raises `Unpaddable`."""
        planner, size = self._planner, len(lot.numbers).bit_length()
        capacities = self.capacities.setdefault(size, Capacities())
        key = planner._key(lot)
        known = self.kept.get(key)
        if known is not None and known.padded.generation == capacities.generation:
            self.kept.move_to_end(key)
            return known
        found = planner._find(lot, behind)
        key = planner._key(lot)  # to find them may have shown that numbers of instances matter
        layout = Layout(planner.sites, planner._moved, found, Pool(), _CPU, planner.choices)
        layout.numbers = lot.numbers
        return self._keep(key, lot, pad(layout, capacities))

    def _keep(self, key: tuple[object, ...], lot: Lot, padded: Padded) -> Prepared:
        index = torch.from_numpy(padded.flat)
        if self._device != _CPU:
            index = index.pin_memory().to(self._device, non_blocking=True)
        number, first = self._kind(padded, lot)
        if key in self.kept:
            self._bytes -= self.kept.pop(key).index.nbytes + _OBJECTS
        made = self.kept[key] = Prepared(padded.like(first), number, index)
        self._bytes += index.nbytes + _OBJECTS
        while self._bytes > _BYTES and len(self.kept) > 1:
            _, gone = self.kept.popitem(last=False)
            self._bytes -= gone.index.nbytes + _OBJECTS
        return made

    def _kind(self, padded: Padded, lot: Lot) -> tuple[int, Padded]:
        kind = (padded.description, *lot.kinds())
        if kind not in self._kinds:
            self._kinds[kind] = next(self._described), padded
            while len(self._kinds) > _KINDS:
                self._kinds.popitem(last=False)
        self._kinds.move_to_end(kind)
        return self._kinds[kind]
