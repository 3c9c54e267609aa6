"""Staleness: the number of updates of a node between the forward and the backward of one message.

    linear1    forward m1, m2     update     backward m1     update     backward m2
    version    0                  1          1               2          2
    staleness                                1 (m1)                     2 (m2)

It is the price of asynchrony: the gradient of m2 was computed for weights that are two updates old. With one instance
in flight it is zero at nodes that get one message per instance; it grows with ``max_active_keys`` and falls with
``min_update_frequency``.

In a wave all messages of an operation have the same staleness: their forward was one operation, and so is their
backward.

It is measured in two ways. A node stores its version with every forward and reports the difference in
``Backward.lags`` or ``Played.lags``; workers add those up (``Worked``), and `StalenessMeter` shows them. `staleness_of`
recounts independently: the updates between the two events of each state, or the two operations of each (wave, node,
port, round), in the log. Promise P7 is that both agree.

A replica whose weights are replaced by the mean of its group has new weights too: that counts like an update.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import repeat
from typing import NamedTuple

from ampnet.events.log import (
    BACKWARD,
    FORWARD,
    Backward,
    Begin,
    Event,
    Forward,
    Operation,
    Played,
    Restart,
    Synced,
    Updated,
    Worked,
)
from ampnet.events.replicas import groups_of
from ampnet.state import States

Row = tuple[int, ...]
"""One message's state, hashable: its values in the order of the sorted field names."""


@dataclass(frozen=True, slots=True)
class Staleness:
    """The staleness of the gradients of a node (or of several)."""

    messages: int
    """The number of backward messages measured, including empty answers."""
    mean: float
    """Mean staleness of a message; NaN without messages."""
    max: int
    """Largest staleness of a message; 0 without messages."""
    histogram: dict[int, int]
    """Staleness -> messages, in rising order."""


class StalenessMeter:
    """A listener that adds up the staleness that nodes report. It may be read at any time."""

    kinds = (Worked,)
    """The events it wants: sums, so that it costs little."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[int]] = {}

    def __call__(self, event: Event) -> None:
        if isinstance(event, Worked) and event.lags:
            counts = self._counts.setdefault(event.node, Counter())
            for lag, messages in event.lags:
                counts[lag] += messages

    def nodes(self) -> dict[str, Staleness]:
        """Returns the staleness of every node with parameters that has had a backward, by name."""
        return {node: summary_of(counts) for node, counts in self._counts.items()}

    def overall(self) -> Staleness:
        """Returns the staleness over all nodes."""
        total: Counter[int] = Counter()
        for counts in self._counts.values():
            total.update(counts)
        return summary_of(total)


class Counted(NamedTuple):
    """The recount of `Recount` for a backward at a node with parameters."""

    node: str
    lags: Counter[int]
    """Staleness -> messages."""
    unknown: int
    """The number of messages whose forward was not seen."""
    operation: Operation | None
    """The operation of a wave."""


class Recount:
    """Counts the updates between the forward and the backward of each state or operation, from the events alone.

    Call it with every event of a log, in order. The nodes' own counts, ``lags`` and ``version``, are not used, except
    for the age of products that were made before their operation.
    If replicas share their weights, the updates of all of them count.
    """

    def __init__(self) -> None:
        self._updates: Counter[str] = Counter()
        self._out: dict[tuple[str, int, tuple[str, ...]], dict[Row, int]] = {}
        self._played: dict[tuple[str, int, str, int, int], int] = {}
        """(worker, wave, node, port, round) -> updates when it was played forward."""
        self.shared: dict[str, str] = {}
        """Replicas that share their weights, and their original nodes."""

    def __call__(self, event: Event) -> list[Counted]:
        """Returns the recounts of an event: one for each backward at a node with parameters, in order."""
        match event:
            case Forward(train=True, version=int()):
                now = self._updates[self._whose(event.node)]
                for port, states in event.sent:
                    fields, rows = rows_of(states)
                    self._out.setdefault((event.node, port, fields), {}).update(dict.fromkeys(rows, now))
            case Updated() | Synced(moved=True):
                self._updates[self._whose(event.node)] += 1
            case Backward(version=int()):
                return [self._back(event)]
            case Played(train=True):
                return self._wave(event)
            case Restart():
                self._out.clear()
                self._played.clear()
            case Begin():
                # A run starts with nothing in flight; an interrupted one leaves forwards without a backward.
                self._out.clear()
                self._played.clear()
                shared = [group for group in groups_of(event.settings) if group.sync == "shared"]
                self.shared = {member: group.node for group in shared for member in group.members}
            case _:
                pass
        return []

    def _whose(self, node: str) -> str:
        """Returns the node whose updates change the weights of a node."""
        return self.shared.get(node, node)

    def _back(self, event: Backward) -> Counted:
        fields, rows = rows_of(event.received)
        out = self._out.get((event.node, event.port, fields), {})
        before = Counter(map(out.pop, rows, repeat(-1)))
        unknown = before.pop(-1, 0)
        now = self._updates[self._whose(event.node)]
        lags = Counter({now - then: messages for then, messages in before.items()})
        return Counted(event.node, lags, unknown, None)

    def _wave(self, event: Played) -> list[Counted]:
        found = []
        for op in event.operations():
            if op.version is not None:
                now = self._updates[self._whose(op.node)]
                name = (event.worker, event.wave, op.node, op.port, op.round)
                if op.direction == FORWARD and op.wanted:
                    self._played[name] = now - op.lag
                elif op.direction == BACKWARD:
                    then = self._played.pop(name, None)
                    lags = Counter({now - then: op.messages}) if then is not None and op.messages else Counter()
                    found.append(Counted(op.node, lags, op.messages if then is None else 0, op))
        return found


def staleness_of(events: Iterable[Event]) -> dict[str, Staleness]:
    """Returns the staleness of every node with parameters, by name, counted from the log.

    Backward messages whose forward is not in the log are ignored.
    """
    recount, counts = Recount(), dict[str, Counter[int]]()
    for event in events:
        for found in recount(event):
            if found.lags:
                counts.setdefault(found.node, Counter()).update(found.lags)
    return {node: summary_of(c) for node, c in counts.items()}


def rows_of(states: States) -> tuple[tuple[str, ...], list[Row]]:
    """Returns the field names, sorted, and each message's values in that order: equal states have equal rows."""
    ordered, order = _sorted(states.fields)
    columns = states.columns.tolist()
    return ordered, list(zip(*(columns[i] for i in order), strict=True))


@cache
def _sorted(fields: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Returns the field names, sorted, and the original index of each."""
    ordered = tuple(sorted(fields))
    return ordered, tuple(fields.index(f) for f in ordered)


def summary_of(counts: Mapping[int, int]) -> Staleness:
    """Returns the statistics of a histogram, staleness -> messages."""
    messages = sum(counts.values())
    total = sum(lag * n for lag, n in counts.items())
    return Staleness(
        messages, total / messages if messages else float("nan"), max(counts, default=0), dict(sorted(counts.items()))
    )
