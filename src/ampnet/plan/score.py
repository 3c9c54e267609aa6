"""Score: the record of one instance's rehearsal, as columns of numbers, so that many are combined without a loop.

    blocks   (site, round, rows)                    the rows that are made, in order; they are numbered one by one
    runs     (slot, round, first row, rows)         neighbours that a slot reads, in the order of what is made of them
    links    (slot, round, kind, links)             where they are not neighbours, or are added up: which row is read,
             each (row read, row made)              and for which

Rows are numbered within the instance. A score depends on the states and the structure of the instance, not on its
payloads: the same sentence, molecule or length of a sequence always has the same score, so scores are kept and used
again in the next epoch.

Views are seen through here: a link leads to the row that holds the numbers. And where a sum of products is made of
products of sums, this is where the sums, one for each Linear and target (**pairs**), become rows.

Where nodes are parted over workers, rows that cross become rows of the crossing, in the order of the rows they are
copies of. Every worker computes all of it; a score keeps the part of one of them, and a digest of all.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ampnet.message import ranges, row_counts
from ampnet.nodes.transform import Parameterised
from ampnet.plan.rehearse import Rehearsal, Step
from ampnet.plan.sites import Site, Sites, Unplayable, pieces_of
from ampnet.state import Column, Ints

_LONG = 4
"""Reads are stored as runs instead of single rows if the mean run is at least this long."""


@dataclass(frozen=True, slots=True, eq=False)
class Score:
    """One instance. See the head of this file."""

    blocks: Column
    """``[3, blocks]``: site, round, rows."""
    runs: Column
    """``[4, runs]``: slot, round, first row that is read, rows."""
    links: Column
    """``[4, ...]``: slot, round, kind (of pairs; else 0), links."""
    ends: Column
    """``[2, links]``: row that is read, row that is made."""
    states: dict[tuple[int, int], tuple[tuple[str, ...], Ints, Ints]]
    """Of sites that look at their messages' states, by site and round: the fields, the columns, and the rows of each
    message."""
    labels: dict[tuple[int, int], Ints]
    """Of losses whose labels have other rows than their predictions: the rows of each label. Of modules of whole
    messages: ``[ports, messages]``, the rows of each."""
    heard: Column
    """``[3, ...]``: site with parameters, round, messages that get a gradient."""
    rounds: int
    rows: int
    """The number of rows."""
    ways: int
    """The number of slots that were read by links when this score was made."""
    digest: bytes = b""
    """Of the rows of all workers, and of what crosses between them; empty where nodes are not parted."""

    @property
    def nbytes(self) -> int:
        columns = (self.blocks, self.runs, self.links, self.ends, self.heard)
        return sum(c.nbytes for c in columns) + sum(c.nbytes + n.nbytes for _, c, n in self.states.values())


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
    turned = np.isin(score.runs[0], list(sites.linked))
    if not turned.any():
        return replace(score, ways=len(sites.linked))
    runs = score.runs[:, turned]
    read = ranges(runs[2].astype(np.int64), runs[3].astype(np.int64))
    blocks = np.concatenate((score.links, np.stack([runs[0], runs[1], np.zeros_like(runs[0]), runs[3]])), axis=1)
    ends = np.concatenate((score.ends, np.stack([read, read]).astype(np.int32)), axis=1)
    return replace(score, runs=score.runs[:, ~turned], links=blocks, ends=ends, ways=len(sites.linked))


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
    order = np.argsort(key, kind="stable")
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
    by_target = np.argsort(targets, kind="stable")
    columns.link(site, 1, round_, numbers[by_target], made[targets[by_target]])
    by_read = np.argsort(read, kind="stable")
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
    place = {number: i for i, number in enumerate(instances)}
    lowest = min(instances)
    lookup = np.full(max(instances) - lowest + 1, -1, dtype=np.int64)
    lookup[np.array(instances) - lowest] = np.arange(len(instances))
    site_of, round_of, owner = columns.of_rows()
    solid = np.flatnonzero(site_of >= 0)
    owner[solid] = lookup[owner[solid] - lowest]
    rounds = 1 + max(round_ for _, round_, *_ in columns.rows)
    digests = [b""] * len(instances)
    away = solid[:0]
    if sites.parted:
        paired = np.array([site.kind == "pairs" for site in sites.sites])[site_of]  # no other site has those
        digests = _digests(columns, site_of, round_of, np.where(paired, -1, owner), len(instances))
        here = np.array([site.here for site in sites.sites])[site_of[solid]]
        solid, away = solid[here], solid[~here]
    order = solid[np.argsort(owner[solid], kind="stable")]
    owners = owner[order]
    sizes = np.bincount(owners, minlength=len(instances))
    local = np.zeros(columns.made, dtype=np.int64)
    local[order] = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    local[away[np.argsort(owner[away], kind="stable")]] = np.arange(len(away))  # those of a crossing are neighbours
    blocks, block_cuts = _runs_of(owners, [site_of[order], round_of[order]], len(instances))
    links = _linked(sites, columns, owner, local, site_of, round_of, len(instances))
    states, labels, heard = _messages(sites, rehearsal, place)
    ways = len(sites.linked)
    return [
        Score(
            blocks[:, block_cuts[i] : block_cuts[i + 1]].copy(),
            *links[i],
            states[i],
            labels[i],
            heard[i],
            rounds,
            int(sizes[i]),
            ways,
            digests[i],
        )
        for i in range(len(instances))
    ]


def _digests(columns: _Columns, site_of: Column, round_of: Column, owner: Ints, count: int) -> list[bytes]:
    """Of each instance: a digest of its rows, by site and round, and of which of them cross."""
    order = np.argsort(owner, kind="stable")
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
) -> list[tuple[Column, Column, Column]]:
    """Of each instance: runs, links and their ends."""
    if not columns.links:
        none = np.zeros((4, 0), dtype=np.int32)
        return [(none, none, none[:2])] * count
    read, made = np.concatenate([r for _, _, r, _ in columns.links]), np.concatenate([m for *_, m in columns.links])
    sizes = [len(r) for _, _, r, _ in columns.links]
    slot = np.repeat([s for s, *_ in columns.links], sizes)
    round_ = np.repeat([t for _, t, _, _ in columns.links], sizes)
    owners = owner[made]
    if (owners != owner[read]).any():
        raise Unplayable("a row is made of rows of several instances. Remedy: waves=False")
    kind = np.array([s.block[1] for s in sites.sites])[site_of[made]]
    order = np.argsort(owners, kind="stable")
    owners, slot, round_, kind = owners[order], slot[order], round_[order], kind[order]
    read, made = read[order], made[order]
    blocks, cuts = _runs_of(owners, [slot, round_, kind], count)
    starts = np.cumsum(blocks[3]) - blocks[3]
    # Rows follow one another in a wave where they do here and are of one site and round.
    source = site_of[read].astype(np.int64) * 2**32 + round_of[read]
    sent = np.array([s.kind == "crossing" for s in sites.slots])[slot]
    read, made = local[read], local[made]
    breaks = np.concatenate(([0], np.cumsum((np.diff(read) != 1) | (np.diff(made) != 1) | (np.diff(source) != 0))))
    pieces = breaks[starts + blocks[3] - 1] - breaks[starts] + 1
    added = np.array([s.kind in ("bag", "segments", "mixture") for s in sites.slots])[blocks[0]]
    run = ((pieces == 1) | (_LONG * pieces <= blocks[3])) & ~added
    # A slot is read in one way by all instances.
    sites.linked.update(np.unique(blocks[0, ~run & ~added]).tolist())
    run &= ~np.isin(blocks[0], list(sites.linked))
    first = np.concatenate(([0], np.flatnonzero(np.diff(breaks)) + 1))
    first = np.union1d(first, starts)
    length = np.diff(np.concatenate((first, [len(read)])))
    of = np.searchsorted(starts, first, side="right") - 1
    straight = run[of]
    first, length, of = first[straight], length[straight], of[straight]
    runs = np.stack([blocks[0, of], blocks[1, of], read[first], length]).astype(np.int32)
    run_cuts = np.searchsorted(of, cuts)
    ends = np.stack([read, np.where(sent, read, made)]).astype(np.int32)  # what is sent is made elsewhere
    out = []
    for i in range(count):
        mine = slice(cuts[i], cuts[i + 1])
        kept = ~run[mine]
        where = ranges(starts[mine][kept], blocks[3, mine][kept].astype(np.int64))
        out.append((runs[:, run_cuts[i] : run_cuts[i + 1]].copy(), blocks[:, mine][:, kept], ends[:, where]))
    return out


def _runs_of(owners: Ints, keys: Sequence[Column], count: int) -> tuple[Column, list[int]]:
    """Runs of equal keys within one owner: ``[keys..., size]``, and the first run of each owner."""
    differs = owners[1:] != owners[:-1]
    for key in keys:
        differs |= key[1:] != key[:-1]
    starts = np.concatenate(([0], np.flatnonzero(differs) + 1)) if len(owners) else np.zeros(0, dtype=np.int64)
    sizes = np.diff(np.concatenate((starts, [len(owners)])))
    cuts = np.searchsorted(owners[starts], np.arange(count + 1)).tolist()
    return np.stack([*(key[starts] for key in keys), sizes]).astype(np.int32), cuts


_States = dict[tuple[int, int], tuple[tuple[str, ...], Ints, Ints]]


def _messages(
    sites: Sites, rehearsal: Rehearsal, place: dict[int, int]
) -> tuple[list[_States], list[dict[tuple[int, int], Ints]], list[Column]]:
    """By instance: states if they are read, rows of labels, and the number of gradients at each site."""
    states: list[_States] = [{} for _ in place]
    labels: list[dict[tuple[int, int], Ints]] = [{} for _ in place]
    found: list[Column] = [np.zeros((4, 0), dtype=np.int64)]
    """(instance, site, round, messages)"""
    lowest, highest = min(place), max(place)
    lookup = np.full(highest - lowest + 1, -1, dtype=np.int64)
    lookup[np.fromiter(place, dtype=np.int64) - lowest] = np.fromiter(place.values(), dtype=np.int64)
    wanted = _wanted(rehearsal)
    for step in rehearsal.steps:
        site = step.site
        trained = isinstance(site.node, Parameterised)
        if not site.here or (not trained and not site.looks_at_states):
            continue
        owners = lookup[step.states.columns[0] - lowest]
        if trained:
            counts = np.bincount(owners[_any_of(wanted[step.base : step.base + step.rows], step)])
            some = np.flatnonzero(counts)
            found.append(
                np.stack([some, np.full_like(some, site.number), np.full_like(some, step.round), counts[some]])
            )
        if site.looks_at_states:
            order = np.argsort(owners, kind="stable")
            cuts = np.flatnonzero(np.diff(owners[order])) + 1
            for mine in np.split(order, cuts):
                _tell(states[int(owners[mine[0]])], labels[int(owners[mine[0]])], step, mine)
    heard = np.concatenate(found, axis=1)
    heard = heard[:, np.argsort(heard[0], kind="stable")].astype(np.int32)
    cuts = np.searchsorted(heard[0], np.arange(len(place) + 1))
    return states, labels, [heard[1:, a:b].copy() for a, b in itertools.pairwise(cuts.tolist())]


def _wanted(rehearsal: Rehearsal) -> Column:
    """For each row, whether it gets a gradient. Rows that no loss depends on get none and are not counted."""
    wanted = np.zeros(rehearsal.rows, dtype=bool)
    for rows in rehearsal.childless:
        wanted[rows] = True
    for step in reversed(rehearsal.steps):
        if step.site.kind in ("loss", "result"):
            wanted[step.sources[0]] = True
            continue
        made = wanted[step.base : step.base + step.rows]
        if step.site.whole_messages:
            assert step.counts is not None
            any_row = _any_of(made, step)
            for source, counts in zip(step.sources, step.counts, strict=True):
                wanted[source[np.repeat(any_row, counts)]] = True
            continue
        for source in step.sources if made.any() else ():
            wanted[source[made if step.counts is None else np.repeat(made, step.counts)]] = True
    return wanted


def _any_of(rows: Column, step: Step) -> Column:
    """Of each message of a step: whether it holds of any of its rows, or it has none."""
    if step.offsets is None:
        return rows
    counts = np.diff(step.offsets)
    which = np.repeat(np.arange(step.messages), counts)
    found: Column = (np.bincount(which[rows], minlength=step.messages) > 0) | (counts == 0)
    return found


def _tell(states: _States, labels: dict[tuple[int, int], Ints], step: Step, mine: Ints) -> None:
    number = (step.site.number, step.round)
    columns, counts = step.states.columns[:, mine], row_counts(step.offsets, step.messages)[mine]
    if number in states:
        _, before, rows = states[number]
        columns, counts = np.concatenate((before, columns), axis=1), np.concatenate((rows, counts))
    states[number] = (step.states.fields, columns, counts)
    if step.counts is not None and (step.site.kind == "loss" or step.site.whole_messages):
        given = np.diff(step.counts)[mine] if step.site.kind == "loss" else step.counts[:, mine]
        labels[number] = np.concatenate((labels[number], given), axis=-1) if number in labels else given
