"""Recording: the events of a simulation, of the same types as those of a run, so that the same readers draw them.

simulation ──> Wave, Played ──> Recorder ──> Gantt chart, report
                            └─> PerfettoWriter ──> trace
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ampnet.events.log import BACKWARD, FORWARD, Begin, Listener, Operation, Played, Rest, Wave

if TYPE_CHECKING:
    from ampnet.simulate.worker import SimulatedPassage, SimulatedWorker

MOST = 1_000_000
"""The maximal number of operations that are recorded, about."""


class Recording:
    """Passes the events of a simulation to listeners, in the order of their ends, from one moment to another."""

    def __init__(self, listeners: Iterable[Listener], begin: float, end: float, settings: Mapping[str, Any]) -> None:
        """``begin``, ``end``: simulated seconds. ``settings``: what the readers show."""
        self._listeners, self._begin, self._end = tuple(listeners), begin, end
        self._count = 0
        self._tell(Begin(begin, dict(settings)))

    def _tell(self, event: Begin | Wave | Played | Rest) -> None:
        for listener in self._listeners:
            listener(event)

    def wave(self, worker: SimulatedWorker, passage: SimulatedPassage, at: float, seconds: float) -> None:
        """A worker has laid out a wave."""
        if self._begin <= at < self._end and self._count <= MOST:
            numbers = tuple(passage.numbers)
            self._tell(Wave(at, seconds, _name(worker), _number(passage), True, numbers, passage.part.told))

    def played(
        self,
        worker: SimulatedWorker,
        passage: SimulatedPassage,
        base: float,
        starts: Sequence[tuple[int, int, float, float]],
        pace: float = 1.0,
    ) -> None:
        """A worker has played operations: (operation, direction, start after ``base``, seconds) of each; both take
        ``pace`` times as long. Nothing is recorded after the first `MOST` operations."""
        if not starts or not self._begin <= base < self._end or self._count > MOST:
            return
        self._count += len(starts)
        told = []
        for at, direction, start, seconds in starts:
            name, port, round_, rows = passage.part.nodes[at]
            crossing = passage.part.crosses[at]
            if crossing is not None:
                name = f"{name} {'>' if crossing.sends is not bool(direction) else '<'}"
            kind = BACKWARD if direction else FORWARD
            wanted = not direction and not passage.part.still[at]
            told.append(
                Operation(name, port, round_, kind, base + pace * start, pace * seconds, rows, rows, None, 0, wanted)
            )
        self._tell(Played.of(_name(worker), _number(passage), True, told))

    def close(self) -> None:
        """End the run."""
        self._tell(Rest(self._end, {}))


def _name(worker: SimulatedWorker) -> str:
    return f"worker{worker.seat}"


def _number(passage: SimulatedPassage) -> int:
    return abs(passage.number)
