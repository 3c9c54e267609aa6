"""Timeline: what a passage did and when, where it is played as a whole: a clock for each operation, told in one event.

What is the same in every wave of a layout (nodes, ports, rounds, rows, messages) is put together once and kept with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ampnet.events.log import BACKWARD, COLLECT, FORWARD, Played
from ampnet.plan.layout import Operation
from ampnet.plan.sites import Site

if TYPE_CHECKING:
    from ampnet.wave.passage import Passage

__all__ = ["BACKWARD", "COLLECT", "FORWARD", "Timeline"]


@dataclass(frozen=True, slots=True)
class _Fixed:
    """Columns of an event that do not depend on the wave."""

    steps: int
    places: tuple[int, ...]
    """Of each entry: which step of the timeline it is."""
    first: tuple[bool, ...]
    """Whether it is the first entry of its step, whose time it tells."""
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
        """A step has ended just now."""
        self._steps.append((op, direction))
        self._times.append(self._clock())

    def event(self, worker: str, passage: Passage) -> Played:
        """All steps."""
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
            for first, site in enumerate(op.trained or (op.site,)):
                messages = self._messages(passage, op, site, direction)
                rows = sum(m.stop - m.start for m in op.members or [op] if not op.members or m.site is site)
                trained = site.name if op.trained else None
                wanted = direction == FORWARD and passage.train and not op.site.still
                entries.append(
                    (place, not first, trained, site.name, site.end.port, op.round, direction, rows, messages, wanted)
                )
        places, first_ones, names, nodes, ports, rounds, directions, rows_, told, asked = zip(*entries, strict=True)
        return _Fixed(
            len(self._steps), places, first_ones, names, (nodes, ports, rounds, directions), rows_, told, asked
        )

    @staticmethod
    def _messages(passage: Passage, op: Operation, site: Site, direction: int) -> int:
        if not op.trained:
            return op.messages
        if direction == COLLECT:
            return passage.layout.heard(site.number)
        if op.site.kind == "mixture":
            return op.links(op.site.terms.index(site))
        return passage.layout.heard(site.number, op.round)
