"""Hooks: sections around what a runtime does, put in from outside for a stretch of a run and taken out again.

A run that is not profiled has none of this, and no branch that asks for it. What gets a section:

    a node                forward, backward, and the updates of its weights
    a queue of a node     taking a batch from it, which puts together what waited there
    a wave                rehearsing, laying out, bringing payloads; the kernels of its sites, each for its node
    the inline runtime    its worker's loop; what the controller does is the rest
    a worker process      sending and receiving, waiting; its loop is the rest
    its controller        sending and receiving, waiting, the nodes in front of replicas; the controller is the rest

Functions are replaced in single objects, never in classes. Only queues, which are bare for speed, change their class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ampnet.message import Messages
from ampnet.nodes.transform import Parameterised
from ampnet.profile.meter import (
    BACKWARD,
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
from ampnet.runtime.host import Host
from ampnet.runtime.inline import Inline
from ampnet.runtime.processes import Processes
from ampnet.runtime.runtime import Runtime
from ampnet.runtime.transport import Endpoint
from ampnet.reference.schedule import Lane
from ampnet.structure import Shelf
from ampnet.update.updater import Updater
from ampnet.plan.lot import Lot
from ampnet.wave.player import Player
from ampnet.reference.worker import Worker

_IN_TURN = ("step", "play", "deliver", "shelve", "retire", "forget", "flush", "pass_tokens")
"""By these, a controller in the same process calls upon the worker."""


class Hooks:
    """What was put in, until `undo`."""

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
        """Whatever is in this process."""
        meter = self.meter
        if isinstance(runtime, Inline):
            self.worker(runtime.worker)
            self.called_upon(runtime.worker)
            for name in ("_send", "_tell"):
                self.section(runtime.worker, name, meter.cell("", CONTROLLER))
        elif isinstance(runtime, Processes):
            self.endpoint(runtime._endpoint)
            if runtime._front is not None:
                self.worker(runtime._front)
                self.called_upon(runtime._front)

    def host(self, host: Host) -> None:
        """A worker process, in that process."""
        self.worker(host.worker)
        self.endpoint(host.endpoint)

    def called_upon(self, worker: Worker) -> None:
        """The loop of a worker that a controller in the same process calls upon."""
        for name in _IN_TURN:
            self.section(worker, name, self.meter.cell("", LOOP))

    def worker(self, worker: Worker) -> None:
        """The nodes and queues of a worker."""
        meter = self.meter
        for name, node in worker.nodes.items():
            for what in (FORWARD, BACKWARD):
                self.put(node, what, meter.batches(meter.cell(name, what), getattr(node, what)))
            if isinstance(node, Parameterised):
                for way in ("apply", "apply_together"):
                    self.put(node.updater, way, self._update(meter.cell(name, UPDATE), getattr(node.updater, way)))
                self.steps_at_once(node.updater)
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
        if worker.waves is not None:
            self.waves(worker.waves)

    def waves(self, waves: Waves) -> None:
        """The kernels of a worker's waves, and what is done before they come to it.

        Gradients of parameters (``finish``) belong to the backward of their node. What a sum absorbed, it computes.
        """
        meter, cells = self.meter, dict[int, tuple[Cell, ...]]()
        payloads = meter.cell("", PAYLOADS)
        for number, kernel in waves.kernels.items():
            site = kernel.site
            if site.node is None:
                self.section(kernel, "run_forward", payloads)
                continue
            forward, backward = cells[number] = meter.cell(site.name, FORWARD), meter.cell(site.name, BACKWARD)
            self.section(kernel, "run_forward", forward)
            self.section(kernel, "run_backward", backward)
            self.put(kernel, "begin", meter.more(forward, kernel.begin))
            self.put(kernel, "finish", meter.more(backward, kernel.finish))
            if site.still:
                cells[number] = (forward,)
        self.section(waves, "_rehearse", meter.cell("", REHEARSE))
        self.section(waves, "_layout", meter.cell("", LAYOUT))
        play = waves.play

        def playing(lot: Lot, shelf: Shelf) -> Any:
            bring = meter.section(payloads, lambda given=lot.payloads: list(given()))
            lot.payloads = bring  # type: ignore[method-assign]
            reports, layout = play(lot, shelf)
            began = clock()
            for number, whole in layout.wholes.items():
                for cell in cells.get(number, ())[: 1 + lot.train]:
                    cell.rows += whole.stop - whole.start
                    cell.messages += int(layout.messages[number])
            meter.now.timers += clock() - began
            return reports, layout

        self.put(waves, "play", playing)

    def steps_at_once(self, updater: Updater) -> None:
        """Where several nodes take one step, it is a step of none of them: a cell of its own."""
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

    def endpoint(self, endpoint: Endpoint) -> None:
        """What a process sends and receives by."""
        for name in ("send", "receive", "flush"):
            self.section(endpoint, name, self.meter.cell("", TRANSPORT))
        self.section(endpoint, "wait", self.meter.cell("", WAITING))

    def _update(self, cell: Cell, apply: Callable[..., Any]) -> Callable[..., Any]:
        """Counts where there was something to apply; its messages are the gradients."""
        section = self.meter.section(cell, apply)

        def timed(*args: Any) -> Any:
            applied = section(*args)
            if applied is None:
                cell.calls -= 1
            else:
                cell.messages += applied.count
            return applied

        return timed


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
