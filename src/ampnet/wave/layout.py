"""Layout: the scores of several instances put together: where every row lies, and what is computed in which order.

    scores       rows of instance 7: (x, 0) (h, 0) (h, 1)     of instance 8: (x, 0) (h, 0)
    arena        [ x: 7 8 | h, round 0: 7 8 | h, round 1: 7 ]
    operations   (h, round 0) makes rows 2 to 3 and reads rows 0 to 1;  (h, round 1) makes row 4 and reads row 2

Rows of one site and round are neighbours, so that an operation writes a slice, and reads one where it can. It takes two
sorts and a few gathers over all rows and links, whatever the number of instances; a loop in Python runs over operations
only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ampnet.message import Messages, offsets_of
from ampnet.state import Column, Ints, States
from ampnet.wave.arena import Arena, Pool, Read
from ampnet.wave.score import Score
from ampnet.wave.sites import Site, Sites


@dataclass(slots=True, eq=False)
class Bag:
    """Rows that are added up: ``read`` numbers of rows, those of target i from ``offsets[i]`` to ``offsets[i + 1]``."""

    arena: Arena
    index: Tensor
    offsets: Tensor


@dataclass(slots=True, eq=False)
class Operation:
    """A site's work of one round."""

    site: Site
    start: int
    stop: int
    """Of the rows made, in the site's arena."""
    first: bool
    """Whether it is the site's first, and so (backward) its last."""
    reads: list[Read]
    bags: list[Bag]
    """Of sums; a mixture has what its pairs read, what it reads of them, and the way back."""
    cuts: list[int]
    """Of a mixture: where the pairs of each Linear begin, in their arena, and where the last ones end."""
    back: tuple[int, int] = (0, 0)
    """Of a mixture: the slice of rows that the way back leads to."""
    round: int = 0
    kept: Sequence[Tensor | None] = ()
    """What the kernel wants to see again in the backward."""


@dataclass(slots=True, eq=False)
class Whole:
    """All operations of one site together."""

    site: Site
    start: int
    stop: int
    reads: list[Read]
    links: list[int]
    """Of each slot: how many links there are before those of this site."""


class Layout:
    """What is to be computed for some instances. See the head of this file."""

    def __init__(self, sites: Sites, moved: Sequence[bool], scores: Sequence[Score], pool: Pool) -> None:
        rows, links, rounds = _together(scores)
        self.sites, self._scores = sites, scores
        self.numbers: Sequence[int] = ()
        """Of the instances, in the order of their scores; set for each wave."""
        self.messages: Ints = sum((s.messages for s in scores), np.zeros(len(sites.sites), dtype=np.int64))
        width = max((len(s.pairs) for s in sites.sites), default=1) or 1
        block = np.array([s.block[0] for s in sites.sites]) * (rounds * width)
        inner = np.array([s.block[1] for s in sites.sites])
        key = block[rows[0]] + rows[1].astype(np.int64) * width + inner[rows[0]]
        keys = sites.blocks * rounds * width
        place, sizes, starts = _rank(key, keys)
        arena_of = np.array([s.arena for s in sites.sites])
        ends = starts + sizes
        begin, end, pumped = self._arenas(starts, ends, rounds * width)
        self.arenas = [
            Arena(i, int(end[i] - begin[i]), int(pumped[i] - begin[i]), moved[i], pool) for i in range(sites.arenas)
        ]
        place -= begin[arena_of[rows[0]]]
        self._rounds, self._width = rounds, width
        self._links(links, place, inner[rows[0]])
        self.wholes: dict[int, Whole] = {}
        self.operations: list[Operation] = []
        at = starts - begin[self._block_arena].repeat(rounds * width)
        self._pair_sizes, self._pair_at = sizes, at
        self._operations(sizes, at)

    def _arenas(self, starts: Ints, ends: Ints, each: int) -> tuple[Ints, Ints, Ints]:
        """Of every arena: where it begins, ends, and where its pumped rows end."""
        self._block_arena = np.zeros(self.sites.blocks, dtype=np.int64)
        begin = np.full(self.sites.arenas, np.iinfo(np.int64).max)
        end, pumped = np.zeros(self.sites.arenas, dtype=np.int64), np.zeros(self.sites.arenas, dtype=np.int64)
        for site in self.sites.sites:
            if site.kind in ("view", "absorbed"):
                continue
            block = site.block[0]
            self._block_arena[block] = site.arena
            first, last = int(starts[block * each]), int(ends[block * each + each - 1])
            begin[site.arena], end[site.arena] = min(begin[site.arena], first), max(end[site.arena], last)
            if site.kind == "input":
                pumped[site.arena] = max(pumped[site.arena], last)
        return np.minimum(begin, end), end, np.maximum(pumped, np.minimum(begin, end))

    def _links(self, links: Column, place: Ints, inner: Ints) -> None:
        """Links in the order of the rows that they are for."""
        rounds, width = self._rounds, self._width
        key = (links[0].astype(np.int64) * rounds + links[1]) * width + inner[links[3]]
        order, sizes, starts = _sorted(key, len(self.sites.slots) * rounds * width)
        self._link_sizes, self._link_starts = sizes.reshape(-1, width).sum(1), starts[::width]
        self._from = place[links[2]][order]
        self._to = place[links[3]][order]
        self._breaks = np.concatenate(([0], np.cumsum(self._from[1:] - self._from[:-1] != 1)))
        self._index = torch.from_numpy(self._from)

    def _read(self, arena: int, start: int, size: int) -> Read:
        """The rows of some links that follow one another."""
        if not size:
            return Read(self.arenas[arena], 0, 0, None)
        first = int(self._from[start])
        if self._breaks[start + size - 1] == self._breaks[start]:
            return Read(self.arenas[arena], first, first + size, None)
        return Read(self.arenas[arena], first, first + size, self._index[start : start + size])

    def _slot(self, slot: int, round_: int) -> tuple[int, int]:
        """Where the links of a slot are in a round, and how many."""
        at = slot * self._rounds + round_
        return int(self._link_starts[at]), int(self._link_sizes[at])

    def _bag(self, arena: int, slot: int, round_: int, begin: int, count: int) -> Bag:
        start, size = self._slot(slot, round_)
        counts = np.bincount(self._to[start : start + size] - begin, minlength=count)
        offsets = np.zeros(count + 1, dtype=np.int64)
        np.cumsum(counts, out=offsets[1:])
        return Bag(self.arenas[arena], self._index[start : start + size], torch.from_numpy(offsets))

    def _operations(self, sizes: Ints, at: Ints) -> None:
        rounds, width = self._rounds, self._width
        found: list[tuple[tuple[int, int, int], Site, int, int, int]] = []
        for site in self.sites.sites:
            if site.kind in ("view", "absorbed", "pairs"):
                continue
            base = site.block[0] * rounds * width + site.block[1]
            here = np.flatnonzero(sizes[base : base + rounds * width : width]).tolist()
            for round_ in here:
                key = base + round_ * width
                start = int(at[key])
                found.append(((site.component, round_, site.rank), site, round_, start, start + int(sizes[key])))
            if here:
                self._whole(site, int(at[base + here[0] * width]), found[-1][4])
        found.sort(key=lambda one: one[0])
        seen: set[int] = set()
        for _, site, round_, start, stop in found:
            operation = self._operation(site, round_, start, stop, site.number not in seen)
            operation.round = round_
            self.operations.append(operation)
            seen.add(site.number)

    def messages_of(self, op: Operation, payload: Tensor | None, train: bool) -> Messages:
        """The messages that an operation is about, with their states."""
        which = (op.site.number, op.round)
        given = [(n, *s.states[which]) for n, s in zip(self.numbers, self._scores, strict=True) if which in s.states]
        columns = np.concatenate([c for _, _, c, _ in given], axis=1)
        columns[0] = np.repeat([n for n, _, _, _ in given], [c.shape[1] for _, _, c, _ in given])
        counts = np.concatenate([rows for _, _, _, rows in given])
        offsets = None if (counts == 1).all() else offsets_of(counts)
        return Messages.trusted(payload, States.trusted(given[0][1], columns), offsets, train)

    def labels_of(self, op: Operation) -> Ints | None:
        """The offsets of labels, where they have other rows than predictions; None: one row each."""
        which = (op.site.number, op.round)
        given = [s.labels[which] for s in self._scores if which in s.labels]
        return offsets_of(np.concatenate(given)) if given else None

    def _whole(self, site: Site, start: int, stop: int) -> None:
        reads, links = [], []
        for i, part in enumerate(site.parts):
            first, _ = self._slot(site.slot + i, 0)
            last, size = self._slot(site.slot + i, self._rounds - 1)
            reads.append(self._read(part.arena, first, last + size - first))
            links.append(first)
        self.wholes[site.number] = Whole(site, start, stop, reads, links)

    def _operation(self, site: Site, round_: int, start: int, stop: int, first: bool) -> Operation:
        if site.kind in ("bag", "segments"):
            bag = self._bag(site.parts[0].arena, site.slot, round_, start, stop - start)
            links, size = self._slot(site.slot, round_)
            return Operation(
                site, start, stop, first, [self._read(site.parts[0].arena, links, size)], [bag], []
            )
        if site.kind == "mixture":
            return self._mixture(site, round_, start, stop, first)
        reads = [self._read(part.arena, *self._slot(site.slot + i, round_)) for i, part in enumerate(site.parts)]
        return Operation(site, start, stop, first, reads, [], [])

    def _mixture(self, site: Site, round_: int, start: int, stop: int, first: bool) -> Operation:
        base = site.pairs[0].block[0] * self._rounds * self._width + round_ * self._width
        kinds = len(site.pairs)
        sizes, at = self._pair_sizes[base : base + kinds], self._pair_at[base : base + kinds]
        cuts = [*at.tolist(), int(at[-1] + sizes[-1])]
        read, pairs = site.parts[0].arena, site.parts[1].arena
        back, size = self._slot(site.slot + 2, round_)
        to = self._to[back : back + size]
        low, high = (int(to[0]), int(to[-1]) + 1) if size else (0, 0)
        if size > 1 and (to[1:] < to[:-1]).any():
            low, high = int(to.min()), int(to.max()) + 1
            order = np.argsort(to, kind="stable")
            to = to[order]
            index = torch.from_numpy(self._from[back : back + size][order])
        else:
            index = self._index[back : back + size]
        offsets = np.zeros(high - low + 1, dtype=np.int64)
        np.cumsum(np.bincount(to - low, minlength=high - low), out=offsets[1:])
        bags = [
            self._bag(read, site.slot, round_, cuts[0], cuts[-1] - cuts[0]),
            self._bag(pairs, site.slot + 1, round_, start, stop - start),
            Bag(self.arenas[pairs], index, torch.from_numpy(offsets)),
        ]
        return Operation(site, start, stop, first, [], bags, cuts, (low, high))


def _together(scores: Sequence[Score]) -> tuple[Column, Column, int]:
    """Rows and links of all scores, numbered as one."""
    rounds = max(s.rounds for s in scores)
    if len(scores) == 1:
        return scores[0].rows, scores[0].links, rounds
    rows = np.concatenate([s.rows for s in scores], axis=1)
    links = np.concatenate([s.links for s in scores], axis=1)
    counts = np.array([s.rows.shape[1] for s in scores])
    links[2:] += np.repeat(np.cumsum(counts) - counts, [s.links.shape[1] for s in scores]).astype(links.dtype)
    return rows, links, rounds


def _sorted(key: Ints, keys: int) -> tuple[Ints, Ints, Ints]:
    """The order of the keys; of each, how many there are and where they begin."""
    narrow = key.astype(np.int16) if keys < 2**15 else key  # sixteen bits are sorted by counting
    sizes = np.bincount(key, minlength=keys)
    return np.argsort(narrow, kind="stable"), sizes, np.cumsum(sizes) - sizes


def _rank(key: Ints, keys: int) -> tuple[Ints, Ints, Ints]:
    """The place of each key among all; of each key, how many there are and where they begin."""
    order, sizes, starts = _sorted(key, keys)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return place, sizes, starts
