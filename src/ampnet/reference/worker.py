"""Worker: hosts IR nodes, holds what waits at them, and serves them one batch at a time.

One turn of the worker:

    [1] the schedule names a lane                 what waits at a port, in one direction
    [2] the worker takes messages from it         at most max_batch; no more than enough_rows where a node saturates; a
                                                  backward batch is also cut where the node's update counter fills
    [3] the node handles them                     an exception becomes a NodeError with node, direction and states
    [4] a full counter updates the node           on the spot, without asking anybody (where instances are counted: when
                                                  they retire)
    [5] what the node sends is delivered          to lanes of this worker, or passed to ``send`` for others

A batch that has enough rows gains nothing by waiting for company. Where the schedule allows it (`sweep`), such a
batch is handed on at once through the light nodes behind it, until it comes to a node of matrix products, a join that
lacks the other half, or the controller. Smaller batches wait, except where there is next to nothing to do: a Cond going
backward, a Phi going forward (`Node.passing`).

`ampnet.update.local` handles updates and the synchronisation of replicas. It knows nodes, not processes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ampnet.errors import AmpnetError, LossError, NodeError
from ampnet.events.log import Announcer, Backward, Forward, PortStates
from ampnet.graph import CONTROLLER, End, Graph, Wiring
from ampnet.message import Messages
from ampnet.nodes.bcast import Bcast
from ampnet.nodes.cond import Cond
from ampnet.nodes.culprit import culprit
from ampnet.nodes.dispatch import Dispatch
from ampnet.nodes.node import Direction, Node, Outputs, Report
from ampnet.nodes.split import Split
from ampnet.nodes.transform import Parameterised
from ampnet.reference.schedule import Lane, Route, Schedule
from ampnet.replicas.member import Token
from ampnet.state import Column, States
from ampnet.structure import Shelf, Structure
from ampnet.update.local import LocalUpdates

_NOT_FINITE = (
    "a gradient is not finite, although the loss is. It was not applied. Usual causes: a learning rate that is too "
    "high, numbers that overflowed on the way. Remedy: clip_norm"
)
Send = Callable[[End, Direction, Messages], None]
Tell = Callable[[Report], None]
Clock = Callable[[], float]
Pass = Callable[[Token], None]


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of a worker so far."""

    invocations: int
    """Batches handled."""
    messages: int
    """Messages in them."""


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
    ) -> None:
        """``send`` gets messages for the controller and for nodes hosted elsewhere, ``tell`` the reports of losses.

        ``hand`` gets tokens for replicas hosted elsewhere; ``over`` is called with a group and the number of streams
        after which it is equal.
        """
        self.name, self.max_batch, self.enough_rows, self.clock = name, max_batch, enough_rows, clock
        self._announce = announce if announce is not None else Announcer()
        self.shelf = Shelf()
        self._send, self._tell, self.schedule = send, tell, schedule
        chosen = set(hosts) if hosts is not None else set(graph.nodes)
        self.nodes: dict[str, Node] = {n: graph.nodes[n] for n in graph.order() if n in chosen}
        self._arrival = self._invocations = self._messages = 0
        self._lanes: dict[tuple[str, Direction, int, bool], Lane] = {}
        for node in self.nodes.values():
            node.shelf = self.shelf
            if isinstance(node, Parameterised):
                ends = [wiring.backward[End(node.name, i)] for i in range(len(node.inputs))]
                node.input_is_data = all(_is_pumped(graph, wiring, end) for end in ends)
                node.updater.live_versions = node.live_versions if node.updater.stashes else set
        self.lanes = self._make_lanes()
        schedule.attach(self.lanes)
        self._hands_on = schedule.hands_on
        self._make_routes(wiring)
        self.updates = LocalUpdates(
            graph, self.nodes, worker=name, announce=self._announce, clock=clock, hand=hand, over=over
        )
        self.pulse: memoryview | None = None
        """Where heartbeats are written (a count of batches, and the node's number), for the watchdog."""
        self._needs_structure = {n for n, node in self.nodes.items() if node.needs_structure}
        self._skipped: set[int] = set()
        """Instances in flight with a loss that was not finite: they do not count for updates."""

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
                        self._lanes[name, direction, port, train] = lane
                        lanes.append(lane)
        return lanes

    def _make_routes(self, wiring: Wiring) -> None:
        """Set the targets of each lane: those of its node's output ports (forward) or input ports (backward)."""
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
        """Store the structures of instances about to be pumped, if any node here reads them."""
        if self._needs_structure:
            self.shelf.add(structures)

    def step(self) -> bool:
        """Serve one batch. Returns False if nothing waits."""
        if self.updates.pass_token():
            return True
        chosen = self.schedule.next()  # [1]
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
                    if output.train and len(output.skipped):
                        self._skipped.update(output.states.column("instance")[output.skipped].tolist())
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

    def _push(self, lane: Lane, messages: Messages) -> None:
        self._arrival += 1
        lane.push(messages, self._arrival)

    def _has_room(self, lane: Lane, messages: Messages) -> bool:
        """Whether a batch that is passed on breaks no current limit of its node."""
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
        noted = self._announce.wants(Backward if direction else Forward)
        began = self.clock() if noted else 0.0
        pulse = self.pulse
        if pulse is not None:
            pulse[0] += 1
            pulse[2] = lane.number
        self._invocations += 1
        self._messages += messages.states.columns.shape[1]
        if trained is not None and messages.payload is not None:
            self._check_gradient(trained, messages)
        try:
            outputs = node.backward(lane.port, messages) if direction else node.forward(lane.port, messages)
        except Exception as error:
            raise self._node_error(node, direction, messages, error) from error
        if noted:
            self._note(lane, messages, outputs, began)
        if trained is not None:
            updater = trained.updater
            self.updates.note_lags(trained, updater.lags)
            if updater.stashes:
                trained.after_backward()
            if updater.counts_messages and updater.full():
                self._check_finite(trained, messages)
                self.updates.is_full(trained)
        return outputs

    def _still_wanted(self, messages: Messages) -> Messages:
        """Leave out inference messages whose instance has all its results already: its structure is gone."""
        wanted = self.shelf.holds(messages.states.column("instance"))
        return messages if wanted.all() else messages.take(np.flatnonzero(wanted))

    def retire(self, instances: Column, train: bool) -> None:
        """These instances are done: drop their structures; count them where instances are counted."""
        self.shelf.drop(instances)
        self.updates.retired(len(instances))
        if train:
            trains = self.updates.trains
            if self._skipped:
                gone = np.isin(instances, list(self._skipped))
                self._skipped.difference_update(instances.tolist())
                instances = instances[~gone]
            for node in trains:
                node.updater.count_instances(self.updates.own(node, instances))
            full = [node for node in trains if node.updater.full()]
            for node in full:
                self._check_finite(node, None)
            self.updates.all_full(full)

    def _check_gradient(self, node: Parameterised, messages: Messages) -> None:
        """A gradient that is not finite is not added up."""
        g = messages.payload
        assert g is not None
        if not g.is_floating_point() or math.isfinite(float(g.sum())):
            return
        finite = torch.isfinite(g)
        rows = np.flatnonzero(~(finite.flatten(1).all(1) if g.dim() > 1 else finite).numpy(force=True))
        if len(rows):
            owner = np.repeat(np.arange(len(messages)), messages.row_counts())[rows[:1]]
            cause = LossError(_NOT_FINITE)
            raise NodeError(node.name, "backward", messages.states.take(owner), self.name, cause) from cause

    def _check_finite(self, node: Parameterised, messages: Messages | None) -> None:
        """Products of finite numbers may overflow: what they add up to is not applied then."""
        if all(math.isfinite(float(total.sum())) for total in node.updater.sums):
            return
        if not all(bool(torch.isfinite(total).all()) for total in node.updater.sums):
            cause = LossError(_NOT_FINITE)
            states = None if messages is None else messages.states
            raise NodeError(node.name, "backward", states, self.name, cause) from cause

    def forget(self, instances: Column) -> None:
        """Drop whatever is left of these instances of an inference: all their results are in."""
        for lane in self.lanes:
            if not lane.train and lane.waiting:
                lane.drop(instances)
        for node in self.nodes.values():
            if any(node.held().values()):
                node.forget_instances(instances)

    def held(self) -> dict[str, int]:
        """Every queue and cache that is not empty."""
        out = {f"queue of {lane!r}": lane.waiting for lane in self.lanes if lane.waiting}
        for name, node in self.nodes.items():
            out.update({f"{name}.{cache}": n for cache, n in node.held().items() if n})
        if len(self.shelf):
            out["structures"] = len(self.shelf)
        if self.updates.tokens:
            out["tokens of replicas"] = len(self.updates.tokens)
        return out

    def waits(self) -> list[str]:
        """Returns what each node waits for, as text."""
        waits = [f"node '{name}': {line}" for name, node in self.nodes.items() for line in node.waits()]
        return waits + self.updates.waits()

    def abandon(self) -> None:
        """Drop everything in flight, and the gradients not yet applied, after an error. Weights are unchanged."""
        for lane in self.lanes:
            lane.clear()
        for node in self.nodes.values():
            node.forget()
        self.updates.abandon()
        self._skipped.clear()
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
            states = culprit(node, messages).states
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
