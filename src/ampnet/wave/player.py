"""Player: plays the waves of one worker: several passages in flight, one operation at a time.

    lots staged ──> [1] begin     a lot becomes a passage: its layout is made, its memory taken
                    [2] play      the schedule names a passage, which plays its next operations
                    [3] collect   after the last backward of a site, the gradients of its weights, of all rows at once
                    [4] update    a node whose last site is collected counts, and updates if its counter is full:
                                  locally, before any other passage plays another operation
                    [5] end       losses are reported, instances retire, memory is given back

The operations of a passage are played in the order of its layout, then backward. Where nodes are parted over workers,
an operation at the border waits until its rows, or their gradients, have come (`take`); other passages go on meanwhile:

    worker 0    wave 1 [op][op]>. . . . . . . . . .<[op][op]        >  rows are sent        . waits
                wave 2         [op][op]>. . . . . . . . . .         <  gradients have come
    worker 1    wave 1         >[op][op][loss][op][op]<
                wave 2                                >[op][op]...

Updates that fall due are made as late as that is allowed ([4]), so that those of several nodes are one call of the
optimizer's kernel.

A gradient that is not finite is never applied: it is found before an update, and named with node and state, or left out
with its instance and counted (where a loss has ``on_nan="skip"``): from the operation that met it on, nothing of the
instance is added to any node, and those nodes do not count it. Nodes nearer to the loss keep what was finite.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from ampnet.errors import NodeError, PairingError
from ampnet.events.log import Announcer, Played, Wave
from ampnet.events.log import Operation as Told
from ampnet.graph import Graph, Wiring
from ampnet.nodes.loss import Loss
from ampnet.nodes.node import Report
from ampnet.nodes.products import Precision, Products
from ampnet.nodes.transform import Parameterised
from ampnet.plan.layout import Operation
from ampnet.plan.lot import Lot
from ampnet.plan.planner import Planner
from ampnet.plan.sites import Site
from ampnet.plan.team import Team
from ampnet.structure import Shelf
from ampnet.update.local import LocalUpdates
from ampnet.update.updater import Updater
from ampnet.wave.arena import Pool
from ampnet.wave.captured import Captured
from ampnet.wave.faults import Faults, left_out
from ampnet.wave.kernels.trained import TrainedKernel
from ampnet.wave.passage import Passage
from ampnet.wave.schedule import WaveSchedule
from ampnet.wave.slice import Slice
from ampnet.wave.tape import Run, Stretch
from ampnet.wave.timeline import BACKWARD, COLLECT, FORWARD, Timeline, told_of

_SPARE = 4
"""Default number of passages in flight, if waves take turns."""
WAVES_AHEAD = 2
"""Waves in flight for each worker of a team, if nobody chose the size of waves. More would not keep workers busier, and
each is an update that its gradients do not know of."""
_LOOK = 8
"""Operations after which it is looked whether their events are wanted, where waves take turns."""
STRETCH = 6
"""The number of operations between two receives, if nodes are split over workers."""


_NOTHING: tuple[dict[int, Stretch], dict[int, Stretch]] = ({}, {})
_NO_RUNS: dict[int, Run] = {}


class Player:
    """Plays waves on the nodes of one worker. Raises `Unplayable` if the graph cannot be computed in waves."""

    def __init__(
        self,
        graph: Graph,
        wiring: Wiring,
        teams: Sequence[Team],
        here: int,
        updates: LocalUpdates,
        schedule: WaveSchedule,
        *,
        name: str,
        tell: Callable[[Report], None],
        over: Callable[[Lot], None],
        carry: Callable[[int, Slice], None] | None = None,
        wave_size: int | None = None,
        precision: Precision = "float32",
        announce: Announcer | None = None,
        clock: Callable[[], float],
    ) -> None:
        """Of each team it has a part: the nodes hosted by worker ``here``.

        ``tell`` gets the reports of losses, ``over`` the instances of a passage that has ended here, ``carry`` slices
        for other workers, by their number."""
        if wave_size is not None and wave_size < 1:
            raise ValueError(f"wave_size must be 1 or more, got {wave_size}")
        self.name, self.updates, self.schedule = name, updates, schedule
        self.nodes = {name: node for team in teams for name, node in team.nodes.items()}
        self.wave_size, self.clock, self._tell, self._over, self._carry = wave_size, clock, tell, over, carry
        self._announce = announce if announce is not None else Announcer()
        self._traced, self._sampled = self._announce.wants(Played), self._announce.samples(Played)
        self._traces: list[Told] = []
        """Operations played since the last event."""
        self._traced_passage: Passage | None = None
        self.shelf = Shelf()
        self.skips = any(isinstance(node, Loss) and node.on_nan == "skip" for node in self.nodes.values())
        self.planners = [Planner(graph, wiring, team, here, self.shelf) for team in teams]
        for planner in self.planners:
            planner.beat = self._beat
            planner.choices = not self.skips  # rows that are left out are looked for node by node
        self._planner_of = {id(planner.sites): planner for planner in self.planners}
        self.faults = Faults(name, self.skips)
        self._alone = schedule.one_by_one and not any(planner.sites.parted for planner in self.planners)
        """Whether passages run one by one, each from its first to its last operation."""
        steady = self._alone and all(_is_steady(node.updater) for node in updates.trains)
        self.products = Products(narrow=precision == "bfloat16", steady=steady)
        self._stretch = -1 if self._alone else STRETCH if schedule.one_by_one else 1
        """Operations of one passage between two choices of the schedule; -1: all."""
        self._look = _LOOK if self._stretch == 1 else 1
        """Steps after which it is looked whether operations are wanted, where they are wanted now and then."""
        self._exact = not self._alone or self.skips
        """Whether weight versions are recorded, and gradients checked, operation by operation."""
        self.passages: list[Passage] = []
        """In flight, the oldest first."""
        limited = schedule.one_by_one and not self._alone and wave_size is None
        self._ahead = WAVES_AHEAD * max(len(team.workers) for team in teams) if limited else None
        """The maximal number of training passages in flight; None: no limit."""
        self._early: dict[int, dict[tuple[int, int, int], Slice]] = {}
        """Slices received for waves that have not begun here, by wave."""
        self._by_wave: dict[int, Passage] = {}
        """Passages of waves that other workers play too."""
        self._staged: deque[Lot] = deque()
        self._pools: dict[int, list[Pool]] = {id(planner): [] for planner in self.planners}
        self._due: list[Parameterised] = []
        self._due_of: Passage | None = None
        self._unchecked: list[tuple[Passage, Site]] = []
        self._clock = 0
        self.captured: Captured | None = None
        """Waves that are launched as a whole (on a GPU)."""
        self._again = False
        for node in updates.trains:
            node.updater.live_versions = self._held_by(node.name)
            if node.updater.shares:
                node.updater.around = self._stalest
        self.first = 0
        """Waves that are cut here are numbered from 1 more than this."""
        self.waves = self.instances = self.operations = self.messages = 0
        """Waves begun, instances played, operations and messages computed."""
        self.most = 0
        """Passages in flight at once, at most, so far."""
        self.busy = 0.0
        """Busy seconds."""
        self.pulse: memoryview | None = None
        """Where heartbeats are written, for the watchdog."""
        self.names = {name: i for i, name in enumerate(self.nodes)}

    @property
    def planner(self) -> Planner:
        """That of the first team."""
        return self.planners[0]

    def _held_by(self, name: str) -> Callable[[], set[int]]:
        return lambda: {p.pins[name] for p in self.passages if name in p.pins and name not in p.done}

    def _beat(self) -> None:
        if self.pulse is not None:
            self.pulse[0] += 1

    # -- [1]

    def stage(self, lot: Lot, wave: int | None = None) -> None:
        """These instances are complete, and may be played: in waves as they come, or as exactly one of this number,
        where other workers play it too. All of them must stage the same waves in the same order."""
        lots = lot.apart()
        if wave is not None:
            (lot,) = lots
            lot.wave = wave
        self._staged.extend(lots)

    def take(self, given: Slice) -> None:
        """Receive rows or gradients from another worker."""
        passage = self._by_wave.get(given.wave)
        inbox = self._early.setdefault(given.wave, {}) if passage is None else passage.inbox
        key = (given.crossing, given.round, given.direction)
        if key in inbox:
            raise PairingError(f"a second slice for crossing {key[0]}, round {key[1]} of wave {given.wave}")
        inbox[key] = given

    def waiting(self) -> int:
        """The number of staged instances."""
        return sum(len(lot.numbers) for lot in self._staged)

    def _next_lot(self, most: int) -> Lot:
        """The next instances: no more than travel together, all of them alike."""
        first = self._staged[0]
        if first.wave is not None:
            return self._staged.popleft()
        room = min(most, self._room(first, most))
        lots: list[Lot] = []
        while self._staged and room and self._staged[0].alike(first) and self._staged[0].sites is first.sites:
            lot = self._staged.popleft()
            if len(lot.numbers) > room:
                lot, rest = lot.split(room)
                self._staged.appendleft(rest)
            lots.append(lot)
            room -= len(lot.numbers)
        return lots[0] if len(lots) == 1 else lots[0].merge(lots)

    def _room(self, lot: Lot, most: int) -> int:
        """The maximum size of the next wave: if updates count instances, no more than the next update needs."""
        size = self.wave_size
        if size is None:
            size = most if self.schedule.one_by_one else -(-most // _SPARE)
        if not lot.train:
            return size
        for node in self.updates.trains:
            updater = node.updater
            if updater.policy is not None and not updater.counts_messages:
                under_way = sum(len(p.lot.numbers) for p in self.passages if p.train and p.left.get(node.name))
                counted = (updater.counter + under_way) % updater.policy.min_update_frequency
                size = min(size, updater.policy.min_update_frequency - counted)
        return size

    def _may_begin(self, lot: Lot) -> bool:
        """Whether one more wave may be in flight. All workers of a team begin waves in one order, so the oldest wave is
        in flight everywhere, whatever the limit, and nothing waits for ever."""
        return self._ahead is None or not lot.train or sum(p.train for p in self.passages) < self._ahead

    def _launch(self, lot: Lot) -> bool:
        """On a GPU: launch a wave as a whole. False if it must be played operation by operation."""
        if not lot.train:
            return False
        if self.captured is None:
            if self.planner.device().type != "cuda":
                return False
            turns = None if self._alone else "passages take turns (schedule=, or nodes parted over workers)"
            self.captured = Captured(self, self.planner, self.planner.device(), turns)
        behind = [other for other in self._staged if other.alike(lot) and other.sites is lot.sites]
        return self.captured.play(lot, behind)

    def play_again(self, lot: Lot) -> None:
        """Play a wave whose losses were reported before, operation by operation."""
        self._again = True
        try:
            passage = self._begin(lot)
            self._play(passage, None, -1)
            self._end(passage)
        finally:
            self._again = False

    def _begin(self, lot: Lot) -> Passage:
        told = self._announce.wants(Wave)
        began = self.clock() if told else 0.0
        planner = self._planner_of[id(lot.sites)]
        behind = [other for other in self._staged if other.alike(lot) and other.sites is lot.sites]
        self.waves += 1
        try:
            layout = planner.layout(lot, behind, self._pools[id(planner)])
        except NodeError as error:
            cause = error.__cause__ or error
            raise NodeError(error.node, error.direction, error.states, self.name, cause) from cause
        number = self.first + self.waves if lot.wave is None else lot.wave
        passage = Passage(number, lot, planner, layout, self.products, skips=self.skips, alone=self._alone)
        if lot.wave is not None:
            self._by_wave[number] = passage
            passage.inbox, passage.carry = self._early.pop(number, {}), self._carry
        passage.load(self.faults.payloads(lot, passage))
        self.passages.append(passage)
        self.most = max(self.most, len(self.passages))
        if told:
            self._tell_traces()
            numbers = tuple(lot.numbers)
            operations = sum(len(told_of(layout, op, FORWARD)) for op in layout.operations)
            self._announce(Wave(began, self.clock() - began, self.name, passage.number, lot.train, numbers, operations))
        return passage

    # -- [2]

    def step(self, most: int) -> bool:
        """Play operations of one passage: one; where waves are not to take turns, as many as can be. False if there is
        nothing to do.

        ``most``: the default maximal wave size.
        """
        if self.updates.pass_token():
            return True
        ready = self.passages if self._alone else [passage for passage in self.passages if passage.ready()]
        begins = bool(self._staged) and self._may_begin(self._staged[0])
        passage = self.schedule.next(ready, begins)
        if passage is None and not begins:
            return False
        began = time.perf_counter()
        if passage is None:
            lot = self._next_lot(most)
            if self._launch(lot):
                self.busy += time.perf_counter() - began
                return True
            if self.captured is not None and lot.train:
                self.captured.settle()
            passage = self._begin(lot)
        self._clock += 1
        passage.played_at = self._clock
        if self._due and self._due_of is not passage:
            self._settle()
        if self._sampled and self._clock % self._look == 0:
            self._traced = self._announce.wants(Played)
        told = Timeline(self.clock) if self._traced and not self._exact else None
        if self._play(passage, told, self._stretch):
            if told is not None:
                self._announce(told.event(self.name, passage))
            self._end(passage)
        self._tell_traces()
        self.busy += time.perf_counter() - began
        return True

    def _play(self, passage: Passage, told: Timeline | None, most: int) -> bool:
        """Play ``most`` operations (-1: all that can run now). Returns True when the passage has ended."""
        operations, kernels, exact = passage.layout.operations, passage.kernels, self._exact
        pulse, numbers, traced = self.pulse, self.names, self._traced and self._exact
        at, count, began = passage.at, len(operations), 0.0
        tape = passage.tape
        ahead, back = _NOTHING if tape is None or told is not None else tape.stretches
        runs = _NO_RUNS if tape is None or told is not None else tape.runs
        while most and not passage.backward:
            if at == count:
                if not passage.train:
                    return True
                passage.backward = True
                break
            op = operations[at]
            if op.crosses and not passage.has(op):
                passage.at = at
                return False
            if pulse is not None:
                pulse[0] += 1
                pulse[2] = numbers.get(op.site.name, -1)
            if traced:
                began = self.clock()
            stretch = ahead.get(at)
            if stretch is not None and stretch.holds():
                for op in stretch.begins:
                    self._note_versions(passage, op)
                stretch.make()
                at = stretch.stop
                continue
            if op.trained and (exact or op.first):
                self._note_versions(passage, op)
            try:
                if tape is None:
                    kernels[op.site.number].forward(op)
                else:
                    tape.play(at, op, False, kernels[op.site.number])
            except Exception as error:
                raise self.faults.named(passage, op, "forward", error) from error
            if told is not None:
                told.add(op, FORWARD)
            elif traced:
                self._trace(passage, op, FORWARD, began, passage.train and not op.site.still)
            at += 1
            most -= 1
        if not passage.backward:
            passage.at = at
            return at == count and not passage.train
        at = min(at, count - 1)
        while most and at >= 0:
            op = operations[at]
            if op.crosses and not passage.has(op):
                break
            if pulse is not None:
                pulse[0] += 1
                pulse[2] = numbers.get(op.site.name, -1)
            run = runs.get(at)
            if run is not None and not passage.idle and run.fits():
                run.make()
                for op in run.collected:
                    self._note_lags(passage, op)
                    self._count_site(passage, op.trained)
                at = run.stop
                most -= 1
                continue
            stretch = back.get(at)
            if stretch is not None and stretch.holds():
                stretch.make()
                op, at = stretch.last, stretch.stop + 1
                if op.first and op.trained:
                    self._note_lags(passage, op)
                    self._collect(passage, op, at)
            elif not op.site.still:
                try:
                    self._backward(passage, op, told, at)
                except NodeError:
                    raise
                except Exception as error:
                    raise self.faults.named(passage, op, "backward", error) from error
            at -= 1
            most -= 1
        passage.at = at
        return at < 0

    def _backward(self, passage: Passage, op: Operation, told: Timeline | None, at: int) -> None:
        kernel, exact = passage.kernels[op.site.number], self._exact
        began = self.clock() if self._traced and exact else 0.0
        if kernel.out.touched or kernel.answers:  # else no gradient has come, for any of its rows
            if self.skips:
                self.faults.stop(passage, op)
            if passage.tape is None:
                kernel.backward(op)
            else:
                passage.tape.play(at, op, True, kernel)
        elif op.trained:
            passage.idle.setdefault(op.site.number, []).append(op)
        if op.trained and (exact or op.first):  # rows that go to a family of nobody get a gradient of zero
            self._note_lags(passage, op)
        if told is not None:
            told.add(op, BACKWARD)
        elif self._traced:
            self._trace(passage, op, BACKWARD, began, False)
        if op.first and op.trained:
            self._collect(passage, op, at)
            if told is not None:
                told.add(op, COLLECT)

    def _note_versions(self, passage: Passage, op: Operation) -> None:
        """Record the weight version that an operation uses; it is the same for all operations of a node if passages run
        one by one."""
        if self._exact:
            kernel = passage.kernels[op.site.number]
            first = kernel.whole.operations[0].versions
            for site in op.trained:
                hoisted = isinstance(kernel, TrainedKernel) and kernel.hoisted and not op.first
                op.versions[site.number] = first[site.number] if hoisted else _updater(site).seen_version()
        else:
            for site in op.trained:
                passage.seen.setdefault(site.name, _updater(site).seen_version())

    def _note_lags(self, passage: Passage, op: Operation) -> None:
        if self._exact:
            for place, site in enumerate(op.trained):
                messages = op.links(place) if op.site.kind == "mixture" else passage.layout.heard(site.number, op.round)
                if messages:
                    lags = passage.lags.setdefault(site.name, {})
                    lag = _updater(site).seen_version() - op.versions[site.number]
                    lags[lag] = lags.get(lag, 0) + messages
        else:
            for site in op.trained:
                messages = passage.layout.heard(site.number)
                if messages:
                    lags = passage.lags.setdefault(site.name, {})
                    lag = passage.now[site.name] = _updater(site).seen_version() - passage.seen[site.name]
                    lags[lag] = lags.get(lag, 0) + messages

    # -- [3]

    def _collect(self, passage: Passage, op: Operation, at: int) -> None:
        began, trained = self.clock() if self._traced else 0.0, op.trained
        for site in trained:
            assert isinstance(site.node, Parameterised)
            updater = site.node.updater
            if passage.left[site.name] == 1:
                passage.done.add(site.name)
            current = passage.pins.get(site.name, updater.version) == updater.version  # and no copy of older ones
            updater.go_direct(self.updates.own(site.node, passage.numbers) if current else 0)
        kernel = passage.kernels[op.site.number]
        idle = passage.idle.pop(op.site.number, ())
        if kernel.out.touched:
            for one in idle:  # what they kept is multiplied with the rest: with a gradient of zero
                kernel.backward(one)
            if passage.tape is None:
                kernel.collect()
            else:
                sums = [_updater(site).adding for site in trained]
                passage.tape.collect(at, op, kernel, sums)
        if self.skips:
            self.faults.clean(passage, op, trained)
        if self._traced and self._exact:
            self._trace(passage, op, COLLECT, began, False)
        self._count_site(passage, trained)

    def _count_site(self, passage: Passage, trained: Sequence[Site]) -> None:
        """Called when the gradients of sites are collected."""
        for site in trained:
            self._unchecked.append((passage, site))
            self._count_messages(passage, site)
            passage.left[site.name] -= 1
            if not passage.left[site.name]:
                passage.done.add(site.name)
                assert isinstance(site.node, Parameterised)
                self._node_done(passage, site.node)

    # -- [4]

    def _count_messages(self, passage: Passage, site: Site) -> None:
        """Count gradients as soon as they are added to the sums of a node: an update of another passage may apply
        them."""
        messages = passage.layout.heard(site.number)
        if passage.skipped:
            messages -= passage.layout.heard_by(passage.skipped, [site.number])
        if messages:
            passage.brought.add(site.name)
            _updater(site).count_messages(messages)

    def _node_done(self, passage: Passage, node: Parameterised) -> None:
        """Called when the last site of a node is collected."""
        updater, lags = node.updater, passage.lags.get(node.name)
        if not lags:
            updater.go_direct(0)  # what went into the weights was zero, and is no update
            return
        updater.hear(sorted(lags.items()))
        self.updates.note_lags(node, updater.lags)
        if node.name not in passage.brought:  # all of it was left out
            return
        updater.count_instances(self._counted(passage, node))
        passage.left[node.name] = -1
        if updater.full():
            self._due.append(node)
            self._due_of = passage

    def _counted(self, passage: Passage, node: Parameterised) -> int:
        numbers = passage.numbers
        if passage.skipped:
            numbers = numbers[~np.isin(numbers, list(passage.skipped))]
        return self.updates.own(node, numbers)

    def _settle(self) -> None:
        """Make the updates that are due, if all gradients in them are finite."""
        self._tell_traces()
        passages = dict.fromkeys(passage for passage, _ in self._unchecked)
        unchecked, self._unchecked = self._unchecked, []
        self.faults.check(unchecked)
        for passage in passages:
            later, passage.later = passage.later, []
            for change in later:
                change()
        due, self._due = self._due, []
        if due:
            self.updates.all_full(due)

    def flush(self) -> None:
        """At the end of a training stream: make the updates that are due, and those of leftover gradients."""
        self._settle()
        self.settle_late()
        self.updates.flush()

    def settle_late(self) -> None:
        """Wait for waves that were launched without a look, and find out whether they were good."""
        if self.captured is not None:
            self.captured.settle()
            self.captured.look_at_failure()

    # -- [5]

    def _stalest(self) -> float:
        """The mean staleness of the node that has the largest."""
        return max((node.updater.lag for node in self.updates.trains), default=0.0)

    def _plan_ahead(self, passage: Passage) -> None:
        """Plan the wave that is expected next. Called when all of a passage has been given to the device, and before
        anything waits for the device."""
        planner, count = passage.planner, len(passage.lot.numbers)
        if self._staged:
            first = self._staged[0]
            if first.sites is not planner.sites:
                return
            if first.wave is None:
                first = first.merge([lot for lot in self._staged if lot.sites is first.sites and lot.alike(first)])
                first = first.split(count)[0] if len(first.numbers) > count else first
            planner.prepare(first, [lot for lot in self._staged if lot.sites is first.sites and lot.alike(first)])
        elif passage.lot.stream is not None and planner.by_states:
            coming = planner.look(passage.lot.stream, count)
            lots = passage.lot.apart_of(coming) if coming else []
            if len(lots) == 1:
                planner.prepare(lots[0])

    def _end(self, passage: Passage) -> None:
        if passage.planner.ahead:
            self._plan_ahead(passage)
        if passage.train:
            self._settle()
            late = [n for n in self.updates.trains if passage.left.get(n.name, 0) != -1]
            for node in late:  # they heard nothing of this passage
                node.updater.count_instances(self._counted(passage, node))
            self.updates.all_full([node for node in late if node.updater.full()])
        self._tell_traces()
        self.passages.remove(passage)
        self._by_wave.pop(passage.number, None)
        for node in self.updates.trains if passage.pins else ():
            updater = node.updater
            current = {updater.version} if self.passages else set()  # the next passage may hold a copy of them again
            updater.forget_versions(updater.live_versions() | current)
        operations, messages = passage.layout.sizes(passage.train)
        self.operations += operations
        self.messages += messages
        self.instances += 0 if self._again else len(passage.lot.numbers)
        passage.planner.give_back(passage.layout)
        passage.end()
        self._pools[id(passage.planner)].append(passage.layout.pool)
        if self._again:
            return
        for report in passage.reports:
            self._tell(report)
        if passage.skipped - passage.told:
            self._tell(left_out(passage))
        self.updates.retired(len(passage.lot.numbers))
        self._over(passage.lot)

    # -- events

    def _trace(self, passage: Passage, op: Operation, direction: int, began: float, wanted: bool) -> None:
        if self._traced_passage is not passage:
            self._tell_traces()
            self._traced_passage = passage
        now = self.clock()
        for site, rows, messages in told_of(passage.layout, op, direction):
            version, lag = None, 0
            if isinstance(site.node, Parameterised):
                version = site.node.updater.seen_version()
                lag = version - op.versions[site.number] if direction != COLLECT else 0
            told = Told(
                site.name, site.end.port, op.round, direction, began, now - began, rows, messages, version, lag, wanted
            )
            self._traces.append(told)
            began = now

    def _tell_traces(self) -> None:
        """Emit events for the operations since the last call."""
        traces, passage = self._traces, self._traced_passage
        if traces and passage is not None:
            self._traces = []
            self._announce(Played.of(self.name, passage.number, passage.train, traces))

    def waits(self) -> list[str]:
        """What each wave waits for, as text."""
        lines = [line for planner in self.planners for line in planner.waits()]
        for passage in self.passages:
            site = passage.waits_for()
            if site is not None and site.source is not None:
                what, worker = ("gradients", site.worker) if passage.backward else ("rows", site.source.worker)
                lines.append(f"wave {passage.number} waits for {what} of node '{site.name}' from worker {worker}")
        return lines

    def held(self) -> dict[str, int]:
        """Every queue and cache that is not empty."""
        out = {"instances staged": self.waiting(), "passages": len(self.passages), "structures": len(self.shelf)}
        out |= {"tokens of replicas": len(self.updates.tokens), "updates due": len(self._due)}
        out |= {"slices": sum(map(len, self._early.values()))}
        for name, node in self.nodes.items():
            out.update({f"{name}.{cache}": n for cache, n in node.held().items()})
        return {what: n for what, n in out.items() if n}

    def abandon(self) -> None:
        """After an error: drop everything in flight and the gradients not yet applied. Weights are unchanged."""
        self.passages, self._due, self._unchecked, self._traces = [], [], [], []
        self._traced_passage = self._due_of = None
        self._staged.clear()
        self._early, self._by_wave = {}, {}
        for planner in self.planners:
            self._pools[id(planner)].clear()
            planner.forget_layouts()
        if self.captured is not None:
            self.captured.abandon()
        self.updates.abandon()
        self.shelf.clear()
        for node in self.nodes.values():
            node.forget()


def _is_steady(updater: Updater) -> bool:
    """Whether the weights that a wave computes with stay the same until it ends, if waves are played one by one."""
    return updater.of_all is None if updater.view is None else updater.view.lasts


def _updater(site: Site) -> Updater:
    assert isinstance(site.node, Parameterised)
    return site.node.updater
