"""Host: the main loop of a worker process.

    [1] take in what has arrived      what the controller said first, then messages; both in order
    [2] one turn                      the player's, where whole instances are staged here; else the worker's, which
                                      passes messages
    [3] send what did not fit before
    [4] nothing to do: sleep until something arrives

Where all of an instance is done by one worker (replicas of a whole model), it also looks after instances: see
`ampnet.runtime.whole`.

It ends when it is told to, or when the process that made it is gone. An error in a node is told to the controller; from
then on the worker only waits to hear that the run was abandoned.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ampnet.events.log import Announcer, Event
from ampnet.graph import CONTROLLER, End, Graph, Wiring
from ampnet.instance import Instance
from ampnet.message import Messages
from ampnet.nodes.node import Direction, Report
from ampnet.nodes.products import Precision
from ampnet.plan.lot import Lot, OfInstances, OfMessages, Pumpings, by_instance
from ampnet.reference.schedule import Schedule, make_schedule
from ampnet.reference.worker import Worker
from ampnet.replicas.member import Token
from ampnet.runtime.engine import make_player
from ampnet.runtime.events import events_note
from ampnet.runtime.protocol import (
    Kind,
    Ports,
    done_messages,
    error_note,
    loss_metrics,
    report_note,
    structures_of,
    token_note,
    token_of,
)
from ampnet.runtime.transport import Batch, Endpoint, Note
from ampnet.runtime.whole import Whole
from ampnet.state import Column, Ints
from ampnet.structure import Structure
from ampnet.wave.player import Player

_NAP = 0.1
"""Seconds after which a sleeping worker looks whether its maker still lives."""
_EVENTS = 256
"""Events that are sent together."""
_TURNS = 15
"""Further turns before a worker that does all of an instance looks at what has arrived."""
_FORGOTTEN = 100_000
"""Instances of inferences that are remembered as over."""


class Host:
    """A worker, its endpoint, and the loop."""

    def __init__(
        self,
        number: int,
        name: str,
        graph: Graph,
        wiring: Wiring,
        schedule: str | Schedule | None,
        endpoint: Endpoint,
        *,
        hosts: dict[str, int],
        controller: int,
        max_batch: int | None,
        enough_rows: int | None,
        kinds: Sequence[type[Event]],
        pulse: memoryview,
        parent: int,
        clock: Callable[[], float],
        share: int | None,
        brief: bool,
        waves: bool = False,
        wave_size: int | None = None,
        seed: int = 0,
        precision: Precision = "float32",
        ends: Sequence[Mapping[str, End]] = (),
        instances: Sequence[Instance] = (),
    ) -> None:
        """``kinds``: the events that are wanted.

        ``share``: this worker does all of an instance, and has so many in flight; None: only parts of them. ``brief``:
        nobody wants to see the answers themselves. ``waves``: it may do all of several at once. ``ends``: of each
        replica, where its inputs lead. ``instances``: those that the controller tells of by their number.
        """
        self.number, self.name, self.graph, self.endpoint, self.clock = number, name, graph, endpoint, clock
        self.hosts, self.controller, self.parent, self.pulse = hosts, controller, parent, pulse
        self.ports = Ports(graph)
        self.era = self.sent = self.received = 0
        self.failed = self.over = False
        self.events: list[Event] = []
        self.whole, self.brief = (None if share is None else Whole(share)), brief
        self.ends, self.instances = ends, instances
        self.most = 1 if share is None else -(-share // 2)
        """Instances of a wave: while it is computed, the controller sends as many."""
        self.arriving: dict[int, Pumpings] = {}
        self.answers: dict[End, list[Messages]] = {}
        self.reports: list[Report] = []
        self.losses = list(loss_metrics(graph))
        self._needs_structure = any(graph.nodes[n].needs_structure for n, host in hosts.items() if host == number)
        self.forgotten: Ints = np.zeros(0, dtype=np.int64)
        mine = [node for node in graph.order() if hosts[node] == number]
        announce = Announcer([_Collector(self.events, tuple(kinds))]) if kinds else None
        self.player: Player | None = None
        self.worker: Worker | None = None
        if waves:
            self.player = make_player(
                graph,
                wiring,
                {node: graph.nodes[node] for node in mine},
                schedule,
                seed + number,
                name=name,
                tell=self._tell,
                over=self._played,
                wave_size=wave_size,
                precision=precision,
                announce=announce,
                clock=clock,
                hand=self._hand,
                equal=self._over,
            )
            self.player.pulse = pulse
            self.updates = self.player.updates
            return
        self.worker = Worker(
            name,
            graph,
            wiring,
            make_schedule("sweep" if schedule is None else schedule, seed + number),
            hosts=mine,
            max_batch=max_batch,
            enough_rows=enough_rows,
            send=self._send,
            tell=self._tell,
            hand=self._hand,
            over=self._over,
            announce=announce,
            clock=clock,
        )
        self.worker.pulse = pulse
        self.updates = self.worker.updates

    def serve(self) -> None:
        """The loop."""
        looked = time.monotonic()
        while not self.over:
            self.pulse[0] += 1
            arrived = self.endpoint.receive(last=(self.controller,), merge=self.whole is None)  # [1]
            for _sender, frame in arrived:
                if isinstance(frame, Note):
                    self._hear(frame)
                elif isinstance(frame, Batch):
                    self._take(frame)
            moved = not self.failed and self._work()  # [2]
            if self.whole is not None:
                self._look_after(self.whole, idle=not moved and not arrived)
            if len(self.events) >= _EVENTS:
                self._tell_events()
            if self.endpoint.pending():  # [3]
                self.endpoint.flush()
            now = time.monotonic()
            if now - looked > _NAP:
                looked = now
                if os.getppid() != self.parent:
                    return
            if not moved and not arrived:  # [4]
                self.pulse[1] = 1
                self.endpoint.wait(_NAP)
                self.pulse[1] = 0

    def _work(self) -> bool:
        """One turn; several where others seldom send anything."""
        whole = self.whole
        try:
            with torch.no_grad():
                if self.player is not None:
                    return self.player.step(self.most)
                assert self.worker is not None
                step = self.worker.step
                moved = step()
                if whole is not None:
                    for _ in range(_TURNS):
                        if whole.has_done or not step():
                            break
                return moved
        except Exception as error:
            self._fail(error)
            return False

    def _played(self, lot: Lot) -> None:
        """A wave is over."""
        assert self.whole is not None
        assert self.player is not None
        if lot.train:
            self.player.shelf.drop(np.array(lot.numbers))
            self.whole.untold += lot.numbers

    def _stage(self, end: End, messages: Messages, last: bool, stream: int) -> None:
        """Messages of whole instances have come in."""
        assert self.player is not None
        for number, some in by_instance(messages):
            self.arriving.setdefault(number, []).append((end, some))
        if last:
            arrived, self.arriving = self.arriving, {}
            self.player.stage(OfMessages(self.player.planner.sites, arrived, stream))

    def _fail(self, error: BaseException) -> None:
        self.failed = True
        self.endpoint.send(self.controller, error_note(error, self.era, traceback.format_exc()))

    def _take(self, frame: Batch) -> None:
        end, era = self.ports.find(frame.target, frame.direction)
        if era != self.era:
            return
        self.received += 1
        if self.failed:
            return
        messages = frame.messages
        if not messages.train and len(self.forgotten):
            over = np.isin(messages.states.column("instance"), self.forgotten)
            if over.any():
                messages = messages.take(np.flatnonzero(~over))
        if self.player is not None:
            if len(messages):
                self._stage(end, messages, frame.last, self.ports.stream(frame.target))
        elif self.whole is not None and messages.train:
            self.whole.stage(end, messages, frame.last)
        else:
            assert self.worker is not None
            self.worker.deliver(end, Direction(frame.direction), messages)

    def _send(self, end: End, direction: Direction, messages: Messages) -> None:
        if self.whole is None:
            self._answer_to(end, direction, messages)
            return
        self.whole.answered(messages)
        if not self.brief:
            self.answers.setdefault(end, []).append(messages)

    def _look_after(self, whole: Whole, idle: bool) -> None:
        """Retire the instances that are done, start others, and tell the controller when none is left to be started."""
        if self.worker is not None:
            done = whole.done()
            if done and not self.failed:
                try:
                    with torch.no_grad():
                        self.worker.retire(np.array(done), True)
                except Exception as error:
                    self._fail(error)
            for end, messages in whole.start():
                self.worker.deliver(end, Direction.FORWARD, messages)
        if whole.untold and (idle or self._runs_low(whole)):
            self._tell_done(whole.tell())
        elif idle:
            self._tell_done([])

    def _runs_low(self, whole: Whole) -> bool:
        """Whether the controller is to send more."""
        return not whole.waiting() if self.player is None else 2 * self.player.waiting() <= self.most

    def _tell_done(self, done: list[int]) -> None:
        answers, self.answers = self.answers, {}
        for end, some in answers.items():
            for payload in (False, True):
                kind = [m for m in some if (m.payload is not None) is payload]
                if kind:
                    self._answer_to(end, Direction.BACKWARD, Messages.merge(kind))
        if self.brief and (done or self.reports):
            reports, self.reports = self.reports, []
            messages = done_messages(done, reports, self.losses)
            target = self.ports.target(self.ports.done, Direction.BACKWARD, self.era)
            self.endpoint.send(self.controller, Batch(target, int(Direction.BACKWARD), messages))

    def _answer_to(self, end: End, direction: Direction, messages: Messages) -> None:
        to = self.controller if end.node == CONTROLLER else self.hosts[end.node]
        self.sent += 1
        self.endpoint.send(to, Batch(self.ports.target(end, direction, self.era), int(direction), messages))

    def _hand(self, token: Token) -> None:
        member = self.graph.replicas[token.group].members[token.to]
        self.sent += 1
        self.endpoint.send(self.hosts[member], token_note(token, self.era))

    def _over(self, group: str, ended: int) -> None:
        self.endpoint.send(self.controller, Note(Kind.EQUAL, {"era": self.era, "group": group, "ended": ended}, {}))

    def _tell(self, report: Report) -> None:
        if self.brief and report.train:
            self.reports.append(report)
            return
        self.endpoint.send(self.controller, report_note(report, self.era))

    def _tell_events(self, token: int | None = None) -> None:
        if token is not None:
            self.updates.tell_work()
        if self.events or token is not None:
            note = events_note(self.events, self.era, token)
            self.events.clear()
            self.endpoint.send(self.controller, note)

    def _hear(self, note: Note) -> None:
        kind = note.kind
        if kind == Kind.STOP:
            self.over = True
        elif kind == Kind.ABANDON:
            self.era, self.failed = int(note.data["era"]), False
            self.sent = self.received = 0
            if self.whole is not None:
                self.whole.forget()
            self.answers, self.reports, self.arriving = {}, [], {}
            self._nodes.abandon()
            self.events.clear()
        elif kind == Kind.ASK:
            self._answer(int(note.data["token"]))
        elif kind == Kind.SHOW:
            self._tell_events(int(note.data["token"]))
        elif not self.failed:
            try:
                with torch.no_grad():
                    self._obey(note)
            except Exception as error:
                self._fail(error)

    @property
    def _nodes(self) -> Player | Worker:
        """Whoever has the nodes."""
        found = self.worker if self.player is None else self.player
        assert found is not None
        return found

    def _obey(self, note: Note) -> None:
        if note.kind == Kind.STRUCTURE:
            self._shelve(structures_of(note))
        elif note.kind == Kind.RETIRE:
            if self.worker is not None:
                self.worker.retire(_instances(note), bool(note.data["train"]))
            else:
                self._nodes.shelf.drop(_instances(note))
        elif note.kind == Kind.FORGET:
            gone = _instances(note)
            self.forgotten = np.concatenate((self.forgotten, gone))[-_FORGOTTEN:]
            if self.worker is not None:
                self.worker.forget(gone)
        elif note.kind == Kind.STAGE and note.data["era"] == self.era:
            assert self.player is not None
            numbers, places = _instances(note).tolist(), np.asarray(note.arrays["places"]).tolist()
            chosen = {number: self.instances[i] for number, i in zip(numbers, places, strict=True)}
            ends, sites = self.ends[numbers[0] % len(self.ends)], self.player.planner.sites
            train, stream = bool(note.data["train"]), note.data.get("stream", 0)
            self.player.stage(OfInstances(sites, ends, chosen, train, stream))
        elif note.kind == Kind.FLUSH:
            self.updates.flush()
        elif note.kind == Kind.TOKEN and note.data["era"] == self.era:
            self.received += 1
            token = token_of(note)
            self.updates.take_token(token, self.graph.replicas[token.group].members[token.to])

    def _shelve(self, structures: Mapping[int, Structure]) -> None:
        if self.worker is not None:
            self.worker.shelve(structures)
        elif self._needs_structure:
            self._nodes.shelf.add(structures)

    def _answer(self, token: int) -> None:
        """How things are: for the end of a run, and to tell a stall from hard work."""
        self.updates.tell_work()
        self._tell_events()
        trained = {name: node for name, node in self.graph.parameterised().items() if self.hosts[name] == self.number}
        for node in trained.values():
            node.updater.sums.settle()  # what is in shared memory is whole now
        data = {
            "token": token,
            "sent": self.sent,
            "received": self.received,
            "idle": self._idle() and not self.endpoint.pending(),
            "held": self._nodes.held(),
            **self._did(),
            "versions": {name: node.updater.version for name, node in trained.items()},
        }
        self.endpoint.send(self.controller, Note(Kind.ANSWER, data, {}))

    def _idle(self) -> bool:
        if self.worker is not None:
            return not any(lane.waiting for lane in self.worker.lanes)
        return self.player is not None and not self.player.waiting() and not self.player.passages

    def _did(self) -> dict[str, Any]:
        """What was done so far, and who waits for what."""
        if self.worker is not None:
            counts = self.worker.counts()
            did = {"invocations": counts.invocations, "messages": counts.messages, "waits": self.worker.waits()}
            return {**did, "waves": 0, "instances": 0, "in_flight": 0}
        player = self.player
        assert player is not None
        did = {"invocations": player.operations, "messages": player.messages, "waits": self.updates.waits()}
        return {**did, "waves": player.waves, "instances": player.instances, "in_flight": player.most}


class _Collector:
    """A listener that keeps events to be sent."""

    def __init__(self, events: list[Event], kinds: tuple[type[Event], ...]) -> None:
        self.events, self.kinds = events, kinds

    def __call__(self, event: Event) -> None:
        self.events.append(event)


def _instances(note: Note) -> Column:
    return np.asarray(note.arrays["instances"])


def make_quiet() -> None:
    """A forked process cannot use CUDA once its maker has, and optimizers ask whether it is there at every step."""
    torch.cuda.is_available = lambda: False
