"""Scoring: from the steps of a rehearsal to the score of each instance (`ampnet.plan.score`).

    steps      what every site made in every round, of all instances that were rehearsed together
    columns    all their rows and links, in order
    scores     rows and links by instance, numbered from 0

Views are seen through here: a link leads to the row that holds the numbers. And where a sum of products is made of
products of sums, this is where the sums, one for each Linear and target (**pairs**), become rows.

Where nodes are parted over workers, rows that cross become rows of the crossing, in the order of the rows they are
copies of. Every worker computes all of it; a score keeps the part of one of them, and a digest of all.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ampnet.message import ranges
from ampnet.narrow import stable_order
from ampnet.plan.heard import heard_and_told
from ampnet.plan.records import Records
from ampnet.plan.rehearse import Rehearsal, Step
from ampnet.plan.score import Links, Score, Tables, packed
from ampnet.plan.sites import Site, Sites, Unplayable, pieces_of
from ampnet.state import Column, Ints

_LONG = 4
"""Reads are stored as runs instead of single rows if the mean run is at least this long."""


class _Columns:
    """Rows and links of a rehearsal, as they are found."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self.made = rehearsal.rows
        self.rows: list[tuple[Site, int, int, int, Column]] = []
        """(site, round, first number, how many, owners)"""
        self.links: list[tuple[int, int, Column, Column]] = []
        """(slot, round, read, made)"""
        self.far: list[tuple[int, Column]] = []
        """(worker, rows that it reads), of other workers than this one."""
        self.crossed: list[tuple[Column, Column]] = []
        """(rows, the rows they become where they are read)"""

    def row(self, site: Site, round_: int, base: int, owners: Column) -> None:
        self.rows.append((site, round_, base, len(owners), owners))

    def link(self, site: Site, place: int, round_: int, read: Column, made: Column) -> None:
        """``place``: which of the site's slots reads."""
        if not len(read):
            return
        if site.here:
            self.links.append((site.slot + place, round_, read, made))
        else:
            self.far.append((site.worker, read))

    def of_rows(self) -> tuple[Column, Column, Column]:
        """Site, round and owner of every row; -1 where it is in no arena."""
        site, round_ = np.full(self.made, -1, dtype=np.int32), np.zeros(self.made, dtype=np.int32)
        owner = np.full(self.made, -1, dtype=np.int64)
        for one, at, base, count, owners in self.rows:
            site[base : base + count], round_[base : base + count] = one.number, at
            owner[base : base + count] = owners
        return site, round_, owner


def relinked(score: Score, sites: Sites) -> Score:
    """The score with links instead of runs, for slots that other scores read by links."""
    records = Records([score])
    runs = records.table("runs")
    turned = np.isin(runs[0], list(sites.linked))
    if not turned.any():
        return replace(score, ways=len(sites.linked))
    slot, round_, first, count = runs[:, turned]
    links, new = records.table("links"), ranges(first, count)
    read, made = records.links()
    keys = np.concatenate((links[:3].T, np.column_stack([slot, round_, np.zeros_like(slot)])))
    counts = np.concatenate((links[3], count))
    together = Links(keys, counts, np.zeros_like(counts), np.concatenate((read, new)), np.concatenate((made, new)))
    rest = {name: (records.table(name).T, records.counts[name]) for name in ("blocks", "heard", "told", "values")}
    stay = runs[:, ~turned].T
    tables = Tables(records.rows, np.array([records.single]), together, rest | {"runs": (stay, np.array([len(stay)]))})
    return packed(tables, len(sites.linked), [score.digest])[0]


def scores(sites: Sites, rehearsal: Rehearsal, instances: Sequence[int]) -> list[Score]:
    """The score of each of these instances, all of which were rehearsed together."""
    columns = _Columns(rehearsal)
    seen_through: dict[int, Ints] = {}
    term = np.full(rehearsal.rows, -1, dtype=np.int64)
    for step in rehearsal.steps:
        if not step.site.makes_rows:
            pieces = pieces_of(step.site) if step.site.kind == "view" else [(0, None)]
            for i, (place, _) in enumerate(pieces or ()):
                if i not in seen_through:
                    seen_through[i] = np.zeros(rehearsal.rows, dtype=np.int64)
                seen_through[i][step.base : step.base + step.rows] = step.sources[place]
            term[step.base : step.base + step.rows] = step.site.number
        else:
            _enter(columns, step, seen_through, term)
    if sites.parted:
        _bring(sites, columns)
    return _apart(sites, columns, rehearsal, instances)


def _enter(columns: _Columns, step: Step, through: dict[int, Ints], term: Ints) -> None:
    site = step.site
    made = np.arange(step.base, step.base + step.rows)
    columns.row(site, step.round, step.base, step.owners)
    if site.kind == "mixture":
        _mix(columns, step, made, through, term)
    elif site.kind in ("bag", "segments"):
        assert step.counts is not None
        columns.link(site, 0, step.round, step.sources[0], np.repeat(made, step.counts))
    elif site.kind == "loss" and len(step.sources[1]) != len(made):
        prediction, label = (s if v is None else through[0][s] for s, v in zip(step.sources, site.views, strict=True))
        columns.link(site, 0, step.round, prediction, made)
        assert step.counts is not None or step.messages == len(step.sources[1])
        labels = (
            np.arange(step.messages)
            if step.counts is None
            else np.repeat(np.arange(step.messages), np.diff(step.counts))
        )
        first = step.base + (labels if step.offsets is None else step.offsets[labels])
        columns.link(site, 1, step.round, label, first)
    else:
        place = 0
        for port, (source, view) in enumerate(zip(step.sources, site.views, strict=True)):
            into = _beside(step, port, made) if site.whole_messages else made
            for i in range(1 if view is None else len(pieces_of(view) or ())):
                columns.link(site, place, step.round, source if view is None else through[i][source], into)
                place += 1


def _beside(step: Step, port: int, made: Ints) -> Ints:
    """Of a module of whole messages: for which row each row of a port is read. Where a message has other rows there
    than on the first port, for its first."""
    assert step.counts is not None
    first, mine = step.counts[0], step.counts[port]
    return made if (first == mine).all() else np.repeat(made[np.cumsum(first) - first], mine)


def _mix(columns: _Columns, step: Step, made: Ints, through: dict[int, Ints], term: Ints) -> None:
    """The sums that the Linears of a mixture are applied to, and what they are added up to."""
    site, round_ = step.site, step.round
    assert step.counts is not None
    products, target = step.sources[0], np.repeat(np.arange(step.rows), step.counts)
    number = np.full(int(term.max()) + 1, -1, dtype=np.int64)
    for place, one in enumerate(site.terms):
        if one.number < len(number):
            number[one.number] = place
    which = number[term[products]]
    real = np.flatnonzero(which >= 0)
    which, target = which[real], target[real]
    read = through[0][products[real]] if len(real) else products[:0]
    if not site.here:
        columns.link(site, 0, round_, read, target)
        return
    key = which * step.rows + target
    order = stable_order(key)
    read, key = read[order], key[order]
    first = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1]))) if len(key) else key
    pair_of = np.cumsum(np.concatenate(([0], key[1:] != key[:-1]))) if len(key) else key
    base = columns.made
    columns.made += len(first)
    pairs = key[first]
    kinds, targets = pairs // step.rows, pairs % step.rows
    numbers = base + np.arange(len(pairs))
    for place, one in enumerate(site.pairs):
        mine = np.flatnonzero(kinds == place)
        if len(mine):
            columns.row(one, round_, base + int(mine[0]), step.owners[targets[mine]])
    columns.link(site, 0, round_, read, numbers[pair_of])
    by_target = stable_order(targets)
    columns.link(site, 1, round_, numbers[by_target], made[targets[by_target]])
    by_read = stable_order(read)
    columns.link(site, 2, round_, numbers[pair_of][by_read], read[by_read])


def _bring(sites: Sites, columns: _Columns) -> None:
    """Make rows that one worker computes and another reads rows of a crossing, each once."""
    site_of, round_of, owner = columns.of_rows()
    maker = np.array([site.worker for site in sites.sites] + [-1])[site_of]
    for worker in sites.team.workers:
        near = worker == sites.here
        reads = [read for _, _, read, _ in columns.links] if near else [r for w, r in columns.far if w == worker]
        if not reads:
            continue
        read = np.unique(np.concatenate(reads))
        read = read[(maker[read] != worker) & (maker[read] != -1)]
        if not len(read):
            continue
        base, columns.made = columns.made, columns.made + len(read)
        brought = base + np.arange(len(read))
        columns.crossed.append((read, brought))
        cuts = np.flatnonzero((np.diff(site_of[read]) != 0) | (np.diff(round_of[read]) != 0)) + 1
        sent: list[tuple[int, int, Column, Column]] = []
        for rows, there in zip(np.split(read, cuts), np.split(brought, cuts), strict=True):
            site, round_ = sites.crossing(int(site_of[rows[0]]), worker), int(round_of[rows[0]])
            columns.row(site, round_, int(there[0]), owner[rows])
            if sites.sends(site):
                sent.append((site.slot, round_, rows, there))
        if near:
            through = np.arange(columns.made)
            through[read] = brought  # also where a mixture's way back leads to
            columns.links = [(slot, round_, through[r], through[m]) for slot, round_, r, m in columns.links]
        columns.links += sent


def _apart(sites: Sites, columns: _Columns, rehearsal: Rehearsal, instances: Sequence[int]) -> list[Score]:
    """Rows and links by instance, each numbered from 0."""
    count, lowest = len(instances), min(instances)
    lookup = np.full(max(instances) - lowest + 1, -1, dtype=np.int64)
    lookup[np.array(instances) - lowest] = np.arange(count)
    site_of, round_of, owner = columns.of_rows()
    solid = np.flatnonzero(site_of >= 0)
    owner[solid] = lookup[owner[solid] - lowest]
    digests = [b""] * count
    away = solid[:0]
    if sites.parted:
        paired = np.array([site.kind == "pairs" for site in sites.sites])[site_of]  # no other site has those
        digests = _digests(columns, site_of, round_of, np.where(paired, -1, owner), count)
        here = np.array([site.here for site in sites.sites])[site_of[solid]]
        solid, away = solid[here], solid[~here]
    order = solid[stable_order(owner[solid])]
    owners = owner[order]
    sizes = np.bincount(owners, minlength=count)
    local = np.zeros(columns.made, dtype=np.int64)
    local[order] = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    local[away[stable_order(owner[away])]] = np.arange(len(away))  # those of a crossing are neighbours
    blocks, _ = _runs_of(owners, [site_of[order], round_of[order]])
    runs, links = _linked(sites, columns, owner, local, site_of, round_of, count)
    tables = {"blocks": (blocks[:, 1:], np.bincount(blocks[:, 0], minlength=count)), "runs": runs}
    told, single = heard_and_told(sites, rehearsal, lookup, lowest, count)
    return packed(Tables(sizes, single, links, tables | told), len(sites.linked), digests)


def _digests(columns: _Columns, site_of: Column, round_of: Column, owner: Ints, count: int) -> list[bytes]:
    """Of each instance: a digest of its rows, by site and round, and of which of them cross."""
    order = stable_order(owner)
    order = order[np.searchsorted(owner[order], 0) :]
    cuts = np.searchsorted(owner[order], np.arange(count + 1))
    number = np.zeros(len(owner), dtype=np.int32)
    number[order] = np.arange(len(order)) - np.repeat(cuts[:-1], np.diff(cuts))
    source = np.full(len(owner), -1, dtype=np.int32)
    for read, brought in columns.crossed:
        source[brought] = number[read]
    told = np.ascontiguousarray(np.stack([site_of, round_of, source], axis=1)[order])
    return [hashlib.blake2b(told[a:b].tobytes(), digest_size=8).digest() for a, b in itertools.pairwise(cuts.tolist())]


def _linked(
    sites: Sites, columns: _Columns, owner: Ints, local: Ints, site_of: Column, round_of: Column, count: int
) -> tuple[tuple[Ints, Ints], Links]:
    """Runs, with the number of each instance, and links."""
    if not columns.links:
        none = np.zeros(0, dtype=np.int64)
        return (none.reshape(0, 4), np.zeros(count, dtype=np.int64)), Links(none.reshape(0, 3), *[none] * 4)
    read, made = np.concatenate([r for _, _, r, _ in columns.links]), np.concatenate([m for *_, m in columns.links])
    sizes = [len(r) for _, _, r, _ in columns.links]
    owners = owner[made]
    if (owners != owner[read]).any():
        raise Unplayable("a row is made of rows of several instances. Remedy: waves=False")
    step = np.repeat(np.arange(len(sizes)), sizes)
    inner = np.array([s.block[1] for s in sites.sites])
    order = stable_order(owners)
    owners, step, read, made = owners[order], step[order], read[order], made[order]
    # A step is one slot and round. Equal ones that follow one another are one record.
    at = np.array([(slot, round_) for slot, round_, _, _ in columns.links])
    number = at[:, 0] * (int(at[:, 1].max()) + 1) + at[:, 1]
    blocks, starts = _runs_of(owners, [number[step], inner[site_of[made]]])
    blocks = np.column_stack([blocks[:, 0], at[step[starts]], blocks[:, 2:]])
    slot = blocks[:, 1]
    # Rows follow one another in a wave where they do here and are of one site and round.
    source = site_of[read].astype(np.int64) * 2**32 + round_of[read]
    sent = np.array([s.kind == "crossing" for s in sites.slots])[slot]
    read, made = local[read], local[made]
    broken = np.ones(len(read), dtype=bool)
    broken[1:] = (np.diff(read) != 1) | (np.diff(made) != 1) | (np.diff(source) != 0)
    broken[starts] = True
    pieces = np.add.reduceat(broken, starts, dtype=np.int64)
    added = np.array([s.kind in ("bag", "segments", "mixture") for s in sites.slots])[slot]
    run = ((pieces == 1) | (_LONG * pieces <= blocks[:, 4])) & ~added
    # A slot is read in one way by all instances.
    sites.linked.update(set(slot[~run & ~added].tolist()))
    linked = np.zeros(len(sites.slots), dtype=bool)
    linked[list(sites.linked)] = True
    run &= ~linked[slot]
    first = np.flatnonzero(broken)
    length = np.diff(np.concatenate((first, [len(read)])))
    of = np.repeat(np.arange(len(blocks)), pieces)
    straight = run[of]
    first, length, of = first[straight], length[straight], of[straight]
    runs = np.column_stack([blocks[of, 1:3], read[first], length])
    kept = np.flatnonzero(~run)
    where = ranges(starts[kept], blocks[kept, 4])
    read, made = read[where], made[where]
    if sent.any():
        made = np.where(np.repeat(sent[kept], blocks[kept, 4]), read, made)  # what is sent is made elsewhere
    links = Links(blocks[kept, 1:4], blocks[kept, 4], blocks[kept, 0], read, made)
    return (runs, np.bincount(blocks[of, 0], minlength=count)), links


def _runs_of(owners: Ints, keys: Sequence[Column]) -> tuple[Ints, Ints]:
    """Runs of equal keys within one owner, ``[runs, (owner, keys..., size)]``, and where each begins."""
    differs = np.ones(len(owners), dtype=bool)
    if len(owners):
        differs[1:] = owners[1:] != owners[:-1]
        for key in keys:
            differs[1:] |= key[1:] != key[:-1]
    starts = np.flatnonzero(differs)
    sizes = np.diff(np.concatenate((starts, [len(owners)])))
    return np.column_stack([owners[starts], *(key[starts] for key in keys), sizes]).astype(np.int64), starts
