"""Worker: hosts IR nodes, holds what waits at them, and serves them one batch at a time.

One turn of the worker:

    [1] the schedule names a lane                 what waits at a port, in one direction
    [2] the worker takes messages from it         at most max_batch; no more than enough_rows where a node saturates; a
                                                  backward batch is also cut where the node's update counter fills
    [3] the node handles them                     an exception becomes a NodeError with node, direction and states
    [4] a full counter updates the node           on the spot, without asking anybody (where instances are counted: when
                                                  they retire)
    [5] what the node sends is delivered          to lanes of this worker, or handed to ``send`` for others

A batch that has enough rows gains nothing by waiting for company. Where the schedule allows it (`sweep`), such a
batch is handed on at once through the light nodes behind it, until it comes to a node of matrix products, a join that
lacks the other half, or the controller. Smaller batches wait, except where there is next to nothing to do: a Cond going
backward, a Phi going forward (`Node.passing`).

Where a worker does all of an instance, it may compute several of them in one go instead: see `Worker.play` and
`ampnet.wave`.

Replicas are nodes like any other. What they owe each other is the affair of their `Member`s, whose tokens this worker
hands on, to its own members or to those elsewhere.

Every runtime uses this class; it knows nodes, not processes.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from ampnet.errors import AmpnetError, NodeError
from ampnet.events.log import Announcer, Backward, Forward, PortStates, Return, Updated, Worked
from ampnet.graph import CONTROLLER, End, Graph, Wiring
from ampnet.message import Messages
from ampnet.nodes.bcast import Bcast
from ampnet.nodes.cond import Cond
from ampnet.nodes.dispatch import Dispatch
from ampnet.nodes.node import Direction, Node, Outputs, Report
from ampnet.nodes.split import Split
from ampnet.nodes.transform import Parameterised
from ampnet.replicas.member import Member, Token
from ampnet.schedule import Lane, Route, Schedule
from ampnet.state import Column, States
from ampnet.structure import Shelf, Structure
from ampnet.update.at_once import apply_at_once
from ampnet.wave import Lot, PlayedHalf, Unplayable, Waves
from ampnet.wave.kernels.products import Precision

Send = Callable[[End, Direction, Messages], None]
Tell = Callable[[Report], None]
Clock = Callable[[], float]
Pass = Callable[[Token], None]


@dataclass(frozen=True, slots=True)
class Counts:
    """What a worker has done so far."""

    invocations: int
    """Batches handled."""
    messages: int
    """Messages in them."""


_TOLD = 64
"""Instances after which it is told what nodes did."""


@dataclass(slots=True)
class _Work:
    """What a node did."""

    lags: Counter[int] = field(default_factory=Counter)
    updates: int = 0

    def add(self, lags: Sequence[tuple[int, int]]) -> None:
        for lag, messages in lags:
            self.lags[lag] += messages


class Worker:
    """Nodes, their lanes, and the loop over them."""

    def __init__(
        self,
        name: str,
        graph: Graph,
        wiring: Wiring,
        schedule: Schedule,
        *,
        hosts: Sequence[str] | None = None,
        max_batch: int | None = None,
        enough_rows: int | None = None,
        send: Send,
        tell: Tell,
        hand: Pass | None = None,
        over: Callable[[str, int], None] = lambda group, ended: None,
        announce: Announcer | None = None,
        clock: Clock = time.perf_counter,
        waves: bool = False,
        precision: Precision = "float32",
    ) -> None:
        """``send`` gets messages for the controller and for nodes hosted elsewhere, ``tell`` the reports of losses.

        ``hand`` gets tokens for replicas hosted elsewhere; ``over`` hears that a group is equal after so many streams.
        """
        self.name, self.max_batch, self.enough_rows, self.clock = name, max_batch, enough_rows, clock
        self._announce = announce if announce is not None else Announcer()
        self._noted = (self._announce.wants(Forward), self._announce.wants(Backward))
        self._work: dict[str, _Work] | None = {} if self._announce.wants(Worked) else None
        """What nodes with parameters did that has not been told yet; None where nobody wants to know."""
        self._retired = 0
        self.shelf = Shelf()
        self._send, self._tell, self._schedule = send, tell, schedule
        chosen = set(hosts) if hosts is not None else set(graph.nodes)
        self.nodes: dict[str, Node] = {n: graph.nodes[n] for n in graph.order() if n in chosen}
        self._arrival = self._invocations = self._messages = 0
        self._lanes: dict[tuple[str, Direction, int, bool], Lane] = {}
        for node in self.nodes.values():
            node.shelf = self.shelf
            if isinstance(node, Parameterised):
                ends = [wiring.backward[End(node.name, i)] for i in range(len(node.inputs))]
                node.input_is_data = all(_is_pumped(graph, wiring, end) for end in ends)
                node.updater.live_versions = node.live_versions
        self.lanes = self._make_lanes()
        schedule.attach(self.lanes)
        self._hands_on = schedule.hands_on
        self._make_routes(wiring)
        self._trains = [n for n in self.nodes.values() if isinstance(n, Parameterised)]
        self.waves = (
            self._make_waves(graph, wiring, precision) if waves and max_batch is None and self._hands_on else None
        )
        """None: instances are run message by message."""
        self._copies = {name: graph.copies[name] for name in self.nodes if name in graph.copies}
        self._hand, self._over = hand, over
        self._tokens: deque[Token] = deque()
        self.members = self._make_members(graph)
        self.pulse: memoryview | None = None
        """Where to note what is being done (a count of batches, and the node's number), for whoever watches."""
        self._needs_structure = {n for n, node in self.nodes.items() if node.needs_structure}

    def _make_lanes(self) -> list[Lane]:
        lanes: list[Lane] = []
        names = list(self.nodes)
        numbers = {name: i for i, name in enumerate(names)}
        for direction, order in ((Direction.FORWARD, names), (Direction.BACKWARD, names[::-1])):
            for name in order:
                node = self.nodes[name]
                ports = node.inputs if direction is Direction.FORWARD else node.outputs
                for port in range(len(ports)):
                    for train in (True, False) if direction is Direction.FORWARD else (True,):
                        lane = Lane(node, direction, port, train)
                        lane.number = numbers[name]
                        lane.noted = self._noted[direction]
                        self._lanes[name, direction, port, train] = lane
                        lanes.append(lane)
        return lanes

    def _make_waves(self, graph: Graph, wiring: Wiring, precision: Precision) -> Waves | None:
        if any(self._announce.wants(kind) for kind in (Forward, Backward, Return)):
            return None  # somebody wants to see every message
        try:
            waves = Waves(graph, wiring, self.nodes, precision)
        except Unplayable:
            return None
        waves.beat = self._beat
        return waves

    def _beat(self) -> None:
        if self.pulse is not None:
            self.pulse[0] += 1

    def _make_members(self, graph: Graph) -> dict[str, Member]:
        """The replicas hosted here, by node."""
        out: dict[str, Member] = {}
        for group in graph.replicas.values():
            for name in group.members if group.table is not None else ():
                node = self.nodes.get(name)
                if isinstance(node, Parameterised):
                    out[name] = Member(
                        group,
                        node,
                        send=partial(self._send_token, group.members),
                        update=partial(self._update, node),
                        over=self._over,
                        announce=self._announce,
                        worker=self.name,
                        clock=self.clock,
                    )
        return out

    def _send_token(self, members: Sequence[str], token: Token) -> None:
        if members[token.to] in self.members:
            self._tokens.append(token)
        else:
            assert self._hand is not None
            self._hand(token)

    def token(self, token: Token, name: str) -> None:
        """A token has come for a replica hosted here."""
        self.members[name].take(token)

    def _make_routes(self, wiring: Wiring) -> None:
        """Tell each lane where its node's output ports lead (forward), and its input ports (backward)."""
        for name, node in self.nodes.items():
            forward = [self._route(wiring.forward[End(name, i)], Direction.FORWARD) for i in range(len(node.outputs))]
            backward = [self._route(wiring.backward[End(name, i)], Direction.BACKWARD) for i in range(len(node.inputs))]
            for lane in self.lanes:
                if lane.node is node:
                    lane.routes = (forward, backward)

    def _route(self, end: End, way: Direction) -> Route:
        lanes = [self._lanes.get((end.node, way, end.port, train)) for train in (True, False)]
        return end, lanes[0], lanes[1]

    def deliver(self, end: End, direction: Direction, messages: Messages) -> None:
        """Put messages into the lane of a port of one of this worker's nodes."""
        if len(messages):
            self._push(self._lanes[end.node, direction, end.port, messages.train], messages)

    def shelve(self, structures: Mapping[int, Structure]) -> None:
        """Keep the structures of instances about to be pumped, if any node here looks at them."""
        if self._needs_structure:
            self.shelf.add(structures)

    def step(self) -> bool:
        """One turn. False if nothing waits."""
        if self._tokens:
            self._pass_token()
            return True
        chosen = self._schedule.next()  # [1]
        if chosen is None:
            return False
        lane, most = chosen
        enough = self.enough_rows
        if self.max_batch is not None and (most is None or most > self.max_batch):
            most = self.max_batch
        if lane.trained is not None and lane.trained.updater.counts_messages:
            room = lane.trained.updater.room()
            if room is not None and (most is None or most > room):
                most = room
        try:  # [2]
            messages = lane.take(most, None if lane.light else enough)
        except AmpnetError as error:
            waiting = lane.batches[-1].states if lane.batches else None
            raise NodeError(lane.node.name, lane.direction.name.lower(), waiting, self.name, error) from error
        hands_on = self._hands_on
        todo: list[tuple[Lane, Messages]] = []
        while True:
            routes = lane.routes
            for output in self._handle(lane, messages):  # [5]
                if isinstance(output, Report):
                    self._tell(output)
                    hands_on = hands_on and output.train
                    continue
                way, port, sent = output
                end, training, inference = routes[way][port]
                target = training if sent.train else inference
                if target is None:
                    self._send(end, way, sent)
                    hands_on = False  # a place may be free now, and the controller must not wait for it
                elif (
                    hands_on
                    and not target.waiting
                    and (target.passes or (target.light and enough is not None and sent.rows >= enough))
                ):
                    todo.append((target, sent))
                else:
                    self._push(target, sent)
            while todo:
                lane, messages = todo.pop()
                if hands_on and self._has_room(lane, messages):
                    break
                self._push(lane, messages)
            else:
                return True

    def play(self, most: int) -> tuple[Lot, bool] | None:
        """One wave of at most so many staged instances: which, and whether it is over with them.

        None where no instance is staged. What a wave fails at is to be run message by message.
        """
        waves = self.waves
        assert waves is not None
        lot = waves.next(self._wave_size(most) if waves.training else most)
        if lot is None:
            return None
        if self.pulse is not None:
            self.pulse[0] += 1
        seen: list[int] = []
        if lot.train:
            seen = [node.updater.seen_version() for node in self._trains]
            numbers = np.array(lot.numbers)
            for node in self._trains:
                node.updater.go_direct(self._own(node, numbers))
        try:
            reports, layout = waves.play(lot, self.shelf)
        except PlayedHalf as error:
            raise NodeError(error.node, "backward", None, self.name, error.cause) from error.cause
        except Exception:  # by messages it will be told where, or go well
            waves.failed += 1
            return lot, False
        self._invocations += len(layout.operations) * (1 + lot.train)
        self._messages += int(layout.messages.sum()) * (1 + lot.train)
        for report in reports:
            self._tell(report)
        if lot.train:
            for node, version in zip(self._trains, seen, strict=True):
                self._count(node, waves.count(layout, node.name), version)
        return lot, True

    def _wave_size(self, most: int) -> int:
        """No more instances than the next update waits for, where they are counted."""
        for node in self._trains:
            policy = node.updater.policy
            if policy is not None and not node.updater.counts_messages:
                most = min(most, max(1, policy.min_update_frequency - node.updater.counter))
        return most

    def _count(self, node: Parameterised, messages: int, version: int) -> None:
        """Gradients of so many messages, whose forward saw this version, have come in with a wave."""
        updater = node.updater
        if not messages:
            updater.go_direct(0)  # what went into the weights was zero, and is no update
            return
        updater.note_lags([(version, messages)])
        updater.count_messages(messages)
        if self._work is not None:
            self._work_of(node.name).add(updater.lags)
        if updater.counts_messages and updater.full():
            self._is_full(node)

    def pass_tokens(self) -> None:
        """Let tokens run round until none is left on its way."""
        while self._tokens:
            self._pass_token()

    def _pass_token(self) -> None:
        token = self._tokens.popleft()
        for member in self.members.values():
            if member.group.name == token.group and member.number == token.to:
                member.take(token)
                return

    def _push(self, lane: Lane, messages: Messages) -> None:
        self._arrival += 1
        lane.push(messages, self._arrival)

    def _has_room(self, lane: Lane, messages: Messages) -> bool:
        """Whether a batch that is handed on breaks no limit of the node it comes to, as of now."""
        if self.max_batch is not None and len(messages) > self.max_batch:
            return False
        if lane.trained is None:
            return True
        room = lane.trained.updater.room()
        return room is None or len(messages) <= room

    def _handle(self, lane: Lane, messages: Messages) -> Outputs:
        """[3] and [4] for one batch."""
        node, direction, trained = lane.node, lane.direction, lane.trained
        if not lane.train and node.name in self._needs_structure:
            messages = self._still_wanted(messages)
            if not len(messages):
                return ()
        noted = lane.noted
        began = self.clock() if noted else 0.0
        pulse = self.pulse
        if pulse is not None:
            pulse[0] += 1
            pulse[2] = lane.number
        self._invocations += 1
        self._messages += messages.states.columns.shape[1]
        try:
            outputs = node.backward(lane.port, messages) if direction else node.forward(lane.port, messages)
        except Exception as error:
            raise self._node_error(node, direction, messages, error) from error
        if noted:
            self._note(lane, messages, outputs, began)
        if trained is not None:
            updater = trained.updater
            if self._work is not None:
                self._work_of(node.name).add(updater.lags)
            if updater.stashes:
                trained.after_backward()
            if updater.counts_messages and updater.full():
                self._is_full(trained)
        return outputs

    def _all_full(self, nodes: Sequence[Parameterised]) -> None:
        """The same for several nodes: those that update by themselves do it in one go, if nobody looks on."""
        alone = [node for node in nodes if node.updater.due() and node.name not in self.members]
        if len(alone) < 2 or self._announce.wants(Updated):
            alone = []
        try:
            apply_at_once([node.updater for node in alone])
        except Exception as error:
            raise NodeError(alone[0].name, "update", None, self.name, error) from error
        if self._work is not None:
            for node in alone:
                self._work_of(node.name).updates += 1
        for node in nodes:
            if node not in alone:
                self._is_full(node)

    def _is_full(self, node: Parameterised) -> None:
        """[4] A counter has reached its mark: update, unless that is to wait for other replicas."""
        if node.updater.due():
            self._update(node)
        elif node.updater.together:
            self.members[node.name].poke()

    def _still_wanted(self, messages: Messages) -> Messages:
        """Leave out inference messages whose instance has all its results already: its structure is gone."""
        wanted = self.shelf.holds(messages.states.column("instance"))
        return messages if wanted.all() else messages.take(np.flatnonzero(wanted))

    def _update(self, node: Parameterised, reason: str = "full", own: int | None = None) -> None:
        """``own``: together with other replicas, with so many gradients of this one."""
        noted = self._announce.wants(Updated)
        began = self.clock() if noted else 0.0
        policy = node.updater.policy
        try:
            applied = node.updater.apply(reason) if own is None else self.members[node.name].together(own)
        except Exception as error:
            raise NodeError(node.name, "update", None, self.name, error) from error
        if applied is not None and noted and policy is not None:
            self._announce(
                Updated(
                    began,
                    self.clock() - began,
                    self.name,
                    node.name,
                    applied.version,
                    applied.count,
                    applied.reason,
                    policy.count,
                    policy.min_update_frequency,
                )
            )
        if applied is not None:
            if self._work is not None:
                self._work_of(node.name).updates += 1
            member = self.members.get(node.name)
            if member is not None:
                member.updated()

    def _work_of(self, name: str) -> _Work:
        assert self._work is not None
        if name not in self._work:
            self._work[name] = _Work()
        return self._work[name]

    def tell_work(self) -> None:
        """Announce what nodes with parameters did since this was called last."""
        if self._work:
            work, self._work = self._work, {}
            now = self.clock()
            for name, did in work.items():
                lags = tuple(sorted(did.lags.items()))
                self._announce(Worked(now, self.name, name, sum(did.lags.values()), lags, did.updates))

    def retire(self, instances: Column, train: bool) -> None:
        """These instances are done: drop their structures; count them where instances are counted."""
        self.shelf.drop(instances)
        self._retired += len(instances)
        if self._work and self._retired >= _TOLD:
            self._retired = 0
            self.tell_work()
        if train:
            for node in self._trains:
                node.updater.count_instances(self._own(node, instances))
            self._all_full([node for node in self._trains if node.updater.full()])

    def _own(self, node: Node, instances: Column) -> int:
        """How many of these instances a node has seen."""
        found = self._copies.get(node.name)
        if found is None or not found.by_instance:
            return len(instances)
        return int(np.count_nonzero(instances % found.count == found.number))

    def forget(self, instances: Column) -> None:
        """Drop whatever is left of these instances of an inference: all their results are in."""
        for lane in self.lanes:
            if not lane.train and lane.waiting:
                lane.drop(instances)
        for node in self.nodes.values():
            if any(node.held().values()):
                node.forget_instances(instances)

    def flush(self) -> None:
        """A training epoch is over: apply what is left over, and tell the schedules of learning rates."""
        for node in self._trains:
            if node.name in self.members:
                self.members[node.name].flush()
                continue
            self._update(node, "flush")
            node.updater.adding.settle()  # where weights are frozen
            node.updater.end_epoch()

    def held(self) -> dict[str, int]:
        """Every queue and cache that is not empty."""
        out = {f"queue of {lane!r}": lane.waiting for lane in self.lanes if lane.waiting}
        for name, node in self.nodes.items():
            out.update({f"{name}.{cache}": n for cache, n in node.held().items() if n})
        if len(self.shelf):
            out["structures"] = len(self.shelf)
        if self.waves is not None and self.waves.waiting():
            out["instances staged"] = self.waves.waiting()
        if self._tokens:
            out["tokens of replicas"] = len(self._tokens)
        return out

    def waits(self) -> list[str]:
        """Who waits for what, in words."""
        waits = [f"node '{name}': {line}" for name, node in self.nodes.items() for line in node.waits()]
        return waits + [line for member in self.members.values() if (line := member.waits()) is not None]

    def abandon(self) -> None:
        """Forget all that is in flight, and the gradients not yet applied, after an error. Weights stay as they are."""
        for lane in self.lanes:
            lane.clear()
        for node in self.nodes.values():
            node.forget()
        self._tokens.clear()
        if self.waves is not None:
            self.waves.forget()
        if self._work is not None:
            self._work.clear()
        for member in self.members.values():
            member.reset()
        self.shelf = Shelf()
        for node in self.nodes.values():
            node.shelf = self.shelf

    def counts(self) -> Counts:
        return Counts(self._invocations, self._messages)

    def _note(self, lane: Lane, messages: Messages, outputs: Outputs, began: float) -> None:
        seconds = self.clock() - began
        node = lane.node
        sent = _states_of(outputs, Direction.FORWARD)
        back = _states_of(outputs, Direction.BACKWARD)
        version = node.updater.version if isinstance(node, Parameterised) else None
        if lane.direction is Direction.FORWARD:
            self._announce(
                Forward(
                    began,
                    seconds,
                    self.name,
                    node.name,
                    lane.port,
                    lane.train,
                    messages.states,
                    sent,
                    back,
                    messages.rows,
                    version,
                )
            )
            return
        lags = tuple(node.updater.lags) if isinstance(node, Parameterised) else ()
        gradients = 0 if messages.payload is None else len(messages)
        self._announce(
            Backward(
                began,
                seconds,
                self.name,
                node.name,
                lane.port,
                messages.states,
                back,
                messages.rows,
                version,
                gradients,
                lags,
            )
        )

    def _node_error(self, node: Node, direction: Direction, messages: Messages, error: Exception) -> NodeError:
        states: States = messages.states
        if direction is Direction.FORWARD and not isinstance(error, MemoryError):
            states = _culprit(node, messages).states
        if isinstance(error, NodeError):
            return error
        return NodeError(node.name, direction.name.lower(), states, self.name, error)


def _is_pumped(graph: Graph, wiring: Wiring, end: End) -> bool:
    """Whether what comes from there was pumped, and since then at most sent a way, copied or cut."""
    while end.node != CONTROLLER and isinstance(graph.nodes[end.node], Cond | Dispatch | Bcast | Split):
        end = wiring.backward[End(end.node, 0)]
    return end.node == CONTROLLER


def _states_of(outputs: Outputs, way: Direction) -> PortStates:
    return tuple((o[1], o[2].states) for o in outputs if not isinstance(o, Report) and o[0] is way)


def _culprit(node: Node, messages: Messages) -> Messages:
    """The first message that fails alone, found by halving; all of them where none does."""
    suspects = messages
    while True:
        half = suspects.slice(0, max(1, len(suspects) // 2))
        try:
            with torch.no_grad():
                if not node.probe(half):
                    return messages
        except Exception:
            if len(half) == 1:
                return half
            suspects = half
            continue
        if len(suspects) == 1:
            return messages
        suspects = suspects.slice(len(half), len(suspects))
