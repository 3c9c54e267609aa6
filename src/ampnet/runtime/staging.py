"""Staging: sends pumped instances to the workers that play them.

    pumped ──by number──> team 0 ──cut──> wave 17 ──note──> worker 0, worker 1      the same waves in the same order
                          team 1 ──cut──> wave 18 ──note──> worker 2

Each worker of a team reports the instances it has played; an instance retires when all of them have. An instance is not
sent to a worker that hosts only copies that it does not go to. If every team has one worker only, instances are sent as
they come, and workers cut waves themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence

import numpy as np

from ampnet.errors import TransportError
from ampnet.instance import Instance
from ampnet.plan.team import Team
from ampnet.replicas.group import Copy
from ampnet.runtime.cutting import Cutter, Sort, copies_of, players_of, rules_of, size_of
from ampnet.runtime.known import Known
from ampnet.runtime.parcel import Fields, culprit, pack
from ampnet.runtime.transport import Note
from ampnet.state import Column


def parted(teams: Sequence[Team]) -> bool:
    """Whether any team has several workers."""
    return any(len(team.workers) > 1 for team in teams)


def share_of(places: int, teams: int = 1) -> int:
    """Returns the wave size of a worker that cuts waves by itself: half of its instances in flight, while the other
    half is staged. ``teams``: those that it has."""
    return max(1, -(-teams * places // 2))


class Staging:
    """Sends instances to the workers of their team."""

    def __init__(
        self,
        teams: Sequence[Team],
        copies: Mapping[str, Copy],
        places: int,
        wave_size: int | None,
        known: Known,
        inputs: Fields,
        send: Callable[[int, Note], None],
        *,
        predicts: bool = False,
    ) -> None:
        """``places``: the maximal number of instances of a team in flight. ``predicts``: for the prediction graph."""
        self._known, self._inputs, self._send, self._predicts = known, inputs, send, predicts
        self._parted = parted(teams)
        self._workers = [players_of(team, copies) if self._parted else [team.workers] for team in teams]
        """For each team, by the copies of nodes that an instance goes to: the workers that play it."""
        self._cutters = [
            Cutter(
                wave_size or size_of(len(team.workers), places),
                len(team.workers),
                places,
                rules_of(team, copies),
                copies_of(team, copies),
            )
            if self._parted
            else Cutter(None, 1, places)
            for team in teams
        ]
        self.waves = 0
        """The number of the last wave."""
        self.shares = (1, 1)
        """The number of copies that waves are distributed over, of nodes or of the whole model, and the wave size."""
        if self._parted and len(teams) == 1:
            self.shares = (copies_of(teams[0], copies), wave_size or size_of(len(teams[0].workers), places))
        elif not self._parted:
            updates = [rule.every for team in teams for rule in rules_of(team, copies)]  # no wave extends beyond one
            self.shares = (len(teams), min([wave_size or share_of(places), *updates]))

    def stage(self, instances: Mapping[int, Instance], train: bool, stream: int) -> list[int]:
        """Send instances, all of them for one team. Returns the number of workers that will play each."""
        number = next(iter(instances)) % len(self._cutters)
        self._cutters[number].add(instances, stream, train)
        self._send_waves(number, self._cutters[number].cut(full=True))
        players = self._workers[number]
        if len(players) == 1:
            return [len(players[0])] * len(instances)
        return [len(players[n % len(players)]) for n in instances]

    def pumped(self, coming: Container[int]) -> None:
        """Called when nothing more can be pumped now: sends the waves that are not full, if they should not wait.
        ``coming``: the streams that have more instances."""
        for number, cutter in enumerate(self._cutters):
            self._send_waves(number, cutter.cut(coming=coming))

    def _send_waves(self, number: int, waves: Iterable[tuple[Sort, Mapping[int, Instance]]]) -> None:
        players = self._workers[number]
        for sort, wave in waves:
            self.waves += 1
            wave_number = self.waves if self._parted else None
            where = {"team": number, "wave": wave_number, "predicts": self._predicts}
            note = pack(wave, sort, self._known, self._inputs, **where)
            try:
                for worker in players[sort.copy % len(players)]:
                    self._send(worker, note)
            except TransportError as error:
                raise culprit(note, error) from error

    def retired(self, instances: Column) -> None:
        """Called when these instances are not in flight any more."""
        for number, count in enumerate(np.bincount(instances % len(self._cutters)).tolist()):
            if count:
                self._cutters[number].retired(count)

    def flushed(self) -> None:
        """Called at the end of a training stream: nodes apply their remaining gradients."""
        for cutter in self._cutters:
            cutter.flushed()

    def clear(self) -> None:
        """Drop everything: nothing is in flight any more."""
        for cutter in self._cutters:
            cutter.clear()
