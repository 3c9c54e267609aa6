"""Planner: finds out what is to be computed for the instances of a wave, and keeps what it found.

    [1] digest      instances of equal states and structure have one digest, and so one score
    [2] rehearse    those whose score is not known go through the graph on their states alone
    [3] lay out     the scores of a wave are combined: arenas, operations, the rows that each of them reads
    [4] ahead       on a device, [1] to [3] of the next wave are done while the device still computes this one

A score holds for every instance of its digest, unless a node reads the number of an instance: copies of nodes that are
chosen by it read its remainder modulo the number of copies, so that remainder is part of the digest; a user's function
that reads the number itself makes the whole number part of it; a node that sends by turns makes every score
good for one time only.

Where the same instances come together again (buckets, or data in the same order in every epoch), so does their layout:
it is kept. From its second use on it also keeps the tensors it is computed with, as long as its pool of memory is the
same (`Layout.use`). A passage has its layout to itself: where the same waves are in flight several times, there are as
many layouts.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch

from ampnet.errors import AmpnetError, StallError
from ampnet.graph import End, Graph, Wiring
from ampnet.instance import Instance
from ampnet.nodes.node import NumberWatch, StateFunction
from ampnet.nodes.transform import Parameterised
from ampnet.plan.layout import Layout
from ampnet.plan.lot import Lot
from ampnet.plan.rehearse import Rehearsal, Step
from ampnet.plan.score import Score
from ampnet.plan.scoring import relinked, scores
from ampnet.plan.sites import Site, Sites
from ampnet.plan.team import Team
from ampnet.state import States
from ampnet.structure import Shelf
from ampnet.wave.arena import Pool

_SCORES = 2**30
"""Size limit of the score cache, in bytes."""
_LAYOUTS = 2**28
"""Size limit of the layout cache, in bytes."""
_PATIENCE = 5000
"""After this many cache misses in a row, layouts are no longer cached."""
_AHEAD = 256
"""Number of instances rehearsed in one batch ahead of time."""


class Planner:
    """Scores and layouts of a team, for one of its workers. Raises `Unplayable` where they cannot be planned."""

    def __init__(self, graph: Graph, wiring: Wiring, team: Team, here: int, shelf: Shelf) -> None:
        nodes = team.nodes
        self.sites, self.shelf = Sites(graph, wiring, team, here), shelf
        for node in nodes.values():
            node.shelf = shelf
        self.beat: Callable[[], None] = lambda: None
        """Called regularly while planning: a heartbeat."""
        self.choices = True
        """Whether the Linears of a choice may be computed in one operation."""
        self.look: Callable[[int, int], Sequence[Instance]] = lambda stream, most: ()
        """Returns instances of a stream that are not pumped yet, as many as asked for at most. They are planned
        together with those that are."""
        self._hidden: int | None = None
        """The stream that is not looked ahead in, because an instance to come cannot be rehearsed."""
        self.rehearsed = 0
        """Instances rehearsed so far."""
        functions = [f for node in nodes.values() for f in node.state_functions().values()]
        self._modulus = math.lcm(*(f.modulus for f in functions if f.modulus is not None))
        self._by_number = False
        """Whether a user's function reads `instance` itself, so that it is part of the digest."""
        self._by_turns = any(node.by_turns for node in nodes.values())
        self._once = itertools.count()
        self._scores: OrderedDict[bytes, Score] = OrderedDict()
        self._bytes = 0
        self._loose: dict[bytes, list[str]] = {}
        """By digest: what still waits at the end of instances that can never complete."""
        self._layouts: OrderedDict[tuple[object, ...], list[Layout]] = OrderedDict()
        self._prepared: Layout | None = None
        """The layout of the wave that is expected next."""
        self.used_ahead = 0
        """Layouts that were made ahead and used."""
        self._kept = self._unused = 0
        self._keeps = True
        self._trains = [
            node for name, node in nodes.items() if isinstance(node, Parameterised) and team.hosts[name] == here
        ]
        self._weights = self._look_at_weights()
        self.ahead = self.device().type != "cpu"
        """Whether waves are planned ahead (`prepare`): only where this processor is idle while a device computes."""
        solid = [site for site in self.sites.sites if site.makes_rows]
        self._moved = [any(not s.still for s in solid if s.arena == arena) for arena in range(self.sites.arenas)]

    # -- [1]

    def _digests(self, lot: Lot) -> list[bytes]:
        digests = lot.digests()
        if self._by_turns:
            return [digest + next(self._once).to_bytes(8, "little") for digest in digests]
        if not self._by_number and self._modulus == 1:
            return digests
        numbers = lot.numbers if self._by_number else [n % self._modulus for n in lot.numbers]
        return [digest + number.to_bytes(8, "little") for digest, number in zip(digests, numbers, strict=True)]

    # -- [2]

    def rehearse(self, instances: Iterable[Instance], ends: Mapping[str, End]) -> None:
        """Make scores ahead of time, at rest. ``ends``: where each input leads."""
        if self._by_turns or self._by_number:
            return
        numbers = range(self._modulus)
        for some in _batched(instances, max(1, _AHEAD // self._modulus)):
            for remainder in numbers:
                given = {remainder + i * self._modulus: one for i, one in enumerate(some)}
                for lot in Lot(self.sites, ends, given, True, None).apart():
                    new = {d: i for i, d in enumerate(self._digests(lot)) if d not in self._scores}
                    if new:
                        self._rehearse(lot, new)

    def take_over(self, other: Planner) -> None:
        """Use the scores of a replica of the same nodes."""
        if self.sites.signature() == other.sites.signature():
            self._scores, self._bytes = other._scores.copy(), other._bytes
            self.sites.linked |= other.sites.linked
            self.sites.fields |= other.sites.fields
            self._by_number = other._by_number

    def _find(self, lot: Lot, behind: Sequence[Lot]) -> list[Score]:
        """The score of each instance. Staged instances are rehearsed in the same batch, which takes hardly longer."""
        while True:
            by_number = self._by_number
            digests = self._digests(lot)
            known = {d: self._scores[d] for d in digests if d in self._scores}
            missing = {d: i for i, d in enumerate(digests) if d not in known}
            if missing:
                known |= self._rehearse(lot, missing) if self._by_turns else self._rehearse_more(lot, missing, behind)
            if self._by_number == by_number:
                return self._linked(digests, known)

    def _rehearse_more(self, lot: Lot, missing: Mapping[bytes, int], behind: Sequence[Lot]) -> dict[bytes, Score]:
        """Rehearse what is missing together with instances that are staged, or not even pumped."""
        more = lot.merge([lot, *behind]) if behind else lot
        new = {d: i for i, d in enumerate(self._digests(more)) if d not in self._scores}
        room = _AHEAD - len(new)
        coming = self._look(lot, room) if room > 0 else []
        if coming:
            first = len(more.numbers)
            more = more.followed_by(coming)
            new |= {one.digest(): first + i for i, one in enumerate(coming)}
        if len(new) > len(missing):
            some = dict(itertools.islice(new.items(), max(_AHEAD, len(missing))))  # those of the lot come first
            try:
                found = self._rehearse(more, some)
            except AmpnetError:  # it may be one of those behind, which is met again, and named, in its own wave
                self._hidden = lot.stream
            else:
                return {digest: found[digest] for digest in missing if digest in found}
        return self._rehearse(lot, missing)

    def _look(self, lot: Lot, most: int) -> list[Instance]:
        """Instances of the lot's stream that are not pumped yet and whose score is not known, one of each kind. None
        where a score depends on the number of an instance, or a payload is missing."""
        if lot.stream is None or lot.stream == self._hidden or not self.by_states or lot.missing:
            return []
        found: dict[bytes, Instance] = {}
        for one in self.look(lot.stream, most):
            if one.complete and one.digest() not in self._scores:
                found.setdefault(one.digest(), one)
        own = set(lot.digests())
        return [one for digest, one in found.items() if digest not in own]

    def _rehearse(self, lot: Lot, missing: Mapping[bytes, int]) -> dict[bytes, Score]:
        some = lot.at(list(missing.values()))
        watch = NumberWatch()
        StateFunction.watch = watch
        try:
            rehearsal, waits = self._run(some)
        finally:
            StateFunction.watch = None
        if watch.looked and not self._by_number:
            self._by_number = True
            self._scores.clear()
            self._layouts.clear()
            self._prepared = None
            self._loose.clear()
            self._bytes = self._kept = 0
            return {}
        if waits and lot.train:
            raise StallError(some.numbers, waits)
        if waits:
            self._note_loose(lot, missing)
        found = dict(zip(missing, scores(self.sites, rehearsal, some.numbers), strict=True))
        self.rehearsed += len(some.numbers)
        if not self._by_turns:
            self._scores.update(found)
            self._bytes += sum(score.nbytes for score in found.values())
            while self._bytes > _SCORES and self._scores:
                _, gone = self._scores.popitem(last=False)
                self._bytes -= gone.nbytes
        return found

    def _note_loose(self, lot: Lot, missing: Mapping[bytes, int]) -> None:
        """These instances have messages that wait for ever. In inference that is accepted, as long as all
        results come."""
        for digest, place in missing.items():
            _, waits = self._run(lot.at([place]))
            if waits:
                self._loose[digest] = waits

    def waits(self) -> list[str]:
        """Which nodes of an instance rehearsed for inference wait for which messages, as text."""
        return [f"when it was planned, {line}" for lines in self._loose.values() for line in lines]

    def _run(self, lot: Lot) -> tuple[Rehearsal, list[str]]:
        """Rehearse. Returns the scores, and what still waits at the end."""
        rehearsal = Rehearsal(self.sites, self.beat)
        with lot.shelved(self.shelf):
            try:
                rehearsal.run(lot.messages(bare=True))
                nodes = self.sites.nodes.items()
                waits = [f"node '{name}': {line}" for name, node in nodes for line in node.waits()]
            finally:
                for node in self.sites.nodes.values():
                    node.forget_instances(np.array(lot.numbers))
        return rehearsal, waits

    def states_of(self, lot: Lot, site: Site, round_: int) -> States:
        """The state of every row of a site and round, by rehearsing the wave once more. For error messages."""
        steps = [s for s in self._run(lot)[0].steps if s.site is site and s.round == round_]
        rows = [_states_by_row(step) for step in steps]
        merged = States.merge(rows)
        place = {number: i for i, number in enumerate(lot.numbers)}
        order = np.argsort([place[n] for n in merged.columns[0].tolist()], kind="stable")
        return merged.take(order)

    # -- [3]

    def layout(self, lot: Lot, behind: Sequence[Lot], pools: list[Pool]) -> Layout:
        """A layout for these instances, exclusive until `give_back`, with a memory pool: a new one, or one of
        ``pools``, which it is taken from."""
        key = self._key(lot) if (self._keeps or self._prepared) and not self._by_turns else ()
        if self._loose and lot.train:
            waits = [line for digest in self._digests(lot) for line in self._loose.get(digest, ())]
            if waits:
                raise StallError(lot.numbers, waits)
        self._check_weights()
        layout, again = self._take_kept(key, pools), True
        prepared, self._prepared = self._prepared, None
        if layout is None:
            if prepared is not None and prepared.key == key:
                self.used_ahead += 1
                layout = prepared
            else:
                layout = self._made(self._find(lot, behind))
            again = key in self._layouts
            layout.key = self._key(lot) if key and self._keeps else ()
            self._unused += 1
        # That of its last passage may be in use by another.
        pool = layout.pool if layout.pool in pools else pools[-1] if pools else Pool()
        if pool in pools:
            pools.remove(pool)
        layout.numbers = lot.numbers
        layout.use(pool, again)
        return layout

    def prepare(self, lot: Lot, behind: Sequence[Lot] = ()) -> None:
        """Make the layout of a lot that is expected next. It is used if that is what comes, and dropped if not, so
        nothing depends on it. An instance that cannot be planned is named in its own wave."""
        if self._by_turns:
            return
        key = self._key(lot)
        if key in self._layouts or (self._prepared is not None and self._prepared.key == key):
            return
        try:
            found = self._find(lot, behind)
        except AmpnetError:
            return
        self._check_weights()
        self._prepared = self._made(found)
        self._prepared.key = self._key(lot)

    @property
    def by_states(self) -> bool:
        """Whether scores depend on states and structure alone, so that they can be made before numbers are given."""
        return not (self._by_turns or self._by_number or self._modulus > 1)

    def _made(self, scores: Sequence[Score]) -> Layout:
        return Layout(self.sites, self._moved, scores, Pool(), self.device(), self.choices)

    def _take_kept(self, key: tuple[object, ...], pools: Sequence[Pool]) -> Layout | None:
        """A kept layout: one whose own memory is free. Another one only where there is no room to keep more of them:
        what is known of its memory would be lost."""
        kept = self._layouts.get(key) if key else None
        if not kept:
            return None
        place = next((i for i, one in enumerate(kept) if one.pool in pools), None)
        if place is None:
            if pools and self._kept < _LAYOUTS // 2:
                return None
            place = -1
        layout, self._unused = kept.pop(place), 0
        self._kept -= layout.nbytes
        self._layouts.move_to_end(key)
        return layout

    def _key(self, lot: Lot) -> tuple[object, ...]:
        """The cache key of a layout: equal for lots that need the same index tensors."""
        return (*self._digests(lot), *lot.kinds())

    def give_back(self, layout: Layout) -> None:
        """Called at the end of a passage."""
        if not layout.key or not self._keeps:
            return
        if self._unused > _PATIENCE:  # the same instances never come together again: the order is another every time
            self._keeps = False
            self.forget_layouts()
            return
        self._layouts.setdefault(layout.key, []).append(layout)
        self._kept += layout.nbytes
        while self._kept > _LAYOUTS and self._layouts:
            _, gone = self._layouts.popitem(last=False)
            self._kept -= sum(one.nbytes for one in gone)

    def forget_layouts(self) -> None:
        """Drop all cached layouts, after an error: their memory may be half written."""
        self._layouts.clear()
        self._kept = 0
        self._hidden = self._prepared = None

    def _look_at_weights(self) -> list[tuple[Parameterised, list[torch.Tensor]]]:
        return [(node, node.updater.weights) for node in self._trains]

    def _check_weights(self) -> None:
        """Drop cached layouts if parameters were moved or cast: their fixed tensors are no longer valid."""
        if any(node.updater.weights is not weights for node, weights in self._weights):
            self.forget_layouts()
            self._weights, self.ahead = self._look_at_weights(), self.device().type != "cpu"

    def device(self) -> torch.device:
        """The device of the parameters."""
        for node in self._trains:
            if node.updater.weights:
                return node.updater.weights[0].device
        return torch.device("cpu")

    def _linked(self, digests: Sequence[bytes], known: Mapping[bytes, Score]) -> list[Score]:
        """Scores by digest, all of them with links for the same slots."""
        ways, out = len(self.sites.linked), []
        for digest in digests:
            score = known[digest]
            if score.ways != ways:
                score = relinked(score, self.sites)
                if digest in self._scores:
                    self._bytes += score.nbytes - self._scores[digest].nbytes
                    self._scores[digest] = score
            out.append(score)
        return out


def _states_by_row(step: Step) -> States:
    if step.offsets is None:
        return step.states
    return step.states.take(np.repeat(np.arange(step.messages), np.diff(step.offsets)))


def _batched(instances: Iterable[Instance], most: int) -> Iterator[list[Instance]]:
    source = iter(instances)
    while some := list(itertools.islice(source, most)):
        yield some
