"""Cutting: groups the instances of a team into waves, if several workers play them.

All workers of a team must play the same waves in the same order, so waves are cut where instances are pumped:

    pumped     0 1 2 3 4 5 6 7 8 9 ...                       wave size 4, an update after every 6 instances
    waves     [0 1 2 3][4 5][6 7 8 9]...
                          ^ no wave straddles an update

Instances that differ in stream, in training or inference, or in inputs without payload are never in one wave. If nodes
of the team have copies, and each instance goes to one of them, all instances of a wave go to the same copy: the wave is
then one operation of one worker, not a small one of each.

A full wave is cut at once; one that is not full, only when all free places are filled, and not while the team has a
full wave for each of its workers to play, or so many instances that no full wave fits into the places that are left:

    4 places, wave size 2     in play [0 1][2], 3 is pumped                3 waits: there is no place beside it
                              2 retires, 4 is pumped                       [3 4]

So waves stay large although instances retire, and are pumped, in smaller numbers. The last wave of a stream waits for
nothing: other streams could keep the workers busy for the whole of their epoch. If every team has one worker only,
workers cut waves themselves (`ampnet.wave.player`).
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import NamedTuple

from ampnet.instance import Instance
from ampnet.nodes.transform import Parameterised
from ampnet.plan.team import Team
from ampnet.replicas.group import Copy

_KINDS = 64
"""Up to this number, instances that go to different copies are cut into separate waves."""


class Sort(NamedTuple):
    """The properties that all instances of one wave share."""

    stream: int
    train: bool
    missing: frozenset[str]
    """Inputs whose messages have no payload."""
    copy: int = 0
    """The copies of nodes they go to: instance number modulo the number of copies."""


class Rule(NamedTuple):
    """A node updates after ``every`` instances whose number modulo ``copies`` is ``copy``."""

    every: int
    copies: int = 1
    copy: int = 0


class Cutter:
    """Cuts the instances of one team into waves."""

    def __init__(
        self, size: int | None, workers: int, places: int, rules: Sequence[Rule] = (), copies: int = 1
    ) -> None:
        """``size``: instances of a wave; None: any number. ``places``: the maximal number of instances in flight.
        ``copies``: instance i goes to copy i modulo ``copies``."""
        self._copies, self._size, self._rules = copies, size, rules
        self._enough = 0 if size is None else min(size * workers, max(0, places - size) + 1)
        """While this number of instances or more is in play, a wave waits until it is full."""
        self._counts = [0] * len(rules)
        self._waiting: dict[Sort, dict[int, Instance]] = {}
        self._playing = 0

    def add(self, instances: Mapping[int, Instance], stream: int, train: bool) -> None:
        """Add instances to be played, by number."""
        if self._copies == 1 and all(instance.complete for instance in instances.values()):  # of one sort
            self._waiting.setdefault(Sort(stream, train, _NONE), {}).update(instances)
            return
        for number, instance in instances.items():
            sort = Sort(stream, train, _missing(instance), number % self._copies)
            self._waiting.setdefault(sort, {})[number] = instance

    def cut(
        self, *, full: bool = False, coming: Container[int] | None = None
    ) -> Iterator[tuple[Sort, dict[int, Instance]]]:
        """Yields the waves that can be played now, in order. ``full``: only full ones, as more instances will be added
        at once. ``coming``: the streams that have more instances (None: all of them)."""
        for sort in list(self._waiting):
            waiting = self._waiting[sort]
            waits = coming is None or sort.stream in coming
            while waiting and (
                wave := self._next(sort, list(waiting), full or (waits and self._playing >= self._enough))
            ):
                self._playing += len(wave)
                if len(wave) == len(waiting):
                    yield sort, self._waiting.pop(sort)
                    break
                yield sort, {number: waiting.pop(number) for number in wave}

    def _next(self, sort: Sort, numbers: list[int], waits: bool) -> list[int]:
        """Returns the next wave of a sort; empty if it is not full and ``waits``."""
        if self._size is None:
            return numbers
        counts, wave = list(self._counts), 0
        full = False
        for number in numbers[: self._size]:
            wave += 1
            for i, rule in enumerate(self._rules if sort.train else ()):
                if number % rule.copies == rule.copy:
                    counts[i] = (counts[i] + 1) % rule.every
                    full |= not counts[i]
            if full:
                break
        if not full and wave < self._size and waits:
            return []
        self._counts = counts
        return numbers[:wave]

    def retired(self, count: int) -> None:
        """Count retired instances."""
        self._playing -= count

    def flushed(self) -> None:
        """Restart the counts of the update rules: nodes have applied their remaining gradients."""
        self._counts = [0] * len(self._rules)

    def clear(self) -> None:
        """Drop everything: nothing is in flight any more."""
        self.flushed()
        self._waiting.clear()
        self._playing = 0


def size_of(workers: int, places: int) -> int:
    """Returns the wave size that makes one wave for each worker when ``places`` instances are in flight.

    More and smaller waves keep workers busier, but a wave has a cost of its own, worth some 6 (QM9) to 13 (Tree-LSTM)
    instances, and every wave in flight makes gradients older.
    """
    return -(-places // workers)


def rules_of(team: Team, copies: Mapping[str, Copy]) -> list[Rule]:
    """Returns the update rules of a team's nodes whose updates count instances."""
    found: dict[Rule, None] = {}
    for name, node in team.nodes.items():
        policy = node.updater.policy if isinstance(node, Parameterised) else None
        if policy is not None and policy.count == "instances":
            copy = copies.get(name)
            which = (copy.count, copy.number) if copy is not None and copy.by_instance else (1, 0)
            found[Rule(policy.min_update_frequency, *which)] = None
    return list(found)


def copies_of(team: Team, copies: Mapping[str, Copy]) -> int:
    """Returns the number of kinds of instances, by the copies of nodes they go to; 1 if that would be too many."""
    counts = {copies[name].count for name in team.nodes if name in copies and copies[name].by_instance}
    together = math.lcm(*counts)
    return together if together <= _KINDS else 1


def players_of(team: Team, copies: Mapping[str, Copy]) -> list[list[int]]:
    """Returns, for each kind of instances by the copies they go to, the workers that play them."""
    kinds = 1 if any(node.by_turns for node in team.nodes.values()) else copies_of(team, copies)
    out: list[list[int]] = []
    for kind in range(kinds):
        names = [
            name
            for name, node in team.nodes.items()
            if node.role != "route"
            and (kinds == 1 or name not in copies or not copies[name].by_instance or _is(copies[name], kind))
        ]
        out.append(sorted({team.hosts[name] for name in names}))
    return out


def _is(copy: Copy, kind: int) -> bool:
    return kind % copy.count == copy.number


def _missing(instance: Instance) -> frozenset[str]:
    if instance.complete:
        return _NONE
    return frozenset(name for name, given in instance.feeds.items() if given.payload is None and len(given))


_NONE: frozenset[str] = frozenset()
