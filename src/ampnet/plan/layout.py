"""Layout: the combined scores of several instances: the position of every row, and the order of the operations.

    scores       rows of instance 7: (x, 0) (h, 0) (h, 1)     of instance 8: (x, 0) (h, 0)
    arena        [ x: 7 8 | h, round 0: 7 8 | h, round 1: 7 ]
    operations   (h, round 0) makes rows 2 to 3 and reads rows 0 to 1;  (h, round 1) makes row 4 and reads row 2

Rows of one site and round are neighbours, so that an operation writes a slice, and reads one where it can. It takes two
sorts and a few gathers over all rows and links, whatever the number of instances; a loop in Python runs over operations
only.

A worker lays out its own part. What it receives from other workers, and what it sends to them, are operations too: one
for each crossing and round. Operations of all workers have one order; the first that is not yet played can always be.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from ampnet.message import Messages, offsets_of, ranges
from ampnet.narrow import stable_order
from ampnet.nodes.lengths import Lengths
from ampnet.nodes.span import Span
from ampnet.nodes.transform import Parameterised
from ampnet.plan.records import Records
from ampnet.plan.score import Score
from ampnet.plan.sites import Site, Sites
from ampnet.state import Ints, States
from ampnet.wave.arena import Arena, Pool, Read, through

_OBJECTS = 6144
"""Approximate bytes of the Python objects of one operation, and of its calls on a tape."""
_NOTHING = torch.empty(0, dtype=torch.int64)
_Owner = TypeVar("_Owner")


@dataclass(slots=True, eq=False)
class Bag:
    """Rows that are added up: those of target i from ``offsets[i]`` to ``offsets[i + 1]`` of ``index``."""

    arena: Arena
    index: Tensor
    offsets: Tensor
    owners: Tensor | None = None
    """Cached result of `targets`."""

    turned: tuple[Tensor, Tensor, int, int] | None = None
    places: Tensor | None = None
    """Memory for the result of `found`."""

    def found(self) -> Tensor:
        """Where the rows are now: equal ones may be kept once."""
        if self.arena.inverse is None:
            return self.index
        self.places = through(self.arena.inverse, self.index, self.places)
        return self.places

    def turn(self) -> tuple[Tensor, Tensor, int, int]:
        """The same the other way round: the targets that each row is added to, as an index with offsets, for the rows
        from the first that is read to the last."""
        if self.turned is None:
            if not len(self.index):
                return self.index, self.offsets[:1], 0, 0
            order = torch.argsort(self.index, stable=True)
            low, high = int(self.index[order[0]]), int(self.index[order[-1]]) + 1
            offsets = self.index.new_zeros(high - low + 1)
            torch.cumsum(torch.bincount(self.index - low, minlength=high - low), 0, out=offsets[1:])
            self.turned = self.targets().index_select(0, order), offsets, low, high
        return self.turned

    def targets(self) -> Tensor:
        """The target of each row."""
        if self.owners is None:
            counts = self.offsets[1:] - self.offsets[:-1]
            self.owners = torch.repeat_interleave(counts, output_size=self.index.shape[0])
        return self.owners


@dataclass(slots=True, eq=False)
class Operation:
    """A site's work of one round."""

    site: Site
    start: int
    stop: int
    """Row range of the output in the site's arena."""
    first: bool
    """Whether it is the site's first, and so (backward) its last."""
    reads: list[Read]
    bags: list[Bag]
    """Of sums; a mixture has what its pairs read, what it reads of them, and the way back."""
    cuts: list[int]
    """Of a mixture: where the pairs of each Linear begin, in their arena, and where the last ones end."""
    back: tuple[int, int] = (0, 0)
    """Of a mixture: the slice of rows that the way back leads to."""
    targets: Tensor | None = None
    """Of a mixture: for each pair, the row that it is added to, counted from the first."""
    round: int = 0
    messages: int = 0
    """At a node with parameters: messages that get a gradient; elsewhere, rows."""
    kept: Sequence[Tensor | None] = ()
    """Residuals that the kernel stores for the backward."""
    trained: tuple[Site, ...] = ()
    """The sites whose parameters are trained where it is computed: its own, the Linears of a mixture or of a choice."""
    members: list[Operation] = field(default_factory=list)
    """Of a choice: the operations of its Linears, which are computed as one; the first of them is this one's site."""
    versions: dict[int, int] = field(default_factory=dict)
    """By number of the site (its own, or those of a mixture's Linears): weight version of the node in the forward."""
    crosses: bool = False
    """Whether it sends rows to another worker or receives them."""
    span: Span | None = None
    """The tensors that a node with parameters computes with, where they are the same in every wave."""

    def links(self, term: int) -> int:
        """Of a mixture: how many rows are multiplied by one of its Linears."""
        offsets, first = self.bags[0].offsets, self.cuts[0]
        return int(offsets[self.cuts[term + 1] - first]) - int(offsets[self.cuts[term] - first])


@dataclass(slots=True, eq=False)
class Whole:
    """All operations of one site, in one object."""

    site: Site
    start: int
    stop: int
    reads: list[Read]
    messages: int = 0
    """Sum of `Operation.messages` over all operations."""
    operations: list[Operation] = field(default_factory=list)
    """In the order in which they are played."""


class Layout:
    """The rows and operations of a wave. See the head of this file."""

    anew = False
    """Whether the next wave starts anew: what is known of its memory is not true any more."""
    padded = False
    """Whether it serves all waves of some capacities (`ampnet.plan.padded`), so that nothing may be cached that depends
    on its indices."""

    def __init__(
        self,
        sites: Sites,
        moved: Sequence[bool],
        scores: Sequence[Score],
        pool: Pool,
        device: torch.device,
        choices: bool = True,
    ) -> None:
        """``device``: the device to compute on. All index tensors are copied there in one transfer."""
        self.sites, self.pool, self.device = sites, pool, device
        self._records = records = Records(scores)
        self._sent: list[tuple[object, str, Ints]] = []
        self._choices = choices
        self.fixed = False
        """Whether every tensor has the same memory in every wave."""
        self.varying: set[int] = set()
        """Sites of which the number of different rows was found to vary from wave to wave."""
        self._held: tuple[Pool, int] | None = None
        """The pool whose memory it knows, and the pool's generation then."""
        self.key: tuple[object, ...] = ()
        """The cache key; empty: not cached."""
        self.told: dict[bool, object] = {}
        """The fixed columns of its events, for training and for inference."""
        self.kernels: dict[int, object] = {}
        """Of each site, where they are the same in every wave."""
        self.tape: object = None
        """The calls that it is played with, where they are the same in every wave (`ampnet.wave.tape`)."""
        self._offsets: dict[tuple[int, int], Ints | None] = {}
        self._labels: dict[tuple[int, int], Ints | None] = {}
        self._lengths: dict[bytes, Lengths] = {}
        self.digest = _digest(scores) if sites.parted else 0
        """Digest of rows and crossings: equal on all workers of the team, or their layouts differ."""
        self.numbers: Sequence[int] = ()
        """Instance numbers in the order of their scores; set for each wave."""
        self._rounds, self._width = records.rounds, sites.width
        each = self._rounds * self._width
        site, round_, counts = records.table("blocks")
        bases: Ints = np.cumsum(records.rows) - records.rows
        keys = sites.block_of[site] * each + round_ * self._width + sites.inner_of[site]
        order = stable_order(keys)
        at = np.empty(len(counts), dtype=np.int64)
        sorted_counts = counts[order]
        at[order] = np.cumsum(sorted_counts) - sorted_counts
        sizes = np.bincount(keys, weights=counts, minlength=sites.blocks * each).astype(np.int64)
        starts = np.cumsum(sizes) - sizes
        begin, end, pumped = self._arenas(starts, starts + sizes, each)
        self.arenas = [
            Arena(i, int(end[i] - begin[i]), int(pumped[i] - begin[i]), moved[i], pool, sites.sole[i])
            for i in range(sites.arenas)
        ]
        at -= begin[sites.arena_of[site]]
        number = np.cumsum(counts) - counts
        self._place = np.repeat(at - number, counts)
        self._place += np.arange(len(self._place))
        self._find_runs(records, bases)
        self._find_links(records, bases)
        self.wholes: dict[int, Whole] = {}
        self.operations: list[Operation] = []
        self._sizes, self._at = sizes, starts - begin[sites.block_arena].repeat(each)
        self._heard_in_all: dict[int, int] = {}
        self._sizes_of: dict[bool, tuple[int, int]] = {}
        heard = records.table("heard")
        self._heard: Ints = np.bincount(
            heard[0] * self._rounds + heard[1], weights=heard[2], minlength=len(sites.sites) * self._rounds
        ).astype(np.int64)
        self._make_operations()
        if device.type != "cpu":
            self._send()

    def _send(self) -> None:
        """Copy all row indices to the device."""
        sizes = [len(array) for _, _, array in self._sent]
        if sizes:
            flat = torch.from_numpy(np.concatenate([array for _, _, array in self._sent])).pin_memory()
            pieces = flat.to(self.device, non_blocking=True).split(sizes)
            for (owner, name, _), piece in zip(self._sent, pieces, strict=True):
                setattr(owner, name, piece)
        self._sent = []

    def _placed(self, owner: _Owner, name: str, array: Ints) -> _Owner:
        """Set an attribute that holds row indices: now, or on a device with the next transfer."""
        if self.device.type == "cpu":
            setattr(owner, name, torch.from_numpy(array))
        else:
            self._sent.append((owner, name, array))
        return owner

    def _arenas(self, starts: Ints, ends: Ints, each: int) -> tuple[Ints, Ints, Ints]:
        """For every arena: begin, end, and the end of its pumped rows."""
        first, last = starts[::each], ends[each - 1 :: each]
        sites = self.sites
        begin, end = first[sites.first_block], last[sites.last_block]
        pumped = np.where(sites.pumped_block >= 0, last[sites.pumped_block], begin)
        return begin, end, pumped

    def _find_runs(self, records: Records, bases: Ints) -> None:
        """Find contiguous runs of rows that are read, ordered by slot and round."""
        runs = records.table("runs")
        keys = len(self.sites.slots) * self._rounds
        key = runs[0] * self._rounds + runs[1]
        order = stable_order(key)
        key = key[order]
        first = self._place[(runs[2] + np.repeat(bases, records.counts["runs"]))[order]]
        length = runs[3][order]
        self._run_first, self._run_length = first, length
        # As lists: operations look up single numbers, which takes a third of the time there.
        self._run_cuts = np.searchsorted(key, np.arange(keys + 1)).tolist()
        self._run_rows = np.concatenate(([0], np.cumsum(length))).tolist()
        self._run_breaks = np.concatenate(([0], np.cumsum(first[1:] != first[:-1] + length[:-1]))).tolist()

    def _find_links(self, records: Records, bases: Ints) -> None:
        """Links in the order of slots, rounds and kinds."""
        slot, round_, kind, counts = records.table("links")[:4]
        key = slot * self._rounds + round_
        order = stable_order(key * self._width + kind)
        read, made = records.links(order, bases)
        self._from, self._to = self._place.take(read), self._place.take(made)
        sizes = np.bincount(key, weights=counts, minlength=len(self.sites.slots) * self._rounds)
        self._link_cuts = [0, *np.cumsum(sizes).astype(np.int64).tolist()]

    def _read(self, arena: int, slot: int, first: int, last: int) -> Read:
        """Returns the rows that a slot reads from one round to another."""
        low, high = slot * self._rounds + first, slot * self._rounds + last + 1
        a, b, c, d = self._run_cuts[low], self._run_cuts[high], self._link_cuts[low], self._link_cuts[high]
        if c == d:
            if a == b:
                return Read(self.arenas[arena], 0, 0, None)
            start, rows = int(self._run_first[a]), self._run_rows[b] - self._run_rows[a]
            if self._run_breaks[a] == self._run_breaks[b - 1]:
                return Read(self.arenas[arena], start, start + rows, None)
            index = ranges(self._run_first[a:b], self._run_length[a:b])
            return self._placed(Read(self.arenas[arena], start, start + rows, None), "index", index)
        start = int(self._from[c])
        return self._placed(Read(self.arenas[arena], start, start + d - c, None), "index", self._from[c:d])

    def _rounds_read(self, slot: int) -> list[int]:
        """The rounds in which a slot reads anything."""
        first, last = slot * self._rounds, (slot + 1) * self._rounds
        runs, links = (np.diff(cuts[first : last + 1]) for cuts in (self._run_cuts, self._link_cuts))
        return np.flatnonzero(runs + links).tolist()

    def _slot(self, slot: int, round_: int) -> tuple[int, int]:
        """Where the links of a slot are in a round, and how many."""
        at = slot * self._rounds + round_
        start = self._link_cuts[at]
        return start, self._link_cuts[at + 1] - start

    def _bag(self, arena: int, slot: int, round_: int, begin: int, count: int) -> Bag:
        start, size = self._slot(slot, round_)
        counts = np.bincount(self._to[start : start + size] - begin, minlength=count)
        offsets = np.zeros(count + 1, dtype=np.int64)
        np.cumsum(counts, out=offsets[1:])
        return self._bag_of(arena, self._from[start : start + size], offsets)

    def _bag_of(self, arena: int, index: Ints, offsets: Ints) -> Bag:
        bag = Bag(self.arenas[arena], _NOTHING, _NOTHING)
        return self._placed(self._placed(bag, "index", index), "offsets", offsets)

    def _make_operations(self) -> None:
        rounds, width = self._rounds, self._width
        made: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        """By block: round, first row and rows of what is made."""
        keys = np.flatnonzero(self._sizes)
        for key, start, rows in zip(keys.tolist(), self._at[keys].tolist(), self._sizes[keys].tolist(), strict=True):
            block, place = divmod(key, rounds * width)
            round_, inner = divmod(place, width)
            made.setdefault((block, inner), []).append((round_, start, rows))
        found: list[tuple[tuple[int, int, int, bool, int], Site, int, int, int]] = []
        for site in self.sites.sites:
            if site.kind in ("view", "absorbed", "pairs"):
                continue
            crosses = site.source is not None
            if crosses and self.sites.sends(site):
                found += [(_order(site, r), site, r, 0, 0) for r in self._rounds_read(site.slot)]
                self._whole(site, 0, 0)
            if not site.here:
                continue
            here = made.get(site.block, ())
            for round_, start, rows in here:
                found.append((_order(site, round_), site, round_, start, start + rows))
            if here:
                self._whole(site, here[0][1], found[-1][4])
        found.sort(key=lambda one: one[0])
        seen: set[int] = set()
        for _, site, round_, start, stop in found:
            operation = self._operation(site, round_, start, stop, site.number not in seen)
            operation.round, operation.crosses = round_, site.source is not None
            trained = isinstance(site.node, Parameterised)
            operation.messages = int(self._heard[site.number * rounds + round_]) if trained else stop - start
            operation.trained = tuple(site.terms) if site.kind == "mixture" else (site,) if trained else ()
            self.operations.append(operation)
            self.wholes[site.number].operations.append(operation)
            seen.add(site.number)
        if self._choices:
            self._choose()
        self.crosses = any(op.crosses for op in self.operations)
        """Whether rows go to other workers, or come from them."""

    def _choose(self) -> None:
        """Operations of the Linears of a choice become one, where their rows are neighbours."""
        found: dict[int, list[Operation]] = {}
        for op in self.operations:
            if op.site.choice is not None:
                found.setdefault(op.site.choice, []).append(op)
        gone: set[int] = set()
        for members in found.values():
            leader, members = members[0], sorted(members, key=lambda op: op.start)
            adjacent = all(a.stop == b.start for a, b in itertools.pairwise(members))
            alike = all(op.reads[0].arena is leader.reads[0].arena for op in members)
            if len(members) > 1 and adjacent and alike:
                leader.members, leader.trained = members, tuple(op.site for op in members)
                gone.update(id(op) for op in members if op is not leader)
        self.operations = [op for op in self.operations if id(op) not in gone]

    @cached_property
    def trains(self) -> Mapping[str, int]:
        """The nodes with parameters, and how many sites each has here."""
        return Counter(site.name for op in self.operations if op.first for site in op.trained)

    @cached_property
    def nbytes(self) -> int:
        """Bytes that caching it takes: row indices and Python objects."""
        index = sum(r.index.numel() for op in self.operations for r in op.reads if r.index is not None)
        index += sum(bag.index.numel() + bag.offsets.numel() for op in self.operations for bag in op.bags)
        return 8 * index + _OBJECTS * len(self.operations)

    def use(self, pool: Pool, again: bool) -> None:
        """Allocate from this pool. ``again``: it is used repeatedly, so every tensor goes where it would go the
        next time, and what is known of that memory is kept as long as it is the same."""
        held, self._held = self._held, (pool, pool.generation)
        self.pool = pool
        if not again or not self.fixed or held != self._held or self.anew:
            self.fixed, self.anew = again, False
            self.kernels, self.tape = {}, None
            for arena in self.arenas:
                arena.fixed, arena.varies, arena.pool = False, False, pool
                arena.clear()
                arena.fixed = again
            for op in self.operations:
                op.span = None

    def done(self) -> None:
        """Called when a passage has ended: a layout that is kept holds no rows, residuals or weights of it."""
        self._held = (self.pool, self.pool.generation)
        for op in self.operations:
            op.kept = ()
            if not self.fixed:
                op.span = None
            elif op.span is not None:
                op.span.end()
        for arena in self.arenas:
            if not arena.fixed or arena.varies:
                arena.clear()

    def heard(self, site: int, round_: int | None = None) -> int:
        """The number of messages that get a gradient at a site with parameters, in one round or in all."""
        first = site * self._rounds
        if round_ is not None:
            return int(self._heard[first + round_])
        known = self._heard_in_all.get(site)
        if known is None:
            known = self._heard_in_all[site] = int(self._heard[first : first + self._rounds].sum())
        return known

    def sizes(self, train: bool) -> tuple[int, int]:
        """The operations and messages that are computed, in training in both directions."""
        known = self._sizes_of.get(train)
        if known is None:
            back = [op for op in self.operations if train and not op.site.still]
            entries = sum(max(1, len(op.trained)) for op in (*self.operations, *back))
            entries += sum(len(op.trained) for op in back if op.first)
            known = entries, sum(op.messages for op in (*self.operations, *back))
            self._sizes_of[train] = known
        return known

    def heard_by(self, instances: Collection[int], sites: Sequence[int]) -> int:
        """The number of messages of these instances that get a gradient at sites with parameters."""
        return self._records.heard(np.flatnonzero(np.isin(self.numbers, list(instances))), sites)

    def messages_of(self, op: Operation, payload: Tensor | None, train: bool) -> Messages:
        """The messages of an operation, with their states."""
        owners, values = self._told(op)
        fields = self.sites.fields[op.site.number]
        columns = values[: len(fields)].copy()
        columns[0] = np.array(self.numbers)[owners]
        return Messages.trusted(payload, States.trusted(fields, columns), self.offsets_of(op), train)

    def _told(self, op: Operation) -> tuple[Ints, Ints]:
        """Of each message of an operation whose node reads states: the place of its instance, and the values."""
        return self._records.told(op.site.number, op.round)

    def offsets_of(self, op: Operation) -> Ints | None:
        """The row offsets of an operation's messages; None: one row each."""
        if self._records.single:
            return None
        which = (op.site.number, op.round)
        if which not in self._offsets:
            counts = self._told(op)[1][0]
            self._offsets[which] = None if (counts == 1).all() else offsets_of(counts)
        return self._offsets[which]

    def labels_of(self, op: Operation) -> Ints | None:
        """The offsets of labels, where they have other rows than predictions; None: one row each."""
        if self._records.single:
            return None
        which = (op.site.number, op.round)
        if which not in self._labels:
            counts = self._told(op)[1][len(self.sites.fields[op.site.number]) :]
            self._labels[which] = offsets_of(counts[0]) if len(counts) else None
        return self._labels[which]

    def lengths_of(self, op: Operation) -> list[Lengths]:
        """For each port, the rows of each message that come to a module of whole messages. The same object for all
        modules and ports whose messages have equal lengths."""
        counts = self._told(op)[1][len(self.sites.fields[op.site.number]) :]
        return [self._lengths.setdefault(row.tobytes(), Lengths(row)) for row in counts]

    def _whole(self, site: Site, start: int, stop: int) -> None:
        last = self._rounds - 1
        reads = (
            []
            if site.kind == "mixture"
            else [self._read(part.arena, site.slot + i, 0, last) for i, part in enumerate(site.parts)]
        )
        messages = self.heard(site.number) if isinstance(site.node, Parameterised) else stop - start
        self.wholes[site.number] = Whole(site, start, stop, reads, messages)

    def _operation(self, site: Site, round_: int, start: int, stop: int, first: bool) -> Operation:
        if site.kind in ("bag", "segments"):
            bag = self._bag(site.parts[0].arena, site.slot, round_, start, stop - start)
            read = self._read(site.parts[0].arena, site.slot, round_, round_)
            return Operation(site, start, stop, first, [read], [bag], [])
        if site.kind == "mixture":
            return self._mixture(site, round_, start, stop, first)
        reads = [self._read(part.arena, site.slot + i, round_, round_) for i, part in enumerate(site.parts)]
        return Operation(site, start, stop, first, reads, [], [])

    def _mixture(self, site: Site, round_: int, start: int, stop: int, first: bool) -> Operation:
        base = site.pairs[0].block[0] * self._rounds * self._width + round_ * self._width
        kinds = len(site.pairs)
        sizes, at = self._sizes[base : base + kinds], self._at[base : base + kinds]
        cuts = [*at.tolist(), int(at[-1] + sizes[-1])]
        read, pairs = site.parts[0].arena, site.parts[1].arena
        back, size = self._slot(site.slot + 2, round_)
        to = self._to[back : back + size]
        low, high = (int(to[0]), int(to[-1]) + 1) if size else (0, 0)
        if size > 1 and (to[1:] < to[:-1]).any():
            low, high = int(to.min()), int(to.max()) + 1
            order = stable_order(to)
            to = to[order]
            index = self._from[back : back + size][order]
        else:
            index = self._from[back : back + size]
        offsets = np.zeros(high - low + 1, dtype=np.int64)
        np.cumsum(np.bincount(to - low, minlength=high - low), out=offsets[1:])
        bags = [
            self._bag(read, site.slot, round_, cuts[0], cuts[-1] - cuts[0]),
            self._bag(pairs, site.slot + 1, round_, start, stop - start),
            self._bag_of(pairs, index, offsets),
        ]
        begin, size = self._slot(site.slot + 1, round_)
        targets = np.empty(size, dtype=np.int64)
        targets[self._from[begin : begin + size] - cuts[0]] = self._to[begin : begin + size] - start
        return self._placed(Operation(site, start, stop, first, [], bags, cuts, (low, high)), "targets", targets)


def _order(site: Site, round_: int) -> tuple[int, int, int, bool, int]:
    """The global order of an operation, equal on all workers: rows are sent right after they are computed."""
    return site.component, round_, site.rank, site.kind == "crossing", site.number


def _digest(scores: Sequence[Score]) -> int:
    joined = hashlib.blake2b(b"".join([score.digest for score in scores]), digest_size=8).digest()
    return int.from_bytes(joined, "little") >> 1
