"""Padding: a wave's layout, brought to the capacities of its kind, as a description that is equal for all such waves.

    layout      h, round 0: rows 0 to 4       h, round 1: rows 4 to 7 read rows 0 2 3
    padded      h, round 0: rows 0 to 6       h, round 1: rows 6 to 11 read rows 0 2 3 0 0
                              4 5 are padding                    9 10 are padding

A row of padding is made like the first real row of its block: it reads the same rows, so it is as finite as that row.
Its gradient is zero, because losses give it none; so it adds nothing to any weight, and nothing to the gradients of
rows that it reads. Links of sums and mixtures are padded too, and lead from real rows to rows of padding only.

The result is a description and arrays (`ampnet.plan.description`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ampnet.narrow import stable_order
from ampnet.nodes.loss import Loss
from ampnet.nodes.module import Module
from ampnet.nodes.transform import Parameterised
from ampnet.plan.capacity import Capacities
from ampnet.plan.description import BagSpec, OpSpec, Padded, ReadSpec
from ampnet.plan.layout import Bag, Layout, Operation
from ampnet.plan.sites import Site, Sites
from ampnet.state import Ints
from ampnet.wave.arena import Read


def refusal(sites: Sites) -> str | None:
    """Why waves of this graph cannot be padded; None: they can."""
    for site in sites.sites:
        node = site.node
        if site.source is not None:
            return "nodes are parted over workers"
        if site.kind == "result":
            return f"node '{site.name}' reports rows to the controller"
        if isinstance(node, Loss) and node.on_nan == "skip":
            return f"loss '{site.name}' may skip instances, which are looked for row by row"
        if isinstance(site.face, Module) and site.face.body.grouped:
            return f"node '{site.name}' is a module of whole sequences, which depends on their lengths"
        if site.looks_at_states and not isinstance(node, Loss):
            return f"node '{site.name}' ({type(node).__name__}) reads the states of its messages"
    return None


@dataclass(slots=True)
class _Block:
    """The rows of one site and round: where they are in the layout, and where they will be."""

    old: int
    rows: int
    key: tuple[int, int]
    order: tuple[int, int, int]
    new: int = 0
    room: int = 0


class Unpaddable(Exception):
    """A wave that has to be computed as it is. The message says why."""


@dataclass(slots=True)
class _Arrays:
    arrays: list[Ints] = field(default_factory=list)

    def add(self, array: Ints) -> int:
        self.arrays.append(array)
        return len(self.arrays) - 1


class _Padder:
    def __init__(self, layout: Layout, capacities: Capacities) -> None:
        self.layout, self.capacities, self.out = layout, capacities, _Arrays()
        self.operations = [m for op in layout.operations for m in op.members or [op]]
        self.counts: list[int] = []
        self._find_blocks()

    # -- blocks

    def _find_blocks(self) -> None:
        blocks: dict[int, list[_Block]] = {}
        sizes: dict[object, int] = {}
        for op in self.operations:
            key = (op.site.number, op.round)
            arena = self.layout.arenas[op.site.arena]
            block = _Block(op.start, op.stop - op.start, key, (op.start, op.round, 0))
            blocks.setdefault(arena.number, []).append(block)
            sizes[key] = block.rows
            for bag, name in zip(op.bags, ("read", "pairs", "back"), strict=False):
                if name == "read" and len(bag.index):
                    sizes[key, "links"] = len(bag.index)
            if op.site.kind == "loss" and len(op.reads[1]) != block.rows:
                sizes[key, "labels"] = len(op.reads[1])
            if op.site.kind == "mixture":
                mine = blocks.setdefault(op.bags[1].arena.number, [])
                for k, pairs in enumerate(op.site.pairs):
                    rows, key = op.cuts[k + 1] - op.cuts[k], (pairs.number, op.round)
                    mine.append(_Block(op.cuts[k], rows, key, (op.cuts[k], op.round, k)))
                    if rows or (self.capacities.seen(key) and op.cuts[-1] > op.cuts[0]):
                        sizes[key] = rows
        self.capacities.look(sizes)
        self.blocks: dict[int, list[_Block]] = {}
        self.place: dict[int, Ints] = {}
        """By arena: the new position of each row."""
        self.at: dict[tuple[int, int], _Block] = {}
        self._starts: dict[int, Ints] = {}
        rows_of: list[tuple[int, int]] = []
        for arena in self.layout.arenas:
            mine = sorted(blocks.get(arena.number, []), key=lambda block: block.order)
            at, pumped = 0, 0
            for block in mine:
                block.new, block.room = at, self.capacities.room(block.key) if block.key in sizes else 0
                at += block.room
                self.at[block.key] = block
                if block.old < arena.pumped:
                    pumped = at
            counts = [block.rows for block in mine]
            if sum(counts) != arena.rows:
                raise Unpaddable("rows of an arena belong to no operation")
            shift = np.repeat([block.new - block.old for block in mine], counts) if mine else np.zeros(0, np.int64)
            self.place[arena.number] = shift + np.arange(arena.rows)
            self.blocks[arena.number] = mine
            self._starts[arena.number] = np.array([block.new for block in mine], dtype=np.int64)
            rows_of.append((at, pumped))
        self.arenas = tuple(rows_of)

    def _block(self, arena: int, row: int) -> _Block:
        """The block that has a row, by its new position. Blocks without room have none."""
        return self.blocks[arena][int(np.searchsorted(self._starts[arena], row, side="right")) - 1]

    # -- reads

    def read(self, read: Read, slot: object, room: int) -> ReadSpec:
        arena = read.arena.number
        old = np.arange(read.start, read.stop) if read.index is None else read.index.numpy()
        if not len(old):
            raise Unpaddable("a slot reads nothing")
        new, more = self.place[arena][old], room - len(old)
        if not self.capacities.must_index(slot):
            straight = int(new[-1] - new[0]) == len(new) - 1 and bool((np.diff(new) == 1).all())
            if straight and (not more or self._goes_on(arena, int(new[-1]), more)):
                return ReadSpec(arena, int(new[0]), int(new[0]) + room, None)
            self.capacities.index(slot)
        if more:
            new = np.concatenate((new, np.full(more, new[0])))
        return ReadSpec(arena, 0, room, self.out.add(new))

    def _goes_on(self, arena: int, last: int, more: int) -> bool:
        """Whether rows of padding follow a row, as many as are wanted."""
        block = self._block(arena, last)
        return block.new + block.rows == last + 1 and block.room - block.rows >= more

    def whole(self, site: Site, specs: Sequence[OpSpec]) -> tuple[ReadSpec, ...]:
        """What all operations of a site read, slot by slot."""
        if len(specs) == 1:
            return specs[0].reads
        out = []
        for slot, reads in enumerate(zip(*(spec.reads for spec in specs), strict=True)):
            key, straight = (site.number, slot), all(read.rows is None for read in reads)
            adjacent = straight and all(a.stop == b.start for a, b in itertools.pairwise(reads))
            if adjacent and not self.capacities.must_index(key):
                out.append(ReadSpec(reads[0].arena, reads[0].start, reads[-1].stop, None))
                continue
            self.capacities.index(key)
            pieces = [np.arange(r.start, r.stop) if r.rows is None else self.out.arrays[r.rows] for r in reads]
            index = np.concatenate(pieces)
            out.append(ReadSpec(reads[0].arena, 0, len(index), self.out.add(index)))
        return tuple(out)

    # -- sums

    def _links(self, bag: Bag) -> tuple[Ints, Ints]:
        """Rows that are read, by their new positions, and the target of each."""
        offsets = bag.offsets.numpy()
        owners = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        return self.place[bag.arena.number][bag.index.numpy()], owners

    def _bag(self, arena: int, index: Ints, owners: Ints, targets: int) -> BagSpec:
        if len(owners) > 1 and (owners[1:] < owners[:-1]).any():
            order = stable_order(owners)
            index, owners = index[order], owners[order]
        offsets = np.zeros(targets + 1, dtype=np.int64)
        np.cumsum(np.bincount(owners, minlength=targets), out=offsets[1:])
        return BagSpec(arena, self.out.add(index), self.out.add(offsets), self.out.add(owners.astype(np.int64)))

    def summed(self, op: Operation, block: _Block) -> tuple[tuple[ReadSpec, ...], tuple[BagSpec, ...]]:
        """A sum, or another reduction: links of padding are shared out among the rows of padding."""
        bag = op.bags[0]
        index, owners = self._links(bag)
        more = self.capacities.room((block.key, "links")) - len(index) if len(index) else 0
        if more:
            index = np.concatenate((index, np.full(more, index[0])))
            owners = np.concatenate((owners, np.sort(block.rows + np.arange(more) % (block.room - block.rows))))
        spec = self._bag(bag.arena.number, index, owners, block.room)
        return (ReadSpec(bag.arena.number, 0, len(index), spec.rows),), (spec,)

    def mixture(self, op: Operation, block: _Block) -> OpSpec:
        """A sum of products: pairs, and links to them and from them, are padded kind by kind."""
        sources, products = op.bags[0], op.bags[1]
        kinds = [self.at[pairs.number, op.round] for pairs in op.site.pairs]
        cuts = [*(kind.new for kind in kinds), kinds[-1].new + kinds[-1].room]
        base, pairs = cuts[0], cuts[-1] - cuts[0]
        place = self.place[products.arena.number]
        read, owners = self._links(sources)
        owners = place[owners + op.cuts[0]] - base
        real = np.zeros(pairs, dtype=bool)
        real[place[op.cuts[0] : op.cuts[-1]] - base] = True
        blank = np.flatnonzero(~real)
        more = self.capacities.room((block.key, "links")) - len(read) if len(read) else 0
        if more:
            read = np.concatenate((read, np.full(more, read[0])))
            owners = np.concatenate((owners, blank[np.arange(more) % len(blank)]))
        made, targets = self._links(products)
        if len(blank):
            made = np.concatenate((made, blank + base))
            targets = np.concatenate((targets, block.rows + np.arange(len(blank)) % (block.room - block.rows)))
        target_of = np.empty(pairs, dtype=np.int64)
        target_of[made - base] = targets
        arena = sources.arena.number
        low = high = 0
        if len(read):
            first, last = self._block(arena, int(read.min())), self._block(arena, int(read.max()))
            low, high = first.new, last.new + last.room
        bags = (
            self._bag(arena, read, owners, pairs),
            self._bag(products.arena.number, made, targets, block.room),
            self._bag(products.arena.number, owners + base, read - low, high - low),
        )
        number = self.out.add(target_of)
        where = (op.site.number, op.round, block.new, block.new + block.room)
        return OpSpec(*where, (), bags, tuple(cuts), (low, high), number)

    # -- losses

    def judged(self, op: Operation, block: _Block) -> tuple[int, ...]:
        """The share of each row in its message (0: padding), and what the sums are multiplied by; of a selection also
        the message of each row, and the rows and the first row of each message. Floats are kept as bits."""
        node, offsets = op.site.node, self.layout.offsets_of(op)
        assert isinstance(node, Loss)
        counts = np.ones(block.rows, dtype=np.int64) if offsets is None else np.diff(offsets)
        share = np.zeros(block.room, dtype=np.float64)
        share[: block.rows] = np.repeat(1 / np.maximum(counts, 1), counts)
        scale = np.ones(1 + len(node.metrics), dtype=np.float64)
        self.counts.append(len(counts) if node.selects else block.rows)
        scale[0] = 1 / self.counts[-1]
        each, scaled = self.out.add(share.view(np.int64)), self.out.add(scale.view(np.int64))
        if not node.selects:
            return each, scaled
        labels, given = self.layout.labels_of(op), len(op.reads[1])
        if not (counts > 0).all() or given != len(counts) or (labels is not None and (np.diff(labels) != 1).any()):
            raise Unpaddable("a selection among no rows, or with other than one label")
        room = self.capacities.room((block.key, "labels")) if given != block.rows else block.room
        owners = np.full(block.room, room, dtype=np.int64)
        owners[: block.rows] = np.repeat(np.arange(len(counts)), counts)
        sizes, starts = np.zeros((2, room), dtype=np.int64)
        sizes[: len(counts)] = counts
        starts[: len(counts)] = np.cumsum(counts) - counts
        return each, scaled, *(self.out.add(array) for array in (owners, sizes, starts))

    # -- operations

    def operation(self, op: Operation) -> OpSpec:
        if op.members:
            members = tuple(self._one(member) for member in op.members)
            leader = next(m for m, member in zip(members, op.members, strict=True) if member is op)
            return leader._replace(members=members)
        return self._one(op)

    def _one(self, op: Operation) -> OpSpec:
        site = op.site
        block = self.at[site.number, op.round]
        where = (site.number, op.round, block.new, block.new + block.room)
        if site.kind == "mixture":
            return self.mixture(op, block)
        if site.kind in ("bag", "segments"):
            return OpSpec(*where, *self.summed(op, block))
        reads = []
        for slot, read in enumerate(op.reads):
            room = block.room
            if len(read) != block.rows:
                if site.kind != "loss" or slot != 1:
                    raise Unpaddable("a slot reads other rows than are made")
                room = self.capacities.room((block.key, "labels"))
            reads.append(self.read(read, (site.number, slot, op.round), room))
        judged = self.judged(op, block) if site.kind == "loss" else ()
        return OpSpec(*where, tuple(reads), judged=judged)


def pad(layout: Layout, capacities: Capacities) -> Padded:
    """Pad a layout whose indices are on the CPU. Raises `Unpaddable`."""
    padder = _Padder(layout, capacities)
    specs = tuple(padder.operation(op) for op in layout.operations)
    by_site: dict[int, list[OpSpec]] = {}
    for spec in specs:
        for one in spec.members or (spec,):
            by_site.setdefault(one.site, []).append(one)
    sites = layout.sites.sites
    wholes = {
        number: padder.whole(sites[number], mine)
        for number, mine in by_site.items()
        if sites[number].kind == "rows" and isinstance(sites[number].node, Parameterised)
    }
    arrays = padder.out.arrays
    sizes = tuple(len(array) for array in arrays)
    back = [op for op in layout.operations if not op.site.still]
    entries = sum(max(1, len(op.trained)) for op in (*layout.operations, *back))
    return Padded(
        (specs, tuple(sorted(wholes.items())), padder.arenas, sizes),
        specs,
        wholes,
        padder.arenas,
        sizes,
        np.concatenate(arrays).astype(np.int64) if arrays else np.zeros(0, dtype=np.int64),
        {site.number: layout.heard(site.number) for op in layout.operations for site in op.trained},
        {op.site.number: op.stop - op.start for op in layout.operations if op.site.kind == "input"},
        tuple(padder.counts),
        (
            entries + sum(len(op.trained) for op in back if op.first),
            sum(op.messages for op in layout.operations) + sum(op.messages for op in back),
        ),
        capacities.generation,
    )
