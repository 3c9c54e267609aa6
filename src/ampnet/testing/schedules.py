"""Scripted schedules and clocks: orders written down in the test, instead of hoped for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ampnet.reference.schedule import Lane


class Scripted:
    """Serves lanes in the order of a script of steps, then whatever waits, oldest first.

    A step is ``"node"`` or ``"node backward"``, with ``"node*3"`` for at most three messages of it. A step at which
    nothing waits is an error: the test's idea of the run is wrong.

        Scripted(["embedding", "phi", "concat", "linear1*1", "linear1*1"])
    """

    hands_on = False

    def __init__(self, script: Iterable[str], *, then_fifo: bool = True) -> None:
        self._script = list(script)
        self._then_fifo = then_fifo
        self._lanes: Sequence[Lane] = ()
        self.played: list[str] = []
        """The steps served so far, script and rest."""

    def attach(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes

    def next(self) -> tuple[Lane, int | None] | None:
        ready = [lane for lane in self._lanes if lane.waiting]
        if not ready:
            return None
        if not self._script:
            if not self._then_fifo:
                raise AssertionError(f"the script is over, but there waits: {ready}")
            lane = min(ready, key=lambda r: r.arrivals[0])
            self.played.append(_name(lane))
            return lane, None
        step = self._script.pop(0)
        wanted, _, most = step.partition("*")
        found = [lane for lane in ready if _name(lane) == wanted.strip()]
        if not found:
            raise AssertionError(f"the script says '{step}', but there waits only: {ready}")
        self.played.append(_name(found[0]))
        return min(found, key=lambda r: r.arrivals[0]), int(most) if most else None


def _name(lane: Lane) -> str:
    return lane.node.name if lane.direction == 0 else f"{lane.node.name} backward"


class TickClock:
    """A clock that moves on by one at every look: times in logs become repeatable."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now
