"""Host: the main loop of a worker process.

    [1] receive                       notes of the controller; slices and tokens of other workers
    [2] one turn of the player        one operation of a wave, or a whole wave if this worker has all of it
    [3] report to the controller      instances that were played, with the losses of training
    [4] retry frames that did not fit into a ring
    [5] nothing to do: sleep until something arrives

An error in a node is sent to the controller; the worker then waits for the ABANDON note, which begins a new **era**.
Frames of other workers from an earlier era are dropped; those from a later one are kept until the controller's note
arrives.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ampnet.events.log import Announcer
from ampnet.graph import Graph, Wiring
from ampnet.instance import Instance
from ampnet.nodes.node import Report
from ampnet.nodes.products import Precision
from ampnet.plan.lot import Lot
from ampnet.plan.planner import Planner
from ampnet.plan.team import Team
from ampnet.replicas.member import Token
from ampnet.runtime.engine import make_player
from ampnet.runtime.events import Collector, events_note
from ampnet.runtime.parcel import Fields, unpack
from ampnet.runtime.predictions import Predictions
from ampnet.runtime.protocol import (
    Kind,
    done_note,
    error_note,
    loss_metrics,
    peek_note,
    report_note,
    state_notes,
    take_weights,
    token_note,
    token_of,
)
from ampnet.runtime.staging import parted, share_of
from ampnet.runtime.teams import Ends
from ampnet.runtime.transport import AnyEndpoint, Frame, Note
from ampnet.runtime.watch import BEAT, IDLE
from ampnet.wave.slice import Slice

_NAP = 0.1
"""Seconds after which a sleeping worker makes a step, so that `Watch` sees it alive."""
_EVENTS = 256
"""The number of events sent together."""


class Host:
    """A player, its endpoint, and the loop."""

    def __init__(
        self,
        number: int,
        name: str,
        graph: Graph,
        wiring: Wiring,
        teams: Sequence[tuple[Team, Ends]],
        endpoint: AnyEndpoint,
        *,
        controller: int,
        places: int,
        instances: Sequence[Instance],
        inputs: Fields,
        wanted: Announcer,
        pulse: memoryview,
        parent: int,
        clock: Callable[[], float],
        schedule: str | None,
        wave_size: int | None,
        seed: int,
        precision: Precision,
        prediction: Graph | None = None,
        shared: bool = True,
        versions: tuple[memoryview, Sequence[str]] | None = None,
    ) -> None:
        """``teams``: all teams of the run. ``controller``: its number at the endpoint. ``places``: the maximal number
        of instances of a team in flight. ``instances``: those that the controller names by index. ``wanted``: selects
        the events to collect. ``prediction``: the graph of what the model returns. ``shared``: whether all workers have
        the parameters and the replicas' tables in shared memory. ``versions``: where the versions of nodes are
        written, and the order of nodes there."""
        self.number, self.name, self.graph, self.endpoint, self.clock = number, name, graph, endpoint, clock
        self.controller, self.parent, self.pulse = controller, parent, pulse
        self.wave_size, self.precision, self.shared = wave_size, precision, shared
        self.instances, self.inputs = instances, inputs
        self.era = self.steps = self.sent = self.received = 0
        self.failed = self.over = False
        self.ended = 0
        """Training streams that have ended, as far as this worker knows."""
        collector = Collector(wanted)
        self.events = collector.events
        self.losses = list(loss_metrics(graph))
        self.hosts = {name: host for team, _ in teams for name, host in team.hosts.items()}
        self._teams = [i for i, (team, _) in enumerate(teams) if number in team.workers]
        mine = [teams[i][0] for i in self._teams]
        self._ends = [teams[i][1] for i in self._teams]
        self._first = [team.workers[0] == number for team in mine]
        self._most = share_of(places, len(mine))
        """Wave size, if workers cut waves."""
        self._parted = parted([team for team, _ in teams])
        self._played: list[int] = []
        self._reports: list[Report] = []
        self._asked: int | None = None
        """The token of an ASK note to be answered."""
        self._early: list[Frame] = []
        """Frames of other workers from a later era."""
        self.waves = self.played = 0
        """Waves and instances played; a wave of several workers is counted by the first of them."""
        self.player = make_player(
            graph,
            wiring,
            mine,
            number,
            schedule,
            seed + number,
            name=name,
            tell=self.tell,
            over=self._ended,
            wave_size=wave_size,
            precision=precision,
            announce=collector,
            clock=clock,
            hand=self._hand,
            equal=self._equal,
            carry=self._carry,
        )
        self.player.pulse = pulse
        table, order = (None, ()) if versions is None else versions
        self._versions = table
        self._versioned = [(order.index(n.name), n.updater) for n in self.player.updates.trains if n.name in order]
        share = max(1, -(-places * len(teams) // (2 * controller)))  # the controller comes after the workers
        self._predictions = None if prediction is None else Predictions(self, prediction, share, self._predicted)

    def rehearse(self, instances: Sequence[Instance], prepared: Planner | None) -> None:
        """Plan these instances before serving. ``prepared``: the planner of a worker with the same nodes, if each team
        has one worker."""
        for planner, ends in zip(self.player.planners, self._ends, strict=True):
            if prepared is not None and not planner.sites.parted:
                planner.take_over(prepared)
            else:
                with self._failing():
                    planner.rehearse(instances, ends)

    def serve(self) -> None:
        """Run the loop until the controller sends STOP, or is gone."""
        while not self.over:
            self.pulse[BEAT] += 1
            arrived = self.endpoint.receive()  # [1]
            for _, frame in arrived:
                self._take(frame)
            moved = not self.failed and self._turn()  # [2]
            if self._asked is not None:  # after the turn: a worker with new work is not idle
                self._answer(self._asked)
            self._tell_played(idle=not moved and not arrived)  # [3]
            if len(self.events) >= _EVENTS:
                self._tell_events()
            if self.endpoint.pending():  # [4]
                self.endpoint.flush()
            if not moved and not arrived:  # [5]
                self.pulse[IDLE] = 1
                self.endpoint.wait(_NAP)
                self.pulse[IDLE] = 0
                if os.getppid() != self.parent:
                    return

    def _turn(self) -> bool:
        moved = False
        with self._failing():
            moved = self.player.step(self._most)
            if not moved and self._predictions is not None:
                moved = self._predictions.step()
        self.steps += moved
        return moved

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """A context whose errors are sent to the controller."""
        try:
            with torch.no_grad():
                yield
        except Exception as error:
            self.failed = True
            self._send(self.controller, error_note(error, traceback.format_exc()))

    # -- sending

    def _send(self, to: int, frame: Note | Slice) -> None:
        if isinstance(frame, Slice):
            frame.era = self.era
        else:
            frame.data["era"] = self.era
        self.endpoint.send(to, frame)

    def _carry(self, to: int, given: Slice) -> None:
        self.sent += 1
        self._send(to, given)

    def _hand(self, token: Token) -> None:
        self.sent += 1
        to = self.hosts[self.graph.replicas[token.group].members[token.to]]
        self._send(to, token_note(token, self._carried(token.group)))

    def _carried(self, group: str) -> list[torch.Tensor]:
        """Returns the tensors that tokens of a group take along: none if the table is in shared memory."""
        table = self.graph.replicas[group].table
        return [] if self.shared or table is None else table.carried()

    def _equal(self, group: str, ended: int) -> None:
        self._send(self.controller, Note(Kind.EQUAL, {"group": group, "ended": ended}))

    def tell(self, report: Report) -> None:
        """Send the report of a loss or result to the controller; reports of training go with the instances played."""
        if report.train:
            self._reports.append(report)
        else:
            self._send(self.controller, report_note(report))

    def _ended(self, lot: Lot) -> None:
        """Called when a passage has ended on this worker."""
        self._played += lot.numbers
        self._note_versions()
        team = next(i for i, planner in enumerate(self.player.planners) if planner.sites is lot.sites)
        if self._first[team]:
            self.waves += 1
            self.played += len(lot.numbers)

    def _note_versions(self) -> None:
        table = self._versions
        if table is not None:
            for place, updater in self._versioned:
                table[place] = updater.version

    def _predicted(self, lot: Lot) -> None:
        """Called when a passage of predictions has ended."""
        self._played += lot.numbers
        self.waves += 1
        self.played += len(lot.numbers)

    def _waiting(self) -> int:
        return self.player.waiting() + (0 if self._predictions is None else self._predictions.waiting())

    def _tell_played(self, idle: bool) -> None:
        """Report played instances: at once if other workers play them too; else when they are as many as those that are
        still staged, so that one note is for half of the instances in flight."""
        if (self._played or self._reports) and (idle or self._parted or self._waiting() <= len(self._played)):
            played, self._played, reports, self._reports = self._played, [], self._reports, []
            self._send(self.controller, done_note(played, reports, self.losses))

    def _tell_events(self, token: int | None = None) -> None:
        if token is not None:
            self.player.updates.tell_work()
        if self.events or token is not None:
            note = events_note(self.events, token)
            self.events.clear()
            self._send(self.controller, note)

    # -- receiving

    def _take(self, frame: Frame) -> None:
        if isinstance(frame, Slice) or (isinstance(frame, Note) and frame.kind == Kind.TOKEN):
            era = frame.era if isinstance(frame, Slice) else frame.data["era"]
            if era > self.era:
                self._early.append(frame)
            elif era == self.era:
                self.received += 1
                if not self.failed:
                    with self._failing():
                        self._from_worker(frame)
        elif isinstance(frame, Note):
            self._hear(frame)

    def _from_worker(self, frame: Slice | Note) -> None:
        if isinstance(frame, Slice):
            self.player.take(frame)
        else:
            token = token_of(frame, self._carried(frame.data["group"]))
            self.player.updates.take_token(token, self.graph.replicas[token.group].members[token.to])

    def _hear(self, note: Note) -> None:
        kind = note.kind
        if kind == Kind.STOP:
            self.over = True
        elif kind == Kind.ABANDON:
            self._abandon(note.data["era"])
        elif kind == Kind.ASK:
            self._asked = note.data["token"]
        elif kind == Kind.SHOW:
            self._tell_events(note.data["token"])
        elif kind == Kind.SAVE:
            for state in state_notes(self.player.updates.trains, note.data["token"], note.data["weights"]):
                self._send(self.controller, state)
        elif kind == Kind.PEEK:
            self._send(self.controller, peek_note(self.player.updates.trains, note))
        elif kind == Kind.RATES:  # also after a failure: they hold for the next run as well
            for node in self.player.updates.trains:
                if node.name in note.data["rates"]:
                    node.updater.learning_rate = note.data["rates"][node.name]
        elif not self.failed:
            with self._failing():
                if kind == Kind.STAGE:
                    self._stage(note)
                elif kind == Kind.WEIGHTS:
                    take_weights(note, self.graph)
                elif kind == Kind.FLUSH:
                    self.player.flush()
                    self.ended += 1
                    self._note_versions()

    def _stage(self, note: Note) -> None:
        if note.data["predicts"]:
            assert self._predictions is not None
            self._predictions.stage(note)
            return
        team = self._teams.index(note.data["team"])
        instances = unpack(note, self.instances, self.inputs)
        sites, train, stream = self.player.planners[team].sites, note.data["train"], note.data["stream"]
        self.player.stage(Lot(sites, self._ends[team], instances, train, stream), note.data["wave"])

    def _abandon(self, era: int) -> None:
        self.era, self.failed = era, False
        self.sent = self.received = 0
        self._played, self._reports = [], []
        self.player.abandon()
        if self._predictions is not None:
            self._predictions.abandon()
        self.events.clear()
        early, self._early = self._early, []
        for frame in early:
            self._take(frame)

    def _answer(self, token: int) -> None:
        """Send counts and queues to the controller: at the end of a run, and to detect a stall."""
        player, predictions, self._asked = self.player, self._predictions, None
        held = player.held() | ({} if predictions is None else predictions.held())
        player.updates.tell_work()
        self._tell_events()
        for node in player.updates.trains:
            node.updater.sums.settle()  # so that the sums in shared memory are complete
        data: dict[str, Any] = {
            "token": token,
            "steps": self.steps,
            "sent": self.sent,
            "received": self.received,
            "held": held | ({"frames of a later era": len(self._early)} if self._early else {}),
            "waits": [*player.waits(), *player.updates.waits()],
            "operations": player.operations,
            "messages": player.messages,
            "waves": self.waves,
            "instances": self.played,
            "in_flight": max(player.most, 0 if predictions is None else predictions.most),
            "busy": player.busy + (0.0 if predictions is None else predictions.busy),
            "rates": {n.name: n.updater.learning_rate for n in player.updates.trains if n.updater.policy is not None},
            "versions": {node.name: node.updater.version for node in player.updates.trains},
        }
        self._send(self.controller, Note(Kind.ANSWER, data))


def make_quiet() -> None:
    """Hide CUDA: a forked process cannot use it once its maker has, and optimizers query it at every step."""
    torch.cuda.is_available = lambda: False
