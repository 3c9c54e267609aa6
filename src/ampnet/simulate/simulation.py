"""Simulation: a run on a machine that may not be there, event by event, with the schedule and the plans of the runtime.

    controller   pumps instances and retires them, as long as fewer than `max_active_keys` are in flight
                 numbers them (`ampnet.numbers`), cuts waves where several workers play one (`ampnet.runtime.cutting`)
    worker       begins waves, plays operations by the schedule (`ampnet.wave.schedule`), updates its nodes
    link         a slice leaves when it is made, and takes its place in the queue of the sender's computer

    t = 0         warm-up          t0                        measured                         t1
    |--------------------------------|----------------------------------------------------------|

All of it is in simulated time. Nothing is computed, and the same seed gives the same events.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ampnet.errors import DataError
from ampnet.numbers import Numbers
from ampnet.placement.costs import BYTES
from ampnet.runtime.cutting import Cutter, Rule, players_of, size_of
from ampnet.runtime.staging import share_of
from ampnet.simulate.costs import Measured
from ampnet.simulate.engine import Computer, Engine
from ampnet.simulate.machine import Link, Machine
from ampnet.simulate.recorder import Recording
from ampnet.simulate.result import NodeStaleness, Result, WorkerUse
from ampnet.simulate.setting import Setting
from ampnet.simulate.waves import Place, PlannedWave, Waves
from ampnet.simulate.worker import Weights, Worker

WARM_UP = 0.2
"""The share of the simulated time before the measurement."""


JITTER = 0.05
"""By how much the time of a stretch varies: without it, equal copies would stay in step for ever."""


@dataclass(slots=True)
class Team:
    """The workers of one copy of the model."""

    number: int
    simulation: Simulation
    hosts: dict[str, int]
    weights_of: dict[str, Weights]
    """By node, as it is called without copies."""
    workers: list[Worker] = field(default_factory=list)

    def weights(self, name: str) -> Weights:
        """The weights of a node. Copies of a node share theirs."""
        return self.weights_of[self.simulation.called[name]]


class Simulation:
    """One run. ``waves``: those of one copy of the model, planned for ``setting.hosts``."""

    def __init__(
        self,
        waves: Waves,
        costs: Measured,
        setting: Setting,
        machine: Machine,
        *,
        memory: dict[str, int] | None = None,
        seed: int = 0,
        recorder: Recording | None = None,
    ) -> None:
        """``memory``: bytes of each node (`ampnet.placement.memory`)."""
        self.waves, self.costs, self.setting = waves, costs, setting
        self.machine = machine = machine.with_workers(setting.workers)
        self.recorder, self.memory = recorder, memory or {}
        self.parameters = {
            name: float(sum(w.numel() * w.element_size() for w in node.updater.weights))
            for name, node in waves.graph.parameterised().items()
        }
        """Bytes of the parameters of each node."""
        self.engine, self.seats = Engine(), machine.seats()
        self.called = {name: waves.graph.called(name) for name in waves.graph.nodes}
        self.rules = dict(setting.rules)
        self.copied = BYTES
        count = 1 + max(number for number, _ in self.seats)
        kinds = dict(self.seats)
        used = Counter(self.seats[i][0] for i in range(setting.workers))
        self.computers = [
            Computer(
                self.engine,
                kinds[i].cores,
                used[i] + (i == 0 and setting.processes),
                costs.crowd if kinds[i].crowd is None else float(kinds[i].crowd or 0.0),
            )
            for i in range(count)
        ]
        self.era, self.paused = 0, False
        self.losses = 0
        self.teams = []
        names = {self.called[name] for name in waves.graph.parameterised()}
        weights = {name: Weights() for name in names}
        for number in range(setting.replicas):
            if setting.sync != "shared":
                weights = {name: Weights() for name in names}
            team = Team(number, self, dict(setting.hosts), weights)
            for place in range(setting.parts):
                team.workers.append(Worker(self, team, place, number * setting.parts + place))
            self.teams.append(team)
        self.workers = [worker for team in self.teams for worker in team.workers]
        self.controller = Controller(self)
        self.traffic: Counter[tuple[int, int]] = Counter()
        """Bytes by the computers at both ends."""
        self._free: dict[int, float] = {}
        """By computer: when its outgoing link has sent everything."""
        self._random = random.Random(seed)

    def jitter(self) -> float:
        """The factor by which the next stretch takes longer, or shorter, than on average."""
        return max(0.5, self._random.gauss(1.0, JITTER))

    # -- links

    def link(self, sender: Worker, receiver: Worker) -> Link:
        """The link between two workers."""
        return self.machine.inside if sender.number == receiver.number else self.machine.between

    def send(self, sender: Worker, receiver: Worker, size: float, offset: float, wave: int, place: Place) -> None:
        """Send a slice that is made in ``offset`` seconds."""
        sender.bytes += size
        delay = offset
        if sender.number != receiver.number:
            self.traffic[sender.number, receiver.number] += int(size)
            made = self.engine.now + offset
            begins = max(made, self._free.get(sender.number, 0.0))
            ends = self._free[sender.number] = begins + size / self.machine.between.bandwidth
            delay = ends - self.engine.now + self.machine.between.latency
        self.engine.after(delay, self._arrive, receiver, wave, place, self.era)

    def _arrive(self, receiver: Worker, wave: int, place: Place, era: int) -> None:
        if era == self.era:
            receiver.take(wave, place)

    def tell(self, worker: Worker, played: list[int]) -> None:
        """A worker tells the controller what it has played. In one process the controller pumps before it plays on."""
        if not self.setting.processes:
            self.controller.hear(played, self.era)
            return
        self.engine.after(self._way(worker), self.controller.hear, played, self.era)

    def _way(self, worker: Worker) -> float:
        """Seconds of a note between the controller and a worker."""
        return self.machine.between.latency if worker.number else 0.0

    # -- losses

    def _plan_loss(self) -> None:
        if self.machine.loss_every < math.inf:
            mean = self.machine.loss_every / len(self.workers)
            self.engine.after(self._random.expovariate(1 / mean), self._lose)

    def _lose(self) -> None:
        """A worker is lost: all workers go on together later, and instances in flight are computed again."""
        self.losses += 1
        self._plan_loss()
        self.era += 1
        for computer in self.computers:
            computer.clear()
        for worker in self.workers:
            worker.drop()
        self.paused = True
        self.engine.after(self.machine.restart, self._restart, self.era)

    def _restart(self, era: int) -> None:
        if era == self.era:
            self.paused = False
            self.controller.again()

    # -- the run

    def run(self, seconds: float) -> Result:
        """Simulate this number of seconds, and return what was measured after the warm-up."""
        if seconds <= 0:
            raise DataError(f"a simulation takes more than {seconds:g} seconds")
        self._plan_loss()
        self.controller.begin()
        warm = WARM_UP * seconds
        self.engine.run(warm)
        self._forget()
        self.engine.run(seconds)
        return self._result(seconds - warm)

    def _forget(self) -> None:
        """Begin to measure."""
        self.controller.retired, self.controller.busy = 0, 0.0
        self.traffic.clear()
        for worker in self.workers:
            worker.busy = worker.crossing = worker.bytes = 0.0
            worker.waves = 0
        for weights in self._all_weights():
            weights.begin()

    def _all_weights(self) -> list[Weights]:
        """The weights of all nodes, each once."""
        found = {id(one): one for team in self.teams for one in team.weights_of.values()}
        return list(found.values())

    def _staleness(self, seconds: float) -> dict[str, NodeStaleness]:
        """By node, of all copies of the model together."""
        out = {}
        for name in self.teams[0].weights_of:
            found = {id(team.weights_of[name]): team.weights_of[name] for team in self.teams}.values()
            messages = sum(one.messages for one in found)
            if messages:
                mean = sum(one.stale for one in found) / messages
                updates = sum(len(one.updates) - one.before for one in found) / seconds
                out[name] = NodeStaleness(mean, max(one.stalest for one in found), updates)
        return out

    def _round(self) -> float:
        """Seconds in which the token of a synchronisation passes through all copies of the model, twice."""
        if self.setting.replicas == 1 or self.setting.sync == "shared":
            return 0.0
        size = sum(self.parameters.values())
        first = [team.workers[0].number for team in self.teams]
        total = 0.0
        for here, there in zip(first, [*first[1:], first[0]], strict=True):
            link = self.machine.inside if here == there else self.machine.between
            total += link.latency + size / link.bandwidth
        return 2 * total

    def _result(self, seconds: float) -> Result:
        uses = []
        for worker in self.workers:
            mine = sum(size for name, size in self.memory.items() if self.setting.hosts.get(name, 0) == worker.place)
            busy = min(1.0, worker.busy / seconds)
            crossing = min(1.0 - busy, worker.crossing / seconds)
            uses.append(WorkerUse(worker.number, busy, crossing, worker.bytes / seconds, mine + worker.peak))
        stale = self._staleness(seconds)
        links = {ends: size / seconds for ends, size in sorted(self.traffic.items())}
        return Result(
            self.machine,
            self.setting,
            seconds,
            self.controller.retired / seconds,
            tuple(uses),
            min(1.0, self.controller.busy / seconds),
            stale,
            links,
            self.losses,
            self._round(),
            self.engine.events,
            self.costs.notes,
        )


class Controller:
    """Pumps instances and retires them."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        setting, waves = simulation.setting, simulation.waves
        self.teams = simulation.teams
        kinds = waves.kinds
        self.parted = setting.parts > 1
        size = setting.wave_size or size_of(setting.parts, setting.places)
        if setting.replicas > 1:
            block = 1 if self.parted else setting.wave_size or share_of(setting.places)
            self.numbers = Numbers([setting.replicas], block)
        else:
            self.numbers = Numbers([kinds], size if self.parted else 1)
        rules = list(
            dict.fromkeys(
                Rule(every, *self._copy(name)) for name, (unit, every) in setting.rules.items() if unit == "instances"
            )
        )
        self.cutters = [Cutter(size, setting.parts, setting.places, rules, kinds) for _ in self.teams]
        self.players = players_of(waves.team, waves.graph.copies) if self.parted else [[0]]
        self.kinds = kinds
        self.flying: dict[int, int] = {}
        """By instance: the workers that still have to play it."""
        self.inbox: list[list[int]] = []
        self.computing = False
        self.retired, self.busy, self.count = 0, 0.0, 0
        self._stand_in = waves.instances[0]
        """It stands for every instance where waves are cut: only its missing payloads are read."""

    def _copy(self, name: str) -> tuple[int, int]:
        copy = self.simulation.waves.graph.copies.get(name)
        return (copy.count, copy.number) if copy is not None and copy.by_instance else (1, 0)

    def begin(self) -> None:
        """Fill all places."""
        self._pump()

    def hear(self, played: list[int], era: int) -> None:
        """A worker has played these instances."""
        if era != self.simulation.era:
            return
        self.inbox.append(played)
        if not self.computing:
            self._turn()

    def _turn(self) -> None:
        """Retire what was played, and pump as much."""
        simulation, inbox = self.simulation, self.inbox
        self.inbox = []
        count = sum(map(len, inbox))
        costs = simulation.costs.controller
        seconds = len(inbox) * costs.fixed / simulation.setting.parts + count * costs.each / simulation.setting.parts
        if not simulation.setting.processes:
            seconds = 0.0  # it is a part of what a wave takes in this process
        seconds /= simulation.seats[0][1].speed
        self.computing = True
        self.busy += seconds
        if seconds:
            simulation.computers[0].compute(seconds, self._done, inbox, simulation.era)
        else:
            self._done(inbox, simulation.era)

    def _done(self, inbox: list[list[int]], era: int) -> None:
        if era != self.simulation.era:
            return
        self.computing = False
        over = []
        for played in inbox:
            for number in played:
                self.flying[number] -= 1
                if not self.flying[number]:
                    over.append(number)
        for number in over:
            del self.flying[number]
        self.retired += len(over)
        self.numbers.free(over)
        if self.parted:
            for number, count in Counter(number % len(self.teams) for number in over).items():
                self.cutters[number].retired(count)
        self._pump()
        if self.inbox and not self.computing:
            self._turn()

    def _pump(self) -> None:
        """Fill every free place."""
        free = self.simulation.setting.max_active_keys - len(self.flying)
        batches: dict[int, list[int]] = {}
        for _ in range(free):
            number = self.numbers.take()
            batches.setdefault(number % len(self.teams), []).append(number)
        self._stage(batches)

    def _stage(self, batches: dict[int, list[int]]) -> None:
        simulation = self.simulation
        for team, numbers in batches.items():
            if self.parted:
                for number in numbers:
                    self.flying[number] = len(self.players[number % len(self.players)])
                self.cutters[team].add(dict.fromkeys(numbers, self._stand_in), 0, True)
            else:
                self.flying.update(dict.fromkeys(numbers, 1))
                worker = self.teams[team].workers[0]
                if not simulation.setting.processes:
                    worker.give(numbers)
                    continue
                simulation.engine.after(simulation._way(worker), self._give, worker, numbers, simulation.era)
        if self.parted:
            for number, cutter in enumerate(self.cutters):
                if number in batches or len(self.cutters) == 1:
                    for sort, wave in cutter.cut():
                        self._send(self.teams[number], sort.copy, list(wave))

    def _give(self, worker: Worker, numbers: Sequence[int], era: int) -> None:
        if era == self.simulation.era:
            worker.give(numbers)

    def _send(self, team: Team, kind: int, numbers: list[int]) -> None:
        """Send a wave to all workers that play it."""
        simulation = self.simulation
        self.count += 1
        planned = simulation.waves.wave(len(numbers), kind)
        for place in self.players[kind % len(self.players)]:
            worker = team.workers[place]
            simulation.engine.after(
                simulation._way(worker), self._staged, worker, self.count, planned, numbers, simulation.era
            )

    def _staged(self, worker: Worker, wave: int, planned: PlannedWave, numbers: Sequence[int], era: int) -> None:
        if era == self.simulation.era:
            worker.stage(wave, planned, numbers)

    def again(self) -> None:
        """After a loss: stage everything in flight once more."""
        self.inbox, self.computing = [], False
        for cutter in self.cutters:
            cutter.clear()
        batches: dict[int, list[int]] = {}
        for number in list(self.flying):
            batches.setdefault(number % len(self.teams), []).append(number)
        self._stage(batches)
