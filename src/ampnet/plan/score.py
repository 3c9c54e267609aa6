"""Score: what one instance computes, from its states and structure alone, as packed numbers.

A score is made once (`ampnet.plan.scoring`), kept, and unpacked together with others whenever a wave has its instance
(`ampnet.plan.records`). Its rows are numbered from 0, in the order of its blocks. It has tables of whole numbers:

    blocks   site, round, rows                               the rows that are made, in order
    runs     slot, round, first row, rows                    neighbours that a slot reads, in order
    links    slot, round, kind, links, at, read, made        where they are not neighbours, or are added up
    heard    site, round, messages                           messages that get a gradient, at sites with parameters
    told     site, round, width, messages                    states of messages, at sites whose node reads them

A link is a pair (row read, row made). Pairs are stored relative to the smallest rows of their record, ``read`` and
``made``, and begin at pair ``at``: rounds of a loop whose links are the same but for that shift have one copy.

    round 0    reads 19 21 27 for 226 226 226    read 18, made 226 ─┐
    round 1    reads 53 55 61 for 243 243 243    read 52, made 243 ─┴─> pairs (1 0) (3 0) (9 0)

Everything but the pairs is in one array, the pairs are in another, and each has the smallest dtype that holds its
numbers. A molecule of 18 atoms takes 750 bytes, where the plain tables took 4,300.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ampnet.message import ranges
from ampnet.narrow import narrow, smallest, stable_order
from ampnet.state import Column, Ints

WIDTHS = {"blocks": 3, "runs": 4, "links": 7, "heard": 3, "told": 4, "values": 1}
"""The columns of each table, in the order in which they are packed. ``values`` are those of ``told``: for each message
its rows, its state without the instance, and how many rows its labels (or, of whole messages, its ports) have."""
HEADER = 3 + len(WIDTHS)
"""Numbers in front of the tables: rows, rounds, whether all messages of ``told`` have one row, and the length of each
table."""
OBJECTS = 500
"""Approximate bytes of the Python objects of a score and of its entry in a cache."""


@dataclass(slots=True, eq=False)
class Score:
    """One instance. See the head of this file. Immutable."""

    numbers: Column
    """`HEADER` numbers, then the tables, record by record."""
    pairs: Column
    """Row read and row made of each stored link, relative."""
    ways: int
    """The number of slots that were read by links when this score was made."""
    digest: bytes = b""
    """Of the rows of all workers, and of what crosses between them; empty where nodes are not parted."""

    @property
    def nbytes(self) -> int:
        """Bytes that keeping it takes."""
        return self.numbers.nbytes + self.pairs.nbytes + OBJECTS


@dataclass(slots=True, eq=False)
class Links:
    """Link records of several instances, in the order of instances, with their pairs."""

    keys: Ints
    """``[records, 3]``: slot, round, kind."""
    counts: Ints
    """The number of links of each record; none is 0."""
    owners: Ints
    """The instance of each record, as a place; rising."""
    read: Ints
    made: Ints
    """The links of all records, one record after the other."""


@dataclass(slots=True, eq=False)
class Tables:
    """The tables of several instances, not packed yet."""

    rows: Ints
    """Of each instance."""
    single: Column
    """Of each instance: whether all messages of ``told`` have one row, and no rows of labels are told."""
    links: Links
    tables: dict[str, tuple[Ints, Ints]] = field(default_factory=dict)
    """By name, all but ``links``: ``[records, columns]`` in the order of instances, and the number of each instance."""


def packed(given: Tables, ways: int, digests: Sequence[bytes]) -> list[Score]:
    """Returns the score of each instance."""
    count = len(given.rows)
    records, pairs, pair_cuts = _shared(given.links, count)
    tables = given.tables | {"links": (records, np.bincount(given.links.owners, minlength=count))}
    lengths = np.stack([tables[name][1] for name in WIDTHS])
    sizes = HEADER + np.array(list(WIDTHS.values())) @ lengths
    starts = np.cumsum(sizes) - sizes
    out = np.empty(int(sizes.sum()), dtype=np.int64)
    rounds = np.ones(count, dtype=np.int64)
    at = starts + HEADER
    for name, width in WIDTHS.items():
        table, mine = tables[name]
        out[ranges(at, width * mine)] = table.ravel()
        at += width * mine
        if width > 1 and len(table):
            some = np.flatnonzero(mine)
            first = (np.cumsum(mine) - mine)[some]
            rounds[some] = np.maximum(rounds[some], 1 + np.maximum.reduceat(table[:, 1], first))
    out[starts[:, None] + np.arange(HEADER)] = np.vstack([given.rows, rounds, given.single, lengths]).T
    least, most = np.minimum.reduceat(out, starts).tolist(), np.maximum.reduceat(out, starts).tolist()
    cuts = [*starts.tolist(), len(out)]
    scores = []
    for i, digest in enumerate(digests):
        a, b = pair_cuts[i], pair_cuts[i + 1]
        numbers: Column = out[cuts[i] : cuts[i + 1]].astype(smallest(least[i], most[i]))
        scores.append(Score(numbers, narrow(pairs[a:b]).ravel(), ways, digest))
    return scores


def _shared(links: Links, count: int) -> tuple[Ints, Ints, list[int]]:
    """Returns the records of links, the pairs ``[pairs, 2]`` without copies of a record's earlier round, and where
    those of each instance begin."""
    if not len(links.keys):
        return np.zeros((0, 7), dtype=np.int64), np.zeros((0, 2), dtype=np.int64), [0] * (count + 1)
    counts, owners = links.counts, links.owners
    starts = np.cumsum(counts) - counts
    read, made = np.minimum.reduceat(links.read, starts), np.minimum.reduceat(links.made, starts)
    relative = np.empty((len(links.read), 2), dtype=np.int64)
    relative[:, 0] = links.read - np.repeat(read, counts)
    relative[:, 1] = links.made - np.repeat(made, counts)
    leader = _leaders(links, starts, relative)
    own = leader == np.arange(len(leader))
    kept = np.where(own, counts, 0)
    totals = np.bincount(owners, weights=kept, minlength=count).astype(np.int64)
    cuts = np.concatenate(([0], np.cumsum(totals)))
    at = (np.cumsum(kept) - kept)[leader] - cuts[owners]
    records = np.column_stack([links.keys, counts, at, read, made])
    return records, relative[ranges(starts[own], counts[own])], cuts.tolist()


def _leaders(links: Links, starts: Ints, relative: Ints) -> Ints:
    """Of each record: the one whose pairs it shares. It is the first of rounds that follow one another and are equal,
    of one instance, slot and kind."""
    slot, _, kind = links.keys.T
    key = (links.owners * (int(slot.max()) + 1) + slot) * (int(kind.max()) + 1) + kind
    order = stable_order(key)
    counts = links.counts[order]
    alike = np.zeros(len(order), dtype=bool)
    alike[1:] = (key[order[1:]] == key[order[:-1]]) & (counts[1:] == counts[:-1])
    later = np.flatnonzero(alike)
    if len(later):
        sizes = counts[later]
        mine = relative[ranges(starts[order[later]], sizes)]
        before = relative[ranges(starts[order[later - 1]], sizes)]
        alike[later] = np.logical_and.reduceat((mine == before).all(1), np.cumsum(sizes) - sizes)
    first = np.maximum.accumulate(np.where(alike, 0, np.arange(len(order))))
    leader = np.empty(len(order), dtype=np.int64)
    leader[order] = order[first]
    return leader
