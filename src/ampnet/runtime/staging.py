"""Staging: pumped instances on their way to the workers that play them.

    pumped ──by number──> team 0 ──cut──> wave 17 ──note──> worker 0, worker 1      the same waves in the same order
                          team 1 ──cut──> wave 18 ──note──> worker 2

The workers of a team each say when they have played an instance; it retires when all of them have. A worker that hosts
nothing but copies that an instance does not go to hears nothing of it. Where every team has
one worker only, instances are sent as they come, and workers cut waves themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ampnet.errors import TransportError
from ampnet.instance import Instance
from ampnet.plan.team import Team
from ampnet.replicas.group import Copy
from ampnet.runtime.cutting import Cutter, copies_of, players_of, rules_of, size_of
from ampnet.runtime.known import Known
from ampnet.runtime.parcel import Fields, culprit, pack
from ampnet.runtime.transport import Note
from ampnet.state import Column


def parted(teams: Sequence[Team]) -> bool:
    """Whether any team has several workers."""
    return any(len(team.workers) > 1 for team in teams)


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
        """``places``: instances of a team in flight at most. ``predicts``: they are for the prediction graph."""
        self._known, self._inputs, self._send, self._predicts = known, inputs, send, predicts
        self._parted = parted(teams)
        self._workers = [players_of(team, copies) if self._parted else [team.workers] for team in teams]
        """Of each team, by the copies of nodes that an instance goes to: the workers that play it."""
        self._cutters = [
            Cutter(
                wave_size or size_of(team, places), len(team.workers), rules_of(team, copies), copies_of(team, copies)
            )
            if self._parted
            else Cutter(None, 1)
            for team in teams
        ]
        self._waves = 0
        self.shares = (1, 1)
        """Copies of nodes that waves are shared out among, and instances of a wave; not of the whole model."""
        if self._parted and len(teams) == 1:
            self.shares = (copies_of(teams[0], copies), wave_size or size_of(teams[0], places))

    def stage(self, instances: Mapping[int, Instance], train: bool, stream: int) -> list[int]:
        """Send instances, all of them for one team. Returns how many workers will play each."""
        number = next(iter(instances)) % len(self._cutters)
        self._cutters[number].add(instances, stream, train)
        self._send_waves(number)
        players = self._workers[number]
        return [len(players[n % len(players)]) for n in instances]

    def _send_waves(self, number: int) -> None:
        players = self._workers[number]
        for sort, wave in self._cutters[number].cut():
            self._waves += 1
            wave_number = self._waves if self._parted else None
            where = {"team": number, "wave": wave_number, "predicts": self._predicts}
            note = pack(wave, sort, self._known, self._inputs, **where)
            try:
                for worker in players[sort.copy % len(players)]:
                    self._send(worker, note)
            except TransportError as error:
                raise culprit(note, error) from error

    def retired(self, instances: Column) -> None:
        """These instances are not in flight any more."""
        for number, count in enumerate(np.bincount(instances % len(self._cutters)).tolist()):
            if count:
                self._cutters[number].retired(count)
                self._send_waves(number)

    def flushed(self) -> None:
        """A training stream is over, and nodes have been told to apply what they have."""
        for cutter in self._cutters:
            cutter.flushed()

    def clear(self) -> None:
        """Nothing is in flight any more."""
        for cutter in self._cutters:
            cutter.clear()
