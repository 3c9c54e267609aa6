"""Simulation: a run on a machine that may not be there, event by event, with the schedule and the plans of the runtime.

    controller   pumps instances and retires them, as long as fewer than `max_active_keys` are in flight
                 numbers them (`ampnet.numbers`), cuts waves where several workers play one (`ampnet.runtime.cutting`)
    worker       begins waves, plays operations by the schedule (`ampnet.wave.schedule`), updates its nodes
    link         a slice leaves when it is made, and takes its place in the queue of the sender's computer
    loss         a worker is lost: all of them go on together later, what was in flight is computed again

    t = 0         warm-up          t0                        measured                         t1
    |--------------------------------|----------------------------------------------------------|

All of it is in simulated time. Nothing is computed, and the same seed gives the same events.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict

from ampnet.errors import AmpnetError, DataError
from ampnet.simulate.controller import SimulatedController
from ampnet.simulate.costs import Measured
from ampnet.simulate.engine import Computer, EventQueue
from ampnet.simulate.machine import Machine
from ampnet.simulate.recorder import Recording
from ampnet.simulate.result import NodeStaleness, Result, WorkerTime
from ampnet.simulate.setting import Setting
from ampnet.simulate.waves import Place, Waves
from ampnet.simulate.worker import BUSY, WAITING, SimulatedTeam, SimulatedWorker, Weights

WARM_UP = 0.2
"""The share of the simulated time before the measurement."""
JITTER = 0.05
"""By how much the time of a stretch varies: without it, equal copies would stay in step for ever."""


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
        if waves.workers != list(range(setting.parts)):
            raise ValueError(
                f"nodes are on the workers {waves.workers}, and {setting.parts} are simulated: number them"
            )
        self.waves, self.costs, self.setting = waves, costs, setting
        self.machine = machine = machine.with_workers(setting.seats)
        self.recorder, self.memory = recorder, memory or {}
        self.parameters = {
            name: float(sum(w.numel() * w.element_size() for w in node.updater.weights))
            for name, node in waves.graph.parameterised().items()
        }
        """Bytes of the parameters of each node."""
        self.engine, self.seats, self.seed = EventQueue(), machine.seats(), seed
        self.called = {name: waves.graph.called(name) for name in waves.graph.parameterised()}
        self.rules = dict(setting.rules)
        self.copies = waves.graph.copies
        waves.rewind()
        count = 1 + max(number for number, _ in self.seats)
        kinds = dict(self.seats)
        taken = [setting.seat(number, part) for number in range(setting.replicas) for part in range(setting.parts)]
        used = Counter(self.seats[seat][0] for seat in taken)
        self.workers_on = used
        """By computer: the number of workers."""
        crowds = [kinds[i].crowd for i in range(count)]
        self.computers = [
            Computer(
                self.engine,
                kinds[i].cores,
                used[i] + (i == 0 and setting.processes),
                costs.crowd if crowd is None else crowd,
            )
            for i, crowd in enumerate(crowds)
        ]
        self.era, self.paused = 0, False
        self.losses = 0
        self.teams = []
        weights = self._new_weights()
        for number in range(setting.replicas):
            if setting.sync != "shared":
                weights = self._new_weights()
            team = SimulatedTeam(number, dict(setting.hosts), weights)
            for place in range(setting.parts):
                team.workers.append(SimulatedWorker(self, team, place, setting.seat(number, place)))
            self.teams.append(team)
        self.workers = [worker for team in self.teams for worker in team.workers]
        self.controller = SimulatedController(self)
        self.traffic: defaultdict[tuple[int, int], float] = defaultdict(float)
        """Bytes by the computers at both ends."""
        self._free: dict[int, float] = {}
        """By computer: when its outgoing link has sent everything."""
        self._random = random.Random(seed)

    def jitter(self) -> float:
        """The factor by which the next stretch takes longer, or shorter, than on average."""
        return max(0.5, self._random.gauss(1.0, JITTER))

    def _new_weights(self) -> dict[str, Weights]:
        one = {name: Weights() for name in self.called.values()}
        return {name: one[called] for name, called in self.called.items()}

    # -- links

    def crossing(self, sender: SimulatedWorker, receiver: SimulatedWorker, size: float) -> float:
        """Processor seconds of a slice of this size at each end: a hop and a copy. Within a computer, the copies are
        the link."""
        inside = sender.number == receiver.number
        link = self.machine.inside if inside else self.machine.between
        copied = min(self.costs.copied, link.bandwidth) if inside else self.costs.copied
        return (self.costs.hop if link.hop is None else link.hop) + size / copied

    def send(
        self, sender: SimulatedWorker, receiver: SimulatedWorker, size: float, offset: float, wave: int, place: Place
    ) -> None:
        """Send a slice that is made in ``offset`` seconds."""
        sender.bytes += size
        delay = offset
        if sender.number != receiver.number:
            self.traffic[sender.number, receiver.number] += size
            made = self.engine.now + offset
            begins = max(made, self._free.get(sender.number, 0.0))
            ends = self._free[sender.number] = begins + size / self.machine.between.bandwidth
            delay = ends - self.engine.now + self.machine.between.latency
        self.engine.after(delay, self._arrive, receiver, wave, place, self.era)

    def _arrive(self, receiver: SimulatedWorker, wave: int, place: Place, era: int) -> None:
        if era == self.era:
            receiver.take(wave, place)

    def tell(self, worker: SimulatedWorker, played: list[int]) -> None:
        """A worker tells the controller what it has played. In one process the controller pumps before it plays on."""
        if not self.setting.processes:
            self.controller.hear(played, self.era)
            return
        self.engine.after(self.way(worker), self.controller.hear, played, self.era)

    def way(self, worker: SimulatedWorker) -> float:
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
        self._free.clear()
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
        """Simulate this number of seconds, and return what was measured after the warm-up. Once only."""
        if not 0 < seconds < math.inf:
            raise DataError(f"a simulation takes more than {seconds:g} seconds")
        self._plan_loss()
        self.controller.begin()
        warm = WARM_UP * seconds
        self.engine.run(warm)
        self._forget()
        self.engine.run(seconds)
        if not self.engine.waits:
            raise AmpnetError(
                "the simulation has stopped: no worker can play anything. This is a fault of the simulator"
            )
        return self._result(seconds - warm)

    def _forget(self) -> None:
        """Begin to measure."""
        self.controller.begin_to_measure()
        self.traffic.clear()
        self.losses = 0
        for worker in self.workers:
            worker.shares.begin()
            worker.bytes = 0.0
        for weights in self._all_weights():
            weights.begin()

    def _all_weights(self) -> list[Weights]:
        """The weights of all nodes, each once."""
        found = {id(one): one for team in self.teams for one in team.weights_of.values()}
        return list(found.values())

    def _staleness(self, seconds: float) -> dict[str, NodeStaleness]:
        """By node, of all copies of the model together."""
        out = {}
        for node, name in self.called.items():
            found = {id(team.weights_of[node]): team.weights_of[node] for team in self.teams}.values()
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
            busy = min(1.0, worker.shares.seconds(BUSY) / seconds)
            crossing = min(1.0 - busy, worker.shares.seconds(WAITING) / seconds)
            uses.append(WorkerTime(worker.number, busy, crossing, worker.bytes / seconds, mine + worker.peak))
        stale = self._staleness(seconds)
        links = {ends: size / seconds for ends, size in sorted(self.traffic.items())}
        return Result(
            self.machine,
            self.setting,
            seconds,
            self.controller.retired / seconds,
            tuple(uses),
            min(1.0, self.controller.shares.seconds(BUSY) / seconds),
            stale,
            links,
            self.losses,
            self._round(),
            self.engine.past,
            self.costs.notes,
        )
