"""Player: plays the waves of one worker: several passages in flight, one operation at a time.

    lots staged ──> [1] begin     a lot becomes a passage: its layout is made, its memory taken
                    [2] play      the schedule names a passage, which plays its next operation
                    [3] collect   after the last backward of a site, the gradients of its weights, of all rows at once
                    [4] update    a node whose last site is collected counts, and updates if its counter is full:
                                  locally, asking nobody, before any other passage plays another operation
                    [5] end       losses are reported, instances retire, memory is given back

The operations of a passage are played in the order of its layout, then backward. Updates that fall due are made as late
as that is allowed ([4]), so that those of several nodes are one call of the optimizer's kernel.

A gradient that is not finite is never applied: it is found before an update, and named with node and state, or left out
with its instance and counted (where a loss has ``on_nan="skip"``): from the operation that met it on, nothing of the
instance is added to any node, and those nodes do not count it. Nodes nearer to the loss keep what was finite.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping

import numpy as np

from ampnet.errors import NodeError
from ampnet.events.log import Announcer, Played, Wave
from ampnet.events.log import Operation as Told
from ampnet.graph import Graph, Wiring
from ampnet.nodes.loss import Loss
from ampnet.nodes.node import Node, Report
from ampnet.nodes.products import Precision, Products
from ampnet.nodes.transform import Parameterised
from ampnet.plan.layout import Operation
from ampnet.plan.lot import Lot
from ampnet.plan.planner import Planner
from ampnet.plan.sites import Site
from ampnet.structure import Shelf
from ampnet.update.local import LocalUpdates
from ampnet.update.updater import Updater
from ampnet.wave.arena import Pool
from ampnet.wave.faults import Faults, left_out
from ampnet.wave.kernels.trained import TrainedKernel
from ampnet.wave.passage import Passage
from ampnet.wave.schedule import WaveSchedule
from ampnet.wave.timeline import BACKWARD, COLLECT, FORWARD, Timeline, told_of

_SPARE = 4
"""Passages that are in flight at once by default, where waves take turns."""


class Player:
    """Plays waves on the nodes of one worker. Raises `Unplayable` where they have to be run by messages."""

    def __init__(
        self,
        graph: Graph,
        wiring: Wiring,
        nodes: Mapping[str, Node],
        updates: LocalUpdates,
        schedule: WaveSchedule,
        *,
        name: str,
        tell: Callable[[Report], None],
        over: Callable[[Lot], None],
        wave_size: int | None = None,
        precision: Precision = "float32",
        announce: Announcer | None = None,
        clock: Callable[[], float],
    ) -> None:
        """``tell`` gets the reports of losses, ``over`` the instances of a passage that has ended."""
        if wave_size is not None and wave_size < 1:
            raise ValueError(f"wave_size must be 1 or more, got {wave_size}")
        self.name, self.nodes, self.updates, self.schedule = name, nodes, updates, schedule
        self.wave_size, self.clock, self._tell, self._over = wave_size, clock, tell, over
        self._announce = announce if announce is not None else Announcer()
        self._traced, self._begun_told = self._announce.wants(Played), self._announce.wants(Wave)
        self._traces: list[Told] = []
        """Operations that were played, to be told of."""
        self._traced_passage: Passage | None = None
        self.shelf = Shelf()
        for node in nodes.values():
            node.shelf = self.shelf
        self.skips = any(isinstance(node, Loss) and node.on_nan == "skip" for node in nodes.values())
        self.planner = Planner(graph, wiring, nodes, self.shelf)
        self.planner.beat = self._beat
        self.planner.choices = not self.skips  # rows that are left out are looked for node by node
        self.faults = Faults(self.planner, name, self.skips)
        self.products = Products(narrow=precision == "bfloat16")
        self._by_operation = not schedule.one_by_one or self.skips
        """Whether passages are played operation by operation, each of them looked at; else as a whole."""
        self.passages: list[Passage] = []
        """In flight, the oldest first."""
        self._staged: deque[Lot] = deque()
        self._pools: list[Pool] = []
        self._due: list[Parameterised] = []
        self._unchecked: list[tuple[Passage, Site]] = []
        self._clock = 0
        for node in updates.trains:
            node.updater.live_versions = self._held_by(node.name)
        self.waves = self.instances = self.operations = self.messages = 0
        """Waves begun, instances played, operations and messages computed."""
        self.most = 0
        """Passages in flight at once, at most, so far."""
        self.pulse: memoryview | None = None
        """Where to note signs of life, for whoever watches."""
        self._numbers = {name: i for i, name in enumerate(nodes)}

    def _held_by(self, name: str) -> Callable[[], set[int]]:
        return lambda: {p.pins[name] for p in self.passages if name in p.pins}

    def _beat(self) -> None:
        if self.pulse is not None:
            self.pulse[0] += 1

    # -- [1]

    def stage(self, lot: Lot) -> None:
        """These instances are complete, and may be played."""
        self._staged.extend(lot.apart())

    def waiting(self) -> int:
        """How many instances are staged."""
        return sum(len(lot.numbers) for lot in self._staged)

    def _next_lot(self, most: int) -> Lot:
        """The next instances: no more than travel together, all of them alike."""
        first = self._staged[0]
        room = min(most, self._room(first, most))
        lots: list[Lot] = []
        while self._staged and room and self._staged[0].alike(first):
            lot = self._staged.popleft()
            if len(lot.numbers) > room:
                lot, rest = lot.split(room)
                self._staged.appendleft(rest)
            lots.append(lot)
            room -= len(lot.numbers)
        return lots[0] if len(lots) == 1 else lots[0].merge(lots)

    def _room(self, lot: Lot, most: int) -> int:
        """How many instances may travel together: where updates count instances, no more than the next one waits
        for."""
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

    def _begin(self, most: int) -> Passage:
        began = self.clock() if self._begun_told else 0.0
        lot = self._next_lot(most)
        behind = [other for other in self._staged if other.alike(lot)]
        self.waves += 1
        try:
            layout = self.planner.layout(lot, behind, self._pools)
        except NodeError as error:
            cause = error.__cause__ or error
            raise NodeError(error.node, error.direction, error.states, self.name, cause) from cause
        passage = Passage(self.waves, lot, layout, self.products, skips=self.skips, alone=self.schedule.one_by_one)
        passage.load(self.faults.payloads(lot, passage))
        self.passages.append(passage)
        self.most = max(self.most, len(self.passages))
        if self._begun_told:
            self._tell_traces()
            numbers = tuple(lot.numbers)
            operations = sum(len(told_of(passage, op, FORWARD)) for op in layout.operations)
            self._announce(Wave(began, self.clock() - began, self.name, passage.number, lot.train, numbers, operations))
        return passage

    # -- [2]

    def step(self, most: int) -> bool:
        """Play one operation; where waves are played one after the other, a whole one. False if there is nothing to do.

        ``most``: instances of a wave at most, if nothing else is said.
        """
        if self.updates.pass_token():
            return True
        passage = self.schedule.next(self.passages, bool(self._staged))
        if passage is None:
            if not self._staged:
                return False
            passage = self._begin(most)
        self._clock += 1
        passage.played_at = self._clock
        if not self._by_operation:
            self._play_all(passage)
        elif self.schedule.one_by_one:
            while not self._play(passage):
                pass
        else:
            self._play(passage)
        self._tell_traces()
        return True

    def _play_all(self, passage: Passage) -> None:
        """All operations of a passage, with nothing in between: what `_play` does, without asking each time."""
        kernels, operations, pulse = passage.kernels, passage.layout.operations, self.pulse
        numbers, op, direction = self._numbers, operations[0], "forward"
        told = Timeline(self.clock) if self._traced else None
        try:
            for op in operations:
                if pulse is not None:
                    pulse[0] += 1
                    pulse[2] = numbers.get(op.site.name, -1)
                if op.first and op.trained:
                    self._note_versions(passage, op)
                kernels[op.site.number].forward(op)
                if told is not None:
                    told.add(op, FORWARD)
            if passage.train:
                passage.backward, direction = True, "backward"
                for op in reversed(operations):
                    if pulse is not None:
                        pulse[0] += 1
                        pulse[2] = numbers.get(op.site.name, -1)
                    if op.site.still:
                        continue
                    kernel = kernels[op.site.number]
                    touched = kernel.out.touched or op.site.kind == "loss"  # else no gradient has come
                    if touched:
                        kernel.backward(op)
                    elif op.trained:
                        passage.idle.setdefault(op.site.number, []).append(op)
                    if told is not None:
                        told.add(op, BACKWARD)
                    if op.first and op.trained:
                        if touched:
                            self._note_lags(passage, op)
                        self._collect(passage, op)
                        if told is not None:
                            told.add(op, COLLECT)
        except NodeError:
            raise
        except Exception as error:
            raise self.faults.named(passage, op, direction, error) from error
        if told is not None:
            self._announce(told.event(self.name, passage))
        self._end(passage)

    def _play(self, passage: Passage) -> bool:
        """One operation. True when the passage is over."""
        if self._due and not self.schedule.one_by_one and self._due_of is not passage:
            self._settle()
        op = passage.layout.operations[passage.at]
        pulse = self.pulse
        if pulse is not None:
            pulse[0] += 1
            pulse[2] = self._numbers.get(op.site.name, -1)
        if passage.backward:
            if not op.site.still:
                self._backward(passage, op)
            passage.at -= 1
            if passage.at < 0:
                self._end(passage)
                return True
            return False
        self._forward(passage, op)
        passage.at += 1
        if passage.at == len(passage.layout.operations):
            if not passage.train:
                self._end(passage)
                return True
            passage.backward = True
            passage.at -= 1
        return False

    def _forward(self, passage: Passage, op: Operation) -> None:
        site = op.site
        began = self.clock() if self._traced else 0.0
        if op.trained:
            self._note_versions(passage, op)
        try:
            passage.kernels[site.number].forward(op)
        except Exception as error:
            raise self.faults.named(passage, op, "forward", error) from error
        if self._traced:
            self._trace(passage, op, FORWARD, began, passage.train and not site.still)

    def _backward(self, passage: Passage, op: Operation) -> None:
        site = op.site
        kernel = passage.kernels[site.number]
        began = self.clock() if self._traced else 0.0
        try:
            if kernel.out.touched or site.kind == "loss":  # else no gradient has come, for any of its rows
                if self.skips:
                    self.faults.stop(passage, op)
                kernel.backward(op)
                if op.trained:
                    self._note_lags(passage, op)
            elif op.trained:
                passage.idle.setdefault(op.site.number, []).append(op)
            if self._traced:
                self._trace(passage, op, BACKWARD, began, False)
            if op.first and op.trained:
                self._collect(passage, op)
        except NodeError:
            raise
        except Exception as error:
            raise self.faults.named(passage, op, "backward", error) from error

    def _note_versions(self, passage: Passage, op: Operation) -> None:
        """Which version of the weights an operation sees. Between passages that are played one by one it is the same
        for all operations of a node."""
        if self._by_operation:
            kernel = passage.kernels[op.site.number]
            first = kernel.whole.operations[0].versions
            for site in op.trained:
                hoisted = isinstance(kernel, TrainedKernel) and kernel.hoisted and not op.first
                op.versions[site.number] = first[site.number] if hoisted else _updater(site).seen_version()
        elif op.first:
            for site in op.trained:
                passage.seen.setdefault(site.name, _updater(site).seen_version())

    def _note_lags(self, passage: Passage, op: Operation) -> None:
        if self._by_operation:
            for place, site in enumerate(op.trained):
                messages = op.links(place) if op.site.kind == "mixture" else passage.layout.heard(site.number, op.round)
                if messages:
                    lags = passage.lags.setdefault(site.name, Counter())
                    lags[_updater(site).seen_version() - op.versions[site.number]] += messages
        elif op.first:
            for site in op.trained:
                messages = passage.layout.heard(site.number)
                if messages:
                    lags = passage.lags.setdefault(site.name, Counter())
                    lag = passage.now[site.name] = _updater(site).seen_version() - passage.seen[site.name]
                    lags[lag] += messages

    # -- [3]

    def _collect(self, passage: Passage, op: Operation) -> None:
        began, trained = self.clock() if self._traced else 0.0, op.trained
        for site in trained:
            assert isinstance(site.node, Parameterised)
            site.node.updater.go_direct(self.updates.own(site.node, passage.numbers))
        kernel = passage.kernels[op.site.number]
        idle = passage.idle.pop(op.site.number, ())
        if kernel.out.touched:
            for one in idle:  # what they kept is multiplied with the rest: with a gradient of zero
                kernel.backward(one)
            kernel.collect()
        if self.skips:
            self.faults.clean(passage, op, trained)
        if self._traced and self._by_operation:
            self._trace(passage, op, COLLECT, began, False)
        for site in trained:
            self._unchecked.append((passage, site))
            if kernel.out.touched:
                self._count_messages(passage, site)
            passage.left[site.name] -= 1
            if not passage.left[site.name]:
                assert isinstance(site.node, Parameterised)
                self._node_done(passage, site.node)

    # -- [4]

    def _count_messages(self, passage: Passage, site: Site) -> None:
        """What was added to the sums of a node is counted at once: an update of another passage may apply it."""
        messages = passage.layout.heard(site.number)
        if passage.skipped:
            messages -= passage.layout.heard_by(passage.skipped, [site.number])
        if messages:
            passage.brought.add(site.name)
            _updater(site).count_messages(messages)

    def _node_done(self, passage: Passage, node: Parameterised) -> None:
        """The last site of a node is collected."""
        updater, lags = node.updater, passage.lags.get(node.name)
        if not lags:
            updater.go_direct(0)  # what went into the weights was zero, and is no update
            return
        updater.lags = sorted(lags.items())
        self.updates.note_lags(node, updater.lags)
        if node.name not in passage.brought:  # all of it was left out
            return
        updater.count_instances(self._counted(passage, node))
        passage.left[node.name] = -1
        if updater.full():
            self._due.append(node)
            self._due_of = passage

    _due_of: Passage | None = None

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

    # -- [5]

    def _end(self, passage: Passage) -> None:
        if passage.train:
            self._settle()
            late = [n for n in self.updates.trains if passage.left.get(n.name, 0) != -1]
            for node in late:  # they heard nothing of this passage
                node.updater.count_instances(self._counted(passage, node))
            self.updates.all_full([node for node in late if node.updater.full()])
        self._tell_traces()
        self.passages.remove(passage)
        for node in self.updates.trains if passage.pins else ():
            node.updater.forget_versions(node.updater.live_versions())
        operations = passage.layout.operations
        back = [op for op in operations if passage.train and not op.site.still]
        entries = sum(max(1, len(op.trained)) for op in (*operations, *back))
        self.operations += entries + sum(len(op.trained) for op in back if op.first)
        self.messages += sum(op.messages for op in operations) + sum(op.messages for op in back)
        self.instances += len(passage.lot.numbers)
        self.planner.give_back(passage.layout)
        self._pools.append(passage.layout.pool)
        for report in passage.reports:
            self._tell(report)
        if passage.skipped - passage.told:
            self._tell(left_out(passage))
        self.updates.retired(len(passage.lot.numbers))
        self._over(passage.lot)

    # -- what is told

    def _trace(self, passage: Passage, op: Operation, direction: int, began: float, wanted: bool) -> None:
        if self._traced_passage is not passage:
            self._tell_traces()
            self._traced_passage = passage
        now = self.clock()
        for site, rows, messages in told_of(passage, op, direction):
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
        """Announce the operations played since the last time."""
        traces, passage = self._traces, self._traced_passage
        if traces and passage is not None:
            self._traces = []
            self._announce(Played.of(self.name, passage.number, passage.train, traces))

    def held(self) -> dict[str, int]:
        """Every queue and cache that is not empty."""
        out = {"instances staged": self.waiting(), "passages": len(self.passages), "structures": len(self.shelf)}
        out |= {"tokens of replicas": len(self.updates.tokens), "updates due": len(self._due)}
        for name, node in self.nodes.items():
            out.update({f"{name}.{cache}": n for cache, n in node.held().items()})
        return {what: n for what, n in out.items() if n}

    def abandon(self) -> None:
        """Forget all that is in flight, and the gradients not yet applied, after an error. Weights stay as they are."""
        self.passages, self._due, self._unchecked, self._traces = [], [], [], []
        self._traced_passage = self._due_of = None
        self._staged.clear()
        self._pools.clear()
        self.planner.forget_layouts()
        self.updates.abandon()
        self.shelf.clear()
        for node in self.nodes.values():
            node.forget()


def _updater(site: Site) -> Updater:
    assert isinstance(site.node, Parameterised)
    return site.node.updater
