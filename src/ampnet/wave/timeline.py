"""Timeline: what a passage did and when, where it is played as a whole: a clock for each operation, told in one event.

Columns that are equal in every wave of a layout (nodes, ports, rounds, rows, messages) are built once and kept with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ampnet.events.log import BACKWARD, COLLECT, FORWARD, Played
from ampnet.nodes.transform import Parameterised
from ampnet.plan.layout import Layout, Operation
from ampnet.plan.sites import Site

if TYPE_CHECKING:
    from ampnet.wave.passage import Passage

__all__ = ["BACKWARD", "COLLECT", "FORWARD", "Timeline", "told_of"]


@dataclass(frozen=True, slots=True)
class _Fixed:
    """Columns of an event that do not depend on the wave."""

    steps: int
    places: tuple[int, ...]
    """The timeline step of each entry."""
    first: tuple[bool, ...]
    """Whether it is the first entry of its step, which carries the step's time."""
    trained: tuple[str | None, ...]
    """The node, where it has parameters."""
    columns: tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    """Nodes, ports, rounds, directions."""
    rows: tuple[int, ...]
    messages: tuple[int, ...]
    wanted: tuple[bool, ...]


class Timeline:
    """The steps of one passage."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._times = [clock()]
        self._steps: list[tuple[Operation, int]] = []

    def add(self, op: Operation, direction: int) -> None:
        """Add a step that ends now."""
        self._steps.append((op, direction))
        self._times.append(self._clock())

    def event(self, worker: str, passage: Passage) -> Played:
        """The event with all steps."""
        layout, times = passage.layout, self._times
        fixed = layout.told.get(passage.train)
        if not isinstance(fixed, _Fixed) or fixed.steps != len(self._steps):
            fixed = layout.told[passage.train] = self._put_together(passage)
        seen, now = passage.seen, passage.now
        nodes, ports, rounds, directions = fixed.columns
        starts = tuple([times[i] for i in fixed.places])
        ends = [times[i + 1] for i in fixed.places]
        seconds = tuple([e - s if f else 0.0 for s, e, f in zip(starts, ends, fixed.first, strict=True)])
        versions = tuple(
            [
                None if name is None else seen[name] + (now.get(name, 0) if direction else 0)
                for name, direction in zip(fixed.trained, directions, strict=True)
            ]
        )
        lags = tuple(
            [
                now.get(name, 0) if direction == BACKWARD and name is not None else 0
                for name, direction in zip(fixed.trained, directions, strict=True)
            ]
        )
        return Played(
            starts[0], worker, passage.number, passage.train, nodes, ports, rounds, directions, starts, seconds,
            fixed.rows, fixed.messages, versions, lags, fixed.wanted,
        )  # fmt: skip

    def _put_together(self, passage: Passage) -> _Fixed:
        entries: list[tuple[int, bool, str | None, str, int, int, int, int, int, bool]] = []
        for place, (op, direction) in enumerate(self._steps):
            wanted = direction == FORWARD and passage.train and not op.site.still
            for i, (site, rows, messages) in enumerate(told_of(passage.layout, op, direction)):
                trained = site.name if isinstance(site.node, Parameterised) else None
                where = (site.name, site.end.port, op.round, direction)
                entries.append((place, not i, trained, *where, rows, messages, wanted))
        places, first, names, nodes, ports, rounds, directions, rows_, told, asked = zip(*entries, strict=True)
        return _Fixed(len(self._steps), places, first, names, (nodes, ports, rounds, directions), rows_, told, asked)


def told_of(layout: Layout, op: Operation, direction: int) -> list[tuple[Site, int, int]]:
    """(site, rows, messages) of those an operation is about: its site, the Linears of a choice, or those Linears of a
    mixture that have anything to do in it. Rows that cross are logged where they are computed."""
    if op.crosses:
        return []
    sites = op.trained or (op.site,)
    if op.site.kind == "mixture":
        operations = layout.wholes[op.site.number].operations if direction == COLLECT else [op]
        sites = tuple(s for i, s in enumerate(op.trained) if any(one.links(i) for one in operations)) or (op.site,)
    out = []
    for site in sites:
        rows = sum(m.stop - m.start for m in op.members or [op] if not op.members or m.site is site)
        messages = op.messages
        if isinstance(site.node, Parameterised):
            messages = layout.heard(site.number) if direction == COLLECT else layout.heard(site.number, op.round)
        out.append((site, rows, messages))
    return out
