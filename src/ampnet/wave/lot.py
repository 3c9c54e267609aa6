"""Lot: some instances that are computed together, as they came: as `Instance`s, or as messages off the wire.

A lot knows what is to be computed with (its payloads, input by input) and, by **names**, what is to be computed: two
instances of one name have the same states and the same structure, and so the same score.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
from torch import Tensor

from ampnet.errors import PayloadError
from ampnet.graph import End
from ampnet.instance import Instance, merge_feeds
from ampnet.message import Messages, merge_payloads
from ampnet.structure import Shelf
from ampnet.wave.sites import Sites

Pumpings = list[tuple[End, Messages]]


class Lot:
    """Base of both kinds."""

    numbers: list[int]
    train: bool
    stream: object = None
    """Lots of one stream may be computed together."""

    def names(self, shelf: Shelf) -> list[bytes]:
        """Of each instance."""
        raise NotImplementedError

    def payloads(self) -> Iterator[tuple[int, Tensor]]:
        """By number of the input's site: all rows, in the order of instances."""
        raise NotImplementedError

    def messages(self) -> Pumpings:
        """What is pumped for them."""
        raise NotImplementedError

    @contextmanager
    def shelved(self, shelf: Shelf) -> Iterator[None]:
        """Meanwhile their structures are on the shelf."""
        yield

    def shelve(self, shelf: Shelf) -> None:
        """Put their structures on the shelf, if they are not there: they will be run message by message."""

    def at(self, places: Sequence[int]) -> Lot:
        """Those at these places."""
        raise NotImplementedError

    def split(self, count: int) -> tuple[Lot, Lot]:
        """The first so many, and the others."""
        return self.at(range(count)), self.at(range(count, len(self.numbers)))

    def merge(self, lots: Sequence[Lot]) -> Lot:
        """Several of this kind as one, in order."""
        raise NotImplementedError


class OfInstances(Lot):
    """Instances as they are, in the process that they were made in."""

    def __init__(
        self, sites: Sites, ends: Mapping[str, End], instances: Mapping[int, Instance], train: bool, stream: object
    ) -> None:
        """``ends``: where each input of the graph leads."""
        self.sites, self.ends, self.instances, self.train, self.stream = sites, ends, instances, train, stream
        self.numbers = list(instances)

    def names(self, shelf: Shelf) -> list[bytes]:
        return [instance.name() for instance in self.instances.values()]

    def payloads(self) -> Iterator[tuple[int, Tensor]]:
        for name, end in self.ends.items():
            given = [i.feeds.get(name) for i in self.instances.values()]
            feeds = [one for one in given if one is not None and one.columns.shape[1]]
            payload = feeds[0].payload if len(feeds) == 1 else (merge_payloads(feeds) if feeds else None)
            if payload is not None:
                yield self.sites.pumped_at(end).number, payload

    def messages(self) -> Pumpings:
        out: Pumpings = []
        for name, end in self.ends.items():
            given = [(n, i.feeds[name]) for n, i in self.instances.items() if name in i.feeds and len(i.feeds[name])]
            out += [(end, m) for m in merge_feeds([n for n, _ in given], [f for _, f in given], self.train)]
        return out

    @contextmanager
    def shelved(self, shelf: Shelf) -> Iterator[None]:
        self.shelve(shelf)
        try:
            yield
        finally:
            shelf.drop(np.array(self.numbers))

    def shelve(self, shelf: Shelf) -> None:
        structures = {n: i.structure for n, i in self.instances.items() if i.structure is not None}
        if structures:
            shelf.add(structures)

    def at(self, places: Sequence[int]) -> Lot:
        some = {self.numbers[i]: self.instances[self.numbers[i]] for i in places}
        return OfInstances(self.sites, self.ends, some, self.train, self.stream)

    def merge(self, lots: Sequence[Lot]) -> Lot:
        together: dict[int, Instance] = {}
        for lot in lots:
            assert isinstance(lot, OfInstances)
            together.update(lot.instances)
        return OfInstances(self.sites, self.ends, together, self.train, self.stream)


class OfMessages(Lot):
    """The messages of instances, whose structures are on the shelf."""

    def __init__(self, sites: Sites, parts: Mapping[int, Pumpings]) -> None:
        """``parts``: by instance, what was pumped for it."""
        self.sites, self.parts, self.numbers = sites, parts, list(parts)
        self.train = next(iter(parts.values()))[0][1].train

    def names(self, shelf: Shelf) -> list[bytes]:
        out = []
        for number, parts in self.parts.items():
            digest = hashlib.blake2b(digest_size=16)
            for end, messages in parts:
                tell_states(digest, f"{end.node}.{end.port}", messages.states.columns, messages.offsets)
            shelf.describe(number, digest.update)
            out.append(digest.digest())
        return out

    def _by_end(self) -> dict[End, list[Messages]]:
        found: dict[End, list[Messages]] = {}
        for parts in self.parts.values():
            for end, messages in parts:
                found.setdefault(end, []).append(messages)
        return found

    def payloads(self) -> Iterator[tuple[int, Tensor]]:
        for end, given in self._by_end().items():
            payload = merge_payloads(given)
            if payload is None:
                raise PayloadError("got messages without a payload")
            yield self.sites.pumped_at(end).number, payload

    def messages(self) -> Pumpings:
        return [(end, Messages.merge(given)) for end, given in self._by_end().items()]

    def at(self, places: Sequence[int]) -> Lot:
        return OfMessages(self.sites, {self.numbers[i]: self.parts[self.numbers[i]] for i in places})

    def merge(self, lots: Sequence[Lot]) -> Lot:
        together: dict[int, Pumpings] = {}
        for lot in lots:
            assert isinstance(lot, OfMessages)
            together.update(lot.parts)
        return OfMessages(self.sites, together)


def tell_states(digest: hashlib.blake2b, where: str, columns: np.ndarray, offsets: np.ndarray | None) -> None:
    """States, but for the number of their instance, and how many rows each message has."""
    digest.update(f"{where} {columns.shape} {offsets is None}".encode())
    digest.update(columns[1:].tobytes())
    if offsets is not None:
        digest.update(offsets.tobytes())


def by_instance(messages: Messages) -> list[tuple[int, Messages]]:
    """The messages of each instance; those of one are neighbours."""
    instances = messages.states.columns[0]
    cuts = np.flatnonzero(instances[1:] != instances[:-1]) + 1
    starts = [0, *cuts.tolist(), len(instances)]
    return [(int(instances[a]), messages.slice(a, b)) for a, b in itertools.pairwise(starts)]
