"""Worker: plays waves in simulated time, one operation after the other, as `ampnet.wave.player` does.

    whole model      [wave 1][wave 2][wave 3] ...       cut from what is staged; a wave is one event
    a part of it     [op op op]>. . .[op op]...         a stretch of operations of the passage that the runtime's own
                                                        schedule names; a passage waits for slices of other workers

What a wave takes was measured (`ampnet.simulate.costs`), which operations it has was planned (`ampnet.simulate.waves`).
Weights are versions: a node counts gradients and updates by its own rule, and the staleness of a gradient is the number
of updates between its forward and its backward.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ampnet.runtime.staging import share_of
from ampnet.simulate.engine import Shares
from ampnet.simulate.waves import Place, PlannedPart, PlannedWave
from ampnet.wave.player import _SPARE, STRETCH, WAVES_AHEAD
from ampnet.wave.schedule import WAVE_SCHEDULES

if TYPE_CHECKING:
    from ampnet.simulate.simulation import Simulation

SPIN = 200e-6
"""A worker that has waited for this long sleeps, and has to be woken."""
BUSY, WAITING, IDLE = "busy", "waiting for rows", "idle"
"""States of a worker: it computes, also if it shares its core; passages wait for slices; no wave is in flight."""


@dataclass(slots=True)
class Weights:
    """The weights of a node, or those that the copies of a model share."""

    updates: list[float] = field(default_factory=list)
    """The time of each, in order."""
    before: int = 0
    """Updates before the measurement."""
    stale: int = 0
    """The sum of the staleness of all messages."""
    messages: int = 0
    stalest: int = 0

    def begin(self) -> None:
        """Begin to measure."""
        self.before, self.stale, self.messages, self.stalest = len(self.updates), 0, 0, 0

    def note(self, lag: int, messages: int) -> None:
        """Add messages of this staleness."""
        self.stale += lag * messages
        self.messages += messages
        self.stalest = max(self.stalest, lag)


@dataclass(slots=True)
class SimulatedTeam:
    """The workers of one copy of the model."""

    number: int
    hosts: dict[str, int]
    weights_of: dict[str, Weights]
    """By node, copies of it as well: they share theirs."""
    workers: list[SimulatedWorker] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Border:
    """What a schedule reads of a passage's layout."""

    crosses: bool


class SimulatedPassage:
    """One wave on its way through one worker. Schedules read ``layout``, ``backward``, ``played_at`` and ``progress``,
    as of `ampnet.wave.passage.Passage`."""

    def __init__(self, number: int, part: PlannedPart, numbers: Sequence[int]) -> None:
        self.number, self.part, self.numbers = number, part, numbers
        self.at, self.backward, self.played_at = 0, False, 0
        self.layout = _Border(any(one is not None for one in part.crosses))
        self.inbox: set[Place] = set()
        self.seen: dict[int, list[int]] = {}
        """By operation: the versions that its nodes had in the forward."""
        self.left = dict(part.sites)
        """Of each node with parameters: sites whose gradients have not been collected yet."""

    @property
    def progress(self) -> float:
        """Its progress, from 0 to 2."""
        done = self.at / max(1, len(self.part))
        return 2 - done if self.backward else done

    @property
    def over(self) -> bool:
        """Whether all of it is played."""
        return self.backward and self.at < 0

    def ready(self) -> bool:
        """Whether its next operation can run now."""
        if not 0 <= self.at < len(self.part):
            return True
        crossing = self.part.crosses[self.at]
        if crossing is None or crossing.sends is not self.backward or (self.backward and crossing.still):
            return True
        return (crossing.number, crossing.round, int(self.backward)) in self.inbox


@dataclass(slots=True)
class _Stretch:
    """Operations of one passage that are played without a look at anything else."""

    begun: bool
    """Whether it is the first of the passage."""
    slow: float
    """How much longer it takes than on a computer where nothing else computes."""
    seconds: float = 0.0
    """Of a core, without this factor."""
    layout: float = 0.0
    """Those before the first operation."""
    starts: list[tuple[int, int, float, float]] = field(default_factory=list)
    """(operation, direction, start, seconds) of each."""
    due: list[str] = field(default_factory=list)
    """Nodes that make an update."""
    sends: list[tuple[SimulatedWorker, float, Place]] = field(default_factory=list)
    """Slices that leave at its end: (receiver, bytes, place)."""

    def add(self, at: int, direction: int, seconds: float) -> None:
        """Add an operation."""
        self.starts.append((at, direction, self.seconds, seconds))
        self.seconds += seconds


class SimulatedWorker:
    """One worker of a team."""

    def __init__(self, simulation: Simulation, team: SimulatedTeam, place: int, seat: int) -> None:
        """``place``: its place in the team. ``seat``: its number on the machine."""
        self.simulation, self.team, self.place, self.seat = simulation, team, place, seat
        self.number, kind = simulation.seats[seat]
        """The number of its computer."""
        self.computer = simulation.computers[self.number]
        setting = simulation.setting
        self.schedule = WAVE_SCHEDULES[setting.schedule](simulation.seed + seat)
        self.parted = setting.parts > 1
        self.alone = self.schedule.one_by_one and not self.parted
        """Whether waves are played one by one, each from its first to its last operation."""
        self.share = share_of(setting.places) if setting.processes else setting.max_active_keys
        """The largest wave that it cuts."""
        self.size = setting.wave_size or (self.share if self.schedule.one_by_one else -(-self.share // _SPARE))
        """Instances of a wave that it cuts, where no update is nearer."""
        limited = self.parted and self.schedule.one_by_one and setting.wave_size is None
        self.ahead = WAVES_AHEAD * setting.parts if limited else None
        """The maximal number of passages in flight; None: no limit."""
        self.spins = self.parted and simulation.workers_on[self.number] <= kind.cores
        """Whether it looks for slices for a while before it sleeps."""
        lines = simulation.waves.lines
        self.speed = kind.speed
        self.rate = lines.rate * self.speed if kind.flops is None else kind.flops
        self.staged: deque[tuple[int, PlannedWave, Sequence[int]]] = deque()
        """Waves that other workers play too."""
        self.numbers: deque[int] = deque()
        """Instances of which waves are cut here."""
        self.passages: list[SimulatedPassage] = []
        self.by_wave: dict[int, SimulatedPassage] = {}
        self.early: dict[int, set[Place]] = {}
        """Slices for waves that have not begun here."""
        self.counters: dict[str, int] = {}
        """By node: gradients since its last update, in the unit of its rule."""
        self.computing = False
        """Whether it computes, or is about to wake up."""
        self.idle_since = 0.0
        self.clock = self.begun = 0
        """Stretches played; waves begun."""
        self.played: list[int] = []
        """Instances that the controller has not been told of."""
        self.shares = Shares(simulation.engine, IDLE)
        self.bytes = 0.0
        """Bytes sent since the begin of the measurement."""
        self.peak = 0.0
        """Bytes of passages in flight, at most so far."""

    # -- what comes

    def stage(self, wave: int, planned: PlannedWave, numbers: Sequence[int]) -> None:
        """A wave that other workers play too."""
        self.staged.append((wave, planned, numbers))
        self.wake()

    def give(self, numbers: Sequence[int]) -> None:
        """Instances to cut waves of."""
        self.numbers.extend(numbers)
        self.wake()

    def take(self, wave: int, place: Place) -> None:
        """A slice of another worker has arrived."""
        passage = self.by_wave.get(wave)
        if passage is None:
            self.early.setdefault(wave, set()).add(place)
        else:
            passage.inbox.add(place)
        self.wake()

    def wake(self) -> None:
        """Something may be played now."""
        simulation = self.simulation
        if self.computing or simulation.paused:
            return
        self.computing = True
        awake = self.spins and simulation.engine.now - self.idle_since <= SPIN
        latency = simulation.machine.inside.latency
        if awake or not latency or not simulation.setting.processes:
            self._step()
        else:
            simulation.engine.after(latency, self._woken, simulation.era)

    def _woken(self, era: int) -> None:
        if era == self.simulation.era:
            self._step()

    # -- what is played next

    def _step(self) -> None:
        """Play a whole wave, or a stretch of operations of one passage; or fall idle."""
        if self.alone:
            if self.numbers:
                self._play_at_once()
            else:
                self._rest()
            return
        ready = [passage for passage in self.passages if passage.ready()]
        begins = bool(self.staged or self.numbers) and (self.ahead is None or len(self.passages) < self.ahead)
        passage = self.schedule.next(ready, begins)
        if passage is not None or begins:
            self._play(passage)
        else:
            self._rest()

    def _rest(self) -> None:
        self.computing, self.idle_since = False, self.simulation.engine.now
        self.shares.enter(WAITING if self.passages else IDLE)
        self._tell()

    def _cut(self) -> list[int]:
        """Returns the next instances that are computed together: no more than the next update needs."""
        room = min(self.size, self.share, len(self.numbers))
        for name, (unit, every) in self.simulation.rules.items():
            if unit == "instances" and self.team.hosts[name] == self.place:
                under_way = sum(len(one.numbers) for one in self.passages if one.left.get(name))
                room = min(room, every - (self.counters.get(name, 0) + under_way) % every)
        return [self.numbers.popleft() for _ in range(room)]

    def _tell(self) -> None:
        """Tell the controller what was played."""
        if self.played:
            played, self.played = self.played, []
            self.simulation.tell(self, played)

    def _tell_soon(self) -> None:
        """Tell the controller what was played: at once if other workers play it too, else if little is staged."""
        if self.parted or not self.simulation.setting.processes or len(self.numbers) <= self.share:
            self._tell()

    def _seconds_of_updates(self, due: Sequence[str]) -> float:
        """Seconds of a core."""
        updates = self.simulation.costs.updates
        return sum(updates.get(name, 0.0) for name in due) / self.speed

    def _count(self, name: str, part: PlannedPart) -> bool:
        """Count the gradients of a wave at a node. Returns whether an update is due."""
        rule = self.simulation.rules.get(name)
        if rule is None or not part.heard.get(name):
            return False
        unit, every = rule
        count = self.counters.get(name, 0) + (part.own[name] if unit == "instances" else part.heard[name])
        self.counters[name] = 0 if count >= every else count
        return count >= every

    # -- waves that are played one by one

    def _play_at_once(self) -> None:
        """Play a wave from its first to its last operation."""
        simulation, costs = self.simulation, self.simulation.costs
        numbers = self._cut()
        part = simulation.waves.wave(len(numbers), numbers[0] % simulation.waves.kinds).parts[0]
        self.begun += 1
        self.peak = max(self.peak, part.bytes)
        rest = costs.worker if simulation.setting.processes else costs.inline
        layout, besides = costs.layout(len(numbers)) / self.speed, rest(len(numbers)) / self.speed
        due = [name for name in part.sites if self._count(name, part)]
        seconds = part.at_once(self.speed, self.rate).seconds + layout + besides + self._seconds_of_updates(due)
        slow = self.computer.slow() * simulation.jitter()
        self.shares.enter(BUSY)
        passage = SimulatedPassage(self.begun, part, numbers)
        given = passage, simulation.engine.now, (layout, besides, seconds), due, simulation.era
        self.computer.compute(seconds * slow, self._wave_over, *given)

    def _wave_over(
        self,
        passage: SimulatedPassage,
        start: float,
        took: tuple[float, float, float],
        due: Sequence[str],
        era: int,
    ) -> None:
        """A wave has ended. ``took``: seconds of its layout, of what is besides, and all, as they were expected."""
        simulation, timed = self.simulation, passage.part.at_once(self.speed, self.rate)
        if era != simulation.era:
            return
        weights_of, now = self.team.weights_of, simulation.engine.now
        layout, besides, seconds = took
        pace = (now - start) / seconds if seconds else 1.0
        began = start + (layout + besides) * pace  # laid out: from then on it went on with these weights
        for name, at, messages in timed.gradients:
            updates = weights_of[name].updates
            weights_of[name].note(bisect_right(updates, began + at * pace) - bisect_right(updates, began), messages)
        for name in due:
            weights_of[name].updates.append(now)
        if simulation.recorder is not None:
            simulation.recorder.wave(self, passage, start, layout * pace)
            simulation.recorder.played(self, passage, began, timed.starts, pace)
        self.played += passage.numbers
        self._tell_soon()
        self._step()

    # -- passages that take turns

    def _play(self, passage: SimulatedPassage | None) -> None:
        """Play a stretch of a passage, or of a new one: some operations, or until one waits for a slice."""
        simulation = self.simulation
        stretch = _Stretch(passage is None, self.computer.slow() * simulation.jitter())
        if passage is None:
            passage = self._begin(stretch)
        self.clock += 1
        passage.played_at = self.clock
        most = STRETCH if self.schedule.one_by_one else 1
        most = self._forward(passage, stretch, most)
        self._backward(passage, stretch, most)
        stretch.seconds += self._seconds_of_updates(stretch.due)
        self.shares.enter(BUSY)
        given = passage, stretch, simulation.engine.now, simulation.era
        self.computer.compute(stretch.seconds * stretch.slow, self._over, *given)

    def _begin(self, stretch: _Stretch) -> SimulatedPassage:
        """Begin the next wave."""
        simulation, costs = self.simulation, self.simulation.costs
        self.begun += 1
        if self.staged:
            number, planned, numbers = self.staged.popleft()
        else:
            numbers = self._cut()
            kind = numbers[0] % simulation.waves.kinds
            number, planned = self.begun, simulation.waves.wave(len(numbers), kind)
        passage = SimulatedPassage(number, planned.parts[self.place], numbers)
        passage.inbox = self.early.pop(number, set())
        self.by_wave[number] = passage
        self.passages.append(passage)
        self.peak = max(self.peak, sum(one.part.bytes for one in self.passages))
        if self.parted:
            seconds = costs.layout_part(len(numbers)) + costs.part(len(passage.part))
        else:
            rest = costs.worker if simulation.setting.processes else costs.inline
            seconds = costs.layout(len(numbers)) + rest(len(numbers))
        stretch.seconds = stretch.layout = seconds / self.speed
        return passage

    def _forward(self, passage: SimulatedPassage, stretch: _Stretch, most: int) -> int:
        """Play at most this number of operations forward. Returns how many may follow."""
        part, weights_of = passage.part, self.team.weights_of
        while most and not passage.backward and not stretch.sends:
            at = passage.at
            if at == len(part):
                passage.backward, passage.at = True, at - 1
                break
            if not passage.ready():
                return 0
            if part.trained[at]:
                passage.seen[at] = [len(weights_of[name].updates) for name, _ in part.trained[at]]
            stretch.add(at, 0, self._seconds(passage, 0, stretch))
            passage.at += 1
            most -= 1
        return most

    def _backward(self, passage: SimulatedPassage, stretch: _Stretch, most: int) -> None:
        """Play at most this number of operations backward."""
        part, weights_of = passage.part, self.team.weights_of
        while most and passage.backward and passage.at >= 0 and not stretch.sends and passage.ready():
            at = passage.at
            if not part.still[at]:
                stretch.add(at, 1, self._seconds(passage, 1, stretch))
                for place, (name, messages) in enumerate(part.trained[at]):
                    if messages:
                        weights = weights_of[name]
                        weights.note(len(weights.updates) - passage.seen[at][place], messages)
                for name in part.collects[at]:
                    passage.left[name] -= 1
                    if not passage.left[name] and self._count(name, part):
                        stretch.due.append(name)
            passage.at -= 1
            most -= 1

    def _seconds(self, passage: SimulatedPassage, direction: int, stretch: _Stretch) -> float:
        """Seconds of a core of the next operation. A slice that it sends leaves when it is made; where cores are shared
        nobody knows when that will be, so it is the last of its stretch."""
        part, at = passage.part, passage.at
        crossing = part.crosses[at]
        if crossing is None:
            return part.seconds(at, direction, self.speed, self.rate)
        simulation, other = self.simulation, self.team.workers[crossing.other]
        seconds = simulation.crossing(self, other, crossing.bytes) / self.speed
        place = (crossing.number, crossing.round, direction)
        if crossing.sends is bool(direction):
            passage.inbox.discard(place)
        elif self.computer.shares:
            stretch.sends.append((other, crossing.bytes, place))
        else:
            made = (stretch.seconds + seconds) * stretch.slow
            simulation.send(self, other, crossing.bytes, made, passage.number, place)
        return seconds

    def _over(self, passage: SimulatedPassage, stretch: _Stretch, start: float, era: int) -> None:
        """A stretch has ended."""
        simulation = self.simulation
        if era != simulation.era:
            return
        now = simulation.engine.now
        for other, size, place in stretch.sends:
            simulation.send(self, other, size, 0.0, passage.number, place)
        for name in stretch.due:
            self.team.weights_of[name].updates.append(now)
        if simulation.recorder is not None:
            pace = (now - start) / stretch.seconds if stretch.seconds else 1.0
            if stretch.begun:
                simulation.recorder.wave(self, passage, start, stretch.layout * pace)
            simulation.recorder.played(self, passage, start, stretch.starts, pace)
        if passage.over:
            self.passages.remove(passage)
            del self.by_wave[passage.number]
            self.played += passage.numbers
            self._tell_soon()
        self._step()

    # -- losses

    def drop(self) -> None:
        """Drop everything in flight: workers start again."""
        self.staged.clear()
        self.numbers.clear()
        self.passages.clear()
        self.by_wave.clear()
        self.early.clear()
        self.played.clear()
        self.counters.clear()
        self.computing, self.idle_since = False, self.simulation.engine.now
        self.shares.enter(IDLE)
