"""Cutting: which instances of a team travel together as a wave, where several workers play it.

All workers of a team must play the same waves in the same order, so waves are cut where instances are pumped:

    pumped     0 1 2 3 4 5 6 7 8 9 ...                       wave size 4, an update after every 6 instances
    waves     [0 1 2 3][4 5][6 7 8 9]...
                          ^ no wave straddles an update

Instances of two kinds (stream, training or inference, inputs without payload) are never in one wave. Where nodes of the
team have copies, of which each instance goes to one, all instances of a wave go to the same: it is then one operation
of one worker, not a small one of each. A wave that is not
full waits for more of its kind, as long as the team has a full wave for each of its workers to play; in this way waves
stay large where instances retire, and so are pumped, in smaller numbers. Where every team has one worker only, workers
cut waves themselves (`ampnet.wave.player`), from what they are sent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ampnet.instance import Instance
from ampnet.nodes.transform import Parameterised
from ampnet.plan.team import Team
from ampnet.replicas.group import Copy

_KINDS = 64
"""Kinds of instances, by the copies they go to, that are cut apart at most."""


class Sort(NamedTuple):
    """What instances of one wave have in common."""

    stream: int
    train: bool
    missing: frozenset[str]
    """Inputs whose messages have no payload."""
    copy: int = 0
    """Which copies of nodes they go to: their number modulo that of the copies."""


class Rule(NamedTuple):
    """When a node updates: after ``every`` instances whose number modulo ``copies`` is ``copy``."""

    every: int
    copies: int = 1
    copy: int = 0


class Cutter:
    """Cuts the instances of one team into waves."""

    def __init__(self, size: int | None, workers: int, rules: Sequence[Rule] = (), copies: int = 1) -> None:
        """``size``: instances of a wave; None: any number. ``copies``: which are shared out by number."""
        self._copies = copies
        self._size, self._enough, self._rules = size, 0 if size is None else size * workers, rules
        self._counts = [0] * len(rules)
        self._waiting: dict[Sort, dict[int, Instance]] = {}
        self._playing = 0

    def add(self, instances: Mapping[int, Instance], stream: int, train: bool) -> None:
        """Instances, by number, that are to be played."""
        for number, instance in instances.items():
            sort = Sort(stream, train, _missing(instance), number % self._copies)
            self._waiting.setdefault(sort, {})[number] = instance

    def cut(self) -> Iterator[tuple[Sort, dict[int, Instance]]]:
        """The waves that can be played now, in order."""
        for sort in list(self._waiting):
            waiting = self._waiting[sort]
            while waiting and (wave := self._next(sort, list(waiting))):
                self._playing += len(wave)
                yield sort, {number: waiting.pop(number) for number in wave}
            if not waiting:
                del self._waiting[sort]

    def _next(self, sort: Sort, numbers: list[int]) -> list[int]:
        """The next wave of a sort; empty while it had better wait for more."""
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
        if not full and wave < self._size and self._playing >= self._enough:
            return []
        self._counts = counts
        return numbers[:wave]

    def retired(self, count: int) -> None:
        """So many instances have retired."""
        self._playing -= count

    def flushed(self) -> None:
        """Nodes have applied what they had: they count from 0."""
        self._counts = [0] * len(self._rules)

    def clear(self) -> None:
        """Nothing is in flight any more."""
        self.flushed()
        self._waiting.clear()
        self._playing = 0


def size_of(team: Team, places: int) -> int:
    """Instances of a wave: so many that there are two waves for each worker, if ``places`` instances are in flight."""
    return -(-places // (2 * len(team.workers)))


def rules_of(team: Team, copies: Mapping[str, Copy]) -> list[Rule]:
    """Of the nodes of a team whose updates count instances: after how many, and of which."""
    found: dict[Rule, None] = {}
    for name, node in team.nodes.items():
        policy = node.updater.policy if isinstance(node, Parameterised) else None
        if policy is not None and policy.count == "instances":
            copy = copies.get(name)
            which = (copy.count, copy.number) if copy is not None and copy.by_instance else (1, 0)
            found[Rule(policy.min_update_frequency, *which)] = None
    return list(found)


def copies_of(team: Team, copies: Mapping[str, Copy]) -> int:
    """How many kinds of instances there are, by the copies of nodes that they go to; 1 where that would be too many."""
    counts = {copies[name].count for name in team.nodes if name in copies and copies[name].by_instance}
    together = math.lcm(*counts)
    return together if together <= _KINDS else 1


def players_of(team: Team, copies: Mapping[str, Copy]) -> list[list[int]]:
    """For each kind of instances, by the copies that they go to: the workers that have anything to do with them."""
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
