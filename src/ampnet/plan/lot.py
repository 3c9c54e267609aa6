"""Lot: some instances that are computed together, as they came: as `Instance`s, or as messages off the wire.

A lot knows what is to be computed with (its payloads, input by input) and, by **digests**, what is to be computed: two
instances of one digest have the same states and the same structure, and so the same score. A message without a payload
(a label that is not given, in inference) is missing for all instances of a lot or for none: `apart`.
"""

from __future__ import annotations

import hashlib
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
    """Base of both kinds."""

    sites: Sites
    numbers: list[int]
    train: bool
    stream: object = None
    """Lots of one stream may be computed together."""
    wave: int | None = None
    """The number of the wave that they are, where others compute it too; None: they may be parted and put together."""

    missing: frozenset[int] = frozenset()
    """Sites of inputs whose messages have no payload."""

    def alike(self, other: Lot) -> bool:
        """Whether instances of both may be computed together."""
        same = type(self) is type(other) and self.train == other.train and self.stream == other.stream
        return same and self.missing == other.missing

    def apart(self) -> list[Lot]:
        """Lots in which a payload is missing for all instances or for none, in the order of their instances."""
        kinds = self._kinds()
        if len(set(kinds)) <= 1:
            self.missing = kinds[0] if kinds else frozenset()
            return [self]
        lots = []
        for kind, some in itertools.groupby(range(len(kinds)), key=kinds.__getitem__):
            lot = self.at(list(some))
            lot.missing = kind
            lots.append(lot)
        return lots

    def _kinds(self) -> list[frozenset[int]]:
        """Of each instance: sites of inputs whose messages have no payload."""
        raise NotImplementedError

    def digests(self, shelf: Shelf) -> list[bytes]:
        """Of each instance."""
        raise NotImplementedError

    def payloads(self) -> Iterator[tuple[int, Tensor]]:
        """By number of the input's site: all rows, in the order of instances. Of inputs that are read here."""
        raise NotImplementedError

    def messages(self) -> Pumpings:
        """What is pumped for them."""
        raise NotImplementedError

    def kinds(self) -> Iterator[object]:
        """Of each input of the first instance: shape and dtype of its rows; None: it has no payload. The others have
        the same, or they cannot be computed together."""
        raise NotImplementedError

    @contextmanager
    def shelved(self, shelf: Shelf) -> Iterator[None]:
        """Meanwhile their structures are on the shelf."""
        yield

    def at(self, places: Sequence[int]) -> Lot:
        """Those at these places."""
        raise NotImplementedError

    def split(self, count: int) -> tuple[Lot, Lot]:
        """The first so many, and the others."""
        first, others = self.at(range(count)), self.at(range(count, len(self.numbers)))
        first.missing = others.missing = self.missing
        return first, others

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

    def digests(self, shelf: Shelf) -> list[bytes]:
        return [instance.digest() for instance in self.instances.values()]

    def payloads(self) -> Iterator[tuple[int, Tensor]]:
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

    def messages(self) -> Pumpings:
        out: Pumpings = []
        for name, end in self.ends.items():
            given = [(n, i.feeds[name]) for n, i in self.instances.items() if name in i.feeds and len(i.feeds[name])]
            try:
                out += [(end, m) for m in merge_feeds([n for n, _ in given], [f for _, f in given], self.train)]
            except AmpnetError as error:
                raise DataError(f"input '{name}', {_odd_one(given)}: {error}") from error
        return out

    def kinds(self) -> Iterator[object]:
        first = self.instances[self.numbers[0]]
        return (None if (p := given.payload) is None else (p.shape[1:], p.dtype) for given in first.feeds.values())

    @contextmanager
    def shelved(self, shelf: Shelf) -> Iterator[None]:
        structures = {n: i.structure for n, i in self.instances.items() if i.structure is not None}
        if structures:
            shelf.add(structures)
        try:
            yield
        finally:
            shelf.drop(np.array(self.numbers))

    def _kinds(self) -> list[frozenset[int]]:
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
        some = {self.numbers[i]: self.instances[self.numbers[i]] for i in places}
        return OfInstances(self.sites, self.ends, some, self.train, self.stream)

    def merge(self, lots: Sequence[Lot]) -> Lot:
        together: dict[int, Instance] = {}
        for lot in lots:
            assert isinstance(lot, OfInstances)
            together.update(lot.instances)
        merged = OfInstances(self.sites, self.ends, together, self.train, self.stream)
        merged.missing = self.missing
        return merged


class OfMessages(Lot):
    """The messages of instances, whose structures are on the shelf."""

    def __init__(self, sites: Sites, parts: Mapping[int, Pumpings], stream: object = None) -> None:
        """``parts``: by instance, what was pumped for it."""
        self.sites, self.parts, self.numbers, self.stream = sites, parts, list(parts), stream
        self.train = next(iter(parts.values()))[0][1].train

    def _kinds(self) -> list[frozenset[int]]:
        return [
            frozenset(self.sites.pumped_at(end).number for end, messages in parts if messages.payload is None)
            for parts in self.parts.values()
        ]

    def digests(self, shelf: Shelf) -> list[bytes]:
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
            site = self.sites.pumped_at(end)
            if not site.here:
                continue
            with self._named(end):
                payload = merge_payloads(given)
            if payload is not None:
                yield site.number, payload

    def messages(self) -> Pumpings:
        out: Pumpings = []
        for end, given in self._by_end().items():
            with self._named(end):
                out.append((end, Messages.merge(given)))
        return out

    @contextmanager
    def _named(self, end: End) -> Iterator[None]:
        """An error of what came for an input says so."""
        try:
            yield
        except AmpnetError as error:
            first, last = self.numbers[0], self.numbers[-1]
            raise DataError(f"input of node '{end.node}', instances {first} to {last}: {error}") from error

    def kinds(self) -> Iterator[object]:
        given = self.parts[self.numbers[0]]
        return (None if (p := messages.payload) is None else (p.shape[1:], p.dtype) for _, messages in given)

    def at(self, places: Sequence[int]) -> Lot:
        return OfMessages(self.sites, {self.numbers[i]: self.parts[self.numbers[i]] for i in places}, self.stream)

    def merge(self, lots: Sequence[Lot]) -> Lot:
        together: dict[int, Pumpings] = {}
        for lot in lots:
            assert isinstance(lot, OfMessages)
            together.update(lot.parts)
        merged = OfMessages(self.sites, together, self.stream)
        merged.missing = self.missing
        return merged


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


def _odd_one(feeds: Sequence[tuple[int, Feed]]) -> str:
    """Which instance has other rows than the first."""
    first = feeds[0][1].payload
    for number, one in feeds[1:]:
        if first is None or one.payload is None:
            continue
        if (one.payload.shape[1:], one.payload.dtype) != (first.shape[1:], first.dtype):
            return f"instance {number}"
    return f"instances {feeds[0][0]} to {feeds[-1][0]}"
