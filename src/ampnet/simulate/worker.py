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
from ampnet.simulate.waves import Part, Place, PlannedWave
from ampnet.wave.player import STRETCH, WAVES_AHEAD
from ampnet.wave.schedule import WAVE_SCHEDULES

if TYPE_CHECKING:
    from ampnet.simulate.simulation import Simulation, Team

SPIN = 200e-6
"""A worker that has waited for this long sleeps, and has to be woken."""


@dataclass(slots=True)
class Weights:
    """The weights of a node, or those that the copies of a model share."""

    updates: list[float] = field(default_factory=list)
    """The time of each."""
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


@dataclass(frozen=True, slots=True)
class _Border:
    """What a schedule reads of a passage's layout."""

    crosses: bool


class Passage:
    """One wave on its way through one worker. Schedules read ``layout``, ``backward``, ``played_at`` and ``progress``,
    as of `ampnet.wave.passage.Passage`."""

    def __init__(self, number: int, wave: PlannedWave, part: Part, numbers: Sequence[int]) -> None:
        self.number, self.wave, self.part, self.numbers = number, wave, part, numbers
        self.at, self.backward, self.played_at = 0, False, 0
        self.layout = _Border(any(one is not None for one in part.crosses))
        self.inbox: set[Place] = set()
        self.seen: dict[int, list[int]] = {}
        """By operation: the versions that its nodes had in the forward."""
        self.left = dict(part.sites)

    @property
    def progress(self) -> float:
        """Its progress, from 0 to 2."""
        done = self.at / max(1, len(self.part))
        return 2 - done if self.backward else done

    def ready(self) -> bool:
        """Whether its next operation can run now."""
        if not 0 <= self.at < len(self.part):
            return True
        crossing = self.part.crosses[self.at]
        if crossing is None or crossing.sends is not self.backward or (self.backward and crossing.still):
            return True
        return (crossing.number, crossing.round, int(self.backward)) in self.inbox


class Worker:
    """One worker of a team."""

    def __init__(self, simulation: Simulation, team: Team, place: int, seat: int) -> None:
        """``place``: its place in the team. ``seat``: its number on the machine."""
        self.simulation, self.team, self.place, self.seat = simulation, team, place, seat
        number, self.kind = simulation.seats[seat]
        self.computer = simulation.computers[number]
        self.number = number
        """The number of its computer."""
        setting = simulation.setting
        self.schedule = WAVE_SCHEDULES[setting.schedule](seat)
        self.parted = setting.parts > 1
        self.alone = self.schedule.one_by_one and not self.parted
        self.most = setting.wave_size or (share_of(setting.places) if setting.processes else setting.max_active_keys)
        """The largest wave, where workers cut waves."""
        self.ahead = WAVES_AHEAD * setting.parts if self.parted and setting.wave_size is None else None
        lines = simulation.waves.lines
        self.speed = self.kind.speed
        self.rate = lines.rate * self.speed if self.kind.flops is None else self.kind.flops
        self.staged: deque[tuple[int, PlannedWave, Sequence[int]]] = deque()
        """Waves that other workers play too."""
        self.numbers: deque[int] = deque()
        """Instances of which waves are cut here."""
        self.passages: list[Passage] = []
        self.by_wave: dict[int, Passage] = {}
        self.early: dict[int, set[Place]] = {}
        self.counters: dict[str, int] = {}
        self.computing = False
        self.idle_since = 0.0
        self.clock = 0
        self.played: list[int] = []
        # -- sums, from the end of the warm-up on
        self.busy = 0.0
        self.crossing = 0.0
        """Seconds in which it waited for rows of others, with passages in flight."""
        self.waves = 0
        self.bytes = 0.0
        self.peak = 0.0

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
        if self.computing or self.simulation.paused:
            return
        idle = self.simulation.engine.now - self.idle_since
        late = self.simulation.machine.inside.latency if idle > SPIN or not self.parted else 0.0
        self.computing = True
        if self.passages:
            self.crossing += idle
        if late:
            self.simulation.engine.after(late, self._go_on, self.simulation.era)
        else:
            self._step()

    def _go_on(self, era: int) -> None:
        if era == self.simulation.era:
            self._step()

    # -- what is played

    def _step(self) -> None:
        """Play a stretch of operations of one passage, or fall idle."""
        if self.alone:
            self._play_wave()
            return
        ready = [passage for passage in self.passages if passage.ready()]
        begins = bool(self.staged or self.numbers) and (self.ahead is None or len(self.passages) < self.ahead)
        passage = self.schedule.next(ready, begins)
        if passage is None and not begins:
            self._rest()
            return
        seconds = 0.0
        if passage is None:
            passage, seconds = self._begin()
        self.clock += 1
        passage.played_at = self.clock
        slow = self.computer.slow() * self.simulation.jitter()
        seconds = self._play(passage, seconds, slow)
        self.busy += seconds
        self.computer.compute(seconds, self._over, passage, self.simulation.era)

    def _rest(self) -> None:
        self.computing, self.idle_since = False, self.simulation.engine.now
        self._tell()

    def _begin(self) -> tuple[Passage, float]:
        costs = self.simulation.costs
        if self.staged:
            number, planned, numbers = self.staged.popleft()
        else:
            numbers = self._cut()
            self.waves += 1
            number, planned = -self.waves, self.simulation.waves.wave(len(numbers))
        passage = Passage(number, planned, planned.parts[self.place], numbers)
        passage.inbox = self.early.pop(number, set())
        self.by_wave[number] = passage
        self.passages.append(passage)
        held = sum(one.part.bytes for one in self.passages)
        self.peak = max(self.peak, held)
        seconds = costs.layout_part(len(numbers)) + costs.part(len(passage.part))
        return passage, seconds / self.speed

    def _cut(self) -> Sequence[int]:
        """Returns the next instances that are computed together."""
        room = min(self.most, self._room(), len(self.numbers))
        return [self.numbers.popleft() for _ in range(room)]

    def _room(self) -> int:
        """How many instances the next update still needs."""
        under_way = sum(len(passage.numbers) for passage in self.passages)
        room = self.most
        for name, (unit, every) in self.simulation.rules.items():
            if unit == "instances" and self.team.hosts[name] == self.place:
                room = min(room, every - (self.counters.get(name, 0) + under_way) % every)
        return room

    def _play_wave(self) -> None:
        """Play a wave from its first to its last operation."""
        simulation, costs = self.simulation, self.simulation.costs
        if not self.numbers:
            self._rest()
            return
        numbers = self._cut()
        planned = simulation.waves.wave(len(numbers))
        part = planned.parts[0]
        passage = Passage(-1 - self.waves, planned, part, numbers)
        self.waves += 1
        self.peak = max(self.peak, part.bytes)
        slow = self.computer.slow() * simulation.jitter()
        rest = costs.worker if simulation.setting.processes else costs.inline
        seconds = (costs.layout(len(numbers)) + rest(len(numbers))) / self.speed * slow
        events = simulation.recorder
        starts: list[tuple[int, int, float, float]] = []
        now = simulation.engine.now
        began = now + seconds  # laid out: from now on it goes on with these weights
        for at in range(len(part)):
            took = self._seconds(part, at, 0) * slow
            starts.append((at, 0, seconds, took))
            seconds += took
        done: dict[str, int] = {}
        lags: list[tuple[str, float, int]] = []
        for at in range(len(part) - 1, -1, -1):
            if part.still[at]:
                continue
            took = self._seconds(part, at, 1) * slow
            starts.append((at, 1, seconds, took))
            seconds += took
            for name, heard in part.trained[at]:
                done[name] = done.get(name, 0) + heard
            lags += [(name, now + seconds, done[name]) for name in part.collects[at]]
        due = [name for name in part.sites if self._count(name, passage)]
        for name in due:
            seconds += costs.updates.get(name, 0.0) / self.speed * slow
        if events is not None:
            events.wave(self, passage, now, costs.layout(len(numbers)) / self.speed * slow)
            events.played(self, passage, now, starts)
        self.busy += seconds
        self.computer.compute(seconds, self._wave_over, passage, began, lags, due, simulation.era)

    def _wave_over(
        self,
        passage: Passage,
        began: float,
        lags: list[tuple[str, float, int]],
        due: list[str],
        era: int,
    ) -> None:
        if era != self.simulation.era:
            return
        now = self.simulation.engine.now
        for name, at, messages in lags:
            weights = self.team.weights(name)
            before = bisect_right(weights.updates, began)
            weights.note(bisect_right(weights.updates, at) - before, messages)
        for name in due:
            self.team.weights(name).updates.append(now)
        self.played += passage.numbers
        self._report()
        self._step()

    def _report(self) -> None:
        """Tell what was played, if little is staged."""
        if not self.simulation.setting.processes or len(self.numbers) <= self.most:
            self._tell()

    def _tell(self) -> None:
        if self.played:
            played, self.played = self.played, []
            self.simulation.tell(self, played)

    def _seconds(self, part: Part, at: int, direction: int) -> float:
        """Seconds of an operation on this worker's core, if it computes alone."""
        return part.fixed[at][direction] / self.speed + part.flops[at][direction] / self.rate

    def _play(self, passage: Passage, seconds: float, slow: float) -> float:
        """Play operations until one waits, or for a stretch. Returns the seconds that they take."""
        part, engine, simulation = passage.part, self.simulation.engine, self.simulation
        events, starts = simulation.recorder, list[tuple[int, int, float, float]]()
        seconds *= slow
        if events is not None and seconds:
            events.wave(self, passage, engine.now, seconds)
        left, count, due = STRETCH if self.schedule.one_by_one else 1, len(part), list[str]()
        while left and not passage.backward:
            if passage.at == count:
                passage.backward, passage.at = True, count - 1
                break
            if not passage.ready():
                break
            at = passage.at
            took = self._operation(passage, at, 0, seconds) * slow
            if part.trained[at]:
                passage.seen[at] = [len(self.team.weights(name).updates) for name, _ in part.trained[at]]
            starts.append((at, 0, seconds, took))
            seconds += took
            passage.at += 1
            left -= 1
        while left and passage.backward and passage.at >= 0:
            if not passage.ready():
                break
            at = passage.at
            if not part.still[at]:
                took = self._operation(passage, at, 1, seconds) * slow
                for place, (name, heard) in enumerate(part.trained[at]):
                    weights = self.team.weights(name)
                    if heard:
                        weights.note(len(weights.updates) - passage.seen[at][place], heard)
                starts.append((at, 1, seconds, took))
                seconds += took
                for name in part.collects[at]:
                    passage.left[name] -= 1
                    if not passage.left[name] and self._count(name, passage):
                        due.append(name)
            passage.at -= 1
            left -= 1
        for name in due:
            seconds += simulation.costs.updates.get(name, 0.0) / self.speed * slow
            self.team.weights(name).updates.append(engine.now + seconds)
        if events is not None and starts:
            events.played(self, passage, engine.now, starts)
        return seconds

    def _operation(self, passage: Passage, at: int, direction: int, offset: float) -> float:
        """Seconds of an operation; a slice that it sends leaves when it is made."""
        part = passage.part
        crossing = part.crosses[at]
        if crossing is None:
            return self._seconds(part, at, direction)
        if direction and crossing.still:
            return 0.0
        simulation = self.simulation
        other = self.team.workers[crossing.other]
        link = simulation.link(self, other)
        hop = simulation.costs.hop if link.hop is None else link.hop
        took = (hop + crossing.bytes / simulation.copied) / self.speed
        if crossing.sends is not bool(direction):
            place = (crossing.number, crossing.round, direction)
            simulation.send(self, other, crossing.bytes, offset + took, passage.number, place)
        else:
            passage.inbox.discard((crossing.number, crossing.round, direction))
        return took

    def _count(self, name: str, passage: Passage) -> bool:
        """Count the gradients of a wave at a node. Returns whether an update is due."""
        if name not in self.simulation.rules:
            return False
        unit, every = self.simulation.rules[name]
        came = len(passage.numbers) if unit == "instances" else passage.part.heard.get(name, 0)
        self.counters[name] = self.counters.get(name, 0) + came
        if self.counters[name] < every:
            return False
        self.counters[name] = 0
        return True

    def _over(self, passage: Passage, era: int) -> None:
        if era != self.simulation.era:
            return
        if passage.backward and passage.at < 0:
            self.passages.remove(passage)
            del self.by_wave[passage.number]
            self.played += passage.numbers
            self.waves += 1
            if self.parted:
                self._tell()
            else:
                self._report()
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
