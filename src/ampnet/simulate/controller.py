"""Controller: pumps and retires instances in simulated time, as `ampnet.controller` and `ampnet.runtime.staging` do.

played ──> [1] turn      what workers have reported so far is counted, and takes processor time
           [2] retire    an instance that all its workers have played frees its place
           [3] pump      numbers (`ampnet.numbers`) for all free places; they say which team plays an instance
           [4] stage     cut into waves for a team of several workers (`ampnet.runtime.cutting`); else sent as it is
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ampnet.numbers import Numbers
from ampnet.runtime.cutting import Cutter, Rule, players_of, size_of
from ampnet.runtime.staging import share_of
from ampnet.simulate.engine import Shares
from ampnet.simulate.waves import PlannedWave
from ampnet.simulate.worker import BUSY, IDLE, SimulatedTeam, SimulatedWorker

if TYPE_CHECKING:
    from ampnet.simulate.simulation import Simulation


class SimulatedController:
    """See the head of this file."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        setting, waves = simulation.setting, simulation.waves
        self.teams = simulation.teams
        self.parted = setting.parts > 1
        kinds = waves.kinds
        size = setting.wave_size or size_of(setting.parts, setting.places)
        if setting.replicas > 1:
            block = 1 if self.parted else setting.wave_size or share_of(setting.places)
            self.numbers = Numbers([setting.replicas], block)
        else:
            self.numbers = Numbers([kinds], size if self.parted else 1)  # one process: by turns
        rules = [Rule(every, *self._copy(name)) for name, (unit, every) in setting.rules.items() if unit == "instances"]
        rules = list(dict.fromkeys(rules))
        self.cutters = [Cutter(size, setting.parts, setting.places, rules, kinds) for _ in self.teams]
        self.players = players_of(waves.team, waves.graph.copies) if self.parted else [[0]]
        self.flying: dict[int, int] = {}
        """By instance: the workers that still have to play it."""
        self.inbox: list[list[int]] = []
        self.computing = False
        self.shares = Shares(simulation.engine, IDLE)
        self.retired = self.waves = 0
        """Instances since the begin of the measurement; waves in all."""
        self._stand_in = waves.instances[0]
        """It stands for every instance where waves are cut: only its missing payloads are read."""

    def _copy(self, name: str) -> tuple[int, int]:
        copy = self.simulation.copies.get(name)
        return (copy.count, copy.number) if copy is not None and copy.by_instance else (1, 0)

    def begin(self) -> None:
        """Fill all places."""
        self._pump()

    def begin_to_measure(self) -> None:
        """Count from now on."""
        self.retired = 0
        self.shares.begin()

    def hear(self, played: list[int], era: int) -> None:
        """A worker has played these instances."""
        if era != self.simulation.era:
            return
        self.inbox.append(played)
        if not self.computing:
            self._turn()

    # -- [1]

    def _turn(self) -> None:
        simulation, inbox = self.simulation, self.inbox
        self.inbox = []
        if not simulation.setting.processes:  # its time is a part of what a wave takes in this process
            self._retire(inbox)
            return
        self.computing = True
        self.shares.enter(BUSY)
        seconds = sum(map(self._seconds, inbox)) / simulation.seats[0][1].speed
        simulation.computers[0].compute(seconds, self._over, inbox, simulation.era)

    def _seconds(self, played: Sequence[int]) -> float:
        """Processor seconds of a report: of a wave, each of its workers makes one."""
        return self.simulation.costs.controller(len(played)) / len(self._players(played[0]))

    def _players(self, number: int) -> list[int]:
        return self.players[number % len(self.players)]

    def _over(self, inbox: list[list[int]], era: int) -> None:
        if era != self.simulation.era:
            return
        self.computing = False
        self.shares.enter(IDLE)
        self._retire(inbox)
        if self.inbox and not self.computing:
            self._turn()

    # -- [2]

    def _retire(self, inbox: Iterable[Sequence[int]]) -> None:
        over, flying = [], self.flying
        for played in inbox:
            for number in played:
                flying[number] -= 1
                if not flying[number]:
                    del flying[number]
                    over.append(number)
        self.retired += len(over)
        self.numbers.free(over)
        if self.parted:
            for team, count in Counter(number % len(self.teams) for number in over).items():
                self.cutters[team].retired(count)
        self._pump()

    # -- [3]

    def _pump(self) -> None:
        free = self.simulation.setting.max_active_keys - len(self.flying)
        self._stage([self.numbers.take() for _ in range(free)])

    # -- [4]

    def _stage(self, numbers: Iterable[int]) -> None:
        batches: dict[int, list[int]] = {}
        for number in numbers:
            self.flying[number] = len(self._players(number))
            batches.setdefault(number % len(self.teams), []).append(number)
        for team, batch in batches.items():
            if self.parted:
                self.cutters[team].add(dict.fromkeys(batch, self._stand_in), 0, True)
                self._cut(team, full=True)
            else:
                self._give_to(self.teams[team].workers[0], batch)
        if self.parted:
            for team in range(len(self.teams)):
                self._cut(team, full=False)

    def _give_to(self, worker: SimulatedWorker, numbers: Sequence[int]) -> None:
        simulation = self.simulation
        if simulation.setting.processes:
            simulation.engine.after(simulation.way(worker), self._give, worker, numbers, simulation.era)
        else:
            worker.give(numbers)

    def _give(self, worker: SimulatedWorker, numbers: Sequence[int], era: int) -> None:
        if era == self.simulation.era:
            worker.give(numbers)

    def _cut(self, team: int, *, full: bool) -> None:
        for sort, wave in self.cutters[team].cut(full=full):
            self._send(self.teams[team], sort.copy, list(wave))

    def _send(self, team: SimulatedTeam, kind: int, numbers: list[int]) -> None:
        """Send a wave to all workers that play it."""
        simulation = self.simulation
        self.waves += 1
        planned = simulation.waves.wave(len(numbers), kind)
        for place in self._players(kind):
            worker = team.workers[place]
            given = worker, self.waves, planned, numbers, simulation.era
            simulation.engine.after(simulation.way(worker), self._staged, *given)

    def _staged(
        self, worker: SimulatedWorker, wave: int, planned: PlannedWave, numbers: Sequence[int], era: int
    ) -> None:
        if era == self.simulation.era:
            worker.stage(wave, planned, numbers)

    def again(self) -> None:
        """After a loss: stage everything in flight once more."""
        self.inbox, self.computing = [], False
        self.shares.enter(IDLE)
        for cutter in self.cutters:
            cutter.clear()
        self._stage(list(self.flying))
