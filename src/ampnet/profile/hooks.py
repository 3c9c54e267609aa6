"""Hooks: sections around what a runtime does, put in from outside for a stretch of a run and taken out again.

A run that is not profiled has none of this, and no branch that checks for it. What gets a section depends on the engine
that runs (`RunStats.engine`); it is always the engine that trains without hooks.

    waves       of each node      its operations forward and backward (what its weights' gradients take included), and
                                  the updates of its weights
                of a wave         beginning it: rehearsing instances, laying out, bringing payloads; checking gradients
    messages    of each node      forward, backward, and the updates of its weights
                of its queues     taking a batch, which puts together what waited there

    the inline runtime            the loop of its player or worker; what the controller does is the rest
    a worker process              sending and receiving, waiting; its loop is the rest
    the controller of workers     sending and receiving, waiting; the controller is the rest

Functions are replaced in single objects, never in classes. Only queues, which are bare for speed, change their class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from ampnet.message import Messages
from ampnet.nodes.loss import Loss
from ampnet.nodes.node import Node
from ampnet.nodes.transform import Parameterised
from ampnet.plan.layout import Layout, Operation
from ampnet.plan.lot import Lot
from ampnet.plan.sites import Site
from ampnet.profile.meter import (
    BACKWARD,
    CHECK,
    CONTROLLER,
    FORWARD,
    LAYOUT,
    LOOP,
    PAYLOADS,
    QUEUE,
    REHEARSE,
    TRANSPORT,
    UPDATE,
    WAITING,
    Cell,
    Meter,
    clock,
    stamp,
)
from ampnet.reference.schedule import Lane
from ampnet.reference.worker import Worker
from ampnet.runtime.host import Host
from ampnet.runtime.inline import Inline
from ampnet.runtime.processes import Processes
from ampnet.runtime.runtime import Runtime
from ampnet.runtime.transport import AnyEndpoint
from ampnet.update.local import LocalUpdates
from ampnet.update.updater import Updater
from ampnet.wave.kernels.kernel import Kernel
from ampnet.wave.passage import Passage
from ampnet.wave.player import Player

_PLAYER = ("step", "stage")
_WORKER = ("step", "deliver", "shelve", "retire", "forget")
_UPDATES = ("flush", "pass_token", "tell_work")
"""By these functions, a controller in the same process calls a player, a worker, and the updates of either."""


class Hooks:
    """The installed hooks, until `undo`."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self._before: list[Callable[[], None]] = []

    def put(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        """A function in place of another, in this object."""
        own = vars(owner)
        if name in own:
            before = own[name]
            self._before.append(lambda: setattr(owner, name, before))
        else:
            self._before.append(lambda: delattr(owner, name))
        setattr(owner, name, function)

    def section(self, owner: Any, name: str, cell: Cell) -> None:
        """A function of this object becomes a section."""
        self.put(owner, name, self.meter.section(cell, getattr(owner, name)))

    def undo(self) -> None:
        """All as it was before."""
        while self._before:
            self._before.pop()()

    # -- what a runtime is made of

    def runtime(self, runtime: Runtime) -> None:
        """Everything in this process."""
        if isinstance(runtime, Inline):
            if runtime.player is not None:
                self.player(runtime.player)
                self.called_upon(runtime.player, _PLAYER, ("_tell", "_over"))
            else:
                assert runtime.worker is not None
                self.worker(runtime.worker)
                self.called_upon(runtime.worker, _WORKER, ("_send", "_tell"))
        elif isinstance(runtime, Processes):
            self.endpoint(runtime._workers.post.endpoint)

    def host(self, host: Host) -> None:
        """A worker process, in that process."""
        self.player(host.player)
        self.endpoint(host.endpoint)

    def called_upon(self, by: Player | Worker, inward: Sequence[str], outward: Sequence[str]) -> None:
        """The loop of a player or worker that a controller in the same process calls: the functions by which it is
        called, and those by which it calls the controller."""
        for name in inward:
            self.section(by, name, self.meter.cell("", LOOP))
        for name in _UPDATES:
            self.section(by.updates, name, self.meter.cell("", LOOP))
        for name in outward:
            self.section(by, name, self.meter.cell("", CONTROLLER))

    def worker(self, worker: Worker) -> None:
        """The nodes and queues of a worker that passes messages."""
        meter = self.meter
        for name, node in worker.nodes.items():
            for what in (FORWARD, BACKWARD):
                self.put(node, what, meter.batches(meter.cell(name, what), getattr(node, what)))
        self.updates(worker.updates)
        ways = (FORWARD, BACKWARD)
        cells = {
            lane: (
                meter.cell(lane.node.name, ways[lane.direction]),
                meter.cell(lane.node.name, QUEUE + ways[lane.direction]),
            )
            for lane in worker.lanes
        }
        timed = _timed_lane(meter, cells)
        for lane in worker.lanes:
            self._before.append(lambda lane=lane: setattr(lane, "__class__", Lane))  # type: ignore[misc]
            lane.__class__ = timed

    def player(self, player: Player) -> None:
        """The operations of a player's waves, and what is done before and after them.

        Kernels belong to a passage, so each passage that begins has its own made into sections. Collecting the
        gradients of parameters is part of the backward of their node, and what a sum absorbed belongs to the sum. Rows
        that are pumped are no node's: they belong to the payloads; and rows that cross to the transport.
        """
        meter = self.meter
        payloads, crossing = meter.cell("", PAYLOADS), meter.cell("", TRANSPORT)

        def cell_of(site: Site, direction: str) -> Cell:
            if site.source is not None:
                return crossing
            return payloads if site.node is None else meter.cell(site.name, direction)

        sites = [site for planner in player.planners for site in planner.sites.sites]
        forward = {id(site): cell_of(site, FORWARD) for site in sites}
        backward = {id(site): cell_of(site, BACKWARD) for site in sites}
        begin, collect = meter.section(meter.cell("", LAYOUT), player._begin), player._collect

        def beginning(most: int) -> Passage:
            passage: Passage = begin(most)
            passage.tape = None  # every operation by itself
            began = clock()
            for kernel in passage.kernels.values():
                if "forward" not in vars(kernel):  # those of a layout that is used again may have it
                    put = self.put if passage.layout.fixed else setattr
                    put(kernel, "forward", self._operations(forward[id(kernel.site)], kernel, kernel.forward))
                    put(kernel, "backward", self._operations(backward[id(kernel.site)], kernel, kernel.backward))
            meter.now.timers += clock() - began
            return passage

        def collecting(passage: Passage, op: Operation, at: int) -> None:
            cell = backward[id(op.site)]
            cell.calls -= 1
            meter.enter(cell)
            try:
                collect(passage, op, at)
            finally:
                meter.leave()

        self.put(player, "_begin", beginning)
        self.put(player, "_collect", collecting)
        for planner in player.planners:
            self.section(planner, "_rehearse", meter.cell("", REHEARSE))
        self.put(player.faults, "payloads", self._bringing(payloads, player.faults.payloads))
        self.section(player.faults, "check", meter.cell("", CHECK))
        self.updates(player.updates)

    def _operations(
        self, cell: Cell, kernel: Kernel, function: Callable[[Operation], None]
    ) -> Callable[[Operation], None]:
        """A kernel's ``forward`` or ``backward``, as a section that also counts messages and rows."""
        meter, node, layout = self.meter, kernel.site.node, kernel.layout
        enter, leave, more = meter.enter, meter.leave, meter.costs.batch

        def timed(op: Operation) -> None:
            cell.messages += _messages(node, layout, op)
            cell.rows += op.stop - op.start
            meter.now.timers += more
            enter(cell)
            try:
                function(op)
            finally:
                leave()

        return timed

    def _bringing(
        self, cell: Cell, checked: Callable[[Lot, Passage], Iterator[tuple[int, Tensor]]]
    ) -> Callable[[Lot, Passage], Iterator[tuple[int, Tensor]]]:
        """The payloads of a wave, one after the other: looking at them and moving them to the device is a section."""

        def bring(lot: Lot, passage: Passage) -> list[tuple[int, Tensor]]:
            passage.load(checked(lot, passage))
            return list(passage.payloads.items())

        section = self.meter.section(cell, bring)
        return lambda lot, passage: iter(section(lot, passage))

    def updates(self, updates: LocalUpdates) -> None:
        """The updates of a player or worker."""
        meter = self.meter
        for node in updates.trains:
            for way in ("apply", "apply_together"):
                self.put(node.updater, way, self._update(meter.cell(node.name, UPDATE), getattr(node.updater, way)))
            self.steps_at_once(node.updater)

    def steps_at_once(self, updater: Updater) -> None:
        """A step that several nodes take together belongs to none of them: it has a separate cell."""
        meter, begin, stepper = self.meter, updater.begin_step, updater.stepper
        cell = meter.cell("", UPDATE)
        if stepper is None:
            return
        step_all = stepper.step_all
        at_once = meter.section(cell, step_all)

        def stepping(steppers: Any, *args: Any) -> Any:
            return (at_once if len(steppers) > 1 else step_all)(steppers, *args)

        def beginning() -> Any:
            cell.messages += max(1, updater.counter)
            return begin()

        self.put(stepper, "step_all", stepping)
        self.put(updater, "begin_step", meter.more(cell, beginning))
        self.put(updater, "end_step", meter.more(cell, updater.end_step))

    def endpoint(self, endpoint: AnyEndpoint) -> None:
        """Hook the endpoint of a process."""
        for name in ("send", "receive", "flush"):
            self.section(endpoint, name, self.meter.cell("", TRANSPORT))
        self.section(endpoint, "wait", self.meter.cell("", WAITING))

    def _update(self, cell: Cell, apply: Callable[..., Any]) -> Callable[..., Any]:
        """Counts where there was something to apply; its messages are the gradients. Else the time is the caller's."""
        meter, section = self.meter, self.meter.section(cell, apply)

        def timed(*args: Any) -> Any:
            seconds, timers = cell.seconds, cell.timers
            applied = section(*args)
            if applied is None:
                cell.calls -= 1
                meter.now.seconds += cell.seconds - seconds
                meter.now.timers += cell.timers - timers
                cell.seconds, cell.timers = seconds, timers
            else:
                cell.messages += applied.count
            return applied

        return timed


def _messages(node: Node | None, layout: Layout, op: Operation) -> int:
    """Messages of an operation, where a layout knows them: at nodes with parameters those that get a gradient, and at
    losses."""
    if isinstance(node, Parameterised):
        return op.messages
    if isinstance(node, Loss):
        offsets = layout.offsets_of(op)
        return op.stop - op.start if offsets is None else len(offsets) - 1
    return 0


def _timed_lane(meter: Meter, cells: Mapping[Lane, tuple[Cell, Cell]]) -> type[Lane]:
    """A queue that knows how long messages wait in it: they come at a time, and leave at a time."""
    began, push_cost = meter.began, meter.costs.push
    push, take = Lane.push, Lane.take

    class Timed(Lane):
        __slots__ = ()

        def push(self, messages: Messages, arrival: int) -> None:
            push(self, messages, arrival)
            stamp(cells[self][0], messages, began)
            meter.now.timers += push_cost

        def take(self, most: int | None = None, enough_rows: int | None = None) -> Messages:
            cell, queue = cells[self]
            now = clock() - began
            meter.enter(queue)
            try:
                messages = take(self, most, enough_rows)
            finally:
                meter.leave()
            cell.waited += messages.states.columns.shape[1] * now
            return messages

    return Timed
