"""Structure: the arrays that belong to an instance as a whole (a tree's parents, a graph's edges).

They are pumped once with the instance, kept by every worker that needs them, looked up **by state** and dropped when
the instance retires; no message ever carries them. A `Shelf` holds the concatenated arrays of all live instances, so
that one gather serves messages of many instances:

    instances      12        13            15
    parent      [1 1 -1 | 2 2 4 4 -1 | 1 -1 ]          shelf.at(states).get("parent", states.node)

Two forms are supported: a plain array, one entry per item, and **lists**: an array ``xs`` with ``xs_start`` (one longer
than the number of items), which holds the index where the entries of each item begin, for "the out-edges of this node".
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from ampnet.errors import StateError
from ampnet.message import ranges
from ampnet.narrow import narrow
from ampnet.state import Column, Ints, States

_NAMES: dict[tuple[str, ...], tuple[str, ...]] = {}
"""Names of arrays, kept once for all instances that have the same."""


class Structure:
    """The integer arrays of one instance, by name. ``Structure(parent=[2, 2, -1])``; `lists` makes the ragged form."""

    __slots__ = ("_names", "_numbers")

    def __init__(self, **arrays: ArrayLike) -> None:
        given: list[Ints] = []
        for name, value in arrays.items():
            array = np.asarray(value)
            if array.ndim != 1 or (array.size and array.dtype.kind not in "iub"):
                raise StateError(f"structure '{name}' must be one row of integers, got {array.dtype} {array.shape}")
            given.append(array.astype(np.int64))
        names = tuple(arrays)
        self._names = _NAMES.setdefault(names, names)
        sizes = np.array([len(array) for array in given], dtype=np.int64)
        self._numbers: Column = narrow(np.concatenate([sizes, *given]))
        """The sizes of the arrays, then their entries: one small array instead of several."""

    @property
    def arrays(self) -> dict[str, Ints]:
        """The arrays by name. Made at each call."""
        numbers, count = self._numbers.astype(np.int64), len(self._names)
        out, at = {}, count
        for name, size in zip(self._names, numbers[:count].tolist(), strict=True):
            out[name] = numbers[at : at + size]
            at += size
        return out

    @property
    def nbytes(self) -> int:
        """Bytes of its numbers as they are kept."""
        return self._numbers.nbytes

    @staticmethod
    def lists(name: str, items: Column, count: int) -> dict[str, Ints]:
        """Build the arrays for "the entries of each item": entry e belongs to item ``items[e]`` of ``count`` items.

        Returns ``name`` (entry numbers grouped by item) and ``name_start``, ready for ``Structure(**...)``.
        """
        items = np.asarray(items, dtype=np.int64)
        if len(items) and (items.min() < 0 or items.max() >= count):
            raise StateError(f"structure '{name}': an entry belongs to item {int(items.max())} of {count}")
        start = np.zeros(count + 1, dtype=np.int64)
        np.cumsum(np.bincount(items, minlength=count), out=start[1:])
        return {name: np.argsort(items, kind="stable"), f"{name}_start": start}


class Shelf:
    """The structures of all live instances on one worker."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Drop all instances."""
        self._data: dict[str, Ints] = {}
        self._used: dict[str, int] = {}
        self._ids: Ints = np.zeros(0, dtype=np.int64)
        self._place: dict[str, Ints] = {}
        self._size: dict[str, Ints] = {}
        self._live = np.zeros(0, dtype=bool)
        self._rising = True
        """Whether `_ids` are sorted, as they are if instances arrive in the order of their numbers."""

    def __len__(self) -> int:
        return int(self._live.sum())

    def add(self, structures: Mapping[int, Structure]) -> None:
        """Add these instances' structures. All instances of a graph have the same array names."""
        ids = np.fromiter(structures, dtype=np.int64, count=len(structures))
        taken = np.intersect1d(ids, self._ids[self._live])
        if len(taken):
            raise StateError(f"the structure of instance {int(taken[0])} is here already")
        given = {instance: structure.arrays for instance, structure in structures.items()}
        names = dict.fromkeys([*self._data, *(name for arrays in given.values() for name in arrays)])
        for name in names:
            pieces = []
            for instance, arrays in given.items():
                if name not in arrays:
                    raise StateError(f"instance {instance} has no structure '{name}', which other instances have")
                pieces.append(arrays[name])
            if name not in self._data:
                if len(self._ids):
                    raise StateError(f"instance {int(ids[0])} brings structure '{name}', which others do not have")
                self._data[name] = np.zeros(1024, dtype=np.int64)
                self._used[name] = 0
                self._place[name] = self._size[name] = np.zeros(0, dtype=np.int64)
            sizes = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
            start, total = self._used[name], int(sizes.sum())
            data = self._data[name]
            if start + total > len(data):
                self._data[name] = np.resize(data, max(2 * len(data), start + total))
            np.concatenate(pieces, out=self._data[name][start : start + total])
            self._place[name] = np.append(self._place[name], start + np.cumsum(sizes) - sizes)
            self._size[name] = np.append(self._size[name], sizes)
            self._used[name] = start + total
        self._ids = np.append(self._ids, ids)
        self._rising = bool((self._ids[1:] > self._ids[:-1]).all())
        self._live = np.append(self._live, np.ones(len(ids), dtype=bool))

    def drop(self, instances: Column) -> None:
        """Drop these instances; those without a structure are ignored."""
        if not len(self._ids):
            return
        self._live &= ~np.isin(self._ids, instances)
        if 2 * int(self._live.sum()) <= len(self._ids):
            self._compact()

    def _compact(self) -> None:
        keep = np.flatnonzero(self._live)
        for name, data in self._data.items():
            place, size = self._place[name][keep], self._size[name][keep]
            rows = ranges(place, size)
            self._data[name] = np.resize(data[rows], max(1024, 2 * len(rows)))
            self._used[name] = len(rows)
            self._place[name], self._size[name] = np.cumsum(size) - size, size
        self._ids, self._live = self._ids[keep], self._live[keep]

    def holds(self, instances: Column) -> Column:
        """Returns a mask of the instances whose structure is here."""
        found: Column = np.isin(instances, self._ids[self._live])
        return found

    def at(self, states: States) -> View:
        """Returns a view of the structures for these states."""
        return View(self, states.column("instance"))

    def _find(self, instances: Ints) -> Ints:
        ids = self._ids
        if len(ids):
            order = None if self._rising else np.argsort(ids)
            slot: Ints = ids.searchsorted(instances, sorter=order)
            if order is not None:
                slot = order.take(slot, mode="clip")
            known = (ids.take(slot, mode="clip") == instances) & self._live.take(slot, mode="clip")
            if known.all():
                return slot
            instances = instances[~known]
        raise StateError(
            f"instance {int(instances[0])} has no structure here: it was pumped without one, or has retired already"
        )


class View:
    """The structure of each message of a batch: the second argument of state functions."""

    __slots__ = ("_instances", "_shelf", "_slots")

    def __init__(self, shelf: Shelf, instances: Ints) -> None:
        self._shelf, self._instances = shelf, instances
        self._slots: Ints | None = None

    def at(self, states: States) -> View:
        """Returns a view of the structures for other states."""
        return View(self._shelf, states.column("instance"))

    def _slot(self, name: str) -> Ints:
        if self._slots is None:
            self._slots = self._shelf._find(self._instances)
        if name not in self._shelf._data:
            raise StateError(f"no structure '{name}'; there are {', '.join(self._shelf._data) or 'none'}")
        return self._slots

    def size(self, name: str) -> Ints:
        """Returns the length of the array, for each message's instance."""
        return self._shelf._size[name][self._slot(name)]

    def get(self, name: str, item: Column) -> Ints:
        """Returns ``array[item]``, for each message in its own instance's array."""
        slot = self._slot(name)
        item = np.asarray(item, dtype=np.int64)
        size = self._shelf._size[name].take(slot)
        wrong = (item < 0) | (item >= size)
        if wrong.any():
            w = np.flatnonzero(wrong)[0]
            raise StateError(
                f"structure '{name}' of instance {int(self._instances[w])} has {int(size[w])} entries; "
                f"entry {int(item[w])} was asked for"
            )
        return self._shelf._data[name].take(self._shelf._place[name].take(slot) + item)

    def count(self, name: str, item: Column) -> Ints:
        """Returns the number of entries in the list of ``item`` (see `Structure.lists`)."""
        item = np.asarray(item, dtype=np.int64)
        return self.get(f"{name}_start", item + 1) - self.get(f"{name}_start", item)

    def entries(self, name: str, item: Column) -> tuple[Ints, Ints]:
        """Returns the concatenated lists of all messages: (message index of each entry, the entry)."""
        slot = self._slot(name)
        start, count = self.get(f"{name}_start", item), self.count(name, item)
        places = ranges(self._shelf._place[name][slot] + start, count)
        return np.repeat(np.arange(len(count)), count), self._shelf._data[name][places]
