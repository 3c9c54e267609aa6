"""Lot: some instances that are computed together.

A lot knows what is to be computed with (its payloads, input by input) and, by **digests**, what is to be computed: two
instances of one digest have the same states and the same structure, and so the same score. A message without a payload
(a label that is not given, in inference) is missing for all instances of a lot or for none: `apart`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
from torch import Tensor

from ampnet.errors import AmpnetError, DataError
from ampnet.graph import End
from ampnet.instance import Feed, Instance, merge_feeds
from ampnet.message import Messages, merge_payloads
from ampnet.plan.sites import Sites
from ampnet.structure import Shelf

Pumpings = list[tuple[End, Messages]]


class Lot:
    """Instances by number, of one stream."""

    def __init__(
        self, sites: Sites, ends: Mapping[str, End], instances: Mapping[int, Instance], train: bool, stream: int | None
    ) -> None:
        """``ends``: where each input of the graph leads. Lots of one ``stream`` may be computed together."""
        self.sites, self.ends, self.instances, self.train, self.stream = sites, ends, instances, train, stream
        self.numbers = list(instances)
        self.wave: int | None = None
        """The wave number, if other workers compute the same wave; None: the lot may be split and merged."""
        self.missing: frozenset[int] = frozenset()
        """Sites of inputs whose messages have no payload."""

    # -- lots of lots

    def alike(self, other: Lot) -> bool:
        """Whether instances of both lots may be in one wave."""
        return self.train == other.train and self.stream == other.stream and self.missing == other.missing

    def apart(self) -> list[Lot]:
        """Split into lots in which a payload is missing for all instances or for none, in order."""
        kinds = self._missing()
        if len(set(kinds)) <= 1:
            self.missing = kinds[0] if kinds else frozenset()
            return [self]
        lots = []
        for kind, some in itertools.groupby(range(len(kinds)), key=kinds.__getitem__):
            lot = self.at(list(some))
            lot.missing = kind
            lots.append(lot)
        return lots

    def _missing(self) -> list[frozenset[int]]:
        """Of each instance: sites of inputs whose messages have no payload."""
        if all(instance.complete for instance in self.instances.values()):
            return [frozenset()]
        return [
            frozenset(
                self.sites.pumped_at(self.ends[name]).number
                for name, given in instance.feeds.items()
                if given.payload is None and len(given)
            )
            for instance in self.instances.values()
        ]

    def at(self, places: Sequence[int]) -> Lot:
        """The lot of the instances at these positions."""
        some = {self.numbers[i]: self.instances[self.numbers[i]] for i in places}
        return Lot(self.sites, self.ends, some, self.train, self.stream)

    def split(self, count: int) -> tuple[Lot, Lot]:
        """The first ``count`` instances, and the rest."""
        items = iter(self.instances.items())
        first, others = dict(itertools.islice(items, count)), dict(items)
        return self._part(first), self._part(others)

    def _part(self, instances: Mapping[int, Instance]) -> Lot:
        part = Lot(self.sites, self.ends, instances, self.train, self.stream)
        part.missing = self.missing
        return part

    def merge(self, lots: Sequence[Lot]) -> Lot:
        """One lot of several, in order."""
        together: dict[int, Instance] = {}
        for lot in lots:
            together.update(lot.instances)
        return self._part(together)

    def followed_by(self, instances: Sequence[Instance]) -> Lot:
        """This lot and instances that are not pumped yet, under numbers that nobody has: good for a rehearsal only."""
        start = 1 + max(self.numbers)
        more = dict(enumerate(instances, start))
        return Lot(self.sites, self.ends, {**self.instances, **more}, self.train, self.stream)

    def apart_of(self, instances: Sequence[Instance]) -> list[Lot]:
        """Lots of instances of the same stream that are not pumped yet, under numbers that nobody has."""
        start = 1 + max(self.numbers)
        return Lot(self.sites, self.ends, dict(enumerate(instances, start)), self.train, self.stream).apart()

    # -- what is in it

    def digests(self) -> list[bytes]:
        """The digest of each instance: equal digests have equal scores."""
        return [instance.digest() for instance in self.instances.values()]

    def kinds(self) -> Iterator[object]:
        """Of each input of the first instance: shape and dtype of its rows; None: it has no payload. The others have
        the same, or they cannot be computed together."""
        first = self.instances[self.numbers[0]]
        return (None if (p := given.payload) is None else (p.shape[1:], p.dtype) for given in first.feeds.values())

    def payloads(self) -> Iterator[tuple[int, Tensor]]:
        """By number of the input's site: all rows, in the order of instances. Of inputs that are read here."""
        for name, end in self.ends.items():
            site = self.sites.pumped_at(end)
            if not site.here:
                continue
            given = [(n, i.feeds[name]) for n, i in self.instances.items() if name in i.feeds]
            feeds = [(n, one) for n, one in given if one.payload is not None and one.columns.shape[1]]
            if not feeds:
                continue
            try:
                payload = feeds[0][1].payload if len(feeds) == 1 else merge_payloads([one for _, one in feeds])
            except AmpnetError as error:
                raise DataError(f"input '{name}', {_odd_one(feeds)}: {error}") from error
            assert payload is not None
            yield site.number, payload

    def pieces(self) -> dict[int, list[Tensor]] | None:
        """By number of the input's site: the payload of each instance. None where they are not alike."""
        instances = list(self.instances.values())
        kind = instances[0].kind()
        if any(one.kind() is not kind and one.kind() != kind for one in instances):
            return None
        out: dict[int, list[Tensor]] = {}
        for name, end in self.ends.items():
            some = [p for one in instances if name in one.feeds and (p := one.feeds[name].payload) is not None]
            if some:
                out[self.sites.pumped_at(end).number] = some
        return out

    def messages(self, bare: bool = False) -> Pumpings:
        """The messages to be pumped; ``bare``: without payloads."""
        out: Pumpings = []
        for name, end in self.ends.items():
            given = [(n, i.feeds[name]) for n, i in self.instances.items() if name in i.feeds and len(i.feeds[name])]
            try:
                out += [(end, m) for m in merge_feeds([n for n, _ in given], [f for _, f in given], self.train, bare)]
            except AmpnetError as error:
                raise DataError(f"input '{name}', {_odd_one(given)}: {error}") from error
        return out

    @contextmanager
    def shelved(self, shelf: Shelf) -> Iterator[None]:
        """Context: the structures of the instances are registered while it is open."""
        structures = {n: i.structure for n, i in self.instances.items() if i.structure is not None}
        if structures:
            shelf.add(structures)
        try:
            yield
        finally:
            shelf.drop(np.array(self.numbers))


def _odd_one(feeds: Sequence[tuple[int, Feed]]) -> str:
    """Name the first instance whose rows differ in shape or dtype from those of the lot's first."""
    first = feeds[0][1].payload
    for number, one in feeds[1:]:
        if first is None or one.payload is None:
            continue
        if (one.payload.shape[1:], one.payload.dtype) != (first.shape[1:], first.dtype):
            return f"instance {number}"
    return f"instances {feeds[0][0]} to {feeds[-1][0]}"
