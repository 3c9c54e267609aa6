"""Rules over the event log about replicas (P9): equal after every synchronisation, and each message at one of them.

    round        1           2           3
    cell#1    --(d7)------(20)--------(e1)-->       a synchronisation: every member takes part once, and in the end
    cell#2    ----(d7)------(20)----(e1)---->       all have the same weights, so the same digest

The numbers of rounds show a member that was left out, or took part twice: they count without a gap over all runs of a
runtime, or restart after a Begin. If an instance goes to one replica as a whole, the instance determines the replica of
each message; otherwise a message is kept from its forward until its answer. For a wave: a replica is played in it only
if one of the instances is its own; and if one worker plays the whole wave, all instances are. With other routing, a log
of waves does not show the replica of a message.
"""

from __future__ import annotations

import numpy as np

from ampnet.events.log import (
    Backward,
    Begin,
    Event,
    Forward,
    Played,
    PortStates,
    Rest,
    Restart,
    Retire,
    Synced,
    Wave,
)
from ampnet.events.replicas import ReplicaGroup, groups_of
from ampnet.events.rules import Rule, Violation, words_of
from ampnet.events.staleness import Row, rows_of
from ampnet.events.waves import Key, WavesUnderWay, key_of, words_of_wave


class EqualReplicas(Rule):
    """P9, first half: all members take part in every round, once, and all are equal after it."""

    def __init__(self, found: list[Violation], complete: bool = True) -> None:
        super().__init__(found, complete)
        self._groups: dict[str, ReplicaGroup] = {}
        self._last: dict[str, int] = {}
        """The last round of each member."""
        self._begun: set[str] = set()
        """Members that have taken part in a round of this run."""
        self._open: dict[tuple[str, int], dict[str, int]] = {}
        """(group, round) -> digest of each member that took part, while others have not."""
        self._running = self._after_cut = False
        """Whether a run is in progress, and whether the one before it was interrupted."""

    def __call__(self, event: Event) -> None:
        match event:
            case Synced():
                self._synced(event)
            case Rest():
                self._settle()
                self._running = self._after_cut = False
            case Restart():
                self._open.clear()
                self._begun.clear()
                self._after_cut = True
            case Begin():
                self.close()
                self._groups = {group.node: group for group in groups_of(event.settings)}
                self._begun.clear()
                self._running = True
            case _:
                pass

    def _synced(self, event: Synced) -> None:
        group = self._groups.get(event.group)
        if group is None or event.node not in group.members:
            self.report("P9", f"node '{event.node}' was synchronised; it is no replica of a group '{event.group}'")
            return
        last = self._last.get(event.node, 0)
        anew = event.node not in self._begun and (event.round == 1 or self._after_cut)
        if event.round != last + 1 and not anew:
            self.report(
                "P9",
                f"node '{event.node}' calls its synchronisation {event.round} of group '{group.node}'; it is number "
                f"{last + 1}",
            )
        self._last[event.node] = event.round
        self._begun.add(event.node)
        if event.round > last or anew:
            self._join(event, group)
        self._drop_finished(group)

    def _join(self, event: Synced, group: ReplicaGroup) -> None:
        digests = self._open.setdefault((group.node, event.round), {})
        member, digest = next(iter(digests.items()), (event.node, event.digest))
        if event.digest != digest:
            self.report(
                "P9",
                f"synchronisation {event.round} of group '{group.node}' leaves node '{event.node}' with other weights "
                f"than '{member}': digest {event.digest}, not {digest}",
            )
        digests[event.node] = event.digest

    def _absent(self, group: str, number: int) -> list[str]:
        """Returns the members missing in a round. Not those in a later round: their numbers were reported."""
        digests = self._open[group, number]
        waited = [member for member in self._groups[group].members if member not in digests]
        return [member for member in waited if member not in self._begun or self._last[member] <= number]

    def _drop_finished(self, group: ReplicaGroup) -> None:
        for key in [key for key in self._open if key[0] == group.node and not self._absent(*key)]:
            del self._open[key]

    def _settle(self) -> None:
        for name, number in self._open:
            absent = ", ".join(f"'{member}'" for member in self._absent(name, number))
            self.report("P9", f"synchronisation {number} of group '{name}' was never finished: {absent} took no part")
        self._open.clear()

    def close(self) -> None:
        if self.complete:
            self._settle()
        elif self._running:
            self._after_cut = True  # its members may be in different rounds
        self._open.clear()
        self._running = False


class OneReplica(Rule):
    """P9, second half: no message visits two replicas. Pairing checks that its backward visits the same."""

    def __init__(self, found: list[Violation], complete: bool = True) -> None:
        super().__init__(found, complete)
        self._places: dict[str, tuple[ReplicaGroup, int]] = {}
        """Node -> its group, and its index in it."""
        self._held: dict[tuple[str, tuple[str, ...]], dict[Row, tuple[str, int]]] = {}
        """(group, fields) -> state -> the member that has it, and the number of messages with that state."""
        self._waves = WavesUnderWay()
        self._played: dict[Key, dict[str, int]] = {}
        """Wave -> replicas that were played in it, and the position of the first such event in the log."""
        self._hosts: dict[str, str] = {}
        """Replica -> the worker that plays it."""
        self._together = False
        """Whether one worker has all nodes."""

    def __call__(self, event: Event) -> None:
        match event:
            case Begin():
                groups = groups_of(event.settings)
                self._places = {m: (group, i) for group in groups for i, m in enumerate(group.members)}
                self._held.clear()
                self._waves.clear()
                self._played.clear()
                self._hosts.clear()
                self._together = event.settings.get("runtime") in ("inline", None)
            case Wave() if self._places:
                self._waves.begin(event)
            case Played() if self._places:
                self._note(event)
            case Retire() if self._places:
                gone = self._waves.retire(event.instances)
                for wave in gone:
                    self._check_wave(wave, sum(other.wave == wave.wave for other in gone) > 1)
            case Forward() if event.node in self._places:
                group, number = self._places[event.node]
                if group.by_instance:
                    self._check_instances(event, group, number)
                elif event.train:
                    self._forward(event, group)
                    self._answer(event.answered, group)
            case Backward() if event.node in self._places:
                self._answer(event.sent, self._places[event.node][0])
            case Restart():
                for some in (self._held, self._waves, self._played, self._hosts):
                    some.clear()
            case Rest():
                self._held.clear()
            case _:
                pass

    def _note(self, event: Played) -> None:
        """Record the replicas that are played."""
        played = self._played.setdefault(key_of(event), {})
        for node in set(event.nodes).intersection(self._places):
            played.setdefault(node, self.position)
            self._hosts[node] = event.worker

    def _check_wave(self, wave: Wave, parted: bool) -> None:
        """Check a wave whose instances have retired. ``parted``: several workers have played it."""
        key = key_of(wave)
        for node, position in sorted(self._played.pop(key, {}).items()):
            group, number = self._places[node]
            if not group.by_instance:
                continue
            owners = {i % len(group.members): i for i in reversed(wave.instances)}
            strange = [
                i
                for place, i in owners.items()
                if not self._together and not parted and self._hosts.get(group.members[place], "") != key[0]
            ]
            if number not in owners:
                strange = list(owners.values())
            if strange:
                first = min(strange)
                there = group.members[first % len(group.members)]
                self.report(
                    "P9",
                    f"node '{node}' is played in {words_of_wave(key)}, which holds instance {first}; in group "
                    f"'{group.node}' it belongs to '{there}'",
                    position,
                )

    def _check_instances(self, event: Forward, group: ReplicaGroup, number: int) -> None:
        belongs = event.received.column("instance") % len(group.members)
        strange = np.flatnonzero(belongs != number)
        if len(strange):
            there = group.members[int(belongs[strange[0]])]
            self.report(
                "P9",
                f"node '{event.node}' got {event.received.take(strange).describe()}; in group '{group.node}' it "
                f"belongs to '{there}'",
            )

    def _forward(self, event: Forward, group: ReplicaGroup) -> None:
        fields, rows = rows_of(event.received)
        held = self._held.setdefault((group.node, fields), {})
        strange: list[Row] = []
        for row in rows:
            holder, count = held.get(row, (event.node, 0))
            if holder != event.node:
                strange.append(row)
            held[row] = (holder, count + 1)
        if strange:
            self.report(
                "P9",
                f"node '{event.node}' got {words_of(fields, strange)}, which '{held[strange[0]][0]}' of the same group "
                f"'{group.node}' has and has not answered",
            )

    def _answer(self, answers: PortStates, group: ReplicaGroup) -> None:
        if group.by_instance:
            return
        for _, states in answers:
            fields, rows = rows_of(states)
            held = self._held.get((group.node, fields), {})
            for row in rows:
                holder, count = held.pop(row, ("", 0))
                if count > 1:
                    held[row] = (holder, count - 1)
